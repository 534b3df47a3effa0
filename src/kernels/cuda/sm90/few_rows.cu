/// Products of few rows of A, at most 16: every byte of B is read once, straight into registers.
///
/// Mapping:  a thread block has kRows rows of B; its warps take k blocks of 128 in turn. A lane loads 16 bytes of every eighth row at a
///           time: as fragments of mma.sync (m16n8k32) they hold another order of k, and the rows of A are loaded in the same one. Sums of
///           the warps meet in shared memory and are added in order.
/// Bound:    the bytes of B: kAhead blocks of a warp are in flight at any time, and 16 warps per multiprocessor. Few rows of B take small
///           thread blocks, so that there is one for every multiprocessor; many rows take four at once, so that when one begins or ends the
///           others go on reading.

#include <type_traits>

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda::sm90 {
namespace {

constexpr int kMost = 16, kBlock = 128, kWarpsAtOnce = 16;

template <class Sum>
__device__ inline void multiply(Sum (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                std::uint32_t b1) {
  if constexpr (std::is_same_v<Sum, int>)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline uint4 load_once(const void* address) {  // of bytes that no other thread block reads
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

/// kTokens: rows of A in eights, 1 or 2.
template <class Sum, ByteScaling kScaling, int kTokens, int kRows, int kAhead, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, kWarpsAtOnce / kWarps) few_rows(const ByteProblem p) {
  constexpr int kEights = kRows / 8;
  __shared__ Sum partial[kWarps][kRows][kTokens * 8 + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x) * kRows, k_blocks = (p.k + kBlock - 1) / kBlock;
  let_next_kernel_start();
  const std::uint8_t* rows[kEights];
#pragma unroll
  for (int i = 0; i < kEights; ++i) rows[i] = p.b + std::int64_t{min(first + lane / 4 + i * 8, p.n - 1)} * p.b_pitch;
  const int column = lane % 4 * 16, last = static_cast<int>(p.b_pitch) - 16;
#pragma unroll
  for (int i = 0; i < kAhead * kEights; ++i)  // into the second-level cache, while the kernel before ends
    asm volatile("prefetch.global.L2 [%0];" ::"l"(rows[i % kEights] + min((warp + i / kEights * kWarps) * kBlock + column * 2, last)));
  wait_for_earlier_kernels();

  uint4 w[kAhead][2][kEights];  // of a block, half of 64 along k, row
  const auto load = [&](uint4(&into)[2][kEights], int block) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int k = block * kBlock + i / kEights * 64 + column;
      into[i / kEights][i % kEights] = k < p.k ? load_once(rows[i % kEights] + k) : uint4{};
    }
  };
  Sum sums[kTokens][kEights / 2][4] = {};
  const float* tile_scales = p.b_scales + static_cast<std::int64_t>(first / kBlock) * k_blocks;
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) load(w[ahead], warp + ahead * kWarps);
#pragma unroll 1
  for (int begin = warp; begin < k_blocks; begin += kAhead * kWarps) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int block = begin + ahead * kWarps;
      if (block >= k_blocks) break;
      Sum fresh[kTokens][kEights / 2][4] = {};
      Sum(&into)[kTokens][kEights / 2][4] = std::is_same_v<Sum, int> ? sums : fresh;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = block * kBlock + half * 64 + column;
        uint4 x[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
          x[t] =
              k < p.k ? __ldg(reinterpret_cast<const uint4*>(p.a + std::int64_t{min(t * 8 + lane / 4, p.m - 1)} * p.a_pitch + k)) : uint4{};
#pragma unroll
        for (int i = 0; i < kEights / 2; ++i) {
          const uint4 low = w[ahead][half][2 * i], high = w[ahead][half][2 * i + 1];
#pragma unroll
          for (int t = 0; t < kTokens; ++t) multiply(into[t][i], low.x, high.x, low.y, high.y, x[t].x, x[t].y);
#pragma unroll
          for (int t = 0; t < kTokens; ++t) multiply(into[t][i], low.z, high.z, low.w, high.w, x[t].z, x[t].w);
        }
      }
      if constexpr (std::is_same_v<Sum, float>) {  // promotion
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          float scale[2] = {1.0f, 1.0f};
          if constexpr (kScaling == ByteScaling::kBlockTile) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              scale[i] = __ldg(p.a_scales + block * p.a_scale_rows + min(t * 8 + lane % 4 * 2 + i, p.m - 1)) * __ldg(tile_scales + block);
          }
#pragma unroll
          for (int i = 0; i < kEights * 2; ++i) {
            float& sum = sums[t][i / 4][i % 4];
            sum = kScaling == ByteScaling::kBlockTile ? __fmaf_rn(fresh[t][i / 4][i % 4], scale[i % 2], sum)
                                                      : __fadd_rn(fresh[t][i / 4][i % 4], sum);
          }
        }
      }
      load(w[ahead], block + kAhead * kWarps);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int i = 0; i < kEights * 2; ++i) partial[warp][lane / 4 + i / 2 * 8][t * 8 + lane % 4 * 2 + i % 2] = sums[t][i / 4][i % 4];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * p.m; i += kWarps * 32) {
    const int row = i / kRows, n = first + i % kRows;
    if (n >= p.n) continue;
    Sum sum = 0;
#pragma unroll
    for (int j = 0; j < kWarps; ++j) sum += partial[j][i % kRows][row];
    const std::int64_t at = row * p.d_pitch + n, residual_at = std::int64_t{row} * p.n + n;
    if constexpr (std::is_same_v<Sum, int>) {
      store_integer(p.epilogue, outer_of(p), p.d, sum, row, n, n, at, residual_at);
    } else {
      const float v = kScaling == ByteScaling::kBlockTile ? sum : __fmul_rn(sum, outer_scale(outer_of(p), row, n));
      store_converted(p.epilogue, p.d, finish_value(p.epilogue, p.d, v, n, at, residual_at), at);
    }
  }
}

template <class Sum, ByteScaling kScaling, int kRows, int kAhead, int kWarps>
int launch(const ByteProblem& p, Stream stream) {
  const auto kernel = p.m > 8 ? few_rows<Sum, kScaling, 2, kRows, kAhead, kWarps> : few_rows<Sum, kScaling, 1, kRows, kAhead, kWarps>;
  return launch_kernel<true>(kernel, (p.n + kRows - 1) / kRows, kWarps * 32, stream, p);
}

template <class Sum, ByteScaling kScaling>
int launch_for_rows(const ByteProblem& p, Stream stream) {
  constexpr int kFew = 4224, kMany = 16896;  // rows of B: 32 for each of 132 multiprocessors, and 128
  if (p.n <= kFew) return launch<Sum, kScaling, 16, 3, 8>(p, stream);
  return p.n < kMany ? launch<Sum, kScaling, 32, 2, 8>(p, stream) : launch<Sum, kScaling, 32, 2, 4>(p, stream);
}

}  // namespace

bool takes_few_rows(const ByteProblem& p) {
  return p.m <= kMost && p.grouping == ByteGrouping::kNone && p.scaling != ByteScaling::kBlockBlock && !p.a_is_col32 && !p.d_is_col32 &&
         !p.a_is_e5m2 && !p.b_is_e5m2 && (p.is_int8 || p.k % 16 == 0);
}

int launch_few_rows(const ByteProblem& p, Stream stream) {
  if (p.is_int8) return launch_for_rows<int, ByteScaling::kOuter>(p, stream);
  return p.scaling == ByteScaling::kBlockTile ? launch_for_rows<float, ByteScaling::kBlockTile>(p, stream)
                                              : launch_for_rows<float, ByteScaling::kOuter>(p, stream);
}

}  // namespace narrow::cuda::sm90
