#!/usr/bin/env bash
# Builds the library and the command twice, from two copies of the tracked files in folders of different names, without a compiler cache, and
# compares the bytes. Arguments after the number of jobs go to CMake (-DNARROW_CPU_KERNELS=OFF makes it short).
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-$(nproc)}
shift || true
place=build/reproducible
rm -rf "$place"
for copy in one another/longer-name; do
  mkdir -p "$place/$copy"
  git ls-files -z | tar --null --files-from=- -c | tar -x -C "$place/$copy"
  (cd "$place/$copy" && cmake -S . -B out -G Ninja -DCMAKE_BUILD_TYPE=Release -DNARROW_CUDA=OFF -DNARROW_BUILD_TESTS=OFF \
    -DNARROW_BUILD_BENCHMARKS=OFF "$@" > /dev/null && CCACHE_DISABLE=1 cmake --build out -j "$jobs" --target narrow_command > /dev/null)
done
for file in src/libnarrow.a bin/narrow; do
  if ! cmp "$place/one/out/$file" "$place/another/longer-name/out/$file"; then
    echo "reproducible: $file differs"
    exit 1
  fi
  sha256sum "$place/one/out/$file" | sed "s|$place/one/out/||"
done
echo "reproducible: the same bytes from two places"
