#!/bin/sh
# Copies the header-only libraries of the core into .deps, for a machine that can install nothing:
#   tools/dev/carry_headers.sh && cmake -B build/gpu -DNARROW_DEPS_DIR=$PWD/.deps
set -eu
cd "$(dirname "$0")/../.."
mkdir -p .deps
for part in fmt nlohmann CLI eigen3 xxhash.h; do
  [ -e "/usr/include/$part" ] || { echo "missing: /usr/include/$part (make setup installs it)" >&2; exit 1; }
  rm -rf ".deps/$part"
  cp -rL "/usr/include/$part" .deps/
done
if [ -d /usr/src/googletest ]; then rm -rf .deps/googletest && cp -rL /usr/src/googletest .deps/googletest; fi
du -sh .deps | cut -f1
