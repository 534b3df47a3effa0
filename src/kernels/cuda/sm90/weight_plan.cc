/// Which configuration a product with prepared weights runs in: an estimate of each, the lowest wins.
///
/// Streams:  us = start + tiles of a thread block * us of a tile + units of a multiprocessor * us of a unit (four chunks)
///           us of a unit = max(decoding, bytes of its weights / what a multiprocessor gets) + a share of the bytes of its tokens
///           units that do not find their weights in a slot wait for them: no less than latency / slots each
/// Splits:   us = start + what parts cost + units of a part * us of a unit
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
    WeightConfig{"128x32", 32, 2, false, false, {0.269, 0.292, 0.44}},
    WeightConfig{"128x64", 64, 2, false, false, {0.386, 0.424, 0.526}},
    WeightConfig{"128x128", 128, 2, false, false, {0.675, 0.776, 0.929}},
    WeightConfig{"128x256", 256, 2, false, false, {1.37, 1.475, 1.61}},
    WeightConfig{"192x128", 128, 3, false, false, {0.995, 1.125, 1.26}},
    WeightConfig{"128x128_promoted", 128, 2, true, false, {1.27, 1.27, 1.27}},
    WeightConfig{"256x32", 32, 4, false, false, {0.485, 0.53, 0.79}},
    WeightConfig{"256x64", 64, 4, false, false, {0.66, 0.755, 0.99}},
    WeightConfig{"split_8", 8, 0, false, true},
    WeightConfig{"split_16", 16, 0, false, true},
    WeightConfig{"split_32", 32, 2, false, true},
};

constexpr int kMultiprocessors = 132;                                   // of an H200
constexpr int kMostParts = 4, kUsefulParts = 2, kUsefulPartsOfFew = 3;  // larger clusters start late and leave multiprocessors over
/// Streams: one thread block in half a multiprocessor, two of them, one in all of it.
struct StreamMode {
  bool is_whole;
  int blocks;
  double start, units[3], more, bytes_per_microsecond;  ///< us of a unit = max(units[8, 16, 32 tokens], bytes / ...) + more
};
constexpr StreamMode kStreamModes[] = {{false, 1, 1.7, {0.40, 0.52, 0.80}, 0.10, 34000.0},
                                       {false, 2, 2.69, {0.44, 0.463, 0.80}, 0.0, 33000.0},
                                       {true, 1, 3.3, {0.593, 0.60, 0.72}, 0.0, 40000.0}};
/// Of half a multiprocessor: when weights come, where two slots do not fit into it and take all, and where 16 tokens' sums are promoted.
constexpr double kStreamLatency = 1.65, kNotHalf = 1.0, kStreamPromotes = 1.06;
/// Splits: thread blocks of half a multiprocessor, one in each (alone), or two. us of a unit of 8, 16, 32 tokens, and bytes per
/// microsecond. Alone: units in the slots at the start, those after them, which are late where slots are few, more so where tiles are of
/// 128 rows; whole rows of chunks come more slowly.
constexpr double kSplitReady[3] = {0.324, 0.50, 0.65}, kSplitSteady[3] = {0.30, 0.589, 0.71}, kSplitShared[3] = {0.39, 0.488, 0.47};
constexpr double kSplitStart[3] = {3.2, 1.7, 2.4}, kSplitLatency[3] = {1.85, 1.55, 2.2}, kSplitLatencyOf128 = 2.44, kSplitBytes = 38000.0;
constexpr double kSplitSharedStart[3] = {3.21, 1.9, 2.6}, kSplitLeaves[3] = {0.7, 0.35, 0.7},
                 kSplitSharedBytes[3] = {32400.0, 33500.0, 42000.0};
constexpr double kSplitParts[3] = {0.45, 0.6, 0.6}, kSplitWhole = 1.3;
constexpr int kMostSplitParts = 6;
constexpr double kTile = 0.7, kShareOfTokens = 0.195, kShareOfTokensWhole = 0.105, kMorePasses = 1.3;
constexpr double kStart = 2.06, kPerByte = 9.37e-6, kLeast = 0.693;          // of a chunk's time, alone
constexpr double kParts = 1.07, kPartsPerToken = 0.0105, kPartsOfFew = 1.0;  // of tiles of 32 tokens
/// Of even plans: sharing tiles through the workspace, and more where a tile has more than two pieces. They go through all of x at once,
/// which the second-level cache must hold.
constexpr double kEven = 3.46, kEvenPerToken = 0.0151, kEvenPerPiece = 1.04, kMostBytesOfX = 40e6;

/// How much longer a unit takes with scales inside chunks (of 16 columns, of more), zero points (of streams), and decoding that is told at
/// run time.
constexpr double kUnitScales16 = 1.4, kUnitScales = 1.19, kUnitZeros = 1.75, kUnitAny = 1.32;
/// The same of split_32: scales of chunks, and inside them; and of a chunk: run-time decoding, promotion of 16 columns, three bits.
constexpr double kWideChunks = 1.15, kWideInside = 1.65, kWideAny = 1.2, kChunkAny = 1.15, kChunkPromoted16 = 1.45, kChunkOdd = 1.05;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

int tiles_of(const WeightProblem& problem, const WeightConfig& c) {
  return ceil_div(problem.w.layout.row_chunks, c.row_groups) * ceil_div(problem.m, c.tokens);
}

/// Sums of the other parts lie in shared memory, beside at least two slots of weights and tokens (sm90/weight_main.cuh), four of up to 64
/// tokens.
bool leaves_room(const WeightConfig& c, const WeightLayoutInfo& layout, int parts) {
  const int kShared = 227 * 1024, kStores = 4096 + c.row_groups * std::max(8192, c.tokens / 64 * 4096);
  const int tokens = kChunkDepth * c.tokens * 2, slot = c.row_groups * layout.chunk_bytes() + tokens;
  return c.tokens >= 256 ||
         2 * slot + (c.tokens <= 64 ? 2 * tokens : 0) + (parts - 1) * c.row_groups * c.tokens * 64 * 4 + kStores <= kShared;
}

bool is_any(const WeightView& w) { return w.layout.kind == WeightKind::kFloat && w.scheme.element.mantissa_bits != w.layout.mantissa; }

bool has_scales_inside(const WeightView& w) { return w.layout.scale != ChunkScale::kNone && w.layout.step < kChunkDepth; }

/// Streams: scales inside chunks, decoding that is told at run time and zero points along k cost.
double slower_stream(const WeightView& w, double zeros = kUnitZeros) {
  return (has_scales_inside(w) ? (w.layout.step == 16 ? kUnitScales16 : kUnitScales) : 1.0) * (is_any(w) ? kUnitAny : 1.0) *
         (w.layout.has_zeros ? zeros : 1.0);
}

/// The others: us of a chunk, all multiprocessors at work.
double chunk_microseconds(const WeightView& w, const WeightConfig& c) {
  const bool has_scales = w.layout.scale != ChunkScale::kNone;
  const double cost = !has_scales ? c.cost.rows : (w.layout.step == kChunkDepth ? c.cost.chunks : c.cost.inside);
  const double any = is_any(w) && (has_scales || c.tokens < 256) ? kChunkAny : 1.0,
               promoted = c.promotes && w.layout.step == 16 ? kChunkPromoted16 : 1.0;
  // Three bits: decoding bounds tiles of 32 tokens, and takes as long as that of four.
  const double odd = c.tokens <= 32 && w.layout.bits == 3 ? kChunkOdd : 1.0;
  return cost * any * promoted * odd + kPerByte * c.row_groups * w.layout.chunk_bytes();
}

/// Slots of a stream or split, four chunks and their columns of x each, beside `others` bytes in half a multiprocessor's shared memory;
/// 0: two do not fit, and a thread block takes all of it (sm90/weight_launch.cu).
int half_slots(const WeightProblem& problem, int wide, int rows, int others) {
  constexpr int kHalf = 115712 - 2048, kMost = 12;
  const int slots = (kHalf - others) / (4 * problem.w.layout.chunk_bytes() + ceil_div(16 / wide * rows * 128, 1024) * 1024);
  return slots < 2 ? 0 : std::min(slots, kMost);
}
/// Of streams, whose other warps' sums lie beside the slots.
int stream_slots(const WeightProblem& problem, const WeightConfig& c, int wide) {
  return half_slots(problem, wide, std::min(problem.m, c.tokens), (8 - wide) * c.tokens * 128);
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
  const double promotes = c.tokens == 16 && layout.scale != ChunkScale::kNone ? kStreamPromotes : 1.0;
  const double unit = std::max(mode.units[c.tokens / 16] * slower_stream(problem.w) * promotes,
                               filled * 4.0 * layout.chunk_bytes() / mode.bytes_per_microsecond);
  const double share = plan.is_whole && c.tokens <= 16 ? kShareOfTokensWhole : kShareOfTokens;
  const double all = unit + mode.more + share * tokens / mode.bytes_per_microsecond;
  const bool leaves_halves = is_shared && 3 * plan.workers < 5 * multiprocessors;  // for the next kernel
  double start = leaves_halves ? mode.start - 2.0 : mode.start, late = 0.0;
  if (const int slots = stream_slots(problem, c, plan.wide); !plan.is_whole && slots == 0)
    start += kNotHalf;
  else if (!plan.is_whole && !is_shared)
    late = std::max(0, units - slots) * std::max(0.0, (kStreamLatency + 4.0 * layout.chunk_bytes() / kSplitBytes) / slots - all);
  const int passes = ceil_div(problem.m, c.tokens);
  return start + passes * (passes > 1 ? kMorePasses : 1.0) * (tiles * kTile + units * all + late);
}

/// Splits: wgmma changes units of scales, or multiplies them into fragments, and decoding of wide codes keeps it waiting.
double slower_split(const WeightView& w, const WeightConfig& c) {
  if (c.is_stream()) return slower_stream(w, 1.0);
  const double scales = w.layout.scale == ChunkScale::kNone ? 1.0 : (w.layout.step == kChunkDepth ? kWideChunks : kWideInside);
  const double decoding = std::max(1.0, 0.5 + 0.125 * w.layout.bits);
  return decoding * scales * (is_any(w) ? kWideAny : 1.0);
}

double estimate_split(const WeightProblem& problem, const WeightConfig& c, const WeightPlan& plan, int multiprocessors) {
  const WeightLayoutInfo& layout = problem.w.layout;
  const int blocks = plan.workers * plan.parts, size = c.tokens / 16;
  // Clusters of more than two do not spread evenly, nor over all multiprocessors.
  const bool is_large = plan.parts > 2, is_alone = !is_large && blocks <= multiprocessors;
  const double bytes = 4.0 * layout.chunk_bytes(), slower = slower_split(problem.w, c), parts = plan.parts > 1 ? kSplitParts[size] : 0.0;
  const int units = ceil_div(ceil_div(layout.depth_chunks, 8 / plan.wide), plan.parts);
  if (is_alone) {
    const int sums = c.is_stream() ? 4 * c.tokens * 128 : 0, sent = (plan.parts - 1) * ceil_div(plan.wide * c.tokens / 4, plan.parts) * 512;
    const int slots = std::max(2, half_slots(problem, plan.wide, c.is_stream() ? std::min(problem.m, c.tokens) : c.tokens, sums + sent));
    const double latency = plan.wide == 2 ? kSplitLatency[size] : kSplitLatencyOf128;
    const double late = std::max(kSplitSteady[size] * slower, (latency + bytes / kSplitBytes) / slots);
    const double from_memory = units * bytes / kSplitBytes;
    const double way = std::min(slots, units) * kSplitReady[size] * slower + std::max(0, units - slots) * late;
    return kSplitStart[size] + parts + std::max(from_memory, way) * (plan.parts > 1 ? 1.0 : kSplitWhole);
  }
  const int room = 2 * (is_large ? multiprocessors * 10 / 11 : multiprocessors), rounds = ceil_div(blocks, room);
  const double filled = 0.5 + 0.5 * blocks / (rounds * room), tokens = 256.0 * 8 / plan.wide * std::min(problem.m, c.tokens);
  const double leaves_halves = 3 * blocks < 5 * multiprocessors ? kSplitLeaves[size] : 0.0;  // for the next kernel
  const double unit = std::max(kSplitShared[size] * slower, filled * bytes / kSplitSharedBytes[size]);
  return kSplitSharedStart[size] - leaves_halves + parts + 2 * rounds * units * (unit + kShareOfTokens * tokens / kSplitSharedBytes[1]);
}

/// The best height of tiles for so many parts; wgmma has one.
WeightPlan make_split_plan(const WeightProblem& problem, const WeightConfig& c, int config, int parts, int multiprocessors) {
  WeightPlan best;
  double lowest = 0.0;
  for (const int wide : {2, 4}) {
    if (!c.is_stream() && wide != 4) continue;
    const int tiles = ceil_div(problem.w.layout.row_chunks, wide / 2) * ceil_div(problem.m, c.tokens);
    const int units = ceil_div(problem.w.layout.depth_chunks, 8 / wide);
    const WeightPlan plan{config, tiles, std::clamp(parts, 1, std::min(units, kMostSplitParts)), tiles, wide};
    const double estimate = estimate_split(problem, c, plan, multiprocessors);
    if (best.wide == 0 || estimate < lowest) best = plan, lowest = estimate;
  }
  return best;
}

/// The best height of tiles and number of thread blocks.
WeightPlan make_stream_plan(const WeightProblem& problem, const WeightConfig& c, int config, int multiprocessors) {
  WeightPlan best;
  double lowest = 0.0;
  for (const StreamMode& mode : kStreamModes) {
    if (c.tokens > 16 && !mode.is_whole) continue;
    for (const int wide : {1, 2, 4, 8}) {
      if (mode.blocks == 2 && stream_slots(problem, c, wide) == 0) continue;
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
    if (!c.is_stream() && !c.splits && m >= c.tokens) most = std::max(most, even_workspace(c, multiprocessors));
  return most;
}

WeightPlan make_even_plan(const WeightProblem& problem, int config, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  WeightPlan plan{config};
  if (c.is_stream() || c.splits) return plan;
  plan.tiles = tiles_of(problem, c);
  plan.workers = static_cast<int>(std::min(std::int64_t{multiprocessors}, std::int64_t{plan.tiles} * problem.w.layout.depth_chunks));
  plan.is_even = plan.tiles % plan.workers != 0 && problem.workspace_size >= even_workspace(c, plan.workers);
  return plan;
}

WeightPlan make_weight_plan(const WeightProblem& problem, int config, int parts, int multiprocessors) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
  if (c.splits) return make_split_plan(problem, c, config, parts, multiprocessors);
  if (c.is_stream()) return make_stream_plan(problem, c, config, multiprocessors);
  WeightPlan plan{config};
  plan.tiles = tiles_of(problem, c);
  // Of 256 tokens two parts, which have but one tile each.
  const int most = c.tokens < 256 ? kMostParts : (2 * plan.tiles <= multiprocessors ? 2 : 1);
  plan.parts = std::clamp(std::min(parts, problem.w.layout.depth_chunks), 1, most);
  while (plan.parts > 1 && !leaves_room(c, problem.w.layout, plan.parts)) --plan.parts;
  // Clusters lie within a group of 16 or 18 multiprocessors.
  const int room = plan.parts < 3 ? multiprocessors : multiprocessors * 10 / 11;
  plan.workers = std::min(std::max(1, room / plan.parts), plan.tiles);
  return plan;
}

double estimate_weight_plan(const WeightProblem& problem, const WeightPlan& plan) {
  const WeightConfig& c = kConfigs[static_cast<std::size_t>(plan.config)];
  if (c.splits) return estimate_split(problem, c, plan, kMultiprocessors);
  if (c.is_stream()) return estimate_stream(problem, c, plan, kMultiprocessors);
  const WeightLayoutInfo& layout = problem.w.layout;
  const double rounds = plan.is_even ? static_cast<double>(plan.tiles) / plan.workers : ceil_div(plan.tiles, plan.workers);
  const double busy = std::min(1.0, static_cast<double>(plan.workers * plan.parts) / kMultiprocessors);
  const double chunk = chunk_microseconds(problem.w, c) * (kLeast + (1.0 - kLeast) * busy);
  const double pieces = std::max(0.0, static_cast<double>(plan.workers) / plan.tiles - 1.0);
  return kStart + rounds * ceil_div(layout.depth_chunks, plan.parts) * chunk +
         (plan.parts > 1 ? rounds * (c.tokens <= 32 ? kPartsOfFew : kParts + kPartsPerToken * std::min(c.tokens, 128)) : 0.0) +
         (plan.is_even ? kEven + kEvenPerToken * c.tokens + kEvenPerPiece * pieces : 0.0);
}

WeightPlan choose_weight_plan(const WeightProblem& problem, int multiprocessors) {
  WeightPlan best{-1};
  double lowest = 0.0;
  for (int config = 0; config < static_cast<int>(kConfigs.size()); ++config) {
    const WeightConfig& c = kConfigs[static_cast<std::size_t>(config)];
    if (!has_weight_config(problem, config)) continue;
    constexpr int kFewRows = 16;  // which streams are for
    if (problem.m <= kFewRows && !c.is_stream()) continue;
    for (const int parts : {0, 1, kUsefulParts, kUsefulPartsOfFew, kMostSplitParts}) {  // 0: even
      if (c.splits && (problem.m > c.tokens || (c.tokens > 8 && 2 * problem.m <= c.tokens))) continue;
      if (parts > kUsefulParts && (c.is_stream() || c.tokens > 64)) continue;
      if (parts > kUsefulPartsOfFew && !c.splits) continue;
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
