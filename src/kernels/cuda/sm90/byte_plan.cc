/// Which configuration a product runs in: an estimate of each, the lowest wins.
///
///   cycles = rounds * (k blocks of a part * cycles of a block + epilogue),   rounds = ceil(tiles * parts / workers)
///   cycles of a block = max(products / peak * slowdown of the configuration, bytes of the block / 44)
///
/// 44 bytes a cycle is what one multiprocessor takes in, however many stages are in flight; the slowdown holds what promotion and shared
/// memory cost. The constants are fitted to measurements on an H200 (docs/kernels/cuda_fp8_products.md).

#include <algorithm>
#include <array>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    ByteConfig{"256x128_cluster_1x2", 256, 128, 1, 2, 1.43},
    ByteConfig{"128x192_cluster_2x1", 128, 192, 2, 1, 1.38},
    ByteConfig{"128x128_cluster_2x1", 128, 128, 2, 1, 1.70},
    ByteConfig{"128x128", 128, 128, 1, 1, 1.67},
    ByteConfig{"128x192", 128, 192, 1, 1, 1.64},
    ByteConfig{"64x128", 64, 128, 1, 1, 1.90},
    ByteConfig{"64x256", 64, 256, 1, 1, 2.7},
    ByteConfig{"swapped_128x16", 128, 16, 1, 1, 2.0, true},
    ByteConfig{"swapped_128x32", 128, 32, 1, 1, 2.0, true},
    ByteConfig{"128x256_cluster_2x1", 128, 256, 2, 1, 1.25},
    ByteConfig{"128x256_cluster_2x1_col32", 128, 256, 2, 1, 1.25, false, true},
    ByteConfig{"128x192_registers_cluster_2x1", 128, 192, 2, 1, 1.37},
    ByteConfig{"few_rows", 16, 16, 1, 1, 1.0, false, false, true},
    ByteConfig{"128x64", 128, 64, 1, 1, 2.0},
    ByteConfig{"64x64", 64, 64, 1, 1, 3.0},
};

constexpr int kTileK = 128, kMostParts = 3;
constexpr double kProductsPerCycle = 4096.0, kBytesPerCycle = 44.0, kCyclesPerMicrosecond = 1700.0;
constexpr double kFewRowsStart = 3.0, kFewRowsBytes = 4.0e6;  // microseconds, bytes per microsecond
constexpr double kEpilogueCycles = 2036.0, kEpilogueCyclesPerElement = 0.02, kPartCycles = 5250.0, kPartCyclesEach = 410.0;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Thread blocks that run at once in clusters of `parts`: larger clusters leave multiprocessors over in every cluster of multiprocessors.
int room_for(int parts, int multiprocessors) { return parts < 4 ? multiprocessors : multiprocessors * 7 / 8; }

/// Rows of one group on average; of kRowCounts the most that there can be.
std::int64_t rows_per_group(const ByteProblem& p) {
  return p.grouping == ByteGrouping::kRowOffsets ? ceil_div(p.m, std::max(p.groups, 1)) : p.m;
}

}  // namespace

std::span<const ByteConfig> byte_configs() { return kConfigs; }

BytePlan make_byte_plan(const ByteProblem& problem, int config, int parts, int multiprocessors) {
  const ByteConfig& c = kConfigs[static_cast<std::size_t>(config)];
  const std::int64_t rows = rows_per_group(problem), left = c.swapped ? problem.n : rows, right = c.swapped ? rows : problem.n;
  const int cluster = c.cluster_m * c.cluster_n;
  BytePlan plan{config, ceil_div(left, c.tile_m * c.cluster_m) * ceil_div(right, c.tile_n * c.cluster_n), multiprocessors / cluster, 1};
  if (problem.grouping != ByteGrouping::kNone) plan.tiles *= problem.groups;
  // Parts of a tile are the thread blocks of a cluster, which all run at once.
  if (problem.grouping == ByteGrouping::kNone && cluster == 1)
    plan.parts =
        std::clamp(std::min({parts, room_for(parts, multiprocessors) / std::max(plan.tiles, 1), ceil_div(problem.k, kTileK)}), 1, 8);
  return plan;
}

double estimate_byte_plan(const ByteProblem& problem, const BytePlan& plan) {
  const ByteConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  if (c.few_rows) return kFewRowsStart + static_cast<double>(problem.n) * problem.k / kFewRowsBytes;
  const double groups_along_k = problem.grouping == ByteGrouping::kDepth ? problem.groups : 1;
  const double blocks = ceil_div(ceil_div(problem.k, kTileK), plan.parts) / groups_along_k;
  const double products = static_cast<double>(c.tile_m) * c.tile_n * kTileK, bytes = static_cast<double>(c.tile_m + c.tile_n) * kTileK;
  const double block_cycles = std::max(products / kProductsPerCycle * c.slowdown, bytes / kBytesPerCycle);
  double finish = kEpilogueCycles + kEpilogueCyclesPerElement * c.tile_m * c.tile_n;
  if (plan.parts > 1) finish += kPartCycles + kPartCyclesEach * plan.parts;
  return ceil_div(std::int64_t{plan.tiles} * plan.parts, plan.workers) * (blocks * block_cycles + finish) / kCyclesPerMicrosecond;
}

BytePlan choose_byte_plan(const ByteProblem& problem, int multiprocessors) {
  BytePlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    const ByteConfig& c = kConfigs[static_cast<std::size_t>(config)];
    if (!has_byte_config(problem, config) || (c.swapped && problem.m > c.tile_n)) continue;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      const BytePlan plan = make_byte_plan(problem, config, parts, multiprocessors);
      const double estimate = estimate_byte_plan(problem, plan);
      if (best.config < 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace narrow::cuda
