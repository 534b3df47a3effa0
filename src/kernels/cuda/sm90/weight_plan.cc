/// Which configuration a product with prepared weights runs in: an estimate of each, the lowest wins.
///
///   us = start + rounds * (chunks of a part * us of a chunk + finish + what parts cost),   rounds = ceil(tiles / workers)
///   us of a chunk = max(that of the configuration, bytes of its weights / what a multiprocessor gets from memory)
///
/// The constants are fitted to measurements on an H200 (docs/kernels/cuda_weight_only.md).

#include <algorithm>
#include <array>

#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    WeightConfig{"64x8", 8, 1, 4, 0.125},   WeightConfig{"128x16", 16, 2, 2, 0.25},   WeightConfig{"128x32", 32, 2, 2, 0.38},
    WeightConfig{"128x64", 64, 2, 1, 0.50}, WeightConfig{"128x128", 128, 2, 1, 0.72}, WeightConfig{"128x256", 256, 2, 1, 1.20},
};

constexpr int kMostParts = 4, kUsefulParts = 2;  // clusters of three and four start late and leave multiprocessors over
constexpr double kStart = 3.0, kFinish = 0.6, kParts = 0.8, kPartsPerToken = 0.015, kBytesPerMicrosecond = 34000.0;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Sums of the other parts lie in shared memory, beside at least two slots of weights and tokens (sm90/weight_main.cuh).
bool leaves_room(const WeightConfig& c, const WeightLayoutInfo& layout, int parts) {
  constexpr int kShared = 227 * 1024, kStores = 20 * 1024;
  const int unit = c.tokens <= 16 ? 2 : 1, chunks = c.depth_groups * unit;
  const int slot = c.row_groups * chunks * layout.chunk_bytes() + chunks * kChunkDepth * c.tokens * 2;
  return 2 * slot + (parts * c.depth_groups - 1) * c.row_groups * c.tokens * 64 * 4 + kStores <= kShared;
}

/// Scales inside chunks cost promotions, of tiles of many tokens also waits; those of nvfp4 are multiplied into the fragments there.
double slower_by_scales(const WeightView& w, int tokens) {
  if (w.layout.scale == ChunkScale::kNone || w.layout.step == kChunkDepth) return 1.0;
  const bool is_fine = w.layout.step == 16 && (tokens <= 32 || w.scheme.scale != kFp8E4m3);
  return tokens <= 32 ? (is_fine ? 1.4 : 1.2) : (is_fine ? 2.0 : 1.45);
}

}  // namespace

std::span<const WeightConfig> weight_configs() { return kConfigs; }

WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  WeightPlan plan{config, ceil_div(problem.w.layout.row_chunks, c.row_groups) * ceil_div(problem.m, c.tokens), 1, 0};
  plan.parts = std::clamp(std::min(parts, problem.w.layout.depth_chunks), 1, c.tokens >= 256 ? 1 : kMostParts);
  while (plan.parts > 1 && !leaves_room(c, problem.w.layout, plan.parts)) --plan.parts;
  // Clusters lie within a group of 16 or 18 multiprocessors.
  const int room = plan.parts < 3 ? multiprocessors : multiprocessors * 10 / 11;
  plan.workers = std::min(std::max(1, room / plan.parts), plan.tiles);
  return plan;
}

double estimate_weight_plan(const WeightProblem& problem, const WeightPlan& plan) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  const WeightLayoutInfo& layout = problem.w.layout;
  const double rounds = ceil_div(plan.tiles, plan.workers), chunks = ceil_div(layout.depth_chunks, plan.parts);
  const double slower = slower_by_scales(problem.w, c.tokens);
  const double chunk = std::max(c.chunk_microseconds * slower, c.row_groups * layout.chunk_bytes() / kBytesPerMicrosecond);
  return kStart + rounds * (chunks * chunk + kFinish + (plan.parts > 1 ? kParts + kPartsPerToken * c.tokens : 0.0));
}

WeightPlan choose_weight_plan(const WeightProblem& problem, int multiprocessors) {
  WeightPlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    if (!has_weight_config(problem, config)) continue;
    for (int parts = 1; parts <= kUsefulParts; ++parts) {
      const WeightPlan plan = make_weight_plan(problem, config, parts, multiprocessors);
      const double estimate = estimate_weight_plan(problem, plan);
      if (best.config < 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace narrow::cuda
