#!/usr/bin/env bash
# Builds the libFuzzer targets with the address and undefined-behaviour sanitizers and runs each for a while: fuzz.sh SECONDS [TARGET ...].
# What they find is kept in build/fuzz/corpus. The first input that breaks something ends the run and is left there as crash-*.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-30}
shift || true
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -gline-tables-only" -DCMAKE_CXX_COMPILER=clang++ \
  -DNARROW_CUDA=OFF -DNARROW_CPU_KERNELS=OFF -DNARROW_BUILD_TESTS=OFF -DNARROW_BUILD_TOOLS=OFF -DNARROW_BUILD_BENCHMARKS=OFF \
  -DNARROW_BUILD_FUZZERS=ON -DNARROW_SANITIZE=address,undefined,float-cast-overflow > /dev/null
cmake --build build/fuzz --target fuzzers
for target in build/fuzz/bin/fuzz_*; do
  name=$(basename "$target")
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  found=build/fuzz/corpus/$name
  mkdir -p "$found"
  echo "$name: $seconds seconds"
  "$target" -dict="fuzz/dictionaries/$name" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=1024 -artifact_prefix="$found/" \
    -print_final_stats=1 -verbosity=0 "$found" "fuzz/corpus/$name" 2>&1 | { grep -vE '^(INFO|Dictionary)|^stat::(new_units|slowest|peak)' || true; }
done
