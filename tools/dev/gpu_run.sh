#!/bin/bash
# The GPU side on a machine with a CUDA device and no network: builds the CUDA tests and benchmarks alone, runs them.
#   tools/dev/gpu_run.sh test | bench | sanitize | all [arguments for the program]
# Logs and JSON go to $OUT, or build/gpu.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:-test}; shift || true
out=${OUT:-build/gpu}
mkdir -p "$out"

deps=()
[ -d .deps ] && deps=(-DNARROW_DEPS_DIR="$PWD/.deps")
generator=(); command -v ninja > /dev/null && generator=(-G Ninja)
cmake -B build/gpu "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DNARROW_CUDA=ON -DNARROW_CUDA_ARCHITECTURES=90a-real -DNARROW_BUILD_TOOLS=OFF \
  -DNARROW_WARNINGS_AS_ERRORS=OFF "${deps[@]}" > "$out/configure.log" 2>&1 || { tail -20 "$out/configure.log"; exit 1; }
cmake --build build/gpu -j "$(nproc)" --target cuda_test bench_cuda_memory_bound > "$out/build.log" 2>&1 || { grep -E 'error|FAILED' -A5 "$out/build.log" | head -60; exit 1; }
bin=build/gpu/bin

run_test() {
  "$bin/cuda_test" --gtest_brief=1 "$@" > "$out/test.log" 2>&1 && status=0 || status=$?
  grep -E 'FAILED|PASSED|SKIPPED|Failure' -A6 "$out/test.log" | head -60
  return $status
}
run_bench() { "$bin/bench_cuda_memory_bound" --json "$out/cuda_memory_bound.json" "$@" | tee "$out/bench.log"; }
run_sanitize() {
  local status=0
  for tool in memcheck racecheck initcheck synccheck; do
    timeout 200 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/cuda_test" --gtest_brief=1 \
      --gtest_filter="${1:-CudaSmall.*:*GivenOuterScale*:*RequantizeAndFake*:*RangeAndHistogram*:*EveryPair*:*GraphReplay*:*EightStreams*}" > "$out/$tool.log" 2>&1 || status=$?
    echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.log" | tail -1)"
  done
  return $status
}

case $mode in
  test) run_test "$@" ;;
  bench) run_bench "$@" ;;
  sanitize) run_sanitize "$@" ;;
  all) run_test "$@" || echo "tests failed"; run_bench ;;
  *) echo "usage: tools/dev/gpu_run.sh test | bench | sanitize | all" >&2; exit 2 ;;
esac
