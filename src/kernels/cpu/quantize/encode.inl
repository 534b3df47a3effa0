// Quotients to codes, kLanes at a time: the vector form of encode() in narrow/codec.h, for any format.
// An encoder takes the quotient x / s, the value x, whose sign it has, the zero point and, where it rounds stochastically,
// random bits; kFinite promises that no quotient is infinite or NaN.

/// random_bits(seed, index + lane) of narrow/codec.h: Philox 2x32 with ten rounds.
inline VU random_lanes(std::uint64_t seed, std::uint64_t index) {
  std::uint32_t words[kLanes];
  const std::uint64_t high_seed = seed >> 32;
  for (int part = 0; part < 2; ++part) {
    VL left{}, right{};
    for (int lane = 0; lane < kLanes / 2; ++lane) {
      const std::uint64_t counter = index + static_cast<std::uint64_t>(part * (kLanes / 2) + lane);
      left[lane] = counter & 0xFFFFFFFFu;
      right[lane] = (counter >> 32) ^ high_seed;
    }
    std::uint32_t key = static_cast<std::uint32_t>(seed);
    for (int round = 0; round < 10; ++round) {
      const VL product = left * std::uint64_t{0xD256D193u};
      left = (product >> 32) ^ right ^ std::uint64_t{key};
      right = product & std::uint64_t{0xFFFFFFFFu};
      key += 0x9E3779B9u;
    }
    for (int lane = 0; lane < kLanes / 2; ++lane) words[part * (kLanes / 2) + lane] = static_cast<std::uint32_t>(left[lane]);
  }
  return load<VU>(words);
}

/// significand / 2^shift rounded down or stochastically: up where the 32-bit fixed-point fraction exceeds random.
/// significand < 2^24, shift >= 1.
template <Rounding kRounding>
inline VI shift_right(VU significand, VI shift, VU random) {
  const VU short_shift = (VU)smaller(shift, splat(31));
  VU kept = significand >> short_shift;
  if constexpr (kRounding == Rounding::kStochastic) {
    const VU up = significand << (VU)larger(smaller(32 - shift, splat(31)), splat(0));
    const VU down = significand >> (VU)larger(smaller(shift - 32, splat(31)), splat(0));
    const VU fraction = shift <= 32 ? up : down;
    kept -= (VU)(fraction > random);
  }
  return (VI)kept;
}

template <Rounding kRounding>
struct FloatEncoder {
  static constexpr bool kRandom = kRounding == Rounding::kStochastic;
  static constexpr bool kHasReciprocal = !kRandom;
  static constexpr bool kFasterIfFinite = kRounding == Rounding::kNearestEven;
  FloatPlan f;

  /// Nearest even. In the normal range the code is the upper part of the fp32 bits, rounded by an integer addition;
  /// below it, a float addition rounds to the subnormals' even spacing. The second never gives less than the first
  /// in the normal range and at most 2^M below it, so that one minimum chooses.
  VI nearest(VI magnitude) const {
    const VU odd = (((VU)magnitude >> f.shift) ^ f.parity) & 1u;
    const VI normal = (VI)((VU)magnitude - f.round_offset + odd) >> f.shift;
    const VI subnormal = (VI)(as_bits(as_float(magnitude) + float_of(f.subnormal_magic)) - f.subnormal_magic);
    return smaller(smaller(subnormal, larger(normal, splat(f.hidden))), splat(f.limit));
  }

  VI other(VI magnitude, VU random) const {
    const VI field = (VI)((VU)magnitude >> 23);
    const VU significand = ((VU)magnitude & 0x7FFFFFu) | (field > 0 ? splat(0x800000u) : splat(0u));
    const VI exponent = larger(field, splat(1));
    const VI binade = larger(exponent - f.lowest_field, splat(0));
    const VI shift = f.shift + (f.lowest_field + binade - exponent);
    const VI code = shift_right<kRounding>(significand, shift, random) + (binade << f.mantissa_bits);
    return magnitude == kInfinityBits ? splat(f.infinite_code) : smaller(code, splat(f.limit));
  }

  template <bool kFinite = false>
  VU encode(VF quotient, VF value, VI /*zero_point*/, VU random) const {
    const VI magnitude = magnitude_of(quotient);
    VU code;
    if constexpr (kRounding == Rounding::kNearestEven) {
      code = (VU)nearest(magnitude);
    } else {
      code = (VU)other(magnitude, random);
    }
    code |= (as_bits(value) >> f.sign_shift) & f.sign_bit;
    if constexpr (kFinite) return code;
    return magnitude > kInfinityBits ? (((as_bits(quotient) >> f.sign_shift) & f.nan_sign) | f.nan_code) : code;
  }
};

/// Formats whose values lie on one even grid (the elements of MSFP), nearest even: the addition alone rounds.
struct GridEncoder {
  static constexpr bool kRandom = false;
  static constexpr bool kHasReciprocal = true;
  static constexpr bool kFasterIfFinite = true;
  FloatPlan f;

  template <bool kFinite = false>
  VU encode(VF quotient, VF value, VI /*zero_point*/, VU /*random*/) const {
    const VU magnitude = as_bits(quotient) & kMagnitude;
    const VI grid = smaller((VI)(as_bits(as_float(magnitude) + float_of(f.subnormal_magic)) - f.subnormal_magic), splat(f.limit));
    const VU code = (VU)grid | ((as_bits(value) >> f.sign_shift) & f.sign_bit);
    if constexpr (kFinite) return code;
    return (VI)magnitude > kInfinityBits ? (((as_bits(quotient) >> f.sign_shift) & f.nan_sign) | f.nan_code) : code;
  }
};

/// clamp(round(x / s), low - z, high - z) + z; NaN gives z.
/// Codes count steps of 1 / unit; to round to a multiple of a step, add 1.5 * 2^23 of them.
template <Rounding kRounding, bool kAsymmetric>
struct IntegerEncoder {
  static constexpr bool kRandom = kRounding == Rounding::kStochastic;
  static constexpr bool kHasReciprocal = !kRandom;
  static constexpr bool kFasterIfFinite = kRounding == Rounding::kNearestEven;
  float unit, magic, low, high;
  std::uint32_t mask;

  explicit IntegerEncoder(const ElementPlan& element)
      : unit(element.unit),
        magic(12582912.0f / element.unit),
        low(element.low / element.unit),
        high(element.high / element.unit),
        mask(element.mask) {}

  VI rounded(VF value, VU random) const {
    if constexpr (kRounding == Rounding::kNearestEven) {
      return (VI)(as_bits(value + magic) - bits_of_float(magic));
    } else if constexpr (kRounding == Rounding::kTowardZero) {
      return truncated(value * unit);
    } else {
      const VF scaled = value * unit;
      const VI magnitude = magnitude_of(scaled);
      const VI field = (VI)((VU)magnitude >> 23);
      const VU significand = ((VU)magnitude & 0x7FFFFFu) | (field > 0 ? splat(0x800000u) : splat(0u));
      const VI result = shift_right<kRounding>(significand, 150 - field, random);
      return as_int(scaled) < 0 ? -result : result;
    }
  }

  template <bool kFinite = false>
  VU encode(VF quotient, VF /*value*/, VI zero_point, VU random) const {
    VF lowest = splat(low), highest = splat(high);
    if constexpr (kAsymmetric) {
      lowest = low - to_float(zero_point);  // asymmetric codes count whole steps
      highest = high - to_float(zero_point);
    }
    VI code = rounded(smaller(larger(quotient, lowest), highest), random);
    if constexpr (!kFinite) code = quotient == quotient ? code : splat(0);
    if constexpr (kAsymmetric) code += zero_point;
    return (VU)code & mask;
  }
};

/// The number of thresholds that x / s reaches; NaN reaches none.
struct CodebookEncoder {
  static constexpr bool kRandom = false;
  static constexpr bool kHasReciprocal = false;
  static constexpr bool kFasterIfFinite = false;
  int thresholds;
  float threshold[kTableSize];

  template <bool kFinite = false>
  VU encode(VF quotient, VF /*value*/, VI /*zero_point*/, VU /*random*/) const {
    VI code = splat(0);
    for (int i = 0; i < thresholds; ++i) code -= (VI)(quotient >= threshold[i]);
    return (VU)code;
  }
};

/// The lower neighbour, or the upper one with the probability of its share; lane by lane, in fp64 as codec.h has it.
struct StochasticCodebookEncoder {
  static constexpr bool kRandom = true;
  static constexpr bool kHasReciprocal = false;
  static constexpr bool kFasterIfFinite = false;
  int last;  ///< the highest code
  float value[kTableSize];

  template <bool kFinite = false>
  VU encode(VF quotient, VF /*value*/, VI /*zero_point*/, VU random) const {
    VU codes = splat(0u);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = quotient[lane];
      int code = 0;
      while (code < last && value[code + 1] <= x) ++code;
      if (code < last && x > value[code]) {
        const double low = value[code], high = value[code + 1];
        if ((static_cast<double>(x) - low) * 4294967296.0 > (high - low) * static_cast<double>(random[lane])) ++code;
      }
      codes[lane] = static_cast<std::uint32_t>(code);
    }
    return codes;
  }
};

/// Calls work with the encoder of an element format and a rounding.
template <typename Work>
inline void with_encoder(const ElementPlan& element, Rounding rounding, bool asymmetric, const Work& work) {
  const auto integer = [&]<Rounding kRounding>() {
    if (asymmetric) {
      work(IntegerEncoder<kRounding, true>(element));
    } else {
      work(IntegerEncoder<kRounding, false>(element));
    }
  };
  if (element.kind == ElementKind::kCodebook) {
    if (rounding == Rounding::kStochastic) {
      StochasticCodebookEncoder encoder{element.thresholds, {}};
      for (int i = 0; i < kTableSize; ++i) encoder.value[i] = element.value[i];
      return work(encoder);
    }
    CodebookEncoder encoder{element.thresholds, {}};
    for (int i = 0; i < kTableSize; ++i) encoder.threshold[i] = element.threshold[i];
    return work(encoder);
  }
  const bool is_float = element.kind == ElementKind::kFloat;
  switch (rounding) {
    case Rounding::kNearestEven:
      if (is_float && element.is_even_grid) return work(GridEncoder{element.format});
      return is_float ? work(FloatEncoder<Rounding::kNearestEven>{element.format}) : integer.template operator()<Rounding::kNearestEven>();
    case Rounding::kTowardZero:
      return is_float ? work(FloatEncoder<Rounding::kTowardZero>{element.format}) : integer.template operator()<Rounding::kTowardZero>();
    case Rounding::kStochastic:
      return is_float ? work(FloatEncoder<Rounding::kStochastic>{element.format}) : integer.template operator()<Rounding::kStochastic>();
  }
}
