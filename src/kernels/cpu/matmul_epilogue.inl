// The last steps of a product on one row of at most 64 sums: bias, activation, residual, conversion, in the order and with the roundings
// of reference/matmul.cc. Plain loops without branches inside, which the compiler vectorises for the leaf that includes it.

#include "kernels/activation.inl"

inline float half_to_float(std::uint32_t half) {
  const std::uint32_t placed = (half & 0x8000u) << 16 | (half & 0x7FFFu) << 13;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, placed) * 0x1p112f);
  return __builtin_bit_cast(float, (half & 0x7C00u) == 0x7C00u ? placed | 0x7F800000u : bits);
}

/// Constants of an 8- or 16-bit float with nearest-even rounding and saturation.
struct NarrowFloat {
  int mantissa_bits;
  std::uint32_t rebias;    // (127 - bias) << mantissa_bits
  std::uint32_t largest;   // fp32 bits of the largest value
  std::uint32_t smallest;  // fp32 bits of the smallest normal
  float magic;             // its last place is the spacing of the subnormals
  std::uint32_t nan;       // code
  int sign_shift;          // of the sign, from fp32's
};
constexpr NarrowFloat kHalfFloat{10, 112u << 10, 0x477FE000u, 0x38800000u, 0.5f, 0x7E00u, 16};
constexpr NarrowFloat kBrainFloat{7, 0, 0x7F7F0000u, 0x00800000u, 0x1p-110f, 0x7FC0u, 16};
constexpr NarrowFloat kE4m3Float{3, 120u << 3, 0x43E00000u, 0x3C800000u, 0x1p14f, 0x7Fu, 24};
constexpr NarrowFloat kE5m2Float{2, 112u << 2, 0x47600000u, 0x38800000u, 0x1p7f, 0x7Eu, 24};

/// As encode(format, x): normal values round by an integer addition, subnormal ones by the addition of `magic`.
inline std::uint32_t encode_narrow(const NarrowFloat& format, float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits & 0x80000000u) >> format.sign_shift;
  const std::uint32_t finite = magnitude > format.largest ? format.largest : magnitude;
  const int shift = 23 - format.mantissa_bits;
  const std::uint32_t rounded = (finite + ((1u << (shift - 1)) - 1u) + ((finite >> shift) & 1u)) >> shift;
  const std::uint32_t normal = rounded - format.rebias;
  const std::uint32_t subnormal =
      __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, finite) + format.magic) - __builtin_bit_cast(std::uint32_t, format.magic);
  const std::uint32_t code = finite < format.smallest ? subnormal : normal;
  return sign | (magnitude > 0x7F800000u ? format.nan : code);
}

template <typename Code>
inline void store_narrow(const NarrowFloat& format, const float* values, int count, Code* y) {
  for (int i = 0; i < count; ++i) y[i] = static_cast<Code>(encode_narrow(format, values[i]));
}

inline void add_residual(const MatmulEpilogue& epilogue, std::int64_t index, int count, float* values) {
  if (epilogue.residual_dtype == DType::kF32) {
    const float* residual = static_cast<const float*>(epilogue.residual) + index;
    for (int i = 0; i < count; ++i) values[i] = values[i] + residual[i];
    return;
  }
  const std::uint16_t* residual = static_cast<const std::uint16_t*>(epilogue.residual) + index;
  if (epilogue.residual_dtype == DType::kBf16) {
    for (int i = 0; i < count; ++i) values[i] = values[i] + __builtin_bit_cast(float, static_cast<std::uint32_t>(residual[i]) << 16);
  } else {
    for (int i = 0; i < count; ++i) values[i] = values[i] + half_to_float(residual[i]);
  }
}

/// int8: clamp(round(v / scale)); NaN becomes 0, and adding 1.5 * 2^23 rounds to nearest even.
inline void store_int8(const float* values, int count, std::int8_t* y) {
  for (int i = 0; i < count; ++i) {
    float v = values[i] == values[i] ? values[i] : 0.0f;
    v = v > 127.0f ? 127.0f : v;
    v = v < -127.0f ? -127.0f : v;
    y[i] = static_cast<std::int8_t>(static_cast<std::int32_t>((v + 12582912.0f) - 12582912.0f));
  }
}

inline void finish_row(const MatmulEpilogue& epilogue, std::int64_t m, std::int64_t n, int count, float* values) {
  if (epilogue.bias != nullptr) {
    const float* bias = epilogue.bias + n;
    for (int i = 0; i < count; ++i) values[i] = values[i] + bias[i];
  }
  switch (epilogue.activation) {
    case Activation::kRelu:
      for (int i = 0; i < count; ++i) values[i] = relu_value(values[i]);
      break;
    case Activation::kGelu:
      for (int i = 0; i < count; ++i) values[i] = gelu_value(values[i]);
      break;
    case Activation::kSilu:
      for (int i = 0; i < count; ++i) values[i] = silu_value(values[i]);
      break;
    case Activation::kNone: break;
  }
  if (epilogue.residual != nullptr) add_residual(epilogue, m * epilogue.residual_stride + n, count, values);
  const std::int64_t index = m * epilogue.y_stride + n;
  switch (epilogue.out) {
    case DType::kF16: return store_narrow(kHalfFloat, values, count, static_cast<std::uint16_t*>(epilogue.y) + index);
    case DType::kBf16: return store_narrow(kBrainFloat, values, count, static_cast<std::uint16_t*>(epilogue.y) + index);
    case DType::kF32: {
      float* y = static_cast<float*>(epilogue.y) + index;
      for (int i = 0; i < count; ++i) y[i] = values[i];
      return;
    }
    default: break;
  }
  for (int i = 0; i < count; ++i) values[i] = values[i] / epilogue.out_scale;
  if (epilogue.out == DType::kI8) return store_int8(values, count, static_cast<std::int8_t*>(epilogue.y) + index);
  store_narrow(epilogue.out == DType::kF8E4m3 ? kE4m3Float : kE5m2Float, values, count, static_cast<std::uint8_t*>(epilogue.y) + index);
}
