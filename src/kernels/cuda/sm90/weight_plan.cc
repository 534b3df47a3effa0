/// Which configuration a product with prepared weights runs in: an estimate of each, the lowest wins.
///
/// Streams:  us = start + tiles of a thread block * us of a tile + units of a multiprocessor * us of a unit (four chunks)
///           us of a unit = max(decoding, bytes of its weights / what a multiprocessor gets) + a share of the bytes of its tokens
/// Others:   us = start + rounds * (chunks of a part * us of a chunk + finish + what parts cost),   rounds = ceil(tiles / workers)
///           us of a chunk = max(that of the configuration, bytes of its weights / what a multiprocessor gets from memory)
///
/// The constants are fitted to measurements on an H200 (docs/kernels/cuda_weight_only.md).

#include <algorithm>
#include <array>

#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    WeightConfig{"stream_8", 8, 0.0}, WeightConfig{"stream_16", 16, 0.0}, WeightConfig{"stream_32", 32, 0.0},
    WeightConfig{"128x64", 64, 0.50}, WeightConfig{"128x128", 128, 0.72}, WeightConfig{"128x256", 256, 1.20},
};

constexpr int kMultiprocessors = 132;  // of an H200
constexpr int kMostParts = 4, kUsefulParts = 2;  // clusters of three and four start late and leave multiprocessors over
/// Streams: one thread block in half a multiprocessor, two of them, one in all of it.
struct StreamMode {
  bool is_whole;
  int blocks;
  double start, units[3], more, bytes_per_microsecond;  ///< us of a unit = max(units[8, 16, 32 tokens], bytes / ...) + more
};
constexpr StreamMode kStreamModes[] = {{false, 1, 1.7, {0.40, 0.52, 0.80}, 0.10, 34000.0},
                                       {false, 2, 2.6, {0.46, 0.47, 0.80}, 0.0, 33000.0},
                                       {true, 1, 3.3, {0.56, 0.60, 0.72}, 0.0, 40000.0}};
constexpr double kTile = 0.7, kShareOfTokens = 0.2, kMorePasses = 1.3;
constexpr double kStart = 3.0, kFinish = 0.6, kParts = 0.8, kPartsPerToken = 0.015, kBytesPerMicrosecond = 34000.0;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Sums of the other parts lie in shared memory, beside at least two slots of weights and tokens (sm90/weight_main.cuh).
bool leaves_room(const WeightConfig& c, const WeightLayoutInfo& layout, int parts) {
  constexpr int kShared = 227 * 1024, kStores = 20 * 1024;
  const int slot = 2 * layout.chunk_bytes() + kChunkDepth * c.tokens * 2;
  return 2 * slot + (parts - 1) * 2 * c.tokens * 64 * 4 + kStores <= kShared;
}

/// Scales inside chunks cost promotions, of tiles of many tokens also waits; those of nvfp4 are multiplied into the fragments there.
double slower_by_scales(const WeightView& w, int tokens) {
  if (w.layout.scale == ChunkScale::kNone || w.layout.step == kChunkDepth) return 1.0;
  const bool is_fine = w.layout.step == 16 && (tokens <= 32 || w.scheme.scale != kFp8E4m3);
  return tokens <= 32 ? (is_fine ? 1.4 : 1.2) : (is_fine ? 2.0 : 1.45);
}

/// The same of streams, where decoding that is told at run time and zero points along k cost as well.
double slower_stream(const WeightView& w, int tokens) {
  const bool is_any = w.layout.kind == WeightKind::kFloat && w.scheme.element.mantissa_bits != stored_mantissa(w.layout.bits);
  return slower_by_scales(w, tokens) * (is_any ? 1.5 : 1.0) * (w.layout.has_zeros ? 1.25 : 1.0);
}

/// What is dealt to thread blocks: groups of 32 rows where a tile has one, else of 64.
int stream_grains(const WeightProblem& problem, int wide) { return ceil_div(problem.w.n, wide == 1 ? 32 : 64); }

double estimate_stream(const WeightProblem& problem, const WeightConfig& c, const WeightPlan& plan, int multiprocessors) {
  const WeightLayoutInfo& layout = problem.w.layout;
  const bool is_shared = plan.workers > multiprocessors;
  const StreamMode& mode = kStreamModes[plan.is_whole ? 2 : (is_shared ? 1 : 0)];
  const int depth = 8 / plan.wide, groups = ceil_div(stream_grains(problem, plan.wide), plan.workers) * (plan.wide == 1 ? 1 : 2);
  const int tiles = ceil_div(groups, plan.wide), units = tiles * ceil_div(layout.depth_chunks, depth) * mode.blocks;
  // Rows that are there, of those that the longest way would have everywhere: who has more gets more of the memory's bytes.
  const double even = ceil_div(problem.w.n, 32) * 1.0 / (std::min(plan.workers, multiprocessors) * mode.blocks * tiles * plan.wide);
  const double filled = is_shared ? 0.5 + 0.5 * even : even;
  const double tokens = 2.0 * depth * kChunkDepth * std::min(problem.m, c.tokens);
  const double unit = std::max(mode.units[c.tokens / 16] * slower_stream(problem.w, c.tokens),
                               filled * 4.0 * layout.chunk_bytes() / mode.bytes_per_microsecond);
  const bool leaves_halves = is_shared && 3 * plan.workers < 5 * multiprocessors;  // for the next kernel
  const double start = leaves_halves ? mode.start - 2.0 : mode.start;
  const int passes = ceil_div(problem.m, c.tokens);
  return start + passes * (passes > 1 ? kMorePasses : 1.0) *
                     (tiles * kTile + units * (unit + mode.more + kShareOfTokens * tokens / mode.bytes_per_microsecond));
}

/// Whether two slots and the sums of the other warps fit into half a multiprocessor's shared memory (sm90/weight_stream.cuh).
bool fits_half(const WeightProblem& problem, const WeightConfig& c, int wide) {
  const int tokens = 16 / wide * std::min(problem.m, c.tokens) * 128;
  return 4096 + 2 * (tokens + 4 * problem.w.layout.chunk_bytes()) + (8 - wide) * c.tokens * 128 <= 113 * 1024;
}

/// The best height of tiles and number of thread blocks.
WeightPlan make_stream_plan(const WeightProblem& problem, const WeightConfig& c, int config, int multiprocessors) {
  WeightPlan best;
  double lowest = 0.0;
  for (const StreamMode& mode : kStreamModes) {
    if (c.tokens > 16 && !mode.is_whole) continue;
    for (const int wide : {1, 2, 4, 8}) {
      if (mode.blocks == 2 && !fits_half(problem, c, wide)) continue;
      const int grains = stream_grains(problem, wide);
      const int tiles = grains * ceil_div(problem.m, c.tokens), workers = std::min(mode.blocks * multiprocessors, grains);
      const WeightPlan plan{config, tiles, 1, workers, wide, mode.is_whole};
      const double estimate = estimate_stream(problem, c, plan, multiprocessors);
      if (best.wide == 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace

std::span<const WeightConfig> weight_configs() { return kConfigs; }

WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  if (c.is_stream()) return make_stream_plan(problem, c, config, multiprocessors);
  WeightPlan plan{config};
  plan.tiles = ceil_div(problem.w.layout.row_chunks, 2) * ceil_div(problem.m, c.tokens);
  plan.parts = std::clamp(std::min(parts, problem.w.layout.depth_chunks), 1, c.tokens >= 256 ? 1 : kMostParts);
  while (plan.parts > 1 && !leaves_room(c, problem.w.layout, plan.parts)) --plan.parts;
  // Clusters lie within a group of 16 or 18 multiprocessors.
  const int room = plan.parts < 3 ? multiprocessors : multiprocessors * 10 / 11;
  plan.workers = std::min(std::max(1, room / plan.parts), plan.tiles);
  return plan;
}

double estimate_weight_plan(const WeightProblem& problem, const WeightPlan& plan) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  if (c.is_stream()) return estimate_stream(problem, c, plan, kMultiprocessors);
  const WeightLayoutInfo& layout = problem.w.layout;
  const double rounds = ceil_div(plan.tiles, plan.workers), chunks = ceil_div(layout.depth_chunks, plan.parts);
  const double slower = slower_by_scales(problem.w, c.tokens);
  const double chunk = std::max(c.chunk_microseconds * slower, 2 * layout.chunk_bytes() / kBytesPerMicrosecond);
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
