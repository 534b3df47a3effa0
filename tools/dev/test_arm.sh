#!/usr/bin/env bash
# Cross-compiles the library for AArch64 and runs the tests of its kernels under qemu: NEON, dot products and i8mm.
# What does not depend on the instruction set (files, recipes, the command) is tested on the host alone.
# SWEEP=all: nothing but all 2^32 inputs through every format, of which the tests take one run of 65,536 in 256.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-2}
tests=(format_codec_test format_packing_test kernels_matmul_test kernels_msfp_test kernels_quantize_test ops_ambient_state_test ops_binary_test
  ops_fused_test ops_matmul_test ops_quantize_test)
cmake --preset arm > /dev/null
sweep() { NARROW_SWEEP_STEP=$1 ctest --test-dir build/arm -R '^format_sweep_test$' --output-on-failure --timeout 36000; }
cmake --build --preset arm -j "$jobs" --target "${tests[@]}" format_sweep_test
if [ "${SWEEP:-}" = all ]; then sweep 1; exit; fi
NARROW_EMULATED=1 ctest --preset arm -j "$jobs" -R "^($(IFS='|'; echo "${tests[*]}"))(_[0-9]+_of_[0-9]+)?\$"
sweep 256
