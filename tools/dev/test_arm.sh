#!/usr/bin/env bash
# Cross-compiles the library for AArch64 and runs the tests of its kernels under qemu: NEON, dot products and i8mm.
# What does not depend on the instruction set (files, recipes, the command) is tested on the host alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-2}
tests=(format_codec_test format_packing_test kernels_matmul_test kernels_msfp_test kernels_quantize_test ops_ambient_state_test ops_binary_test
  ops_fused_test ops_matmul_test ops_quantize_test)
cmake --preset arm > /dev/null
cmake --build --preset arm -j "$jobs" --target "${tests[@]}"
NARROW_EMULATED=1 ctest --preset arm -j "$jobs" -R "^($(IFS='|'; echo "${tests[*]}"))(_[0-9]+_of_[0-9]+)?\$"
