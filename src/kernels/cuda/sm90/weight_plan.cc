/// Which configuration a product with prepared weights runs in: an estimate of each, the lowest wins.
///
///   cycles = start + max(rounds * (chunks of a part * cycles of a chunk + finish), bytes of the weight / what memory gives in a cycle)
///   cycles of a chunk = max(products / peak * 1.3, bytes into the multiprocessor / 44, cycles to decode)
///
/// The constants are fitted to measurements on an H200 (docs/kernels/cuda_weight_only.md).

#include <algorithm>
#include <array>

#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    WeightConfig{"64x16", 16, 1, 4},   WeightConfig{"128x32", 32, 2, 2},   WeightConfig{"128x64", 64, 2, 2},
    WeightConfig{"128x128", 128, 2, 1}, WeightConfig{"128x256", 256, 2, 1},
};

constexpr int kMostParts = 4;
constexpr double kCyclesPerMicrosecond = 1700.0, kMemoryBytesPerCycle = 2600.0, kBytesPerCycle = 44.0;
constexpr double kStart = 4000.0, kFinish = 700.0, kFinishPerToken = 8.0, kPart = 400.0, kPartPerToken = 6.0;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

std::span<const WeightConfig> weight_configs() { return kConfigs; }

WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  WeightPlan plan{config, ceil_div(problem.w.layout.row_chunks, c.row_groups) * ceil_div(problem.m, c.tokens), 1, 0};
  // Sums of the other parts lie in shared memory: those of large tiles do not fit.
  const int most = c.tokens >= 256 ? 1 : (c.tokens >= 64 ? 2 : kMostParts);
  plan.parts = std::clamp(std::min({parts, most, problem.w.layout.depth_chunks}), 1, kMostParts);
  // Clusters lie within a group of 16 or 18 multiprocessors.
  const int room = plan.parts < 3 ? multiprocessors : multiprocessors * 10 / 11;
  plan.workers = std::min(std::max(1, room / plan.parts), plan.tiles);
  return plan;
}

double estimate_weight_plan(const WeightProblem& problem, const WeightPlan& plan, int) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  const WeightLayoutInfo& layout = problem.w.layout;
  const double rounds = ceil_div(plan.tiles, plan.workers), chunks = ceil_div(layout.depth_chunks, plan.parts);
  const int tokens = std::min(problem.m, c.tokens);
  const double products = c.row_groups * 64.0 * c.tokens * kChunkDepth / 2048.0 * 1.3;
  const double bytes = c.row_groups * layout.chunk_bytes() + tokens * kChunkDepth * 2.0;
  const double decoding = c.row_groups * 8.0 * 28.0;
  const double chunk_cycles = std::max({products, bytes / kBytesPerCycle, decoding});
  double finish = kFinish + kFinishPerToken * c.tokens;
  if (plan.parts > 1) finish += kPart + kPartPerToken * c.tokens * plan.parts;
  const double memory = static_cast<double>(layout.total_bytes()) / kMemoryBytesPerCycle;
  return (kStart + std::max(rounds * (chunks * chunk_cycles + finish), memory + finish)) / kCyclesPerMicrosecond;
}

WeightPlan choose_weight_plan(const WeightProblem& problem, int multiprocessors) {
  WeightPlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    if (!has_weight_config(problem, config)) continue;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      const WeightPlan plan = make_weight_plan(problem, config, parts, multiprocessors);
      const double estimate = estimate_weight_plan(problem, plan, multiprocessors);
      if (best.config < 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace narrow::cuda
