#!/usr/bin/env bash
# Cross-compiles the kernels for AArch64 and runs their tests under qemu, where both are installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${1:-2}
cmake --preset arm > /dev/null
cmake --build --preset arm -j "$jobs"
ctest --preset arm -j "$jobs"
