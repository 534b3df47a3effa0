#!/usr/bin/env bash
# Builds the fuzz targets with the address and undefined-behaviour sanitizers and runs each for a while: fuzz.sh SECONDS [TARGET ...], with
# libFuzzer; fuzz.sh --many EXECUTIONS [TARGET ...], with the quicker driver of our own, one process per core (fuzz/driver.cc).
# The target onnx, which is read in Python, has its own driver for both (fuzz/onnx_fuzz.py) and is run where the package is built.
# What they find is kept in build/fuzz/corpus. The first input that breaks something ends the run and is left there: crash-* or *.input.
set -euo pipefail
cd "$(dirname "$0")/../.."
many=0
if [ "${1:-}" = --many ]; then many=$2; shift; fi
seconds=${1:-30}
shift || true
if [ "$*" != onnx ]; then
  cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=clang++ \
    -DCMAKE_CXX_FLAGS="-O2 -gline-tables-only -fsanitize-trap=undefined,float-cast-overflow" \
    -DNARROW_CUDA=OFF -DNARROW_CPU_KERNELS=OFF -DNARROW_BUILD_TESTS=OFF -DNARROW_BUILD_TOOLS=OFF -DNARROW_BUILD_BENCHMARKS=OFF \
    -DNARROW_BUILD_FUZZERS=ON -DNARROW_SANITIZE=address,undefined,float-cast-overflow > /dev/null
  cmake --build build/fuzz --target $([ "$many" -gt 0 ] && echo fast_fuzzers || echo fuzzers)
fi
# Memory that was freed stays apart for 128 KB of others, more than most inputs take in all and what a core's own cache holds; stacks are not
# recorded: a crash is run again for them.
export OMP_NUM_THREADS=1
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=0:thread_local_quarantine_size_kb=128:max_redzone=16:max_malloc_fill_size=0
# The longest input of each: what a document with everything in it needs.
declare -A longest=([scheme]=72 [shard_index]=256 [safetensors_header]=320 [recipe]=320 [tokenizer]=384 [config]=448 [interop]=448
  [manifest]=640 [gguf]=640)
for name in $(printf '%s\n' "${!longest[@]}" | sort); do
  if [ $# -gt 0 ] && [[ " $* " != *" fuzz_$name "* && " $* " != *" $name "* ]]; then continue; fi
  found=build/fuzz/corpus/fuzz_$name
  mkdir -p "$found"
  if [ "$many" -gt 0 ]; then
    cores=$(env -u OMP_NUM_THREADS nproc)
    echo "$name: $many inputs on $cores cores"
    export NARROW_FUZZ_LONGEST=${longest[$name]} NARROW_FUZZ_DICTIONARY=fuzz/dictionaries/fuzz_$name NARROW_FUZZ_KEEP=$found
    seq "$cores" | xargs -P "$cores" -I START build/fuzz/bin/fast_"$name" $((many / cores)) "fuzz/corpus/fuzz_$name" START
  else
    echo "$name: $seconds seconds"
    build/fuzz/bin/fuzz_"$name" -dict="fuzz/dictionaries/fuzz_$name" -max_len="${longest[$name]}" -max_total_time="$seconds" -timeout=5 \
      -rss_limit_mb=1024 -artifact_prefix="$found/" -print_final_stats=1 -verbosity=0 "$found" "fuzz/corpus/fuzz_$name" 2>&1 \
      | { grep -vE '^(INFO|Dictionary)|^stat::(new_units|slowest|peak)' || true; }
  fi
done
if [ -d build/python ] && { [ $# -eq 0 ] || [[ " $* " == *" onnx "* ]]; }; then
  found=build/fuzz/corpus/onnx
  mkdir -p "$found"
  export PYTHONPATH=build/python
  if [ "$many" -gt 0 ]; then
    cores=$(env -u OMP_NUM_THREADS nproc)
    echo "onnx: $many inputs on $cores cores"
    seq "$cores" | xargs -P "$cores" -I START .venv/bin/python fuzz/onnx_fuzz.py --runs $((many / cores)) --start START --keep "$found" \
      --crashes "$found"
  else
    echo "onnx: $seconds seconds"
    .venv/bin/python fuzz/onnx_fuzz.py --seconds "$seconds" --keep "$found" --crashes "$found"
  fi
fi
