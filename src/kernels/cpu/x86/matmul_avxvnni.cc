/// Integer products for AVX2 with AVX-VNNI: the dot products of AVX-512 VNNI on processors without AVX-512.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avxvnni {
namespace {

constexpr std::int64_t kPrefetchBytes = 16384;  // into the second-level cache: the first level has few misses in flight to spare
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/x86/vec_avx2.inl"
#include "kernels/cpu/x86/dot_avxvnni.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"

using Float6Decoder = FloatDecoder<6>;

#include "kernels/cpu/matmul_gemv.inl"
#include "kernels/cpu/matmul_float.inl"
#include "kernels/cpu/matmul_integer.inl"
#include "kernels/cpu/matmul_bodies.inl"

}  // namespace

const cpu::MatmulBodies kMatmulBodies = matmul_bodies<false>();

}  // namespace narrow::avxvnni
