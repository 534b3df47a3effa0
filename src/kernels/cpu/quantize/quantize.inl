// The fast quantizer. Meaning: reference/quantize.cc, bit for bit.
//   statistics of the cells of a group -> their scales -> per row and chunk: quotients, codes, packing
// A group is a stripe of rows that share scales, by whole cells of some thousand columns, so that the second pass reads
// from a near cache. Bound: memory; 4 B read (2 B of 16-bit inputs), bits / 8 B written per element.
// Included by a leaf inside its own namespace.

constexpr int kSpare = 64;  // bytes that packing may touch beyond the end

struct Scratch {
  CellStats stats;
  CellScales scales;
  Quotient quotient;                 ///< of the group
  alignas(64) float values[kChunk];  ///< widened or padded inputs
  Reciprocals inverse;
  alignas(64) float expanded[kChunk];
  alignas(64) std::int32_t expanded_zero[kChunk];
  alignas(64) std::uint16_t words[kChunk + kSpare];
  alignas(64) std::uint8_t bytes[kChunk + kSpare];
  alignas(64) std::uint8_t packed[2 * kChunk + kSpare];
};

/// A stripe of rows [row, row_end) that share the scales of `cells` cells, in columns [col, col_end).
struct Group {
  std::int64_t row, row_end, col, col_end;
  std::int64_t first_cell, first_cell_col, cell_cols;
  int cells;
};

/// Where the rows end that share their scales with `row`.
inline std::int64_t stripe_end(const ScaleGrid& grid, std::int64_t row, std::int64_t row_end) {
  if (grid.whole_tensor) return row_end;
  const std::int64_t within = row % grid.matrix_rows;
  return min_of(row_end, row - within + min_of(grid.matrix_rows, (within / grid.tile_rows + 1) * grid.tile_rows));
}

/// The group that starts at (row, col): it ends at a multiple of 8 columns or with the tile. Where the tile starts with a
/// cell, as it does unless the scales are given, the group holds whole cells.
inline Group group_at(const ScaleGrid& grid, std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t col_limit) {
  if (grid.whole_tensor) return {row, row_end, col, col_limit, 0, col, col_limit - col, 1};
  const std::int64_t cell_cols = grid.tile_cols, cell = col / cell_cols;
  const std::int64_t unit = 8 / min_of(std::int64_t{8}, std::int64_t{1} << trailing_zeros(cell_cols));
  const std::int64_t wanted = max_of(unit, kChunk / cell_cols / unit * unit);
  const std::int64_t end = min_of(col_limit, (cell + wanted) * cell_cols / 8 * 8);
  const std::int64_t grid_row = (row / grid.matrix_rows) * grid.tiles_per_matrix + (row % grid.matrix_rows) / grid.tile_rows;
  return {
      row, row_end, col, end, grid_row * grid.cols + cell, cell * cell_cols, cell_cols, static_cast<int>((end - 1) / cell_cols - cell + 1)};
}

/// Values [col, col + count) of a row as fp32, readable up to a multiple of kLanes.
inline const float* row_values(const QuantizeProblem& problem, std::int64_t row, std::int64_t col, int count, float* scratch) {
  const std::int64_t at = row * problem.row_stride + col;
  const int padded = round_up(count, kLanes);
  if (problem.dtype == DType::kF32) {
    const float* x = static_cast<const float*>(problem.x) + at;
    if (padded == count) return x;
    __builtin_memcpy(scratch, x, static_cast<std::size_t>(count) * sizeof(float));
    for (int i = count; i < padded; ++i) scratch[i] = 0.0f;
    return scratch;
  }
  const std::uint16_t* x = static_cast<const std::uint16_t*>(problem.x) + at;
  const bool is_bf16 = problem.dtype == DType::kBf16;
  for (int i = 0; i < count; i += kLanes) {
    std::uint16_t rest[kLanes] = {};
    const std::uint16_t* from = x + i;
    if (count - i < kLanes) {
      __builtin_memcpy(rest, from, static_cast<std::size_t>(count - i) * 2);
      from = rest;
    }
    store(scratch + i, is_bf16 ? widen_bf16(from) : widen_fp16(from));
  }
  return scratch;
}

inline Statistic statistic_of(const ScalePlan& plan) {
  if (plan.asymmetric) return Statistic::kRange;
  return plan.rule == ScaleRule::kMeanAbsolute ? Statistic::kSum : Statistic::kAmax;
}

/// Adds values [col, col + count) of one row to the cells they belong to.
inline void measure_chunk(const float* x, std::int64_t col, int count, const Group& group, Statistic statistic, CellStats& stats) {
  const std::int64_t cell_cols = group.cell_cols;
  if (cell_cols == 1 && statistic == Statistic::kAmax) return amax_of_columns(x, count, stats);
  std::int64_t at = col;
  const std::int64_t end = col + count;
  if (statistic == Statistic::kAmax && cell_cols % kLanes == 0 && cell_cols < kChunk && (col - group.first_cell_col) % cell_cols == 0) {
    const int first = static_cast<int>((col - group.first_cell_col) / cell_cols);
    const int done = amax_of_cells(x, static_cast<int>(count / cell_cols), static_cast<int>(cell_cols / kLanes), stats.amax + first);
    at += done * cell_cols;
  }
  while (at < end) {
    const std::int64_t cell = (at - group.first_cell_col) / cell_cols;
    const std::int64_t run_end = min_of(end, group.first_cell_col + (cell + 1) * cell_cols);
    const float* run = x + (at - col);
    const int run_count = static_cast<int>(run_end - at);
    stats.merge(static_cast<int>(cell),
                statistic == Statistic::kRange ? run_stats<true>(run, run_count) : run_stats<false>(run, run_count));
    at = run_end;
  }
}

/// int1: adds the sums of one row, segment by segment from the start of each cell.
inline void sum_row(const QuantizeProblem& problem, std::int64_t row, const Group& group, Scratch& scratch) {
  constexpr std::int64_t kSegment = 1024;
  for (int cell = 0; cell < group.cells; ++cell) {
    const std::int64_t begin = group.first_cell_col + cell * group.cell_cols, end = min_of(group.col_end, begin + group.cell_cols);
    double sum = 0.0;
    for (std::int64_t col = begin; col < end; col += kSegment) {
      const int count = static_cast<int>(min_of(kSegment, end - col));
      const float* x = row_values(problem, row, col, count, scratch.values);
      sum += segment_sum(x, count);
      const RunStats run = run_stats<false>(x, count);
      scratch.stats.has_nan = scratch.stats.has_nan || run.has_nan;
      scratch.stats.has_infinity = scratch.stats.has_infinity || run.has_infinity;
    }
    scratch.stats.sum[cell] += sum;
  }
}

/// Makes and stores the scales of a group from its statistics.
inline void finish_scales(const QuantizeProblem& problem, const QuantizePlan& plan, const Group& group, Scratch& scratch) {
  const std::int64_t rows = group.row_end - group.row;
  const std::int64_t last_cols = group.col_end - (group.first_cell_col + (group.cells - 1) * group.cell_cols);
  make_scales(plan.scale, scratch.stats, group.cells, rows * group.cell_cols, rows * last_cols, scratch.scales);
  store_scales(plan.scale, scratch.scales, group.cells, group.first_cell, problem.scales, problem.zero_points);
}

/// How the values of a group are divided by its scales.
inline void prepare_division(const QuantizePlan& plan, const Group& group, Scratch& scratch) {
  const float* scales = scratch.scales.effective;
  scratch.quotient = plan.quotient;
  if (plan.quotient == Quotient::kMultiply)
    for (int i = 0; i < group.cells; i += kLanes) store(scratch.inverse.high + i, 1.0f / load<VF>(scales + i));
  if (plan.quotient == Quotient::kReciprocal && !scratch.inverse.make(scales, group.cells)) scratch.quotient = Quotient::kDivide;
}

/// Makes, or loads, the scales of a group.
inline void prepare_scales(const QuantizeProblem& problem, const QuantizePlan& plan, const Group& group, Scratch& scratch, TileStats& all) {
  CellScales& scales = scratch.scales;
  if (!plan.scale.present) {
    scales.effective[0] = 1.0f;
    scales.zero_point[0] = 0;
  } else if (problem.scales_given) {
    load_scales(plan.scale, problem.scales, problem.zero_points, group.first_cell, group.cells, scales);
  } else {
    const Statistic statistic = statistic_of(plan.scale);
    scratch.stats.clear(group.cells, statistic);
    for (std::int64_t row = group.row; row < group.row_end; ++row) {
      if (statistic == Statistic::kSum) {
        sum_row(problem, row, group, scratch);
        continue;
      }
      for (std::int64_t col = group.col; col < group.col_end; col += kChunk) {
        const int count = static_cast<int>(min_of(std::int64_t{kChunk}, group.col_end - col));
        measure_chunk(row_values(problem, row, col, count, scratch.values), col, count, group, statistic, scratch.stats);
      }
    }
    finish_scales(problem, plan, group, scratch);
    all.has_nan = all.has_nan || scratch.stats.has_nan;
    all.has_infinity = all.has_infinity || scratch.stats.has_infinity;
  }
  prepare_division(plan, group, scratch);
}

struct ChunkDivision {
  Quotient quotient;
  ChunkScales scales;
};

/// How columns [col, col + count) of a group are divided by their scales.
inline ChunkDivision division_of_chunk(const QuantizePlan& plan, const Group& group, std::int64_t col, int count, Scratch& scratch) {
  const float* factor = scratch.quotient == Quotient::kMultiply ? scratch.inverse.high : scratch.scales.effective;
  ChunkScales scales = scales_of_chunk(factor, scratch.scales.zero_point, plan.scale.asymmetric, group.first_cell_col, group.cell_cols, col,
                                       count, scratch.expanded, scratch.expanded_zero);
  if (scratch.quotient != Quotient::kReciprocal) return {scratch.quotient, scales};
  if (scales.access == Access::kExpanded) return {Quotient::kDivide, scales};
  const std::ptrdiff_t cell = scales.factor - factor;
  scales.factor = scratch.inverse.high + cell;
  scales.low = scratch.inverse.low + cell;
  return {Quotient::kReciprocal, scales};
}

template <Quotient kQuotient, bool kFinite>
inline VF quotient_of(VF value, VF factor, VF low) {
  if constexpr (kQuotient == Quotient::kDivide) return value / factor;
  if constexpr (kQuotient == Quotient::kMultiply) return value * factor;
  const VF quotient = multiply_add(value, factor, value * low);
  if constexpr (kFinite) return quotient;
  return magnitude_of(value) >= kInfinityBits ? value : quotient;  // low may be 0 or negative
}

/// The codes of `count` values, whole vectors at a time. `ahead`: the distance to what is wanted next, to fetch it.
template <Quotient kQuotient, Access kAccess, bool kFinite, typename Encoder, typename Code>
inline void encode_loop(const Encoder encoder, const float* x, int count, const ChunkScales scales, std::uint64_t seed, std::uint64_t index,
                        std::int64_t ahead, Code* codes) {
  for (int i = 0; i < count; i += kLanes) {
    __builtin_prefetch(x + i + ahead, 0, 2);
    VF factor, low = splat(0.0f);
    VI zero;
    if constexpr (kAccess == Access::kShared) {
      const int cell = (i / kLanes + scales.phase) >> scales.shift;
      factor = splat(scales.factor[cell]);
      if constexpr (kQuotient == Quotient::kReciprocal) low = splat(scales.low[cell]);
      zero = splat(scales.zero_point[cell]);
    } else {
      factor = load<VF>(scales.factor + i);
      zero = load<VI>(scales.zero_point + i);
    }
    const VF value = load<VF>(x + i);
    const VF quotient = quotient_of<kQuotient, kFinite>(value, factor, low);
    VU random = splat(0u);
    if constexpr (Encoder::kRandom) random = random_lanes(seed, index + static_cast<std::uint64_t>(i));
    store_codes(codes + i, encoder.template encode<kFinite>(quotient, value, zero, random));
  }
}

template <typename Encoder, typename Code>
inline void encode_chunk(const Encoder& encoder, Quotient quotient, bool finite, const float* x, int count, const ChunkScales& scales,
                         std::uint64_t seed, std::uint64_t index, std::int64_t ahead, Code* codes) {
  const auto loop = [&]<Quotient kQuotient, Access kAccess, bool kFinite>() {
    encode_loop<kQuotient, kAccess, kFinite>(encoder, x, count, scales, seed, index, ahead, codes);
  };
  if (scales.access == Access::kExpanded) {
    if (quotient == Quotient::kMultiply) return loop.template operator()<Quotient::kMultiply, Access::kExpanded, false>();
    return loop.template operator()<Quotient::kDivide, Access::kExpanded, false>();
  }
  const auto shared = [&]<bool kFinite>() {
    switch (quotient) {
      case Quotient::kDivide: return loop.template operator()<Quotient::kDivide, Access::kShared, kFinite>();
      case Quotient::kMultiply: return loop.template operator()<Quotient::kMultiply, Access::kShared, kFinite>();
      case Quotient::kReciprocal:
        if constexpr (Encoder::kHasReciprocal) return loop.template operator()<Quotient::kReciprocal, Access::kShared, kFinite>();
        __builtin_unreachable();
    }
  };
  if constexpr (Encoder::kFasterIfFinite) {
    if (finite) return shared.template operator()<true>();
  }
  shared.template operator()<false>();
}

/// Packs a chunk's codes and writes them to their place in the row.
inline void emit(const QuantizePlan& plan, Scratch& scratch, int count, std::uint8_t* to) {
  const int bits = plan.element.bits;
  const std::size_t bytes = (static_cast<std::size_t>(count) * static_cast<std::size_t>(bits) + 7) / 8;
  if (bits == 16) return write_out(to, reinterpret_cast<const std::uint8_t*>(scratch.words), bytes, plan.stream);
  if (bits < 8) {
    for (int i = count; i < round_up(count, 8); ++i) scratch.bytes[i] = 0;
    pack_bytes(scratch.bytes, count, bits, scratch.packed);
  } else {
    for (int i = count; i < round_up(count, 8); ++i) scratch.words[i] = 0;
    pack_words(scratch.words, count, bits, scratch.packed);
  }
  write_out(to, scratch.packed, bytes, plan.stream);
}

/// As many of the chunk's codes as its runs make; the rest goes vector by vector.
template <typename Encoder>
inline int encode_whole_runs(const QuantizePlan& plan, const float* x, int count, const ChunkDivision& division, bool finite,
                             std::int64_t ahead, bool around_caches, std::uint8_t* codes) {
  using Run = typename RunOf<Encoder>::Type;
  using CellRun = typename CellRunOf<Encoder>::Type;
  if (!finite || division.quotient == Quotient::kDivide || division.scales.access == Access::kExpanded) return 0;
  if constexpr (!__is_same(Run, void))
    if (division.quotient == Quotient::kReciprocal && has_runs(plan)) {  // quotients are within the codes
      const Run run(plan.element);
      if (around_caches) return encode_runs<true>(run, x, count, division.scales, ahead, codes);
      return encode_runs<false>(run, x, count, division.scales, ahead, codes);
    }
  if constexpr (!__is_same(CellRun, void))
    if (has_cell_runs(plan)) {
      const CellRun run(plan);
      const int whole = count / kRun * kRun;
      const auto encode = [&]<Quotient kQuotient>() {
        if (division.scales.shift == 0)
          encode_cells<kQuotient, true>(run, x, whole, division.scales, ahead, codes);
        else
          encode_cells<kQuotient, false>(run, x, whole, division.scales, ahead, codes);
      };
      if (division.quotient == Quotient::kMultiply)
        encode.template operator()<Quotient::kMultiply>();
      else
        encode.template operator()<Quotient::kReciprocal>();
      return whole;
    }
  return 0;
}

/// The codes of a chunk, `to` their place in the row.
template <typename Encoder>
inline void quantize_chunk(const QuantizePlan& plan, const Encoder& encoder, const float* x, int count, const ChunkDivision& division,
                           bool finite, std::uint64_t seed, std::uint64_t index, std::int64_t ahead, Scratch& scratch, std::uint8_t* to) {
  const int bits = plan.element.bits;
  if (bits > 8) {
    encode_chunk(encoder, division.quotient, finite, x, count, division.scales, seed, index, ahead, scratch.words);
    return emit(plan, scratch, count, to);
  }
  const bool in_place = bits == 8, around_caches = in_place && plan.stream && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
  const int done = encode_whole_runs<Encoder>(plan, x, count, division, finite, ahead, around_caches, in_place ? to : scratch.bytes);
  if (done < count) {
    ChunkScales rest = division.scales;
    rest.phase += done / kLanes;
    encode_chunk(encoder, division.quotient, finite, x + done, count - done, rest, seed, index + static_cast<std::uint64_t>(done), ahead,
                 scratch.bytes + done);
  }
  if (!in_place) return emit(plan, scratch, count, to);
  write_out(to + done, scratch.bytes + done, static_cast<std::size_t>(count - done), plan.stream);
}

template <typename Encoder>
inline void encode_group(const QuantizeProblem& problem, const QuantizePlan& plan, const Encoder& encoder, const Group& group,
                         Scratch& scratch) {
  const bool finite = plan.scale.present && !problem.scales_given && !scratch.stats.has_nan && !scratch.stats.has_infinity;
  const std::int64_t ahead =
      group.row_end - group.row > 1 ? problem.row_stride : max_of(group.col_end - group.col, std::int64_t{kFetchAhead});
  for (std::int64_t row = group.row; row < group.row_end; ++row) {
    std::uint8_t* codes = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes;
    for (std::int64_t col = group.col; col < group.col_end; col += kChunk) {
      const int count = static_cast<int>(min_of(std::int64_t{kChunk}, group.col_end - col));
      const float* x = row_values(problem, row, col, count, scratch.values);
      quantize_chunk(plan, encoder, x, count, division_of_chunk(plan, group, col, count, scratch), finite, problem.seed,
                     static_cast<std::uint64_t>(row * problem.cols + col), ahead, scratch, codes + col * plan.element.bits / 8);
    }
  }
}

#include "kernels/cpu/quantize/blocks.inl"
#include "kernels/cpu/quantize/nibbles.inl"

TileStats run_quantize(const QuantizeProblem& problem, const Tile& tile) {
  const QuantizePlan plan = plan_of(problem);
  TileStats all;
  Scratch scratch;
  with_encoder(plan.element, problem.rounding, plan.scale.asymmetric, [&]<typename Encoder>(const Encoder& encoder) {
    if constexpr (!__is_same(typename RunOf<Encoder>::Type, void))
      if (has_byte_runs(problem, plan)) {
        if (problem.grid.tile_cols <= kChunk) return quantize_blocks(problem, plan, encoder, tile, scratch, all);
        if (is_in_long_rows(problem)) return quantize_long_rows(problem, plan, encoder, tile, scratch, all);
      }
    if constexpr (kForSpeed && NibbleRuns<Encoder>::kHas)
      if (with_nibbles<Encoder>(problem, plan, [&]<ScaleStorage kStorage, int kCols>() {
            const bool around_caches = plan.stream && reinterpret_cast<std::uintptr_t>(problem.codes + tile.col_begin / 2) % 64 == 0;
            if (around_caches)
              quantize_nibbles<kStorage, kCols, true>(problem, plan, encoder, tile, scratch, all);
            else
              quantize_nibbles<kStorage, kCols, false>(problem, plan, encoder, tile, scratch, all);
          }))
        return;
    for (std::int64_t row = tile.row_begin; row < tile.row_end;) {
      const std::int64_t row_end = stripe_end(problem.grid, row, tile.row_end);
      for (std::int64_t col = tile.col_begin; col < tile.col_end;) {
        const Group group = group_at(problem.grid, row, row_end, col, tile.col_end);
        prepare_scales(problem, plan, group, scratch, all);
        encode_group(problem, plan, encoder, group, scratch);
        col = group.col_end;
      }
      row = row_end;
    }
  });
  if (plan.stream) fence();
  return all;
}

TileStats measure_tile(const QuantizeProblem& problem, const Tile& tile) {
  RunStats all;
  alignas(64) float values[kChunk];
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row)
    for (std::int64_t col = tile.col_begin; col < tile.col_end; col += kChunk) {
      const int count = static_cast<int>(min_of(std::int64_t{kChunk}, tile.col_end - col));
      const RunStats run = run_stats<true>(row_values(problem, row, col, count, values), count);
      all.amax = max_of(all.amax, run.amax);
      all.low = min_of(all.low, run.low);
      all.high = max_of(all.high, run.high);
      all.has_nan = all.has_nan || run.has_nan;
      all.has_infinity = all.has_infinity || run.has_infinity;
    }
  TileStats stats;
  stats.amax = float_of(all.amax);
  stats.minimum = all.low;
  stats.maximum = all.high;
  stats.has_nan = all.has_nan;
  stats.has_infinity = all.has_infinity;
  return stats;
}

bool accepts_quantize(const QuantizeProblem&) { return true; }
