#!/usr/bin/env bash
# Small builds, and their sizes: the minimal library, used by a consumer that has narrow in its tree; with --command also the command for AArch64, static and
# stripped, run under qemu beside this machine's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${JOBS:-2}
largest_library=300000 largest_command=6000000

too_large() { [ "$(stat -c %s "$1")" -le "$2" ] || { echo "edge: $1 has $(stat -c %s "$1") bytes; at most $2 are allowed" >&2; exit 1; }; }

if [ "${1:-}" != --command-alone ]; then
  cmake -S tests/install/subdirectory -B build/minimal -G Ninja -DCMAKE_BUILD_TYPE=Release -DNARROW_MINIMAL=ON > /dev/null
  cmake --build build/minimal -j "$jobs" > /dev/null
  strip -o build/minimal/libnarrow.stripped "$(readlink -f build/minimal/narrow/src/libnarrow.so)"
  too_large build/minimal/libnarrow.stripped $largest_library
  build/minimal/minimal_consumer
  echo "edge: add_subdirectory works; the minimal library has $(stat -c %s build/minimal/libnarrow.stripped) bytes"
fi

[[ ${1:-} == --command* ]] || exit 0
cmake --preset edge > /dev/null
cmake --build --preset edge -j "$jobs" --target narrow_command
aarch64-linux-gnu-strip -o build/edge/narrow build/edge/bin/narrow
too_large build/edge/narrow $largest_command
! aarch64-linux-gnu-readelf -d build/edge/narrow | grep NEEDED || { echo "edge: the command needs libraries" >&2; exit 1; }

narrow=(qemu-aarch64 -cpu max build/edge/narrow)
host=build/release/bin/narrow
model=examples/docs-llama-13m
folder=$(mktemp -d build/edge-test.XXXXXX)
trap 'rm -rf "$folder"' EXIT
"${narrow[@]}" --version
for name in "" fp6_e3m2 nvfp4; do cmp <("${narrow[@]}" formats $name --json) <("$host" formats $name --json); done
for scheme in int4:block128 nvfp4; do
  "${narrow[@]}" quantize $model "$folder/arm" $scheme --quiet
  "${narrow[@]}" verify "$folder/arm"
  "$host" quantize $model "$folder/host" $scheme --quiet
  for file in "$folder"/host/*.safetensors; do cmp "$file" "$folder/arm/$(basename "$file")"; done
  evaluate=(eval "$folder/arm" --text README.md --length 64 --windows 1 --json)
  "${narrow[@]}" "${evaluate[@]}" > "$folder/arm.json"
  "$host" "${evaluate[@]}" > "$folder/host.json"
  python3 - "$folder/arm.json" "$folder/host.json" << 'PYTHON'
import json
import sys

arm, host = (json.load(open(path))["perplexity"] for path in sys.argv[1:])
print(f"perplexity {arm:.4f}, on this machine {host:.4f}")
sys.exit(abs(arm / host - 1) > 1e-3)  # sums of fp32 are of another order
PYTHON
  rm -rf "$folder/arm" "$folder/host"
done
"${narrow[@]}" generate $model -p "To install the package, run" -n 4
"${narrow[@]}" doctor --seconds 600
if "${narrow[@]}" eval $model --text README.md --device cuda 2> "$folder/error"; then exit 1; fi
grep -q CUDA "$folder/error"
echo "edge: the command for AArch64 has $(stat -c %s build/edge/narrow) bytes and writes the same bytes as this machine's"
