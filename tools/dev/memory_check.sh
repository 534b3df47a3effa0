#!/usr/bin/env bash
# Every committed seed of every fuzz target once under valgrind: reads of memory that was never written, which the sanitizers of the other runs do
# not see. It stands in for the memory sanitizer, for which libstdc++, yaml-cpp and OpenMP's runtime would have to be built too.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v valgrind > /dev/null || { echo "valgrind is not there: apt-get install valgrind"; exit 1; }
place=build/memory
cmake -S . -B "$place" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g1" -DCMAKE_CXX_COMPILER=clang++ -DNARROW_CUDA=OFF \
  -DNARROW_CPU_KERNELS=OFF -DNARROW_BUILD_TESTS=OFF -DNARROW_BUILD_TOOLS=OFF -DNARROW_BUILD_BENCHMARKS=OFF -DNARROW_BUILD_FUZZERS=ON > /dev/null
cmake --build "$place" --target fuzzers > "$place/build.log" || { cat "$place/build.log"; exit 1; }
for target in "$place"/bin/fuzz_*; do
  name=$(basename "$target")
  OMP_NUM_THREADS=1 valgrind -q --error-exitcode=9 "$target" -runs=0 -rss_limit_mb=0 "fuzz/corpus/$name" > "$place/$name.log" 2>&1 ||
    { cat "$place/$name.log"; exit 1; }
  echo "$name: $(find "fuzz/corpus/$name" -type f | wc -l) seeds, no report"
done
