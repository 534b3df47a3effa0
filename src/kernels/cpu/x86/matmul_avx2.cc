/// Products for AVX2 and FMA.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avx2 {
namespace {

constexpr std::int64_t kPrefetchBytes = 16384;  // into the second-level cache: the first level has few misses in flight to spare
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/x86/vec_avx2.inl"
#include "kernels/cpu/x86/dot_words_avx2.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"

using Float6Decoder = FloatDecoder<6>;

#include "kernels/cpu/matmul_gemv.inl"
#include "kernels/cpu/digit_codes.inl"
#include "kernels/cpu/x86/digits_avx2.inl"
#include "kernels/cpu/digit_row.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/x86/code_tile_avx2.inl"
#include "kernels/cpu/matmul_bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = matmul_bodies<true, CodeTile>();

}  // namespace narrow::avx2
