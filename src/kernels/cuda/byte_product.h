#pragma once
/// Products of matrices of one-byte elements (fp8, int8), D[m, n] = epilogue(sum_k A[m, k] * B[n, k]): plain problems on device pointers,
/// and the rows that solve them.

#include <cstdint>
#include <span>

#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// Where the scales enter: after the sum, or at every 128 along k.
enum class ByteScaling : std::uint8_t {
  kOuter,       ///< a scale per tensor or per row of A, times one per tensor or per row of B
  kOuterFast,   ///< the same; fp8 sums may stay in the tensor cores' accumulators instead of being promoted every 128 along k
  kBlockTile,   ///< 1x128 of A, 128x128 of B
  kBlockBlock,  ///< 1x128 of both
};

enum class ByteGrouping : std::uint8_t {
  kNone,
  kRowOffsets,  ///< group g has the rows [offsets[g], offsets[g + 1]) of A and D, and matrix g of B
  kRowCounts,   ///< group g has the first counts[g] of its `m` rows of A and D, and matrix g of B
  kDepth,       ///< group g has the columns [offsets[g], offsets[g + 1]) of A and B, multiples of 128, and matrix g of D
};

constexpr bool is_outer(ByteScaling scaling) { return scaling == ByteScaling::kOuter || scaling == ByteScaling::kOuterFast; }

/// What happens to a sum: D = convert(activate(scale * sum + bias[n]) + residual + D). An int32 D gets the sum itself.
struct ByteEpilogue {
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const void* residual = nullptr;      ///< [m, n], n apart
  DType residual_type = DType::kBf16;  ///< kF32, kF16, kBf16
  bool accumulate = false;             ///< adds what D holds; of fp32 D
  DType out = DType::kBf16;            ///< kF32, kF16, kBf16, kF8E4m3, kF8E5m2; of int8 also kI8, kI32
  float out_scale = 1.0f;              ///< of one-byte D: code = encode(v / out_scale)
};

/// Scales and zero points of whole rows: value = scale_a * scale_b * (sum - zero_a * sum_b - zero_b * (sum_a - k * zero_a)), sum_a and
/// sum_b being sums over the codes of a row. Null pointers: no zero points.
struct ByteOuter {
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  int a_step = 0, b_step = 0;  ///< 1: one per row; 0: one for all. Of scales and zero points.
  const std::int32_t* a_zeros = nullptr;
  const std::int32_t* b_zeros = nullptr;
  const std::int32_t* a_sums = nullptr;  ///< needed with b_zeros
  const std::int32_t* b_sums = nullptr;  ///< needed with a_zeros
  int k = 0;
};

struct ByteProblem {
  int m = 0, n = 0, k = 0;  ///< of one group; with kRowOffsets m is the rows of all groups together
  int groups = 1;
  ByteGrouping grouping = ByteGrouping::kNone;
  const std::int32_t* offsets = nullptr;  ///< offsets (groups + 1), or counts (groups); device memory
  const std::uint8_t* a = nullptr;
  const std::uint8_t* b = nullptr;
  std::int64_t a_pitch = 0, b_pitch = 0;  ///< bytes from row to row, multiples of 16, of 16-byte aligned memory
  bool is_int8 = false, a_is_e5m2 = false, b_is_e5m2 = false;
  bool a_is_col32 = false, d_is_col32 = false;  ///< stripes of 32 columns, each row-major, instead of rows; int8 alone
  ByteScaling scaling = ByteScaling::kOuter;
  /// kOuter: one per row (step 1) or one (step 0). Blocks along k: [k blocks, scale rows], 16-byte aligned; the rows of every group of B,
  /// and of kRowCounts' A, are padded to a multiple of 4. kBlockTile's B: [group, blocks of n, k blocks].
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  int a_scale_step = 0, b_scale_step = 0;
  std::int64_t a_scale_rows = 0, b_scale_rows = 0;
  /// Of int8: zero points of either side and sums over the codes of rows, as ByteOuter has them.
  const std::int32_t* a_zeros = nullptr;
  const std::int32_t* b_zeros = nullptr;
  const std::int32_t* a_sums = nullptr;
  const std::int32_t* b_sums = nullptr;
  ByteEpilogue epilogue;
  void* d = nullptr;
  std::int64_t d_pitch = 0;  ///< elements from row to row
};

constexpr ByteOuter outer_of(const ByteProblem& p) {
  return {p.a_scales, p.b_scales, p.a_scale_step, p.b_scale_step, p.a_zeros, p.b_zeros, p.a_sums, p.b_sums, p.k};
}

constexpr std::int64_t round_up_to_4(std::int64_t rows) { return (rows + 3) / 4 * 4; }

/// What a configuration is for.
enum class TileUse : std::uint8_t {
  kAny,
  kCol32,     ///< A in stripes of 32 columns
  kSwapped,   ///< few rows of A: tile_m counts rows of B and tile_n rows of A
  kFewRows,   ///< not the main loop, but the kernel of at most 16 rows
  kPingPong,  ///< a tile per warpgroup, whose end is hidden under the other's products
  kPingPongCol32,
};

/// A way to run a product: the tile of a thread block, how many of them share operands, and the model's constants (sm90/byte_plan.cc).
struct ByteConfig {
  const char* name;
  int tile_m, tile_n;
  int cluster_m, cluster_n;
  double block_cycles, direct_block_cycles, end_cycles;
  TileUse use = TileUse::kAny;

  constexpr bool swapped() const { return use == TileUse::kSwapped; }
  constexpr bool is_col32() const { return use == TileUse::kCol32 || use == TileUse::kPingPongCol32; }
  constexpr bool is_pingpong() const { return use == TileUse::kPingPong || use == TileUse::kPingPongCol32; }
};

/// The listed configurations, and how one launch would be laid out.
std::span<const ByteConfig> byte_configs();

struct BytePlan {
  int config = 0;
  int tiles = 0, workers = 0;
  int parts = 1;  ///< of every tile along k, one per thread block of a cluster
};

/// Whether the configuration was compiled for the problem's formats, scaling and grouping.
bool has_byte_config(const ByteProblem& problem, int config);
/// A launch of one configuration with up to `parts` parts.
BytePlan make_byte_plan(const ByteProblem& problem, int config, int parts, int multiprocessors);
/// Estimated microseconds of a plan on an H200: sm90/byte_plan.cc gives the model.
double estimate_byte_plan(const ByteProblem& problem, const BytePlan& plan);
/// The plan with the lowest estimate.
BytePlan choose_byte_plan(const ByteProblem& problem, int multiprocessors);

/// Hopper alone (compute capability 9.0). Results are CUDA's error codes.
int launch_byte_product(const ByteProblem& problem, const BytePlan& plan, Stream stream);
/// Compute capability 8.0 and later, by mma.sync: fp8 decoded to fp16; int8 (rows of A and B).
/// Any device: fp8 without tensor cores; int8 by dp4a.
int launch_fp8_product_mma(const ByteProblem& problem, Stream stream);
int launch_fp8_product_any(const ByteProblem& problem, Stream stream);
int launch_int8_product_mma(const ByteProblem& problem, Stream stream);
int launch_int8_product_any(const ByteProblem& problem, Stream stream);

/// What the current device is.
struct ByteDevice {
  bool is_hopper = false;
  bool has_mma = false;  ///< mma.sync of int8, 16x8x32, and cp.async: compute capability 8.0 and later
  int multiprocessors = 0;
};
ByteDevice byte_device();

}  // namespace narrow::cuda
