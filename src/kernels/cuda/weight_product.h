#pragma once
/// Products with weights in any scheme, y[m, n] = finish(sum_k x[m, k] * w[n, k]), x in fp16 or bf16: plain problems on device pointers,
/// and the rows that solve them.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/weight_layout.h"
#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// A weight on the device. Prepared in chunks (weight_layout.h), or its canonical bytes, which only the row for every device reads.
struct WeightView {
  int n = 0, k = 0;
  bool is_prepared = false;
  WeightLayoutInfo layout;  ///< of prepared weights
  const std::uint8_t* chunks = nullptr;
  /// [n, padded to 64]: what a row's sums are multiplied by: the scale (where it does not change along k), the outer scale, the power of
  /// two that decoding leaves out; NaN where some code or scale of the row is NaN. Then as many folds: what the row's scales are multiplied
  /// by before they are multiplied into 16-bit values; and one word that is not zero where scales are unsteady.
  const float* factors = nullptr;
  /// Whether products may multiply scales into 16-bit values (powers of two), or keep sums in units of the last scale (others).
  bool is_steady = true;

  Scheme scheme;  ///< the meaning of codes, and all of the canonical bytes:
  ScaleGrid grid{};
  const std::uint8_t* codes = nullptr;
  std::int64_t row_bytes = 0;
  const void* scales = nullptr;
  const std::uint8_t* zero_points = nullptr;
  const float* outer_scale = nullptr;
};

/// y = convert(activate(v + bias[n]) * multiplier[m, n] + residual[m, n]).
struct WeightEpilogue {
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const void* multiplier = nullptr;  ///< [m, n], contiguous: the other half of a gated pair
  DType multiplier_type = DType::kF16;
  const void* residual = nullptr;  ///< [m, n], contiguous
  DType residual_type = DType::kF16;
  DType out = DType::kF16;  ///< kF32, kF16, kBf16
};

struct WeightProblem {
  int m = 0;
  DType x_type = DType::kF16;  ///< kF16 or kBf16
  const void* x = nullptr;
  /// Elements from row to row. For Hopper's rows a multiple of 8, of 16-byte aligned memory, and k is a multiple of 64, or zeros follow it
  /// up to one.
  std::int64_t x_pitch = 0;
  const std::int32_t* order = nullptr;  ///< [k] or null: column k of the weight goes with column order[k] of x
  WeightView w;
  WeightEpilogue epilogue;
  void* y = nullptr;
  std::int64_t y_pitch = 0;
  void* workspace = nullptr;  ///< 16-byte aligned, of this product alone while it runs, or null
  std::size_t workspace_size = 0;
};

/// Microseconds of a chunk of a configuration, of the model in sm90/weight_plan.cc: with scales of rows, of chunks, and inside chunks.
struct ChunkCost {
  double rows = 0.0, chunks = 0.0, inside = 0.0;
};

/// A way to run a product on Hopper: tokens per tile. Streams (up to 32 tokens) have tiles of 32 to 256 rows of the weight, splits of 64
/// and 128, the others of 64 for each row group.
struct WeightConfig {
  const char* name;
  int tokens;
  int row_groups = 0;     ///< 0: a stream
  bool promotes = false;  ///< for scales along k that neither can be multiplied into 16-bit values nor be the unit of a sum
  bool splits = false;    ///< up to 32 tokens, tiles split along k (sm90/weight_split.cuh)
  ChunkCost cost{};       ///< not of streams
  constexpr bool is_stream() const { return row_groups == 0; }
};
std::span<const WeightConfig> weight_configs();

struct WeightPlan {
  int config = 0;
  int tiles = 0;    ///< of streams, what is dealt to thread blocks: groups of 32 or 64 rows by tiles of tokens
  int parts = 1;    ///< thread blocks of a cluster that share a tile along k
  int workers = 0;  ///< clusters; of streams, thread blocks
  int wide = 0;     ///< of streams and splits: groups of 32 rows in a tile, 1, 2, 4, 8
  /// Of streams: whether a thread block has a multiprocessor for itself, or half of one; the other half is for the next kernel's, or for
  /// another of this one's where there are more thread blocks than multiprocessors.
  bool is_whole = false;
  /// Of the others: every thread block has an even share of all chunks, and tiles are shared through the workspace.
  bool is_even = false;
};

/// Whether the configuration was compiled for the weight's layout and scales.
bool has_weight_config(const WeightProblem& problem, int config);
/// Bytes of workspace that an even plan of a configuration takes, and the most that one of any takes for so many rows of x.
std::size_t even_workspace(const WeightConfig& config, int workers);
std::size_t most_even_workspace(std::int64_t m, int multiprocessors);
/// An even launch of a configuration of many tokens; is_even is false where the workspace is too small for it, or it has no sense.
WeightPlan make_even_plan(const WeightProblem& problem, int config, int multiprocessors);
/// A launch of one configuration with up to `parts` parts.
WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors);
/// Estimated microseconds of a plan on an H200: sm90/weight_plan.cc gives the model.
double estimate_weight_plan(const WeightProblem& problem, const WeightPlan& plan);
WeightPlan choose_weight_plan(const WeightProblem& problem, int multiprocessors);

/// Hopper alone. Results are CUDA's error codes.
int launch_weight_product(const WeightProblem& problem, const WeightPlan& plan, Stream stream);
/// Any device, weight and layout; x_pitch and alignment may be anything.
int launch_weight_product_any(const WeightProblem& problem, Stream stream);

/// Canonical bytes (the view's) to chunks and factors, both to be written.
int launch_prepare_weight(const WeightView& view, std::uint8_t* chunks, float* factors, Stream stream);
/// The inverse: chunks to canonical codes, scales and zero points (null where the scheme has none, or where they are not in the chunks).
int launch_unprepare_weight(const WeightView& view, std::uint8_t* codes, void* scales, std::uint8_t* zero_points, Stream stream);
/// x, its columns exchanged by the order, rows padded with zeros to `pitch` elements.
int launch_arrange_columns(const WeightProblem& problem, void* to, std::int64_t pitch, Stream stream);

}  // namespace narrow::cuda
