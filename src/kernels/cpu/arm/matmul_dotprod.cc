/// Products for AArch64 with SDOT: of integers, and one row of fp32 by digits.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::dotprod {
namespace {

constexpr std::int64_t kPrefetchBytes = 1024;
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/arm/vec_neon.inl"
#include "kernels/cpu/arm/dot_sdot.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"

using Float6Decoder = FloatDecoder<6>;

#include "kernels/cpu/matmul_gemv.inl"
#include "kernels/cpu/digit_codes.inl"
#include "kernels/cpu/arm/digits_sdot.inl"
#include "kernels/cpu/digit_row.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/matmul_bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = with_digit_rows(matmul_bodies<false>());

}  // namespace narrow::dotprod
