/// bf16 x bf16 for AVX-512 with BF16: register tiles of 6 rows x 64 outputs, two k a step (VDPBF16PS), sums in fp32.
/// A panel of 16-bit codes holds two neighbouring k in a lane: the instruction reads it as it lies, nothing is decoded.
/// Bound: arithmetic; VDPBF16PS reads and writes subnormal numbers as zero, all else is within the bound of reference/matmul.cc.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avx512bf16 {
namespace {

#include "kernels/cpu/matmul_epilogue.inl"

constexpr int kRows = 6, kParts = 4, kLanes = 64;
constexpr std::int64_t kTile = 240;

/// sums[r][64] = x[r] . w over all k; rows of sums are sums_stride apart.
template <int kCount>
void tile(const std::uint16_t* x, std::int64_t stride, const std::byte* panel, std::int64_t pairs, float* sums, std::int64_t sums_stride) {
  __m512 sum[kCount][kParts];
  for (int r = 0; r < kCount; ++r)
    for (int p = 0; p < kParts; ++p) sum[r][p] = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < pairs; ++i, panel += kLanes * 4) {
    __m512bh w[kParts];
    for (int p = 0; p < kParts; ++p) w[p] = (__m512bh)_mm512_loadu_si512(panel + 64 * p);
    for (int r = 0; r < kCount; ++r) {
      std::int32_t pair;
      __builtin_memcpy(&pair, x + r * stride + 2 * i, 4);
      const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
      for (int p = 0; p < kParts; ++p) sum[r][p] = _mm512_dpbf16_ps(sum[r][p], a, w[p]);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int p = 0; p < kParts; ++p) _mm512_storeu_ps(sums + r * sums_stride + 16 * p, sum[r][p]);
}

template <int kCount = kRows>
void tile_of(int count, const std::uint16_t* x, std::int64_t stride, const std::byte* panel, std::int64_t pairs, float* sums,
             std::int64_t sums_stride) {
  if constexpr (kCount > 1)
    if (count < kCount) return tile_of<kCount - 1>(count, x, stride, panel, pairs, sums, sums_stride);
  tile<kCount>(x, stride, panel, pairs, sums, sums_stride);
}

std::size_t scratch_bytes(const MatmulProblem&) { return kRows * kLanes * sizeof(float); }

void run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  cpu::Bf16Task task;
  __builtin_memcpy(&task, packed, sizeof task);
  const auto* x = reinterpret_cast<const std::uint16_t*>(packed + cpu::kBf16Rows);
  const std::byte* panel = reinterpret_cast<const std::byte*>(problem.w.codes) + part.n_begin / kLanes * task.panel_bytes;
  float* sums = reinterpret_cast<float*>(scratch);
  const MatmulEpilogue& epilogue = problem.epilogue;
  // Where nothing follows the sums of a whole panel, they go straight to y.
  const bool direct = part.n_end - part.n_begin == kLanes && epilogue.bias == nullptr && epilogue.residual == nullptr &&
                      epilogue.activation == Activation::kNone && epilogue.out == DType::kF32;
  for (std::int64_t m = part.m_begin; m < part.m_end; m += kRows) {
    const int count = static_cast<int>(part.m_end - m < kRows ? part.m_end - m : kRows);
    if (direct) sums = static_cast<float*>(epilogue.y) + m * epilogue.y_stride + part.n_begin;
    tile_of(count, x + m * task.x_stride, task.x_stride, panel, task.groups * 16, sums, direct ? epilogue.y_stride : kLanes);
    if (direct) continue;
    for (int r = 0; r < count; ++r)
      finish_row(epilogue, m + r, part.n_begin, static_cast<int>(part.n_end - part.n_begin), sums + r * kLanes);
  }
}

}  // namespace

const cpu::MatmulRun kBf16 = run;
const cpu::MatmulScratch kBf16Scratch = scratch_bytes;
const std::int64_t kBf16Tile = kTile;

}  // namespace narrow::avx512bf16
