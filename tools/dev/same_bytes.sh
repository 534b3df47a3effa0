#!/usr/bin/env bash
# The golden hashes of tests/same_bytes, made by other compilers at other optimisation levels: g++ and clang++, -O0 and -O3.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-$(nproc)}
for compiler in g++ clang++; do
  for level in O0 O3; do
    place=build/same-bytes/$compiler-$level
    cmake -S . -B "$place" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=$compiler -DCMAKE_CXX_FLAGS="-$level" -DNARROW_CUDA=OFF \
      -DNARROW_BUILD_TOOLS=OFF -DNARROW_BUILD_BENCHMARKS=OFF > /dev/null
    cmake --build "$place" -j "$jobs" --target same_bytes > /dev/null
    echo "$compiler -$level"
    "$place/bin/same_bytes" tests/same_bytes/golden.txt examples
  done
done
