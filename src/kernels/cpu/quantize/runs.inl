// The shortest way to codes of at most 8 bits: runs of finite values under one fp32 scale that was made from them, rounded to nearest.
// No quotient can round beyond the largest value then, so that nothing is clamped; four vectors become one vector of bytes (run_codes.inl).

/// The short way of an encoder, if it has one.
template <typename Encoder>
struct RunOf {
  using Type = void;
};
template <>
struct RunOf<IntegerEncoder<Rounding::kNearestEven, false>> {
  using Type = IntegerRun;
};
template <>
struct RunOf<FloatEncoder<Rounding::kNearestEven>> {
  using Type = FloatRun;
};

/// Whether the scales of a plan keep every quotient within the codes, and ties go to the even count of spacings as well as to the even
/// code.
inline bool has_runs(const QuantizePlan& plan) {
  const bool is_even = plan.element.kind != ElementKind::kFloat || plan.element.format.mantissa_bits > 0;
  return plan.element.bits <= 8 && is_even && plan.scale.storage == ScaleStorage::kFp32 && !plan.scale.has_outer &&
         plan.scale.rule == ScaleRule::kLargest;
}

/// FloatRun for scales that were rounded (to fp8, to a power of two): quotients beyond the largest value become it.
struct ClampedFloatRun {
  FloatRun run;
  float largest;
  explicit ClampedFloatRun(const QuantizePlan& plan) : run(plan.element), largest(plan.scale.largest) {}
  VBytes operator()(const VF (&value)[4], const VF (&quotient)[4]) const {
    VF within[4];
    for (int i = 0; i < 4; ++i) within[i] = clamped(quotient[i], largest);
    return run(value, within);
  }
};

/// The elements of MSFP, whose values are multiples of one step: the low byte of |q| + 2^23 steps, which is at most one beyond the largest.
struct GridRun {
  float magic;
  std::uint8_t limit;
  int sign_shift;  ///< 8 - bits
  explicit GridRun(const QuantizePlan& plan)
      : magic(float_of(plan.element.format.subnormal_magic)),
        limit(static_cast<std::uint8_t>(plan.element.format.limit)),
        sign_shift(8 - plan.element.bits) {}
  VBytes operator()(const VF (&value)[4], const VF (&quotient)[4]) const {
    VU sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = as_bits(as_float(magnitude_of(quotient[i])) + magic);
    const VBytes steps = lowest_bytes(sum[0], sum[1], sum[2], sum[3]);
    const VBytes signs = highest_bytes(value[0], value[1], value[2], value[3]) & std::uint8_t{0x80};
    return smaller(steps, VBytes{} + limit) | (VBytes)((VL)signs >> sign_shift);
  }
};

/// The short way of an encoder through small cells, if it has one.
template <typename Encoder>
struct CellRunOf {
  using Type = void;
};
template <>
struct CellRunOf<FloatEncoder<Rounding::kNearestEven>> {
  using Type = ClampedFloatRun;
};
template <>
struct CellRunOf<GridEncoder> {
  using Type = GridRun;
};

/// Whether a plan's elements have nothing but finite values, which a run keeps within: block formats of few bits.
inline bool has_cell_runs(const QuantizePlan& plan) {
  const bool is_small = plan.element.kind == ElementKind::kFloat && plan.element.bits <= 6 && plan.element.format.mantissa_bits > 0;
  return is_small && (!plan.element.is_even_grid || plan.scale.rule == ScaleRule::kSharedExponent);
}

/// Fetches a run of values into the second-level cache.
[[gnu::always_inline]] inline void fetch_run(const float* x) {
  for (int line = 0; line < kRun * 4; line += 64) __builtin_prefetch(reinterpret_cast<const char*>(x) + line, 0, 2);
}

/// The codes of `count` values, a multiple of kRun, under the scales of vector i: cell (i + phase) >> shift, or i + phase
/// where every vector is a cell. Fetches what lies `ahead` of x.
template <Quotient kQuotient, bool kVectorCells, typename Run>
inline void encode_cells(const Run run, const float* x, int count, const ChunkScales scales, std::int64_t ahead, std::uint8_t* codes) {
  for (int i = 0; i < count; i += kRun) {
    fetch_run(x + i + ahead);
    VF value[4], quotient[4];
    for (int v = 0; v < 4; ++v) {
      const int vector = i / kLanes + v + scales.phase, cell = kVectorCells ? vector : vector >> scales.shift;
      value[v] = load<VF>(x + i + v * kLanes);
      if constexpr (kQuotient == Quotient::kMultiply)
        quotient[v] = value[v] * scales.factor[cell];
      else
        quotient[v] = multiply_add(value[v], splat(scales.factor[cell]), value[v] * scales.low[cell]);
    }
    store(codes + i, run(value, quotient));
  }
}

/// The codes of one run of values, divided by 1 / (high + low).
template <bool kStream, typename Run>
NARROW_FAST_INLINE void encode_one_run(const Run& run, const float* x, VF high, VF low, std::uint8_t* codes) {
  VF value[4], quotient[4];
  for (int v = 0; v < 4; ++v) {
    value[v] = load<VF>(x + v * kLanes);
    quotient[v] = multiply_add(value[v], high, value[v] * low);
  }
  const VBytes bytes = run(value, quotient);
  if constexpr (kStream) {
    stream(reinterpret_cast<float*>(codes), (VF)bytes);
  } else {
    store(codes, bytes);
  }
}

/// The codes of `count` values, a multiple of kRun, under one scale; fetches what lies `ahead` of x.
template <bool kStream, typename Run>
inline void encode_run(const Run run, const float* x, int count, float high, float low, std::int64_t ahead, std::uint8_t* codes) {
  for (int i = 0; i < count; i += kRun) {
    fetch_run(x + i + ahead);
    encode_one_run<kStream>(run, x + i, splat(high), splat(low), codes + i);
  }
}

/// As many of the chunk's values as make whole runs under one scale each; returns how many. The chunk starts with a cell.
template <bool kStream, typename Run>
inline int encode_runs(const Run& run, const float* x, int count, const ChunkScales& scales, std::int64_t ahead, std::uint8_t* codes) {
  const int cell_count = count <= kLanes << min_of(scales.shift, 16) ? count : kLanes << scales.shift;
  int done = 0;
  for (int cell = 0; done < count && (cell_count % kRun == 0 || cell_count == count); ++cell) {
    const int whole = min_of(cell_count, count - done) / kRun * kRun;
    encode_run<kStream>(run, x + done, whole, scales.factor[cell], scales.low[cell], ahead, codes + done);
    done += whole;
    if (whole < cell_count) break;
  }
  return done;
}
