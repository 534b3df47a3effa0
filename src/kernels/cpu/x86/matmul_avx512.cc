/// Products for AVX-512 with VNNI: 512-bit FMA, vpdpbusd, vpermps look-ups.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avx512 {
namespace {

constexpr std::int64_t kPrefetchBytes = 16384;  // into the second-level cache: the first level has few misses in flight to spare
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/x86/vec_avx512.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"
#include "kernels/cpu/x86/word_decoder.inl"
#include "kernels/cpu/matmul_gemv.inl"
#include "kernels/cpu/x86/byte_row.inl"
#include "kernels/cpu/x86/byte_sums.inl"
#include "kernels/cpu/x86/small_blocks.inl"
#include "kernels/cpu/x86/digits.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/x86/dot_loop.inl"
#include "kernels/cpu/matmul_bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = matmul_bodies<true, LoopTile, LoopTile>();

}  // namespace narrow::avx512
