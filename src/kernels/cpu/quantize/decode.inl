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
  FloatPlan f;
  VF operator()(VU code, VI /*zero_point*/) const { return decode_float(f, code); }
};

struct IntegerDecoder {
  int sign_shift;  ///< 32 - bits of a signed format
  float step;
  VF operator()(VU code, VI /*zero_point*/) const { return to_float((VI)(code << sign_shift) >> sign_shift) * step; }
};

struct AsymmetricDecoder {
  VF operator()(VU code, VI zero_point) const { return to_float((VI)code - zero_point); }
};

/// Any format of at most four bits.
struct TableDecoder {
  Table table;
  VF operator()(VU code, VI /*zero_point*/) const { return look_up(table, code); }
};

template <typename Work>
inline void with_decoder(const ElementPlan& element, bool asymmetric, const Work& work) {
  if (asymmetric) return work(AsymmetricDecoder{});
  if (element.has_table) return work(TableDecoder{make_table(element.value)});
  if (element.kind == ElementKind::kFloat) return work(FloatDecoder{element.format});
  return work(IntegerDecoder{32 - element.bits, 1.0f / element.unit});
}
