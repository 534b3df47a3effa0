// Codes of one byte, for cells of one row and of whole runs. Memory is kept busy by fetches that are even, far ahead, and no more than it
// can serve (docs/kernels/cpu_quantize.md):
//   long rows                while a row is encoded, the next one is measured
//   blocks of whole numbers  one after another; the encoding reads again from the first-level cache
//   blocks of floats         while kLanes of them are encoded, the next ones are measured, block by block: scales are made of many at once
// Where a value is not finite, or a scale has to be divided by, a cell goes the general way.

constexpr int kLongestRow = 1 << 16;  // values: two rows and what is fetched stay in the second-level cache
constexpr int kFarAhead = 2 * kFetchAhead;

/// Whether the cells of a problem are of bytes and have the short way.
inline bool has_byte_runs(const QuantizeProblem& problem, const QuantizePlan& plan) {
  const ScaleGrid& grid = problem.grid;
  return plan.scale.present && !problem.scales_given && !grid.whole_tensor && grid.tile_rows == 1 && grid.tile_cols % kRun == 0 &&
         plan.element.bits == 8 && plan.quotient == Quotient::kReciprocal && has_runs(plan);
}

inline bool is_in_long_rows(const QuantizeProblem& problem) {
  return problem.dtype == DType::kF32 && problem.grid.tile_cols == problem.cols && problem.cols > kChunk && problem.cols <= kLongestRow;
}

/// Encodes `count` values of a row and returns the largest magnitude, finite or not, of the next one. Every line is fetched twice, far
/// ahead and nearer: the loop is faster than memory, and a fetch for which no miss buffer is free is dropped.
template <bool kStream, typename Run>
inline std::int32_t encode_and_measure(const Run run, const float* x, const float* next, int count, float high, float low,
                                       std::uint8_t* codes) {
  VI largest = splat(0);
  for (int i = 0; i < count; i += kRun) {
    fetch_run(next + i + kFarAhead);
    fetch_run(next + i + kFetchAhead);
    for (int v = 0; v < 4; ++v) largest = larger(largest, magnitude_of(load<VF>(next + i + v * kLanes)));
    encode_one_run<kStream>(run, x + i, splat(high), splat(low), codes + i);
  }
  return highest_lane(largest);
}

/// The scale of a row from its largest magnitude; false where it takes the general way.
inline bool scale_from_amax(const QuantizeProblem& problem, const QuantizePlan& plan, const Group& row, std::int32_t amax,
                            Scratch& scratch) {
  if (amax >= kInfinityBits) return false;
  store(scratch.stats.amax, splat(amax));
  finish_scales(problem, plan, row, scratch);
  prepare_division(plan, row, scratch);
  return scratch.quotient != Quotient::kDivide;
}

/// Quantizes a tile of rows that are one cell each.
template <typename Encoder>
[[gnu::noinline]] inline void quantize_long_rows(const QuantizeProblem& problem, const QuantizePlan& plan, const Encoder& encoder,
                                                 const Tile& tile, Scratch& scratch, TileStats& all) {
  using Run = typename RunOf<Encoder>::Type;
  const Run run(plan.element);
  const int count = static_cast<int>(problem.cols);
  const auto measure = [&](const float* x) { return highest_lane(largest_magnitude(x, count / kLanes)); };
  const float* x = static_cast<const float*>(problem.x) + tile.row_begin * problem.row_stride;
  std::int32_t amax = measure(x);
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row, x += problem.row_stride) {
    const Group group = group_at(problem.grid, row, row + 1, 0, problem.cols);
    const bool is_short = scale_from_amax(problem, plan, group, amax, scratch), is_last = row + 1 == tile.row_end;
    if (is_short) {
      std::uint8_t* codes = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes;
      const bool around_caches = plan.stream && reinterpret_cast<std::uintptr_t>(codes) % 64 == 0;
      const auto encode = around_caches ? encode_and_measure<true, Run> : encode_and_measure<false, Run>;
      amax = encode(run, x, is_last ? x : x + problem.row_stride, count, scratch.inverse.high[0], scratch.inverse.low[0], codes);
    } else {
      prepare_scales(problem, plan, group, scratch, all);
      encode_group(problem, plan, encoder, group, scratch);
      if (!is_last) amax = measure(x + problem.row_stride);
    }
  }
}

/// Whether these scales are finite and have the short way.
inline bool has_reciprocals(VF scales) { return !any_lane(~((VI)(scales >= kLowestReciprocal) & (VI)(scales <= kHighestReciprocal))); }

/// Up to kLanes blocks of whole numbers, one after another; false where they take the general way.
template <bool kStream, int kCount>
inline bool encode_blocks(const QuantizePlan& plan, const IntegerRun& run, const float* x, int cells, int block_count,
                          std::uint32_t* scales, std::uint8_t* codes) {
  const int count = kCount != 0 ? kCount : block_count;
  for (int cell = 0; cell < cells; ++cell, x += count, codes += count) {
    VI each[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (int i = 0; i < count; i += kRun) {
      fetch_run(x + i + kFarAhead);
      for (int v = 0; v < 4; ++v) each[v] = larger(each[v], magnitude_of(load<VF>(x + i + v * kLanes)));
    }
    const VU code = symmetric_codes(plan.scale, splat(highest_lane(larger(larger(each[0], each[1]), larger(each[2], each[3])))));
    if (!has_reciprocals(as_float(code))) return false;
    const Reciprocal inverse = reciprocal_of(as_float(code));
    scales[cell] = code[0];
    for (int i = 0; i < count; i += kRun) encode_one_run<kStream>(run, x + i, inverse.high, inverse.low, codes + i);
  }
  return true;
}

/// The scales of up to kLanes blocks of floats.
struct BlockScales {
  alignas(64) std::uint32_t code[kLanes];
  alignas(64) float high[kLanes], low[kLanes];
  bool is_short;  ///< no block takes the general way
};

/// The scales of blocks from the largest magnitudes of each.
inline void make_block_scales(const QuantizePlan& plan, const VI (&each)[kLanes], BlockScales& made) {
  const VU code = symmetric_codes(plan.scale, max_of_each(each));
  const Reciprocal inverse = reciprocal_of(as_float(code));
  store(made.code, code);
  store(made.high, inverse.high);
  store(made.low, inverse.low);
  made.is_short = has_reciprocals(as_float(code));
}

/// The first blocks of a row.
inline void measure_blocks(const QuantizePlan& plan, const float* x, int cells, int count, BlockScales& made) {
  VI each[kLanes];
#pragma GCC unroll 1
  for (int i = 0; i < kLanes; ++i) each[i] = i < cells ? largest_magnitude(x + i * count, count / kLanes) : splat(0);
  make_block_scales(plan, each, made);
}

/// Encodes blocks and, one by one between them, measures the blocks that follow: memory is read evenly.
template <bool kStream, int kCount>
inline void encode_blocks(const FloatRun& run, const float* x, int cells, int block_count, const BlockScales& made, std::uint8_t* codes,
                          const float* next, int next_cells, VI (&each)[kLanes]) {
  const int count = kCount != 0 ? kCount : block_count;
#pragma GCC unroll 1
  for (int cell = 0; cell < kLanes; ++cell) {
    each[cell] = cell < next_cells ? largest_magnitude(next + cell * count, count / kLanes) : splat(0);
    if (cell >= cells) continue;
    const float* from = x + cell * count;
    for (int i = 0; i < count; i += kRun) {
      fetch_run(from + i + kFarAhead);
      encode_one_run<kStream>(run, from + i, splat(made.high[cell]), splat(made.low[cell]), codes + cell * count + i);
    }
  }
}

/// Quantizes the blocks of a tile, kLanes of a row at a time.
template <typename Encoder>
[[gnu::noinline]] inline void quantize_blocks(const QuantizeProblem& problem, const QuantizePlan& plan, const Encoder& encoder,
                                              const Tile& tile, Scratch& scratch, TileStats& all) {
  using Run = typename RunOf<Encoder>::Type;
  constexpr bool kIsFloat = __is_same(Run, FloatRun);
  const Run run(plan.element);
  const int cell_cols = static_cast<int>(problem.grid.tile_cols);
  const std::int64_t step = min_of(kLanes, kChunk / cell_cols) * cell_cols,
                     whole_end = tile.col_end - (tile.col_end - tile.col_begin) % cell_cols;
  const bool around_caches = plan.stream && reinterpret_cast<std::uintptr_t>(problem.codes) % 64 == 0 && problem.row_bytes % 64 == 0;
  const auto general = [&](std::int64_t row, std::int64_t col, std::int64_t col_end) {
    const Group group = group_at(problem.grid, row, row + 1, col, col_end);
    prepare_scales(problem, plan, group, scratch, all);
    encode_group(problem, plan, encoder, group, scratch);
  };
  const auto cols_at = [&](std::int64_t col) { return static_cast<int>(min_of(step, whole_end - col)); };
  const auto values_at = [&](std::int64_t row, std::int64_t col) { return row_values(problem, row, col, cols_at(col), scratch.values); };
  BlockScales made[2];
  VI each[kLanes];
  const auto run_tile = [&]<bool kStream, int kCount>() {
    for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      const std::int64_t first_cell = group_at(problem.grid, row, row + 1, tile.col_begin, tile.col_end).first_cell;
      std::uint32_t* scales = static_cast<std::uint32_t*>(problem.scales) + first_cell;
      std::uint8_t* codes = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes;
      int which = 0;
      if (kIsFloat && tile.col_begin < whole_end)
        measure_blocks(plan, values_at(row, tile.col_begin), cols_at(tile.col_begin) / cell_cols, cell_cols, made[0]);
      for (std::int64_t col = tile.col_begin; col < whole_end; col += step, which ^= 1) {
        const int cells = cols_at(col) / cell_cols;
        bool is_done = false;
        if constexpr (kIsFloat) {
          const int next_cells = col + step < whole_end ? cols_at(col + step) / cell_cols : 0;
          is_done = made[which].is_short;
          const bool is_together = is_done && problem.dtype == DType::kF32;
          if (!is_together && next_cells > 0) measure_blocks(plan, values_at(row, col + step), next_cells, cell_cols, made[which ^ 1]);
          if (is_done) {
            __builtin_memcpy(scales, made[which].code, static_cast<std::size_t>(cells) * sizeof made[which].code[0]);
            const float* x = values_at(row, col);
            encode_blocks<kStream, kCount>(run, x, cells, cell_cols, made[which], codes + col, is_together ? x + step : x,
                                           is_together ? next_cells : 0, each);
            if (is_together && next_cells > 0) make_block_scales(plan, each, made[which ^ 1]);
          }
        } else {
          is_done = encode_blocks<kStream, kCount>(plan, run, values_at(row, col), cells, cell_cols, scales, codes + col);
        }
        if (!is_done) general(row, col, col + cols_at(col));
        scales += cells;
      }
      if (whole_end < tile.col_end) general(row, whole_end, tile.col_end);  // a last, shorter block
    }
  };
  if constexpr (kForSpeed)
    if (cell_cols == 128) return around_caches ? run_tile.template operator()<true, 128>() : run_tile.template operator()<false, 128>();
  return around_caches ? run_tile.template operator()<true, 0>() : run_tile.template operator()<false, 0>();
}
