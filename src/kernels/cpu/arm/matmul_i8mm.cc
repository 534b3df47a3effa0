/// Integer products for AArch64 with USDOT, the mixed-sign dot product of the I8MM extension.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

#define NARROW_DOT_USDOT

namespace narrow::i8mm {
namespace {

constexpr std::int64_t kPrefetchBytes = 1024;

#include "kernels/cpu/arm/vec_neon.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = NARROW_MATMUL_DOT_BODIES;

}  // namespace narrow::i8mm
