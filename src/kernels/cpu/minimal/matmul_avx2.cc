/// Integer products of the minimal library for AVX2: weights of 8 and of 4 bits.

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

constexpr std::int64_t kPrefetchBytes = 16384;
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/x86/vec_avx2.inl"
#include "kernels/cpu/x86/dot_words_avx2.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/x86/code_tile_avx2.inl"
#include "kernels/cpu/minimal/bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = minimal_bodies<CodeTile>();

}  // namespace narrow::avx2
