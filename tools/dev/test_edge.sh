#!/usr/bin/env bash
# Small builds, and their sizes: the minimal library, used by a consumer that has narrow in its tree; with --command also the command for AArch64, static and
# stripped, run under qemu.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${JOBS:-2}
largest_library=300000 largest_command=6000000

too_large() { [ "$(stat -c %s "$1")" -le "$2" ] || { echo "edge: $1 has $(stat -c %s "$1") bytes; at most $2 are allowed" >&2; exit 1; }; }

cmake -S tests/install/subdirectory -B build/minimal -G Ninja -DCMAKE_BUILD_TYPE=Release -DNARROW_MINIMAL=ON > /dev/null
cmake --build build/minimal -j "$jobs" > /dev/null
strip -o build/minimal/libnarrow.stripped "$(readlink -f build/minimal/narrow/src/libnarrow.so)"
too_large build/minimal/libnarrow.stripped $largest_library
build/minimal/minimal_consumer
echo "edge: add_subdirectory works; the minimal library has $(stat -c %s build/minimal/libnarrow.stripped) bytes"

[ "${1:-}" = --command ] || exit 0
cmake --preset arm -B build/edge -DCMAKE_BUILD_TYPE=MinSizeRel -DCMAKE_CXX_FLAGS="-ffunction-sections -fdata-sections" \
  -DNARROW_BUILD_TOOLS=ON -DNARROW_BUILD_TESTS=OFF -DNARROW_STATIC_COMMAND=ON > /dev/null
cmake --build build/edge -j "$jobs" --target narrow_command
aarch64-linux-gnu-strip -o build/edge/narrow build/edge/bin/narrow
too_large build/edge/narrow $largest_command
narrow=(qemu-aarch64 -cpu max build/edge/narrow)
folder=$(mktemp -d build/edge-test.XXXXXX)
trap 'rm -rf "$folder"' EXIT
"${narrow[@]}" --version
"${narrow[@]}" quantize examples/docs-llama-13m "$folder/arm" int4:block128 --quiet
"${narrow[@]}" verify "$folder/arm"
build/release/bin/narrow quantize examples/docs-llama-13m "$folder/host" int4:block128 --quiet
for file in "$folder"/host/*.safetensors; do cmp "$file" "$folder/arm/$(basename "$file")"; done
echo "edge: the command for AArch64 has $(stat -c %s build/edge/narrow) bytes and writes the same bytes as this machine's"
