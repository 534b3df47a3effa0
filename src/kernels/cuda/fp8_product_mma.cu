/// The fp8 product of Ampere, Ada and later: D = epilogue(A * B^T), all scalings, groupings and formats. Codes are decoded to fp16 in
/// registers and multiplied by mma.sync, operands through cp.async.
/// Mapping:  a thread block has 128 x 128 of D, its eight warps 64 x 32 each; k in slices of 128, three of them in shared memory. The sums
/// of
///           a slice are scaled and added up in fp32.
/// Requires: compute capability 8.0; rows of A and B 16-byte aligned.
/// Bound:    decoding: 6 operations per pair of e4m3, 288 per 32 mma.sync of fp16. Meaning: reference/matmul.cc.

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_parts.cuh"

namespace narrow::cuda {
namespace {

constexpr int kTile = 128, kBlock = 128, kStages = 3, kThreads = 256, kSliceBytes = kTile * kBlock, kStageBytes = 2 * kSliceBytes;
/// Sums on their way to D: rows of 40 floats, so that neither side meets the same bank twice.
constexpr int kWarpRows = 64, kWarpColumns = 32, kPitch = 40, kShared = kStages * kStageBytes;
static_assert(kThreads / 32 * kWarpRows * kPitch * 4 <= kShared);
using Rows = SliceRows<kBlock>;

/// Two codes of a word, 0 and 1 or 2 and 3, as two fp16: e5m2 as it is, e4m3 divided by 2^8 (its exponent field lands in fp16's). The NaN
/// of e4m3, all ones, is the only code that carries into fp16's highest exponent bit, and becomes a NaN there.
template <bool kE5m2>
__device__ inline std::uint32_t decode_pair(std::uint32_t word, int half) {
  const std::uint32_t spread = __byte_perm(word, 0u, half == 0 ? 0x1404u : 0x3424u);
  if constexpr (kE5m2) return spread;
  const std::uint32_t magnitude = (spread >> 1) & 0x3F803F80u;
  return magnitude | ((magnitude + 0x00800080u) & 0x40004000u) | (spread & 0x80008000u);
}

__device__ inline void multiply_halves(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t low, std::uint32_t high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

/// A thread block's rows of A, with what must be added to them for rows of D and of A's scales, its matrix of B, and its columns.
struct Place {
  std::int64_t first, end, to_d, to_scales, b_first, b_scale_first;
  int group, begin_k, end_k;
};

/// The place of row tile `tile`; end <= first where it has nothing to do.
__device__ inline Place place_of(const ByteProblem& p, int tile) {
  Place place{std::int64_t{tile} * kTile, p.m, 0, 0, 0, 0, 0, 0, p.k};
  if (p.grouping == ByteGrouping::kNone) return place;
  int group = 0;
  if (p.grouping == ByteGrouping::kRowOffsets) {
    for (int count; group < p.groups; ++group, tile -= count) {
      count = (p.offsets[group + 1] - p.offsets[group] + kTile - 1) / kTile;
      if (tile < count) break;
    }
    if (group == p.groups) return {0, 0, 0, 0, 0, 0, 0, 0, 0};
    place.first = p.offsets[group] + std::int64_t{tile} * kTile;
    place.end = p.offsets[group + 1];
  } else {
    const int tiles = (p.m + kTile - 1) / kTile;
    group = tile / tiles;
    const bool counts = p.grouping == ByteGrouping::kRowCounts;
    const std::int64_t base = std::int64_t{group} * p.m;
    place.first = std::int64_t{tile % tiles} * kTile + (counts ? base : 0);
    place.end = counts ? base + min(p.offsets[group], p.m) : p.m;
    place.to_d = counts ? 0 : base;
    place.to_scales = counts ? group * round_up_to_4(p.m) - base : 0;
  }
  place.group = p.grouping == ByteGrouping::kDepth ? 0 : group;  // of B
  if (p.grouping == ByteGrouping::kDepth) place.begin_k = p.offsets[group], place.end_k = p.offsets[group + 1];
  place.b_first = std::int64_t{place.group} * p.n;
  place.b_scale_first = place.group * round_up_to_4(p.n);
  return place;
}

/// The scales of one block of k for a lane's eight rows and eight columns.
struct BlockScales {
  float rows[4][2], columns[4][2];

  __device__ void load(const ByteProblem& p, const Place& place, std::int64_t row, int column, int block) {
    if (is_outer(p.scaling)) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* a = p.a_scales + block * p.a_scale_rows + place.to_scales;
    const float tile =
        p.scaling == ByteScaling::kBlockTile
            ? __ldg(p.b_scales +
                    (std::int64_t{place.group} * ((p.n + kBlock - 1) / kBlock) + column / kBlock) * ((p.k + kBlock - 1) / kBlock) + block)
            : 0.0f;
    const float* b = p.b_scales + block * p.b_scale_rows + place.b_scale_first;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t r = row + i / 2 * 16 + i % 2 * 8 + lane / 4;
      const int n = column + i / 2 * 8 + lane % 4 * 2 + i % 2;
      rows[i / 2][i % 2] = r < place.end ? __ldg(a + r) : 0.0f;
      columns[i / 2][i % 2] = p.scaling == ByteScaling::kBlockTile ? tile : (n < p.n ? __ldg(b + n) : 0.0f);
    }
  }
};

template <bool kAE5m2, bool kBE5m2>
__global__ void __launch_bounds__(kThreads) fp8_product_mma(const ByteProblem p, int tiles_n) {
  extern __shared__ __align__(128) std::byte memory[];
  const Place place = place_of(p, static_cast<int>(blockIdx.x) / tiles_n);
  if (place.first >= place.end) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, row = warp / 4 * kWarpRows,
            first_n = static_cast<int>(blockIdx.x) % tiles_n * kTile, column = warp % 4 * kWarpColumns;
  const int slices = (place.end_k - place.begin_k + kBlock - 1) / kBlock;
  const auto copy = [&](int slice) {
    std::byte* stage = memory + slice % kStages * kStageBytes;
    const int k = place.begin_k + slice * kBlock;
    if (slice < slices) {
      Rows::copy<kTile, kThreads>(stage, p.a, p.a_pitch, place.first, place.end, k, place.end_k);
      Rows::copy<kTile, kThreads>(stage + kSliceBytes, p.b + place.b_first * p.b_pitch, p.b_pitch, first_n, p.n, k, place.end_k);
    }
    commit_copies();
  };
  float sums[4][4][4] = {};
  for (int slice = 0; slice < kStages - 1; ++slice) copy(slice);
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy(slice + kStages - 1);
    const std::byte* stage = memory + slice % kStages * kStageBytes;
    float parts[4][4][4] = {};
#pragma unroll 1
    for (int step = 0; step < kBlock / 32; ++step) {
      std::uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) Rows::load_fragment(a[i], stage, row + i * 16, step * 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) Rows::load_fragment(b[j], stage + kSliceBytes, column + j * 16, step * 2);
        // A lane's four neighbouring codes go to k = 2q, 2q + 1, 2q + 8, 2q + 9 of both sides: an order of k like any other.
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        std::uint32_t low[4], high[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          low[j] = decode_pair<kBE5m2>(b[j / 2][chunk * 2 + j % 2], 0);
          high[j] = decode_pair<kBE5m2>(b[j / 2][chunk * 2 + j % 2], 1);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t x[4] = {decode_pair<kAE5m2>(a[i][chunk * 2], 0), decode_pair<kAE5m2>(a[i][chunk * 2 + 1], 0),
                                      decode_pair<kAE5m2>(a[i][chunk * 2], 1), decode_pair<kAE5m2>(a[i][chunk * 2 + 1], 1)};
#pragma unroll
          for (int j = 0; j < 4; ++j) multiply_halves(parts[i][j], x, low[j], high[j]);
        }
      }
    }
    BlockScales scales;  // read now: registers are full during the products
    scales.load(p, place, place.first + row, first_n + column, place.begin_k / kBlock + slice);
    constexpr float kPower = (kAE5m2 ? 1.0f : 256.0f) * (kBE5m2 ? 1.0f : 256.0f);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      float& sum = sums[i / 16][i / 4 % 4][i % 4];
      const float part = parts[i / 16][i / 4 % 4][i % 4] * kPower;
      sum = is_outer(p.scaling) ? sum + part : __fmaf_rn(part, scales.rows[i / 16][i / 2 % 2] * scales.columns[i / 4 % 4][i % 2], sum);
    }
  }

  // Every warp's sums through shared memory, so that neighbouring lanes store neighbouring columns.
  wait_for_copies<0>();
  __syncthreads();
  float* staged = reinterpret_cast<float*>(memory) + warp * kWarpRows * kPitch;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float* pair = &sums[i / 8][i / 2 % 4][i % 2 * 2];
    *reinterpret_cast<float2*>(staged + (i / 8 * 16 + i % 2 * 8 + lane / 4) * kPitch + i / 2 % 4 * 8 + lane % 4 * 2) =
        make_float2(pair[0], pair[1]);
  }
  __syncwarp();
  const int n = first_n + column + lane;
  if (n >= p.n) return;
  for (int i = 0; i < kWarpRows && place.first + row + i < place.end; ++i) {
    const std::int64_t m = place.first + row + i, d_row = m + place.to_d, at = d_row * p.d_pitch + n;
    float v = staged[i * kPitch + lane];
    if (is_outer(p.scaling)) v *= __ldg(p.a_scales + m * p.a_scale_step) * __ldg(p.b_scales + (place.b_first + n) * p.b_scale_step);
    store_converted(p.epilogue, p.d, finish_value(p.epilogue, p.d, v, n, at, d_row * p.n + n), at);
  }
}

}  // namespace

int launch_fp8_product_mma(const ByteProblem& p, Stream stream) {
  const auto kernel =
      p.a_is_e5m2 ? fp8_product_mma<true, false> : (p.b_is_e5m2 ? fp8_product_mma<false, true> : fp8_product_mma<false, false>);
  const bool batched = p.grouping == ByteGrouping::kRowCounts || p.grouping == ByteGrouping::kDepth;
  const std::int64_t tiles_n = (p.n + kTile - 1) / kTile, tiles = (p.m + kTile - 1) / kTile;
  // Groups of rows may each end in the middle of a tile.
  const std::int64_t tiles_m = batched ? tiles * p.groups : (p.grouping == ByteGrouping::kRowOffsets ? p.m / kTile + p.groups : tiles);
  if (tiles_m * tiles_n == 0) return cudaSuccess;
  if (tiles_m * tiles_n > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared)) return error;
  kernel<<<static_cast<unsigned>(tiles_m * tiles_n), kThreads, kShared, stream>>>(p, static_cast<int>(tiles_n));
  return cudaGetLastError();
}

}  // namespace narrow::cuda
