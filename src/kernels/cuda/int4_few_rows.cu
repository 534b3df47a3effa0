/// The W4A8 product of at most 16 rows of A per pass over the weight, for Ampere and later.
/// Mapping:  a thread block has 16 x 32 of D. Its eight warps take eight scales' columns at a time, each its own, codes straight from
/// memory
///           into registers two steps ahead; then their integer sums meet in shared memory, and sum = fma(float(integer), scale, sum) in
///           the order of the columns.
/// Requires: compute capability 8.0; what int4_product.h says of A and B.
/// Bound:    memory, k / 2 bytes per column of D. Meaning: reference/matmul.cc, bit for bit.

#include "kernels/cuda/int4_decode.cuh"
#include "kernels/cuda/int4_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_parts.cuh"
#include "kernels/cuda/product_finish.cuh"

namespace narrow::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kStepCells = 4, kStepBytes = kStepCells * kCellSide, kPitch = 40;
constexpr int kElements = kFewInt4Rows * kCellSide / kThreads;  // of D, per thread
using Rows = SliceRows<kStepBytes>;

struct Memory {
  std::byte x[kWarps][2][kFewInt4Rows * kStepBytes];
  int sums[2][kWarps][kFewInt4Rows][kPitch];  // of two rounds; rows of 40: lanes of a half warp write to different banks
};

/// At most four cells of one scale.
struct Step {
  int first, count;
};

template <bool kZeros>
__global__ void __launch_bounds__(kThreads, 2) int4_few_rows(const Int4Problem p) {
  extern __shared__ __align__(128) std::byte bytes[];
  using Decoder = Int4Decoder<kZeros>;
  Memory& memory = *reinterpret_cast<Memory*>(bytes);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_n = static_cast<int>(blockIdx.x) * kCellSide, first_m = static_cast<int>(blockIdx.y) * kFewInt4Rows;
  const int rows = min(kFewInt4Rows, p.m - first_m), cells = p.w.depth_cells();
  const bool whole = p.w.block == 0;
  const int unit = whole ? kStepCells : p.w.block_cells(), units = (cells + unit - 1) / unit, steps = (unit + kStepCells - 1) / kStepCells;
  const int rounds = (units + kWarps - 1) / kWarps, start = whole ? 0 : Decoder::kStart;
  const uint4* words = reinterpret_cast<const uint4*>(p.w.cells + std::int64_t{blockIdx.x} * cells * kCellBytes) + lane;

  const auto unit_of = [&](int step) { return step / steps * kWarps + warp; };
  const auto cells_of = [&](int step) {
    const int first = unit_of(step) * unit + step % steps * kStepCells;
    return Step{first, max(0, min(min(kStepCells, unit - step % steps * kStepCells), cells - first))};
  };
  uint4 even[kStepCells], odd[kStepCells];  // the words of this step and of the next
  const auto load_words = [&](uint4(&to)[kStepCells], int step) {
    const Step cell = cells_of(step);
#pragma unroll
    for (int c = 0; c < kStepCells; ++c)
      if (c < cell.count) to[c] = __ldcs(words + std::int64_t{cell.first + c} * 32);
  };
  std::uint32_t next_zeros = 0;
  const auto load_tokens = [&](int step) {
    const Step cell = cells_of(step);
#pragma unroll
    for (int i = 0; i < kFewInt4Rows * Rows::kChunks / 32; ++i) {
      const int row = (lane + 32 * i) / Rows::kChunks, chunk = lane % Rows::kChunks, k = cell.first * kCellSide + chunk * 16;
      const int bytes = row < rows && chunk < 2 * cell.count ? max(0, min(16, p.w.k - k)) : 0;
      copy_chunk(memory.x[warp][step % 2] + Rows::place(row, chunk), p.a + (bytes > 0 ? (first_m + row) * p.a_pitch + k : 0), bytes);
    }
    commit_copies();
    if constexpr (kZeros)
      if (cell.count > 0)
        next_zeros = __ldg(reinterpret_cast<const std::uint32_t*>(p.w.zeros + (whole ? 0 : std::int64_t{unit_of(step)} * p.w.padded_n()) +
                                                                  first_n + lane / 4 * 4));
  };

  int parts[4][4];
  float sums[kElements] = {};
  int whole_sums[kElements] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) parts[i / 4][i % 4] = start;
  const int all = rounds * steps;
  load_words(even, 0);
  if (all > 1) load_words(odd, 1);
  load_tokens(0);
  const auto run = [&](int step, uint4(&now)[kStepCells]) {
    const std::uint32_t zeros = next_zeros;
    wait_for_copies<0>();
    __syncwarp();
    if (step + 1 < all) load_tokens(step + 1);
    const int count = cells_of(step).count;
#pragma unroll
    for (int c = 0; c < kStepCells; ++c) {
      if (c >= count) break;
      std::uint32_t a[4];
      Rows::load_fragment(a, memory.x[warp][step % 2], 0, c * 2);
      const std::uint32_t b[4] = {now[c].x, now[c].y, now[c].z, now[c].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        std::uint32_t low, high;
        Decoder::fragments(b[j], kZeros ? Decoder::zero_of(zeros, j) : 0u, low, high);
        multiply_bytes(parts[j], a, low, high);
      }
    }
    if (step + 2 < all) load_words(now, step + 2);
    if (step % steps + 1 < steps) return;

    const int first_unit = step / steps * kWarps;
    float scales[kWarps];  // on their way while the warps meet
#pragma unroll
    for (int u = 0; u < kWarps; ++u)
      scales[u] =
          whole || warp >= rows ? 0.0f : __ldg(p.w.scales + std::int64_t{min(first_unit + u, units - 1)} * p.w.padded_n() + first_n + lane);
    auto& sums_here = memory.sums[step / steps % 2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int* pair = &parts[i / 2][i % 2 * 2];
      *reinterpret_cast<int2*>(&sums_here[warp][i % 2 * 8 + lane / 4][i / 2 * 8 + lane % 4 * 2]) = make_int2(pair[0], pair[1]);
      pair[0] = pair[1] = start;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int row = warp + e * kWarps;
      if (row >= rows) break;
#pragma unroll
      for (int u = 0; u < kWarps; ++u) {
        if (first_unit + u >= units) break;
        const int part = sums_here[u][row][lane];
        if (whole)
          whole_sums[e] += part;
        else
          sums[e] = __fmaf_rn(Decoder::block_sum(part), scales[u], sums[e]);
      }
    }
  };
  for (int step = 0; step < all; step += 2) {
    run(step, even);
    if (step + 1 < all) run(step + 1, odd);
  }

  const int column = first_n + lane;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int row = first_m + warp + e * kWarps;
    if (row >= p.m || column >= p.w.n) break;
    const float scale = __ldg(p.a_scales + row * p.a_scale_step);
    const float v =
        whole ? __fmul_rn(Decoder::whole_sum(whole_sums[e]), __fmul_rn(scale, __ldg(p.w.scales + column))) : __fmul_rn(sums[e], scale);
    finish_product(p.epilogue, p.d, v, row, column, p.w.n, row * p.d_pitch + column);
  }
}

}  // namespace

int launch_int4_few_rows(const Int4Problem& p, Stream stream) {
  const auto kernel = p.w.zeros != nullptr ? int4_few_rows<true> : int4_few_rows<false>;
  const int passes = (p.m + kFewInt4Rows - 1) / kFewInt4Rows;
  if (passes > 65535) return cudaErrorInvalidConfiguration;
  constexpr int kBytes = static_cast<int>(sizeof(Memory));
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)) return error;
  kernel<<<dim3(static_cast<unsigned>(p.w.padded_n() / kCellSide), static_cast<unsigned>(passes)), kThreads, kBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace narrow::cuda
