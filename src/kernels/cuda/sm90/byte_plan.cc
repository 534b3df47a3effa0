/// Which configuration a product runs in: an estimate of each, the lowest wins.
///
///   cycles = start + rounds * (k blocks of a part * cycles of a block + cycles of the end),   rounds = ceil(tiles * parts / workers)
/// Of kPingPong the end counts once, since the others run under products; a change of turns takes some cycles too. Of the large tiles of
/// 1x128 x 128x128 part of it is hidden under the next tile's products, but for the last one's.
///
/// A block's cycles hold what bounds the configuration: the tensor cores, promotion, shared memory, or what comes in from the second-level
/// cache. The constants are fitted to measurements on an H200 (docs/kernels/cuda_fp8_products.md), to the plans' order first of all.

#include <algorithm>
#include <array>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {
namespace {

//         name                         tile    cluster  cycles of a block: promoted, direct; of the end
constexpr std::array kConfigs = {
    ByteConfig{"256x128", 256, 128, 1, 1, 1073, 1073, 4000},
    ByteConfig{"256x128_cluster_1x2", 256, 128, 1, 2, 1065, 1065, 3900},
    ByteConfig{"128x176_pingpong", 128, 176, 1, 1, 704, 704, 4900, TileUse::kPingPong},
    ByteConfig{"128x128_pingpong", 128, 128, 1, 1, 512, 512, 4900, TileUse::kPingPong},
    ByteConfig{"128x240", 128, 240, 1, 1, 960, 960, 5600},
    ByteConfig{"128x128_pingpong_col32", 128, 128, 1, 1, 520, 520, 4900, TileUse::kPingPongCol32},
    ByteConfig{"128x240_col32", 128, 240, 1, 1, 970, 970, 5600, TileUse::kCol32},
    ByteConfig{"128x192", 128, 192, 1, 1, 826, 826, 3500},
    ByteConfig{"128x128_cluster_2x1", 128, 128, 2, 1, 575, 740, 3500},
    ByteConfig{"128x128", 128, 128, 1, 1, 575, 525, 3500},
    ByteConfig{"128x112", 128, 112, 1, 1, 495, 495, 3500},
    ByteConfig{"128x64", 128, 64, 1, 1, 460, 385, 2300},
    ByteConfig{"64x256", 64, 256, 1, 1, 1295, 1295, 3000},
    ByteConfig{"64x112", 64, 112, 1, 1, 555, 555, 2700},
    ByteConfig{"64x64", 64, 64, 1, 1, 306, 332, 1870},
    ByteConfig{"swapped_64x16", 64, 16, 1, 1, 330, 224, 1500, TileUse::kSwapped},
    ByteConfig{"swapped_128x32", 128, 32, 1, 1, 620, 620, 1500, TileUse::kSwapped},
    ByteConfig{"few_rows", 16, 16, 1, 1, 0, 0, 0, TileUse::kFewRows},
};

constexpr int kTileK = 128, kMostParts = 3, kTileOfMostParts = 64 * 64;
constexpr double kCyclesPerMicrosecond = 1700.0, kStartCycles = 2900.0, kPartCycles = 1200.0, kInt8PartCycles = 2200.0,
                 kPartCyclesPerElement = 0.2, kWideCyclesPerElement = 0.08, kInt8WideCyclesPerElement = 0.04,
                 kInt8StagedCyclesPerElement = 0.11, kTurnCycles = 500.0, kHiddenEndCycles = 2000.0;
/// Of the kernel of few rows: microseconds, and bytes of B per microsecond; fp8 of more than 8 rows converts too much. Swapped tiles of
/// integers take as long to start, and read faster.
constexpr double kFewRowsStart = 3.0, kFewRowsBytes = 3.9e6, kSwappedBytes = 4.3e6, kFewRowsStartFp8 = 4.0, kFewRowsBytesFp8 = 3.6e6,
                 kFewRowsBytesSlow = 2.6e6;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Rows of one group on average; of kRowCounts the most that there can be.
std::int64_t rows_per_group(const ByteProblem& p) {
  return p.grouping == ByteGrouping::kRowOffsets ? ceil_div(p.m, std::max(p.groups, 1)) : p.m;
}

/// Whether tiles can be cut into parts: sm90/byte_tile.cuh, kParts.
bool has_parts(const ByteConfig& c, ByteScaling scaling) {
  const bool is_small = c.tile_m * c.tile_n <= 128 * 64, is_square = c.tile_m == 128 && c.tile_n == 128;
  return c.cluster_m * c.cluster_n == 1 && !c.is_pingpong() && (is_small || (is_square && scaling == ByteScaling::kBlockTile));
}

}  // namespace

std::span<const ByteConfig> byte_configs() { return kConfigs; }

BytePlan make_byte_plan(const ByteProblem& problem, int config, int parts, int multiprocessors) {
  const ByteConfig& c = kConfigs[static_cast<std::size_t>(config)];
  const std::int64_t rows = rows_per_group(problem), left = c.swapped() ? problem.n : rows, right = c.swapped() ? rows : problem.n;
  const int cluster = c.cluster_m * c.cluster_n;
  BytePlan plan{config, ceil_div(left, c.tile_m * c.cluster_m) * ceil_div(right, c.tile_n * c.cluster_n), multiprocessors / cluster, 1};
  if (problem.grouping == ByteGrouping::kRowOffsets)
    plan.tiles *= static_cast<int>(std::clamp<std::int64_t>(problem.m, 1, std::max(problem.groups, 1)));  // the others have no row
  else if (problem.grouping != ByteGrouping::kNone)
    plan.tiles *= problem.groups;
  // Parts of a tile are the thread blocks of a cluster, which all run at once.
  if (problem.grouping == ByteGrouping::kNone && has_parts(c, problem.scaling))
    plan.parts = std::clamp(std::min({parts, multiprocessors / std::max(plan.tiles, 1), ceil_div(problem.k, kTileK)}), 1,
                            c.tile_m * c.tile_n <= kTileOfMostParts ? kMostParts : 2);
  return plan;
}

double estimate_byte_plan(const ByteProblem& problem, const BytePlan& plan) {
  const ByteConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  if (c.use == TileUse::kFewRows) {
    const double bytes = static_cast<double>(problem.n) * problem.k;
    return problem.is_int8 ? kFewRowsStart + bytes / kFewRowsBytes
                           : kFewRowsStartFp8 + bytes / (problem.m <= 8 ? kFewRowsBytesFp8 : kFewRowsBytesSlow);
  }
  const double groups_along_k = problem.grouping == ByteGrouping::kDepth ? problem.groups : 1;
  const double blocks = ceil_div(ceil_div(problem.k, kTileK), plan.parts) / groups_along_k;
  const ByteEpilogue& e = problem.epilogue;
  const bool wide = e.out == DType::kF32 || e.out == DType::kI32;
  // Bytes, zero points and biases of tiles whose results do not go straight to D (DirectOf).
  const bool is_staged = problem.is_int8 && !c.is_pingpong() && c.tile_n <= 128 &&
                         (e.out == DType::kI8 || e.bias != nullptr || problem.a_zeros != nullptr || problem.b_zeros != nullptr);
  const double end =
      c.end_cycles +
      (plan.parts > 1 ? (problem.is_int8 ? kInt8PartCycles : kPartCycles) + kPartCyclesPerElement * c.tile_m * c.tile_n : 0.0) +
      (wide ? (problem.is_int8 ? kInt8WideCyclesPerElement : kWideCyclesPerElement) * c.tile_m * c.tile_n : 0.0) +
      (is_staged ? kInt8StagedCyclesPerElement * c.tile_m * c.tile_n : 0.0);
  const int rounds = ceil_div(std::int64_t{plan.tiles} * plan.parts, plan.workers);
  const double block_cycles = problem.is_int8 ? c.direct_block_cycles : c.block_cycles;
  const bool is_hidden = problem.scaling == ByteScaling::kBlockTile && c.tile_m >= 128 && c.tile_n > 64;
  const double ends = c.is_pingpong() ? rounds * kTurnCycles + end : rounds * end - (is_hidden ? (rounds - 1) * kHiddenEndCycles : 0.0);
  const double estimate = (kStartCycles + rounds * blocks * block_cycles + ends) / kCyclesPerMicrosecond;
  return problem.is_int8 && c.swapped() ? std::max(estimate, kFewRowsStart + static_cast<double>(problem.n) * problem.k / kSwappedBytes)
                                        : estimate;
}

BytePlan choose_byte_plan(const ByteProblem& problem, int multiprocessors) {
  const auto takes = [&](int config) {
    const ByteConfig& c = kConfigs[static_cast<std::size_t>(config)];
    return has_byte_config(problem, config) && !(c.swapped() && problem.m > c.tile_n);
  };
  const auto is_for_few_rows = [](int config) { return kConfigs[static_cast<std::size_t>(config)].tile_n == 16; };
  bool few = false;  // where a kernel for few rows takes the product, the others do not compete
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) few = few || (is_for_few_rows(config) && takes(config));
  // Large tiles of which half the rows would be empty compete only where there are no others.
  const auto is_half_empty = [&](int config) {
    const ByteConfig& c = kConfigs[static_cast<std::size_t>(config)];
    return !c.swapped() && c.tile_m > 64 && c.tile_m >= 2 * rows_per_group(problem);
  };
  bool has_full = few;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config)
    has_full = has_full || (takes(config) && !is_half_empty(config));
  BytePlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    if (!takes(config) || is_for_few_rows(config) != few || (has_full && is_half_empty(config))) continue;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      const BytePlan plan = make_byte_plan(problem, config, parts, multiprocessors);
      const double estimate = estimate_byte_plan(problem, plan);
      if (best.config < 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace narrow::cuda
