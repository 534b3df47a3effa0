#!/bin/bash
# The GPU side on a machine with a CUDA device and no network: builds the CUDA tests and benchmarks alone, runs them.
#   tools/dev/gpu_run.sh test | bench | sanitize | all [arguments for the program]
# GPU_BIN=DIRECTORY: nothing is built, the programs are those there (built elsewhere for the same architecture).
# Logs and JSON go to $OUT, or build/gpu. A narrow wheel with CUDA for that machine's Python, and pytest, installed to .deps/python
# (pip install --target .deps/python), are tested with the torch that is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:-test}; shift || true
out=${OUT:-build/gpu}
mkdir -p "$out"

build() {
  deps=()
  [ -d .deps ] && deps=(-DNARROW_DEPS_DIR="$PWD/.deps")
  generator=(); command -v ninja > /dev/null && generator=(-G Ninja)
  cmake -B build/gpu "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DNARROW_CUDA=ON -DNARROW_CUDA_ARCHITECTURES=90a-real -DNARROW_BUILD_TOOLS=OFF \
    -DNARROW_WARNINGS_AS_ERRORS=OFF "${deps[@]}" > "$out/configure.log" 2>&1 || { tail -20 "$out/configure.log"; exit 1; }
  cmake --build build/gpu -j "$(nproc)" --target gpu_tests gpu_benches > "$out/build.log" 2>&1 ||
    { grep -E 'error|FAILED' -A5 "$out/build.log" | head -60; exit 1; }
}
bin=${GPU_BIN:-build/gpu/bin}
[ -n "${GPU_BIN:-}" ] || build

run_test() {
  local status=0
  for program in "$bin"/cuda_*test; do
    local name=${program##*/}
    "$program" --gtest_brief=1 "$@" > "$out/$name.log" 2>&1 || status=$?
    echo "$name:"
    grep -E 'FAILED|PASSED|SKIPPED|Failure' -A6 "$out/$name.log" | head -60
  done
  run_python || status=$?
  return $status
}
run_python() {
  export PYTHONPATH="$PWD/.deps/python${PYTHONPATH:+:$PYTHONPATH}"
  python3 -c "import narrow, pytest, torch" 2> /dev/null || { echo "python: not tested, narrow, pytest or torch is not there"; return 0; }
  python3 -m pytest -q tests/python/cuda_test.py 2>&1 | tee "$out/python.log" | tail -20
  return "${PIPESTATUS[0]}"
}
run_bench() {
  for program in "$bin"/bench_cuda_*; do
    local name=${program##*/bench_}
    "$program" --json "$out/$name.json" "$@" | tee "$out/$name.log"
  done
}
# Reduced: a few kernels of every kind at small sizes. The tools run side by side.
run_sanitize() {
  local small='CudaSmall.*:*GivenOuterScale*:*RequantizeAndFake*:*RangeAndHistogram*:*GraphReplay*:*EightStreams*'
  local fused='*NormsWithout*:*PairsOfRows*:*EveryPair*:CudaTraining.*:*GraphReplay*' status=0 jobs=()
  for tool in memcheck racecheck initcheck synccheck; do
    timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/cuda_test" --gtest_brief=1 --gtest_filter="${1:-$small}" \
      > "$out/$tool.cuda_test.log" 2>&1 & jobs+=($!)
    timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/cuda_fused_test" --gtest_brief=1 --gtest_filter="${1:-$fused}" \
      > "$out/$tool.cuda_fused_test.log" 2>&1 & jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || status=$?; done
  for log in "$out"/*check.*.log; do
    echo "$(basename "$log" .log): $(grep -E 'PASSED|FAILED' "$log" | tail -1) $(grep -E 'SUMMARY' "$log" | tail -1)"
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
