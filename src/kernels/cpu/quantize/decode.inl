// Codes to values, kLanes at a time: the vector form of decode() in narrow/codec.h, for any format.

/// The bits are put in place and the exponent is moved; a subnormal first gets a hidden one, which is then subtracted.
inline VF decode_float(const FloatPlan& f, VU code) {
  const VU magnitude = code & f.magnitude_mask;
  const VU normal = (magnitude << f.shift) + f.offset;
  const VF subnormal = as_float(normal + 0x800000u) - f.lowest;
  VU bits = (VI)magnitude < f.hidden ? as_bits(subnormal) : normal;
  const VU special = (VI)magnitude >= f.nan_from ? splat(0x7FC00000u) : splat(0x7F800000u);
  bits = (VI)magnitude >= f.special_from ? special : bits;
  return as_float(bits | ((code << f.sign_shift) & 0x80000000u));
}

struct FloatDecoder {
  static constexpr bool kFromBytes = false;
  FloatPlan f;
  VF operator()(VU code, VI /*zero_point*/) const { return decode_float(f, code); }
};

/// Floats of at most 8 bits with no more exponent bits than fp16 has: shifted into its fields, a code is fp16's code of value / up, which
/// the hardware widens, subnormals as well.
struct HalfDecoder {
  static constexpr bool kFromBytes = true;
  int left, right;         ///< the sign to bit 15, then the rest down by 5 - E
  std::uint16_t keep;      ///< sign and magnitude
  std::uint16_t nan_from;  ///< magnitudes from this one on are NaN
  float up;                ///< 2^(15 - bias)

  explicit HalfDecoder(const ElementPlan& element) {
    const FloatPlan& f = element.format;
    const int exponent_bits = element.bits - 1 - f.mantissa_bits;
    left = 16 - element.bits;
    right = 5 - exponent_bits;
    keep = static_cast<std::uint16_t>(0x8000u | (f.magnitude_mask << (10 - f.mantissa_bits)));
    nan_from = static_cast<std::uint16_t>(f.nan_from < 256 ? f.nan_from << (10 - f.mantissa_bits) : 0x8000);
    up = float_of(static_cast<std::uint32_t>(15 + f.lowest_field - 1) << 23);
  }

  VF operator()(const std::uint8_t* codes) const {
    const VHalf aligned = widen_bytes(codes) << left;
    const VHalf half = (VHalf)((VShort)aligned >> right) & keep;
    const VHalf magnitude = half & std::uint16_t{0x7FFF};
    return widen_half(magnitude >= nan_from ? (half & std::uint16_t{0x8000}) | std::uint16_t{0x7E00} : half) * up;
  }
};

struct IntegerDecoder {
  static constexpr bool kFromBytes = false;
  int sign_shift;  ///< 32 - bits of a signed format
  float step;
  VF operator()(VU code, VI /*zero_point*/) const { return to_float((VI)(code << sign_shift) >> sign_shift) * step; }
};

struct AsymmetricDecoder {
  static constexpr bool kFromBytes = false;
  VF operator()(VU code, VI zero_point) const { return to_float((VI)code - zero_point); }
};

/// Any format of at most four bits.
struct TableDecoder {
  static constexpr bool kFromBytes = false;
  Table table;
  VF operator()(VU code, VI /*zero_point*/) const { return look_up(table, code); }
};

template <typename Work>
inline void with_decoder(const ElementPlan& element, bool asymmetric, const Work& work) {
  if (asymmetric) return work(AsymmetricDecoder{});
  if (element.has_table) return work(TableDecoder{make_table(element.value)});
  if (element.kind == ElementKind::kFloat && element.is_half) return work(HalfDecoder(element));
  if (element.kind == ElementKind::kFloat) return work(FloatDecoder{element.format});
  return work(IntegerDecoder{32 - element.bits, 1.0f / element.unit});
}
