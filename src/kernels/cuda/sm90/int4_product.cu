/// The W4A8 product on Hopper, D^T = W * A^T: int4 codes decoded to bytes in registers, wgmma with the tokens in shared memory.
/// Mapping:  persistent thread blocks of kGroups * 64 rows of the weight x kTokens tokens. Two producer threads copy slices of 128 columns
///           (tokens by tensor copies; cells, scales and zero points in bulk) into a ring of stages. Every consumer warpgroup decodes its
///           64 rows, multiplies them by four wgmma, and, at the end of a scale's columns, sum = fma(float(integer), scale, sum) while the
///           other warpgroup's products run.
/// Requires: compute capability 9.0; scales per row or of 128 or 256 columns; what int4_product.h says of A and B.
/// Bound:    the bytes of the weight up to about 64 tokens, then the tensor cores and what a multiprocessor takes in. Meaning:
///           reference/matmul.cc, bit for bit.

#include <algorithm>

#include "kernels/cuda/int4_decode.cuh"
#include "kernels/cuda/int4_kernels.h"
#include "kernels/cuda/int4_store.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_after.cuh"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/ring.cuh"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/wgmma_byte_registers.cuh"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kSlice = 128, kCellsPerSlice = kSlice / kCellSide, kGroupRows = 64;

template <int kGroups_, int kTokens_, int kStages_, bool kZeros_>
struct Tile {
  static constexpr int kGroups = kGroups_, kTokens = kTokens_, kStages = kStages_;
  static constexpr bool kZeros = kZeros_;
  static constexpr int kRows = kGroups * kGroupRows, kThreads = 128 * (kGroups + 1), kValues = kTokens / 2;
  static constexpr int kTokenBytes = kTokens * kSlice, kCellRowBytes = kCellsPerSlice * kCellBytes,
                       kCellsBytes = kRows / kCellSide * kCellRowBytes;
  /// A stage: tokens, cells, scales, zero points.
  static constexpr int kScalesAt = kTokenBytes + kCellsBytes, kZerosAt = kScalesAt + kRows * 4;
  static constexpr int kStageBytes = (kZerosAt + (kZeros ? kRows : 0) + 1023) / 1024 * 1024;
  /// Sums on their way to D: rows of 68 floats, so that lanes write to different banks.
  static constexpr int kPitch = 68, kStagedBytes = kGroups * kTokens * kPitch * 4;
  static constexpr int kBarriersAt = kStages * kStageBytes + kStagedBytes, kShared = kBarriersAt + 2 * kStages * 8 + 1024;
};

struct Params {
  Int4Problem p;
  int row_tiles, tiles, slices, cells;
};

template <class T>
struct Shared {
  std::byte* stages;
  float* staged;
  Barrier *full, *empty;

  __device__ explicit Shared(std::byte* memory) {
    stages = memory + (1024 - shared_address(memory) % 1024) % 1024;
    staged = reinterpret_cast<float*>(stages + T::kStages * T::kStageBytes);
    full = reinterpret_cast<Barrier*>(stages + T::kBarriersAt);
    empty = full + T::kStages;
  }
};

/// The work of a thread block: a tile's first row of the weight and first token.
template <class T>
struct Place {
  int row, token;
  __device__ Place(const Params& params, int tile) : row(tile % params.row_tiles * T::kRows), token(tile / params.row_tiles * T::kTokens) {}
};

/// One thread: the tokens, and how many bytes a stage gets.
template <class T>
__device__ void produce_tokens(const Params& params, const CUtensorMap& x, const Shared<T>& shared) {
  Ring<T::kStages> ring;
  const int last_cells = params.cells - (params.slices - 1) * kCellsPerSlice;
  for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x)) {
    const Place<T> place(params, tile);
    const std::uint32_t rows = static_cast<std::uint32_t>(min(T::kRows, params.p.w.padded_n() - place.row));
    const std::uint32_t bytes = T::kTokenBytes + T::kCellsBytes + rows * (T::kZeros ? 5 : 4),
                        last_bytes =
                            bytes - static_cast<std::uint32_t>((kCellsPerSlice - last_cells) * kCellBytes * (T::kRows / kCellSide));
    for (int slice = 0; slice < params.slices; ++slice, ring.advance()) {
      Barrier& full = shared.full[ring.slot];
      shared.empty[ring.slot].wait(ring.parity ^ 1u);
      full.arrive_expecting(slice + 1 < params.slices ? bytes : last_bytes);
      copy_box(shared.stages + ring.slot * T::kStageBytes, x, slice * kSlice, place.token, full);
    }
  }
}

/// One thread: cells, scales and zero points. It sets the pace of small tiles, so that its loop only adds to pointers.
template <class T>
__device__ void produce_weights(const Params& params, const Shared<T>& shared) {
  constexpr int kCellRows = T::kRows / kCellSide;
  const Int4View& w = params.p.w;
  const int slices_of_scale = w.block == 0 ? params.slices : w.block / kSlice, cell_rows = w.padded_n() / kCellSide;
  const std::uint32_t last_bytes = static_cast<std::uint32_t>((params.cells - (params.slices - 1) * kCellsPerSlice) * kCellBytes);
  Ring<T::kStages> ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x)) {
    const Place<T> place(params, tile);
    const std::uint32_t rows = static_cast<std::uint32_t>(min(T::kRows, w.padded_n() - place.row));
    const std::uint8_t* cells[kCellRows];
    // Rows beyond the weight are other rows again: their sums go nowhere.
#pragma unroll
    for (int r = 0; r < kCellRows; ++r)
      cells[r] = w.cells + std::int64_t{min(place.row / kCellSide + r, cell_rows - 1)} * params.cells * kCellBytes;
    const float* scales = w.scales + place.row;
    const std::uint8_t* zeros = T::kZeros ? w.zeros + place.row : nullptr;
    int left = slices_of_scale;
    for (int slice = 0; slice < params.slices; ++slice, ring.advance()) {
      std::byte* stage = shared.stages + ring.slot * T::kStageBytes;
      Barrier& full = shared.full[ring.slot];
      const std::uint32_t bytes = slice + 1 < params.slices ? T::kCellRowBytes : last_bytes;
      shared.empty[ring.slot].wait(ring.parity ^ 1u);
#pragma unroll
      for (int r = 0; r < kCellRows; ++r) {
        copy_bulk(stage + T::kTokenBytes + r * T::kCellRowBytes, cells[r], bytes, full);
        cells[r] += T::kCellRowBytes;
      }
      copy_bulk(stage + T::kScalesAt, scales, rows * 4, full);
      if constexpr (T::kZeros) copy_bulk(stage + T::kZerosAt, zeros, rows, full);
      if (--left > 0) continue;
      left = slices_of_scale;
      scales += w.padded_n();
      if constexpr (T::kZeros) zeros += w.padded_n();
    }
  }
}

template <class T>
__device__ void consume(const Params& params, const Shared<T>& shared) {
  using Decoder = Int4Decoder<T::kZeros>;
  const Int4Problem& p = params.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread % 128 / 32;
  const int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0), cell_row = group * 2 + warp / 2, words = warp % 2 * 2;
  const bool whole = p.w.block == 0;
  const int period = whole ? 0x7FFFFFFF : p.w.block / kSlice;  // slices of a scale
  /// The fragments of a stage, as soon as it is there.
  const auto decode = [&](const Ring<T::kStages>& at, std::uint32_t(&to)[kCellsPerSlice][4]) {
    const std::byte* stage = shared.stages + at.slot * T::kStageBytes;
    shared.full[at.slot].wait(at.parity);
    const std::byte* cells = stage + T::kTokenBytes + cell_row * T::kCellRowBytes + lane * 16 + words * 4;
    std::uint32_t zeros = 0;
    if constexpr (T::kZeros) zeros = *reinterpret_cast<const std::uint32_t*>(stage + T::kZerosAt + cell_row * kCellSide + lane / 4 * 4);
#pragma unroll
    for (int cell = 0; cell < kCellsPerSlice; ++cell) {
      const uint2 two = *reinterpret_cast<const uint2*>(cells + cell * kCellBytes);
      Decoder::fragments(two.x, Decoder::zero_of(zeros, words), to[cell][0], to[cell][2]);
      Decoder::fragments(two.y, Decoder::zero_of(zeros, words + 1), to[cell][1], to[cell][3]);
    }
  };
  Ring<T::kStages> ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x)) {
    std::uint32_t a[kCellsPerSlice][4], next[kCellsPerSlice][4];
    float sums[T::kValues] = {};
    int parts[T::kValues];
    int left = period;
    bool add = false;
    decode(ring, a);
    for (int slice = 0; slice < params.slices; ++slice) {
      const std::byte* stage = shared.stages + ring.slot * T::kStageBytes;
      const std::uint32_t tokens = __shfl_sync(0xFFFFFFFFu, operand_word(shared_address(stage)), 0);
      pin(parts);
      wgmma_fence();
#pragma unroll
      for (int cell = 0; cell < kCellsPerSlice; ++cell) wgmma_registers(parts, a[cell], operand(tokens + cell * 2), add || cell > 0);
      wgmma_commit();
      const float* scales = reinterpret_cast<const float*>(stage + T::kScalesAt) + group * kGroupRows + warp * 16 + lane / 4;
      const float scale[2] = {scales[0], scales[8]};
      Ring<T::kStages> after = ring;
      after.advance();
      if (slice + 1 < params.slices) decode(after, next);  // under this slice's products
      wgmma_wait<0>();
      pin(parts);
      if (lane == 0) shared.empty[ring.slot].arrive();
      ring = after;
#pragma unroll
      for (int i = 0; i < 4 * kCellsPerSlice; ++i) a[i / 4][i % 4] = next[i / 4][i % 4];
      add = true;
      if (--left > 0 && (whole || slice + 1 < params.slices)) continue;
      left = period;
      add = false;
#pragma unroll
      for (int i = 0; i < T::kValues; ++i) sums[i] = __fmaf_rn(Decoder::block_sum(parts[i] + Decoder::kStart), scale[i / 2 % 2], sums[i]);
    }
    if (whole) {
#pragma unroll
      for (int i = 0; i < T::kValues; ++i) sums[i] = Decoder::whole_sum(parts[i]);
    }

    // Tokens are the columns of the products and the rows of D: through shared memory.
    float* staged = shared.staged + group * T::kTokens * T::kPitch;
    named_sync(1 + group, 128);  // the tile before is stored
#pragma unroll
    for (int i = 0; i < T::kValues; ++i)
      staged[(i / 4 * 8 + lane % 4 * 2 + i % 2) * T::kPitch + warp * 16 + i / 2 % 2 * 8 + lane / 4] = sums[i];
    named_sync(1 + group, 128);
    const Place<T> place(params, tile);
    const int n = place.row + group * kGroupRows + thread % 16 * 4, first = place.token;
    const bool vector = n + 3 < p.w.n && has_vector_stores(p);
    const float* from = staged + thread % 128 / 16 * T::kPitch + thread % 16 * 4;
    if (vector && !whole && is_plain(p.epilogue)) {
      constexpr int kBatch = T::kTokens / 8 < 4 ? T::kTokens / 8 : 4;  // tokens whose loads are on their way together
      for (int i = 0; i < T::kTokens / 8; i += kBatch) {
        const int m = first + thread % 128 / 16 + i * 8;
        float scale[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) scale[j] = __ldg(p.a_scales + min(m + j * 8, p.m - 1) * p.a_scale_step);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const float4 f = *reinterpret_cast<const float4*>(from + (i + j) * 8 * T::kPitch);
          const float v[4] = {__fmul_rn(f.x, scale[j]), __fmul_rn(f.y, scale[j]), __fmul_rn(f.z, scale[j]), __fmul_rn(f.w, scale[j])};
          if (m + j * 8 < p.m) store_vector(p, v, (m + j * 8) * p.d_pitch + n);
        }
      }
      continue;
    }
    for (int i = 0, m = first + thread % 128 / 16; i < T::kTokens / 8 && n < p.w.n && m < p.m; ++i, m += 8)
      store_four(p, *reinterpret_cast<const float4*>(from + i * 8 * T::kPitch), __ldg(p.a_scales + m * p.a_scale_step), m, n, whole,
                 vector);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 3 - T::kGroups)
    int4_product(const __grid_constant__ Params params, const __grid_constant__ CUtensorMap x) {
  extern __shared__ std::byte memory[];
  const Shared<T> shared(memory);
  if (threadIdx.x == 0) {
    prefetch_map(x);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(T::kGroups * 4);
    }
    fence_barriers();
  }
  __syncthreads();
  sm90::wait_for_earlier_kernels();
  let_next_kernel_start();
  if (threadIdx.x >= 128 * T::kGroups) {
    if constexpr (T::kGroups == 2) give_registers<40>();
    if (threadIdx.x == 128 * T::kGroups) produce_tokens<T>(params, x, shared);
    if (threadIdx.x == 128 * T::kGroups + 32) produce_weights<T>(params, shared);
  } else {
    if constexpr (T::kGroups == 2) take_registers<232>();
    consume<T>(params, shared);
  }
}

template <class T>
int launch(const Int4Problem& p, Stream stream) {
  CUtensorMap x{};
  if (!encode_matrix_map(x, {p.a, 1, p.w.k, p.m, p.a_pitch, kSlice, T::kTokens})) return cudaErrorInvalidValue;
  Params params{p, (p.w.n + T::kRows - 1) / T::kRows, 0, (p.w.k + kSlice - 1) / kSlice, p.w.depth_cells()};
  const std::int64_t tiles = std::int64_t{params.row_tiles} * ((p.m + T::kTokens - 1) / T::kTokens);
  if (tiles > 0x3FFFFFFF) return cudaErrorInvalidConfiguration;
  params.tiles = static_cast<int>(tiles);
  if (const cudaError_t error = cudaFuncSetAttribute(int4_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared))
    return error;
  const int workers = multiprocessors() * (T::kGroups == 1 ? 2 : 1);
  return launch_after(int4_product<T>, std::min<std::int64_t>(tiles, workers), T::kThreads, T::kShared, stream, params, x);
}

}  // namespace

int launch_int4_hopper(const Int4Problem& p, int tokens, Stream stream) {
  const bool zeros = p.w.zeros != nullptr;
  if (tokens == 128) return zeros ? launch<Tile<2, 128, 5, true>>(p, stream) : launch<Tile<2, 128, 5, false>>(p, stream);
  return zeros ? launch<Tile<1, 64, 6, true>>(p, stream) : launch<Tile<1, 64, 6, false>>(p, stream);
}

}  // namespace narrow::cuda
