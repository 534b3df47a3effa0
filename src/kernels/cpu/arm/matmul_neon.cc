/// Products for AArch64: NEON FMA, TBL look-ups, widening multiplies.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::neon {
namespace {

constexpr std::int64_t kPrefetchBytes = 1024;

#include "kernels/cpu/arm/vec_neon.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = NARROW_MATMUL_BODIES;

}  // namespace narrow::neon
