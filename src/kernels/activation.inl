// The activation functions, for inclusion in a namespace of the includer: narrow (kernels/activation.h) and each instruction-set leaf.
// One fixed sequence of fp32 operations each, multiply and add, never fused: the same bits whatever the vector width.

/// exp(x), relative error below 2^-22: x = n ln 2 + r, a polynomial in r, times 2^n. x is clamped to [-87, 88].
constexpr float exp_value(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (clamped * 1.44269504f + rounder) - rounder;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = (p * (r * r) + r) + 1.0f;
  return value * __builtin_bit_cast(float, static_cast<std::uint32_t>((static_cast<std::int32_t>(n) + 127) << 23));
}

/// erf(|x|) = 1 - (a1 t + ... + a5 t^5) exp(-x^2), t = 1 / (1 + p|x|); absolute error below 2e-7 (Abramowitz and Stegun 7.1.26).
constexpr float erf_value(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  float p = 1.061405429f;
  p = p * t + -1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t + -0.284496736f;
  p = p * t + 0.254829592f;
  const float result = 1.0f - (p * t) * exp_value(-(magnitude * magnitude));
  return x < 0.0f ? -result : result;
}

constexpr float silu_value(float x) { return x / (1.0f + exp_value(-x)); }
constexpr float gelu_value(float x) { return (0.5f * x) * (1.0f + erf_value(x * 0.70710678f)); }
constexpr float relu_value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays

constexpr float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu: return relu_value(x);
    case Activation::kGelu: return gelu_value(x);
    case Activation::kSilu: return silu_value(x);
    case Activation::kNone: break;
  }
  return x;
}
