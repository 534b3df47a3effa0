// Whole numbers of one byte, for cells of one row and of whole runs: blocks of 64, 128 and the like. While a chunk of them is encoded, the
// next one is measured and the one after that fetched, so that memory is never idle and what is encoded lies in the first-level cache.
// Where a value is not finite, or a scale has to be divided by, cells go the general way (quantize.inl). Floats and packed codes gain
// nothing by it: their encoding is time enough to fetch.

constexpr int kBlocksAhead = 4096;  // values between what is measured and what is fetched: two chunks

/// Values of whole cells of a row, at most a chunk.
struct Blocks {
  const float* x = nullptr;
  std::int64_t row = 0, col = 0;
  int count = 0;
};

/// Encodes `now` by the inverse scales of its cells and finds the largest magnitude, finite or not, of every cell of `next`.
template <bool kStream, typename Run>
inline void encode_and_measure(const Run run, const Blocks now, const Blocks next, int cell_cols, const Reciprocals& inverse,
                               std::uint8_t* codes, std::uint32_t* amax) {
  const int end = max_of(now.count, next.count);
  for (int at = 0, first = 0; at < end; first += kLanes) {
    VI each[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      VI largest = splat(0);
      for (const int stop = min_of(at + cell_cols, end); at < stop; at += kRun) {
        if (at < next.count) {
          for (int line = 0; line < kRun * 4; line += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(next.x + at + kBlocksAhead) + line, 0, 2);
          for (int v = 0; v < 4; ++v) largest = larger(largest, magnitude_of(load<VF>(next.x + at + v * kLanes)));
        }
        if (at < now.count) {
          VF value[4], quotient[4];
          for (int v = 0; v < 4; ++v) {
            value[v] = load<VF>(now.x + at + v * kLanes);
            quotient[v] = multiply_add(value[v], splat(inverse.high[first + i]), value[v] * inverse.low[first + i]);
          }
          const VBytes bytes = run(value, quotient);
          if constexpr (kStream) stream(reinterpret_cast<float*>(codes + at), (VF)bytes);
          else store(codes + at, bytes);
        }
      }
      each[i] = largest;
    }
    store(amax + first, max_of_each(each));
  }
}

/// Whether the cells of a problem are such and have a short way.
inline bool is_in_blocks(const QuantizeProblem& problem, const QuantizePlan& plan) {
  const ScaleGrid& grid = problem.grid;
  return plan.scale.present && !problem.scales_given && !grid.whole_tensor && grid.tile_rows == 1 && grid.tile_cols % kRun == 0 &&
         grid.tile_cols <= kChunk && plan.element.bits == 8 && plan.quotient == Quotient::kReciprocal && has_runs(plan);
}

/// Quantizes the cells of a tile.
template <typename Encoder>
inline void quantize_blocks(const QuantizeProblem& problem, const QuantizePlan& plan, const Encoder& encoder, const Tile& tile,
                            Scratch& scratch, TileStats& all) {
  const std::int64_t cell_cols = problem.grid.tile_cols, group_cols = kChunk / cell_cols * cell_cols;
  const std::int64_t whole_end = tile.col_end - (tile.col_end - tile.col_begin) % cell_cols;
  const IntegerRun run(plan.element);
  const auto general = [&](const Group& group) {
    prepare_scales(problem, plan, group, scratch, all);
    encode_group(problem, plan, encoder, group, scratch);
  };
  int buffer = 0;
  const auto blocks_at = [&](std::int64_t row, std::int64_t col) {
    const int count = static_cast<int>(min_of(group_cols, whole_end - col));
    buffer ^= 1;  // the ones before are still to be encoded
    return count == 0 ? Blocks{} : Blocks{row_values(problem, row, col, count, scratch.blocks[buffer]), row, col, count};
  };
  const auto blocks_after = [&](const Blocks& blocks) {
    if (blocks.col + blocks.count < whole_end) return blocks_at(blocks.row, blocks.col + blocks.count);
    return blocks.row + 1 < tile.row_end ? blocks_at(blocks.row + 1, tile.col_begin) : Blocks{};
  };
  const auto encode = [&](const Blocks& now, const Blocks& next) {
    std::uint8_t* codes = problem.codes + static_cast<std::size_t>(now.row) * problem.row_bytes + now.col;
    const bool around_caches = plan.stream && reinterpret_cast<std::uintptr_t>(codes) % 64 == 0;
    const auto work = around_caches ? encode_and_measure<true, IntegerRun> : encode_and_measure<false, IntegerRun>;
    work(run, now, next, static_cast<int>(cell_cols), scratch.inverse, codes, scratch.next_amax);
  };
  Blocks next = blocks_at(tile.row_begin, tile.col_begin);
  encode({}, next);
  while (next.count > 0) {
    const Blocks now = next;
    const Group group = group_at(problem.grid, now.row, now.row + 1, now.col, now.col + now.count);
    next = blocks_after(now);
    if (scales_from_next_amax(problem, plan, group, scratch)) {
      encode(now, next);
    } else {
      general(group);
      encode({}, next);
    }
  }
  for (std::int64_t row = tile.row_begin; row < tile.row_end && whole_end < tile.col_end; ++row)  // a last, shorter block
    general(group_at(problem.grid, row, row + 1, whole_end, tile.col_end));
}
