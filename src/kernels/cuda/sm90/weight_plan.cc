/// Which configuration a product with prepared weights runs in: an estimate of each, the lowest wins.
///
/// Streams:  us = start + tiles of a thread block * us of a tile + units of a multiprocessor * us of a unit (four chunks)
///           us of a unit = max(decoding, bytes of its weights / what a multiprocessor gets) + a share of the bytes of its tokens
/// Others:   us = start + rounds * (chunks of a part * us of a chunk + what parts cost),   rounds = ceil(tiles / workers)
///           even: rounds = tiles / workers, and what sharing tiles costs
///           us of a chunk = (that of the configuration + bytes of its weights * some) * less where multiprocessors have nothing to do
///
/// The constants are fitted to measurements on an H200 (docs/kernels/cuda_weight_only.md).

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda/weight_product.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    WeightConfig{"stream_8", 8},
    WeightConfig{"stream_16", 16},
    WeightConfig{"stream_32", 32},
    WeightConfig{"128x32", 32, 2, false, {0.257, 0.292, 0.44}},
    WeightConfig{"128x64", 64, 2, false, {0.36, 0.405, 0.526}},
    WeightConfig{"128x128", 128, 2, false, {0.675, 0.776, 0.951}},
    WeightConfig{"128x256", 256, 2, false, {1.405, 1.475, 1.525}},
    WeightConfig{"192x128", 128, 3, false, {0.995, 1.125, 1.333}},
    WeightConfig{"128x128_promoted", 128, 2, true, {1.27, 1.27, 1.27}},
    WeightConfig{"256x32", 32, 4, false, {0.507, 0.558, 0.833}},
    WeightConfig{"256x64", 64, 4, false, {0.64, 0.755, 0.99}},
};

constexpr int kMultiprocessors = 132;            // of an H200
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
constexpr double kStart = 2.0, kPerByte = 9e-6, kLeast = 0.75;              // of a chunk's time, alone
constexpr double kParts = 1.08, kPartsPerToken = 0.011, kPartsOfFew = 1.0;  // of tiles of 32 tokens
/// Of even plans: sharing tiles through the workspace, and more where a tile has more than two pieces. They go through all of x at once,
/// which the second-level cache must hold.
constexpr double kEven = 3.46, kEvenPerToken = 0.0127, kEvenPerPiece = 1.04, kMostBytesOfX = 40e6;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

int tiles_of(const WeightProblem& problem, const WeightConfig& c) {
  return ceil_div(problem.w.layout.row_chunks, c.row_groups) * ceil_div(problem.m, c.tokens);
}

/// Sums of the other parts lie in shared memory, beside at least two slots of weights and tokens (sm90/weight_main.cuh), four of up to 64
/// tokens.
bool leaves_room(const WeightConfig& c, const WeightLayoutInfo& layout, int parts) {
  const int kShared = 227 * 1024, kStores = 4096 + c.row_groups * std::max(8192, c.tokens / 64 * 4096);
  const int tokens = kChunkDepth * c.tokens * 2, slot = c.row_groups * layout.chunk_bytes() + tokens;
  return 2 * slot + (c.tokens <= 64 ? 2 * tokens : 0) + (parts - 1) * c.row_groups * c.tokens * 64 * 4 + kStores <= kShared;
}

bool is_any(const WeightView& w) { return w.layout.kind == WeightKind::kFloat && w.scheme.element.mantissa_bits != w.layout.mantissa; }

/// Streams: scales inside chunks, decoding that is told at run time and zero points along k cost.
double slower_stream(const WeightView& w) {
  const bool inside = w.layout.scale != ChunkScale::kNone && w.layout.step < kChunkDepth;
  return (inside ? (w.layout.step == 16 ? 1.4 : 1.2) : 1.0) * (is_any(w) ? 1.5 : 1.0) * (w.layout.has_zeros ? 1.25 : 1.0);
}

/// The others: us of a chunk, all multiprocessors at work.
double chunk_microseconds(const WeightView& w, const WeightConfig& c) {
  const bool has_scales = w.layout.scale != ChunkScale::kNone;
  const double cost = !has_scales ? c.cost.rows : (w.layout.step == kChunkDepth ? c.cost.chunks : c.cost.inside);
  const double any = is_any(w) && (has_scales || c.tokens < 256) ? 1.17 : 1.0, promoted = c.promotes && w.layout.step == 16 ? 1.45 : 1.0;
  return cost * any * promoted + kPerByte * c.row_groups * w.layout.chunk_bytes();
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
  const double unit =
      std::max(mode.units[c.tokens / 16] * slower_stream(problem.w), filled * 4.0 * layout.chunk_bytes() / mode.bytes_per_microsecond);
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

std::size_t even_workspace(const WeightConfig& config, int workers) {
  const auto pieces = static_cast<std::size_t>(workers * config.row_groups);
  return pieces * (static_cast<std::size_t>(config.tokens) * 64 * sizeof(float) + sizeof(unsigned long long));
}

std::size_t most_even_workspace(std::int64_t m, int multiprocessors) {
  std::size_t most = 0;
  for (const WeightConfig& c : kConfigs)
    if (!c.is_stream() && m >= c.tokens) most = std::max(most, even_workspace(c, multiprocessors));
  return most;
}

WeightPlan make_even_plan(const WeightProblem& problem, int config, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  WeightPlan plan{config};
  if (c.is_stream()) return plan;
  plan.tiles = tiles_of(problem, c);
  plan.workers = static_cast<int>(std::min(std::int64_t{multiprocessors}, std::int64_t{plan.tiles} * problem.w.layout.depth_chunks));
  plan.is_even = plan.tiles % plan.workers != 0 && problem.workspace_size >= even_workspace(c, plan.workers);
  return plan;
}

WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  if (c.is_stream()) return make_stream_plan(problem, c, config, multiprocessors);
  WeightPlan plan{config};
  plan.tiles = tiles_of(problem, c);
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
  const double rounds = plan.is_even ? static_cast<double>(plan.tiles) / plan.workers : ceil_div(plan.tiles, plan.workers);
  const double busy = std::min(1.0, static_cast<double>(plan.workers * plan.parts) / kMultiprocessors);
  const double chunk = chunk_microseconds(problem.w, c) * (kLeast + (1.0 - kLeast) * busy);
  const double pieces = std::max(0.0, static_cast<double>(plan.workers) / plan.tiles - 1.0);
  return kStart + rounds * ceil_div(layout.depth_chunks, plan.parts) * chunk +
         (plan.parts > 1 ? rounds * (c.tokens <= 32 ? kPartsOfFew : kParts + kPartsPerToken * c.tokens) : 0.0) +
         (plan.is_even ? kEven + kEvenPerToken * c.tokens + kEvenPerPiece * pieces : 0.0);
}

WeightPlan choose_weight_plan(const WeightProblem& problem, int multiprocessors) {
  WeightPlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    if (!has_weight_config(problem, config)) continue;
    constexpr int kFewRows = 16;  // which streams are for
    if (problem.m <= kFewRows && !kConfigs[static_cast<std::size_t>(config)].is_stream()) continue;
    for (int parts = 0; parts <= kUsefulParts; ++parts) {  // 0: even
      const WeightPlan plan =
          parts == 0 ? make_even_plan(problem, config, multiprocessors) : make_weight_plan(problem, config, parts, multiprocessors);
      if (parts == 0 && (!plan.is_even || 2.0 * problem.m * problem.w.k > kMostBytesOfX)) continue;
      const double estimate = estimate_weight_plan(problem, plan);
      if (best.config < 0 || estimate < lowest) best = plan, lowest = estimate;
    }
  }
  return best;
}

}  // namespace narrow::cuda
