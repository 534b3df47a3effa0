// From statistics to scales, kLanes cells at a time: the vector form of format/scale_rule.h.

/// The scales of the cells of a group.
struct CellScales {
  alignas(64) std::uint32_t code[kMaxCells];  ///< as stored
  alignas(64) float effective[kMaxCells];     ///< decoded, times the outer scale
  alignas(64) std::int32_t zero_point[kMaxCells];
};

/// floor(log2 x) of positive fp32 bits; a subnormal counts as the integer that its bits are, times 2^-149.
inline VI floor_log2_of(VI bits) {
  const VI of_mantissa = (as_int(to_float(bits)) >> 23) - (127 + 149);
  return bits < 0x800000 ? of_mantissa : (bits >> 23) - 127;
}

/// Nearest power of two, a tie to the even code, of positive finite values.
inline VU encode_exponent_of(VF scale) {
  const VI bits = as_int(scale);
  const VI field = bits >> 23, mantissa = bits & 0x7FFFFF;
  const VI up = (VI)(mantissa > 0x400000) | ((VI)(mantissa == 0x400000) & -(field & 1));
  const VI code = smaller(field - up, splat(0xFE));
  // Below 2^-126 lie the codes 0 (2^-127, mantissa 2^22) and 1 (2^-126): the middle is a tie, which goes to 0.
  return (VU)(field == 0 ? -(VI)(mantissa > 0x600000) : code);
}

inline VF decode_exponent_of(VU code) {
  const VU bits = (VI)code == 0 ? splat(0x400000u) : code << 23;
  return as_float((VI)code >= 0xFF ? splat(0x7FC00000u) : bits);
}

/// Scale codes to the factors by which elements are divided.
inline VF decode_scale(const ScalePlan& plan, VU code) {
  switch (plan.storage) {
    case ScaleStorage::kFp32: return as_float(code) * plan.outer;
    case ScaleStorage::kExponent: return decode_exponent_of(code) * plan.outer;
    case ScaleStorage::kFloat: break;
  }
  return decode_float(plan.format, code) * plan.outer;
}

/// Positive scales (int1: or zero) in their storage format; one that would round to zero becomes the smallest positive.
inline VU encode_scale(const ScalePlan& plan, VF scale) {
  switch (plan.storage) {
    case ScaleStorage::kFp32: return as_bits(scale);
    case ScaleStorage::kExponent: return encode_exponent_of(scale);
    case ScaleStorage::kFloat: break;
  }
  const VU code = FloatEncoder<Rounding::kNearestEven>{plan.format}.encode(scale, scale, VI{}, VU{});
  return (VI)code == 0 ? (scale > 0.0f ? splat(1u) : splat(0u)) : code;
}

inline VF positive(VF scale) { return scale == 0.0f ? as_float(splat(1u)) : scale; }

NARROW_FAST_INLINE VU symmetric_codes(const ScalePlan& plan, VI amax) {
  if (plan.rule == ScaleRule::kSharedExponent) {
    const VI exponent = larger(floor_log2_of(amax) - plan.largest_exponent, splat(plan.lowest_exponent));
    return (VU)(amax == 0 ? splat(plan.zero_exponent_code) : exponent + 127);
  }
  VF scale = as_float(amax) / plan.largest;
  if (plan.has_outer) scale = scale / plan.outer;
  return encode_scale(plan, amax == 0 ? splat(1.0f) : positive(scale));
}

/// The scale codes of a range [low, high] around 0.
inline VU asymmetric_codes(const ScalePlan& plan, VF low, VF high) {
  constexpr float kLargest = 3.402823466e+38f;
  const VF range = high - low;
  const VF scale = range <= kLargest ? range / plan.largest : high / plan.largest - low / plan.largest;
  return encode_scale(plan, low == high ? splat(1.0f) : positive(scale));
}

/// round(-low / s), clamped to the codes.
inline VI zero_points_of(const ScalePlan& plan, VF low, VF effective) {
  constexpr float kMagic = 12582912.0f;
  const VF quotient = smaller(-low / effective, splat(plan.largest));
  return (VI)(as_bits(quotient + kMagic) - bits_of_float(kMagic));
}

/// counts: the number of values of every cell but the last, and of the last.
inline void make_scales(const ScalePlan& plan, const CellStats& stats, int cells, std::int64_t count, std::int64_t last_count,
                        CellScales& out) {
  for (int i = 0; i < cells; i += kLanes) {
    VU code;
    if (plan.asymmetric) {
      code = asymmetric_codes(plan, load<VF>(stats.low + i), load<VF>(stats.high + i));
    } else if (plan.rule == ScaleRule::kMeanAbsolute) {
      VF mean = splat(1.0f);
      for (int lane = 0; lane < kLanes && i + lane < cells; ++lane)
        mean[lane] = static_cast<float>(stats.sum[i + lane] / static_cast<double>(i + lane + 1 == cells ? last_count : count));
      code = encode_scale(plan, mean);
    } else {
      code = symmetric_codes(plan, load<VI>(stats.amax + i));
    }
    const VF effective = decode_scale(plan, code);
    store(out.code + i, code);
    store(out.effective + i, effective);
    if (plan.asymmetric) store(out.zero_point + i, zero_points_of(plan, load<VF>(stats.low + i), effective));
  }
}

inline void store_scales(const ScalePlan& plan, const CellScales& made, int cells, std::int64_t first, void* scales,
                         std::uint8_t* zero_points) {
  if (plan.bytes == 4) __builtin_memcpy(static_cast<std::uint32_t*>(scales) + first, made.code, static_cast<std::size_t>(cells) * 4);
  if (plan.bytes == 2)
    for (int i = 0; i < cells; ++i) static_cast<std::uint16_t*>(scales)[first + i] = static_cast<std::uint16_t>(made.code[i]);
  if (plan.bytes == 1)
    for (int i = 0; i < cells; ++i) static_cast<std::uint8_t*>(scales)[first + i] = static_cast<std::uint8_t>(made.code[i]);
  if (plan.asymmetric)
    for (int i = 0; i < cells; ++i) zero_points[first + i] = static_cast<std::uint8_t>(made.zero_point[i]);
}

/// Scales that are inputs.
inline void load_scales(const ScalePlan& plan, const void* scales, const std::uint8_t* zero_points, std::int64_t first, int cells,
                        CellScales& out) {
  if (plan.bytes == 4) __builtin_memcpy(out.code, static_cast<const std::uint32_t*>(scales) + first, static_cast<std::size_t>(cells) * 4);
  if (plan.bytes == 2)
    for (int i = 0; i < cells; ++i) out.code[i] = static_cast<const std::uint16_t*>(scales)[first + i];
  if (plan.bytes == 1)
    for (int i = 0; i < cells; ++i) out.code[i] = static_cast<const std::uint8_t*>(scales)[first + i];
  for (int i = cells; i < round_up(cells, kLanes); ++i) out.code[i] = 0;
  for (int i = 0; i < cells; i += kLanes) store(out.effective + i, decode_scale(plan, load<VU>(out.code + i)));
  if (plan.asymmetric)
    for (int i = 0; i < cells; ++i) out.zero_point[i] = zero_points[first + i];
}

/// How the scales of a chunk's vectors are found.
enum class Access : std::uint8_t {
  kShared,    ///< vector i has the scale of cell (i + phase) >> shift
  kExpanded,  ///< every element has its own copy
};

struct ChunkScales {
  const float* factor;  ///< scales, or their inverses
  const std::int32_t* zero_point;
  int shift, phase;
  Access access;
  const float* low = nullptr;  ///< of kReciprocal: what the inverses lack
};

struct Reciprocals {
  alignas(64) float high[kMaxCells];
  alignas(64) float low[kMaxCells];

  /// False where a scale is outside the range for which the quotient's codes are proved.
  bool make(const float* scales, int cells) {
    VI outside = splat(0);
    for (int i = 0; i < cells; i += kLanes) {
      const VF s = lane_numbers() < cells - i ? load<VF>(scales + i) : splat(1.0f);
      outside |= ~((VI)(s >= kLowestReciprocal) & (VI)(s <= kHighestReciprocal));
      const Reciprocal inverse = reciprocal_of(s);
      store(high + i, inverse.high);
      store(low + i, inverse.low);
    }
    return !any_lane(outside);
  }
};

inline int trailing_zeros(std::int64_t value) { return __builtin_ctzll(static_cast<unsigned long long>(value)); }

/// The scales of columns [col, col + count) from those of the cells that start with `first_col`; expands where needed.
inline ChunkScales scales_of_chunk(const float* factor, const std::int32_t* zero_point, bool asymmetric, std::int64_t first_col,
                                   std::int64_t cell_cols, std::int64_t col, int count, float* expanded, std::int32_t* expanded_zero) {
  const std::int64_t first = (col - first_col) / cell_cols, into = (col - first_col) % cell_cols;
  factor += first;
  zero_point += first;
  if (into + count <= cell_cols) return {factor, zero_point, 31, 0, Access::kShared};
  const bool vectors = cell_cols % kLanes == 0 && (cell_cols & (cell_cols - 1)) == 0 && into % kLanes == 0;
  if (vectors) return {factor, zero_point, trailing_zeros(cell_cols / kLanes), static_cast<int>(into / kLanes), Access::kShared};
  int cell = 0;
  std::int64_t left = cell_cols - into;
  for (int i = 0; i < count; ++i) {
    expanded[i] = factor[cell];
    if (asymmetric) expanded_zero[i] = zero_point[cell];
    if (--left == 0) ++cell, left = cell_cols;
  }
  for (int i = count; i < round_up(count, kLanes); ++i) expanded[i] = 1.0f, expanded_zero[i] = 0;
  return {expanded, expanded_zero, 0, 0, Access::kExpanded};
}
