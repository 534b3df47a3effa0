#!/usr/bin/env bash
# Reads of memory that was never written, which the sanitizers of the other runs do not see: memory_check.sh [INPUTS]
# 1. The memory sanitizer over the seeds of eight fuzz targets and INPUTS (100,000) mutations of them. libstdc++ is not compiled with it: its headers are,
#    and fuzz/memory_sanitizer.cc says what the few functions outside of them write. OpenMP's pragmas are left out. Recipes need yaml-cpp, which is not.
# 2. Every committed seed of every target under valgrind.
set -euo pipefail
cd "$(dirname "$0")/../.."
inputs=${1:-100000}
command -v valgrind > /dev/null || { echo "valgrind is not there: apt-get install valgrind"; exit 1; }
export OMP_NUM_THREADS=1
common=(-G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=clang++ -DNARROW_CUDA=OFF -DNARROW_CPU_KERNELS=OFF -DNARROW_BUILD_TESTS=OFF
  -DNARROW_BUILD_TOOLS=OFF -DNARROW_BUILD_BENCHMARKS=OFF -DNARROW_BUILD_FUZZERS=ON)

place=build/msan
sanitized="config gguf interop manifest safetensors_header scheme shard_index tokenizer"
mkdir -p "$place"
cmake -S . -B "$place" "${common[@]}" -DCMAKE_CXX_FLAGS="-O1 -gline-tables-only -Wno-unknown-pragmas" -DNARROW_SANITIZE=memory \
  -DOpenMP_CXX_FLAGS=-fno-openmp -DOpenMP_CXX_LIB_NAMES=omp -DOpenMP_omp_LIBRARY="$(llvm-config --libdir 2> /dev/null || echo /usr/lib/llvm-14/lib)/libomp.so" > /dev/null
cmake --build "$place" --target $(printf 'fast_%s ' $sanitized) > "$place/build.log" || { cat "$place/build.log"; exit 1; }
for name in $sanitized; do
  NARROW_FUZZ_LONGEST=512 NARROW_FUZZ_DICTIONARY=fuzz/dictionaries/fuzz_$name "$place/bin/fast_$name" "$inputs" "fuzz/corpus/fuzz_$name" \
    > "$place/$name.log" 2>&1 || { cat "$place/$name.log"; exit 1; }
  echo "$name, memory sanitizer: $(cat "$place/$name.log"), no report"
done

place=build/memory
cmake -S . -B "$place" "${common[@]}" -DCMAKE_CXX_FLAGS="-O1 -g1" > /dev/null
cmake --build "$place" --target fuzzers > "$place/build.log" || { cat "$place/build.log"; exit 1; }
for target in "$place"/bin/fuzz_*; do
  name=$(basename "$target")
  valgrind -q --error-exitcode=9 "$target" -runs=0 -rss_limit_mb=0 "fuzz/corpus/$name" > "$place/$name.log" 2>&1 ||
    { cat "$place/$name.log"; exit 1; }
  echo "$name, valgrind: $(find "fuzz/corpus/$name" -type f | wc -l) seeds, no report"
done
