/// Integer products of the minimal library for AArch64 with SDOT: weights of 8 and of 4 bits.

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
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/minimal/bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = minimal_bodies<>();

}  // namespace narrow::dotprod
