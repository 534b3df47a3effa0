/// Products for AVX2 and FMA.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avx2 {
namespace {

constexpr std::int64_t kPrefetchBytes = 4096;

#include "kernels/cpu/x86/vec_avx2.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = NARROW_MATMUL_BODIES;

}  // namespace narrow::avx2
