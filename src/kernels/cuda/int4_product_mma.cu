/// The W4A8 product of Ampere and later: D = epilogue(A * B^T) of int8 and int4 by mma.sync, operands through cp.async.
/// Mapping:  a warp has 16 kRowTiles x 32 of D, a thread block kWarpsM x kWarpsN of them; k in slices of 128, kStages of them in shared
/// memory.
///           Sums of a scale's columns are exact integers; after them sum = fma(float(integer), scale, sum).
/// Requires: compute capability 8.0; what int4_product.h says of A and B.
/// Bound:    the tensor cores' mma.sync rate, beside it two FMAs and a move per element of D and block. Meaning: reference/matmul.cc,
///           bit for bit.

#include "kernels/cuda/int4_decode.cuh"
#include "kernels/cuda/int4_kernels.h"
#include "kernels/cuda/int4_store.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_parts.cuh"

namespace narrow::cuda {
namespace {

constexpr int kSlice = 128, kCellsPerSlice = kSlice / kCellSide, kCellRowBytes = kCellsPerSlice * kCellBytes;

template <int kRowTiles_, int kWarpsM_, int kWarpsN_, int kStages_, bool kZeros_>
struct Tile {
  static constexpr int kRowTiles = kRowTiles_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kStages = kStages_;
  static constexpr bool kZeros = kZeros_;
  static constexpr int kRows = 16 * kRowTiles, kTileM = kRows * kWarpsM, kTileN = kCellSide * kWarpsN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kABytes = kTileM * kSlice, kStageBytes = kABytes + kWarpsN * kCellRowBytes;
  /// Sums on their way to D, fp32: rows of 40, so that neither side meets the same bank twice.
  static constexpr int kPitch = 40, kStagedBytes = kThreads / 32 * kRows * kPitch * 4;
  static constexpr int kShared = kStages * kStageBytes > kStagedBytes ? kStages* kStageBytes : kStagedBytes;
};

/// kWarpsN rows of cells, four cells of each; zeros outside.
template <class T>
__device__ void copy_cells(std::byte* to, const Int4View& w, int first_row, int first_cell) {
  constexpr int kChunksPerRow = kCellRowBytes / 16, kChunks = T::kWarpsN * kChunksPerRow;
  static_assert(kChunks % T::kThreads == 0);
#pragma unroll
  for (int i = 0; i < kChunks / T::kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * T::kThreads, row = first_row + index / kChunksPerRow,
              at = index % kChunksPerRow * 16;
    const bool real = row < w.padded_n() / kCellSide && first_cell + at / kCellBytes < w.depth_cells();
    const std::int64_t cell = std::int64_t{row} * w.depth_cells() + first_cell;
    copy_chunk(to + index * 16, w.cells + (real ? cell * kCellBytes + at : 0), real ? 16 : 0);
  }
}

/// What a lane needs of a block of columns: the scales of its columns of D, and the zero points of its rows of B.
template <class T>
struct Block {
  float2 scales[4];
  std::uint32_t zeros[4];

  __device__ void load(const Int4View& w, int block, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t at = std::int64_t{block} * w.padded_n() + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) scales[j] = __ldg(reinterpret_cast<const float2*>(w.scales + at + j * 8 + lane % 4 * 2));
    if constexpr (T::kZeros) {
      const std::uint32_t four = __ldg(reinterpret_cast<const std::uint32_t*>(w.zeros + at + lane / 4 * 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) zeros[j] = Int4Decoder<true>::zero_of(four, j);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) zeros[j] = 0;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) int4_product(const Int4Problem p, int tiles_n) {
  extern __shared__ __align__(128) std::byte memory[];
  using Decoder = Int4Decoder<T::kZeros>;
  using Rows = SliceRows<kSlice>;
  const int first_m = static_cast<int>(blockIdx.x) / tiles_n * T::kTileM, first_n = static_cast<int>(blockIdx.x) % tiles_n * T::kTileN;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / T::kWarpsN * T::kRows, cell_row = warp % T::kWarpsN;
  const int cells = p.w.depth_cells(), slices = (cells + kCellsPerSlice - 1) / kCellsPerSlice, block_cells = p.w.block_cells();
  const bool whole = p.w.block == 0;
  // Columns beyond the padded weight take another's scales: their sums go nowhere.
  const int column = first_n + cell_row * kCellSide, scale_column = column < p.w.padded_n() ? column : 0;

  const auto copy = [&](int slice) {
    if (slice < slices) {
      std::byte* stage = memory + slice % T::kStages * T::kStageBytes;
      Rows::copy<T::kTileM, T::kThreads>(stage, p.a, p.a_pitch, first_m, p.m, slice * kSlice, p.w.k);
      copy_cells<T>(stage + T::kABytes, p.w, first_n / kCellSide, slice * kCellsPerSlice);
    }
    commit_copies();
  };

  float sums[T::kRowTiles][4][4] = {};
  int parts[T::kRowTiles][4][4];
  const auto each = [&](auto&& function) {
#pragma unroll
    for (int i = 0; i < T::kRowTiles * 16; ++i) function(parts[i / 16][i / 4 % 4][i % 4], sums[i / 16][i / 4 % 4][i % 4], i);
  };
  each([&](int& part, float&, int) { part = whole ? 0 : Decoder::kStart; });
  Block<T> block;
  block.load(p.w, 0, scale_column);
  const int blocks = p.w.blocks();
  int left = block_cells, next_block = 1;
  for (int slice = 0; slice < T::kStages - 1; ++slice) copy(slice);
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();
    copy(slice + T::kStages - 1);
    const std::byte* stage = memory + slice % T::kStages * T::kStageBytes;
    const std::byte* words = stage + T::kABytes + cell_row * kCellRowBytes + lane * 16;
#pragma unroll
    for (int cell = 0; cell < kCellsPerSlice; ++cell) {
      if (slice * kCellsPerSlice + cell >= cells) break;
      std::uint32_t a[T::kRowTiles][4];
#pragma unroll
      for (int i = 0; i < T::kRowTiles; ++i) Rows::load_fragment(a[i], stage, row + i * 16, cell * 2);
      const uint4 four = *reinterpret_cast<const uint4*>(words + cell * kCellBytes);
      const std::uint32_t b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        std::uint32_t low, high;
        Decoder::fragments(b[j], block.zeros[j], low, high);
#pragma unroll
        for (int i = 0; i < T::kRowTiles; ++i) multiply_bytes(parts[i][j], a[i], low, high);
      }
      if (--left > 0 && slice * kCellsPerSlice + cell + 1 < cells) continue;
      if (whole) continue;
      each([&](int& part, float& sum, int i) {
        const float2 scale = block.scales[i / 4 % 4];
        sum = __fmaf_rn(Decoder::block_sum(part), i % 2 == 0 ? scale.x : scale.y, sum);
        part = Decoder::kStart;
      });
      left = block_cells;
      if (next_block < blocks) block.load(p.w, next_block++, scale_column);
    }
  }
  if (whole) each([&](int& part, float& sum, int) { sum = Decoder::whole_sum(part); });

  // Every warp's sums through shared memory, so that neighbouring lanes store neighbouring columns.
  wait_for_copies<0>();
  __syncthreads();
  float* staged = reinterpret_cast<float*>(memory) + warp * T::kRows * T::kPitch;
#pragma unroll
  for (int i = 0; i < T::kRowTiles * 8; ++i) {
    const float* pair = &sums[i / 8][i / 2 % 4][i % 2 * 2];
    *reinterpret_cast<float2*>(staged + (i / 8 * 16 + i % 2 * 8 + lane / 4) * T::kPitch + i / 2 % 4 * 8 + lane % 4 * 2) =
        make_float2(pair[0], pair[1]);
  }
  __syncwarp();
  const int wide = column + lane % 8 * 4;
  const bool vector = wide + 3 < p.w.n && has_vector_stores(p);
  for (int i = lane / 8; i < T::kRows; i += 4) {
    const int m = first_m + row + i;
    if (m >= p.m || wide >= p.w.n) break;
    const float4 four = *reinterpret_cast<const float4*>(staged + i * T::kPitch + lane % 8 * 4);
    store_four(p, four, __ldg(p.a_scales + m * p.a_scale_step), m, wide, whole, vector);
  }
}

template <class T>
int launch(const Int4Problem& p, Stream stream) {
  const std::int64_t tiles_m = (p.m + T::kTileM - 1) / T::kTileM, tiles_n = (p.w.n + T::kTileN - 1) / T::kTileN;
  if (tiles_m * tiles_n > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  if (const cudaError_t error = cudaFuncSetAttribute(int4_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared))
    return error;
  int4_product<T><<<static_cast<unsigned>(tiles_m * tiles_n), T::kThreads, T::kShared, stream>>>(p, static_cast<int>(tiles_n));
  return cudaGetLastError();
}

}  // namespace

int launch_int4_mma(const Int4Problem& p, int tile, Stream stream) {
  const bool zeros = p.w.zeros != nullptr;
  if (tile == 64) return zeros ? launch<Tile<2, 2, 2, 5, true>>(p, stream) : launch<Tile<2, 2, 2, 5, false>>(p, stream);
  return zeros ? launch<Tile<4, 2, 4, 4, true>>(p, stream) : launch<Tile<4, 2, 4, 4, false>>(p, stream);
}

}  // namespace narrow::cuda
