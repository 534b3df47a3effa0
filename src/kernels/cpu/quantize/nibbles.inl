// Codes of four bits under scales that a row's cells of few values have each (nvfp4, mxfp4, msfp12, int4:block128): in one loop kLanes
// cells are measured, their scales made, and the cells before them encoded and packed, so that the scales' long chains are hidden. What
// lies kFarAhead is fetched meanwhile. Where a value is not finite, or a scale has to be divided by, these cells go the general way.

/// Two vectors of codes, one per byte, packed.
[[gnu::always_inline]] inline VBytes packed_nibbles(VBytes first, VBytes second) {
  const VWords a = (VWords)first, b = (VWords)second;
  return low_bytes_of(a | (a >> 4), b | (b >> 4));
}

/// What scales of 8 bits under an outer scale are made with, and 1 / s of every code, times the outer scale.
struct InverseTable {
  alignas(64) float high[128], low[128];
  float outer_high = 1.0f, outer_low = 0.0f;
  bool is_short = true;  ///< none has to be divided by
  explicit InverseTable(const ScalePlan& plan) {
    if (plan.storage != ScaleStorage::kFloat) return;
    const Reciprocal outer = reciprocal_of(splat(plan.outer));
    outer_high = outer.high[0];
    outer_low = outer.low[0];
    is_short = has_reciprocals(splat(plan.outer));
    for (int i = 0; i < 128; i += kLanes) {
      const VU code = smaller(larger((VU)lane_numbers() + static_cast<std::uint32_t>(i), splat(1u)),
                              splat(static_cast<std::uint32_t>(plan.format.limit)));
      const VF scale = decode_scale(plan, code);
      is_short = is_short && has_reciprocals(scale);
      const Reciprocal inverse = reciprocal_of(scale);
      store(high + i, inverse.high);
      store(low + i, inverse.low);
    }
  }
};

/// The scales of kLanes cells.
struct NibbleScales {
  alignas(64) std::uint32_t code[kLanes];
  alignas(64) float high[kLanes], low[kLanes];  ///< their inverses, which kFloat has a table of
  bool is_short;                                ///< no cell takes the general way
  bool is_within;                               ///< of kFloat: no quotient rounds beyond the largest value
};

/// Measures kLanes cells of kVectors vectors and stores their scales.
template <ScaleStorage kStorage, int kVectors>
NARROW_FAST_INLINE void measure_nibbles(const ScalePlan& plan, const InverseTable& table, const float* x, void* scales,
                                        NibbleScales& made) {
  VI each[kLanes];
  if constexpr (kVectors <= 2) {
    const auto magnitude = [&](int vector) __attribute__((always_inline)) { return magnitude_of(load<VF>(x + vector * kLanes)); };
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) each[i] = kVectors == 1 ? magnitude(i) : larger(magnitude(2 * i), magnitude(2 * i + 1));
  } else {
#pragma GCC unroll 1
    for (int i = 0; i < kLanes; ++i) each[i] = largest_magnitude(x + i * kVectors * kLanes, kVectors);
  }
  const VI amax = max_of_each(each);
  VI unusual = amax >= kInfinityBits;
  VU code;
  if constexpr (kStorage == ScaleStorage::kExponent) {
    const VI exponent = larger(floor_log2_of(amax) - plan.largest_exponent, splat(plan.lowest_exponent));
    code = (VU)(amax == 0 ? splat(plan.zero_exponent_code) : exponent + 127);
    unusual |= (VI)code > 253;
    store(made.high, (254u - code) << 23);
  } else if constexpr (kStorage == ScaleStorage::kFp32) {
    const VF scale = amax == 0 ? splat(1.0f) : as_float(amax) / plan.largest;
    code = as_bits(scale);
    unusual |= ~((VI)(scale >= kLowestReciprocal) & (VI)(scale <= kHighestReciprocal));
    const Reciprocal inverse = reciprocal_of(scale);
    store(made.high, inverse.high);
    store(made.low, inverse.low);
  } else {
    // amax / 6, correctly rounded, and by the outer scale in two operations: the same code (both in tests/format/division_test.cc). A scale
    // of the normal range rounds down by a ninth at most: what was at most 6 stays below the 7 from which on it would round beyond.
    constexpr float kInverse = 1.0f / 6.0f;
    const VF largest = as_float(amax), near = largest * kInverse,
             sixth = multiply_add(multiply_add(near, splat(-6.0f), largest), splat(kInverse), near);
    unusual |= (VI)(largest < kLowestReciprocal) & (VI)(amax != 0);
    const VF scale = amax == 0 ? splat(1.0f) : multiply_add(sixth, splat(table.outer_high), sixth * table.outer_low);
    code = (VU)larger(FloatEncoder<Rounding::kNearestEven>{plan.format}.nearest(as_int(scale)), splat(1));
    made.is_within = !any_lane((VI)(scale < plan.format.lowest) | ((VI)code >= plan.format.limit));
    store(made.code, code);
  }
  made.is_short = !any_lane(unusual);
  if constexpr (kStorage == ScaleStorage::kFp32)
    store(static_cast<std::uint32_t*>(scales), code);
  else
    store_codes(static_cast<std::uint8_t*>(scales), code);
}

/// The codes of kLanes cells.
template <ScaleStorage kStorage, int kVectors, bool kStream, typename Run>
NARROW_FAST_INLINE void encode_nibbles(const Run run, const float* x, const InverseTable& table, const NibbleScales& made,
                                       std::uint8_t* codes) {
  constexpr int kCount = kLanes * kVectors * kLanes;
#pragma GCC unroll 1
  for (int i = 0; i < kCount; i += 2 * kRun, codes += kRun) {
    VBytes bytes[2];
    for (int half = 0; half < 2; ++half) {
      const float* from = x + i + half * kRun;
      fetch_run(from + kFarAhead);
      VF value[4], quotient[4];
      for (int v = 0; v < 4; ++v) {
        const int cell = (i / kLanes + half * 4 + v) / kVectors;
        value[v] = in_register(load<VF>(from + v * kLanes));
        if constexpr (kStorage == ScaleStorage::kExponent)
          quotient[v] = value[v] * made.high[cell];
        else if constexpr (kStorage == ScaleStorage::kFp32)
          quotient[v] = multiply_add(value[v], splat(made.high[cell]), value[v] * made.low[cell]);
        else
          quotient[v] = multiply_add(value[v], splat(table.high[made.code[cell]]), value[v] * table.low[made.code[cell]]);
      }
      bytes[half] = run(value, quotient);
    }
    const VBytes packed = packed_nibbles(bytes[0], bytes[1]);
    if constexpr (kStream)
      stream(reinterpret_cast<float*>(codes), (VF)packed);
    else
      store(codes, packed);
  }
}

/// How an encoder's codes of four bits are made: where no quotient rounds beyond the largest value (scales of fp32 see to that), and where
/// one may.
template <typename Encoder>
struct NibbleRuns {
  static constexpr bool kHas = false;
};
template <>
struct NibbleRuns<IntegerEncoder<Rounding::kNearestEven, false>> {
  static constexpr bool kHas = true;
  static bool accepts(const QuantizePlan& plan) { return has_runs(plan); }
  static IntegerRun within(const QuantizePlan& plan) { return IntegerRun(plan.element); }
  static IntegerRun clamped(const QuantizePlan& plan) { return within(plan); }
};
template <>
struct NibbleRuns<FloatEncoder<Rounding::kNearestEven>> {
  static constexpr bool kHas = true;
  static bool accepts(const QuantizePlan& plan) { return plan.element.format.mantissa_bits == 1; }
  static FloatRun within(const QuantizePlan& plan) { return FloatRun(plan.element); }
  static ClampedFloatRun clamped(const QuantizePlan& plan) { return ClampedFloatRun(plan); }
};
template <>
struct NibbleRuns<GridEncoder> {
  static constexpr bool kHas = true;
  static bool accepts(const QuantizePlan& plan) { return has_cell_runs(plan); }
  static GridRun within(const QuantizePlan& plan) { return GridRun(plan); }
  static GridRun clamped(const QuantizePlan& plan) { return within(plan); }
};

/// Calls work.operator()<storage, columns>() for cells that have the short way; false where there is none.
template <typename Encoder, typename Work>
inline bool with_nibbles(const QuantizeProblem& problem, const QuantizePlan& plan, const Work& work) {
  const ScaleGrid& grid = problem.grid;
  if (plan.element.bits != 4 || !plan.scale.present || problem.scales_given || grid.whole_tensor || grid.tile_rows != 1 ||
      problem.row_bytes % 64 != 0 || !NibbleRuns<Encoder>::accepts(plan))
    return false;
  const bool is_largest = plan.scale.rule == ScaleRule::kLargest && plan.quotient == Quotient::kReciprocal;
  const auto is = [&](ScaleStorage storage, std::int64_t cols) { return plan.scale.storage == storage && grid.tile_cols == cols; };
  if constexpr (!__is_same(Encoder, GridEncoder)) {
    if (is(ScaleStorage::kFp32, 128) && is_largest && !plan.scale.has_outer)
      return work.template operator()<ScaleStorage::kFp32, 128>(), true;
    if (is(ScaleStorage::kFp32, 32) && is_largest && !plan.scale.has_outer)
      return work.template operator()<ScaleStorage::kFp32, 32>(), true;
  }
  if constexpr (__is_same(Encoder, FloatEncoder<Rounding::kNearestEven>))
    if (is(ScaleStorage::kFloat, 16) && is_largest && plan.scale.format.limit < 128 && plan.scale.format.mantissa_bits >= 2)
      return work.template operator()<ScaleStorage::kFloat, 16>(), true;
  if constexpr (!__is_same(Encoder, IntegerEncoder<Rounding::kNearestEven, false>)) {
    const bool is_shared = plan.scale.rule == ScaleRule::kSharedExponent;
    if (is(ScaleStorage::kExponent, 32) && is_shared) return work.template operator()<ScaleStorage::kExponent, 32>(), true;
    if (is(ScaleStorage::kExponent, 16) && is_shared) return work.template operator()<ScaleStorage::kExponent, 16>(), true;
  }
  return false;
}

/// Quantizes a tile of cells of kCols columns.
template <ScaleStorage kStorage, int kCols, bool kStream, typename Encoder>
[[gnu::noinline]] inline void quantize_nibbles(const QuantizeProblem& problem, const QuantizePlan& plan, const Encoder& encoder,
                                               const Tile& tile, Scratch& scratch, TileStats& all) {
  constexpr int kVectors = kCols / kLanes, kStep = kLanes * kCols;
  const auto within = NibbleRuns<Encoder>::within(plan);
  const auto clamped = NibbleRuns<Encoder>::clamped(plan);
  const InverseTable table(plan.scale);
  const auto general = [&](std::int64_t row, std::int64_t begin, std::int64_t end) __attribute__((noinline)) {
    for (std::int64_t col = begin; col < end;) {
      const Group group = group_at(problem.grid, row, row + 1, col, end);
      prepare_scales(problem, plan, group, scratch, all);
      encode_group(problem, plan, encoder, group, scratch);
      col = group.col_end;
    }
  };
  const std::int64_t steps_end = table.is_short ? tile.col_end - (tile.col_end - tile.col_begin) % kStep : tile.col_begin;
  const auto widened = [&](std::int64_t row, std::int64_t col) __attribute__((noinline)) {
    return row_values(problem, row, col, kStep, scratch.values);
  };
  const auto values_at = [&](std::int64_t row, std::int64_t col) __attribute__((always_inline)) {
    return problem.dtype == DType::kF32 ? static_cast<const float*>(problem.x) + row * problem.row_stride + col : widened(row, col);
  };
  NibbleScales made[2];
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const std::int64_t first_cell = group_at(problem.grid, row, row + 1, tile.col_begin, tile.col_end).first_cell;
    std::uint8_t* scales = static_cast<std::uint8_t*>(problem.scales) + first_cell * plan.scale.bytes;
    std::uint8_t* codes = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes;
    const auto measure = [&](std::int64_t col, NibbleScales & to) __attribute__((always_inline)) {
      measure_nibbles<kStorage, kVectors>(plan.scale, table, values_at(row, col),
                                          scales + (col - tile.col_begin) / kCols * plan.scale.bytes, to);
    };
    int which = 0;
    if (tile.col_begin < steps_end) measure(tile.col_begin, made[0]);
    for (std::int64_t col = tile.col_begin; col < steps_end; col += kStep, which ^= 1) {
      if (col + kStep < steps_end) measure(col + kStep, made[which ^ 1]);
      const NibbleScales& of = made[which];
      const auto encode = [&](const auto& run) __attribute__((always_inline)) {
        encode_nibbles<kStorage, kVectors, kStream>(run, values_at(row, col), table, of, codes + col / 2);
      };
      if (!of.is_short)
        general(row, col, col + kStep);
      else if (kStorage == ScaleStorage::kFp32 || (kStorage == ScaleStorage::kFloat && of.is_within))
        encode(within);
      else
        encode(clamped);
    }
    general(row, steps_end, tile.col_end);
  }
}
