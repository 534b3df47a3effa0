#!/usr/bin/env bash
# Installs what narrow needs and does not find: Debian packages (as root) and a .venv with Python packages.
# `setup.sh command` installs only what the library and the command are built with, and no .venv.
# The second time it does nothing. Without root it names what is missing in one line.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libxxhash-dev libcli11-dev libyaml-cpp-dev libeigen3-dev)  # the library and the command
others=(ccache pkg-config dpkg-dev python3 python3-venv python3-dev
  libgtest-dev libgmock-dev googletest librapidcheck-dev libbenchmark-dev              # tests and benchmarks
  zsh fish                                                                             # whose completions are tested, beside bash
  chromium                                                                             # opens the report page in its test
  libopenblas-dev libdnnl-dev                                                          # peers in the benchmarks
  g++-aarch64-linux-gnu qemu-user                                                      # the ARM leaves
  clang clang-format clang-tidy libclang-rt-14-dev libomp-dev)                         # fuzzing and checks
requirements=tools/dev/requirements.txt
what=${1:-everything}
[ "$what" = command ] || packages+=("${others[@]}")

stamp=.venv/setup.$(cat "$0" "$requirements" | cksum | cut -d' ' -f1)
[ -e "$stamp" ] && exit 0

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: missing packages, install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

[ "$what" = command ] && exit 0
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --no-compile --requirement "$requirements"  # most of their modules are never imported
rm -f .venv/setup.*
touch "$stamp"
echo "setup: done"
