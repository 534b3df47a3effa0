#pragma once
/// exp, SiLU and GELU from IEEE multiplications, additions and divisions alone, each rounded to nearest, in a written order:
/// the same bits on every CPU and GPU, whatever its mathematical library is. Never contracted into fused multiply-adds.
/// Errors against fp64 (tests/format/elementary_test.cc): exp at most 1 unit in the last place; SiLU 2e-7 and the GELUs 1e-5
/// relative where |x| < 8, all three 2e-7 * max(|y|, 1) everywhere.

#include <bit>
#include <cstdint>

#include "narrow/format.h"

namespace narrow {

/// The constants, for the scalar functions below and the vector bodies of kernels/cpu.
struct ExpConstants {
  // Beyond these the result is infinity, or zero (instead of a subnormal number or the last normal ones).
  static constexpr float kHighest = 88.72283f, kLowest = -87.0f;
  static constexpr float kLog2e = 1.44269504f;
  static constexpr float kRound = 12582912.0f;       // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  static constexpr float kLn2High = 0.693359375f;    // 10 significant bits: n * kLn2High is exact
  static constexpr float kLn2Low = -2.12194440e-4f;  // ln 2 - kLn2High
  // exp(r) = 1 + r + r^2 * (c0 + c1 r + ... + c4 r^4), |r| <= ln(2)/2, to 3.1e-9 (minimax)
  static constexpr float kC0 = 0.49999994f, kC1 = 0.16666521f, kC2 = 0.041668389f, kC3 = 0.0083687454f, kC4 = 0.0013814541f;
};

struct GeluConstants {
  // Normal tail Q(z) = t P(t) exp(-z^2/2), t = 1 / (1 + 0.3 z), z >= 0, to 1.2e-7 (minimax)
  static constexpr float kT = 0.3f;
  static constexpr float kP0 = 0.119625166f, kP1 = 0.120816879f, kP2 = 0.0995231345f, kP3 = 0.129843175f;
  static constexpr float kP4 = -0.056095399f, kP5 = 0.208964035f, kP6 = -0.158713266f, kP7 = 0.036036212f;
  // tanh form: x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
  static constexpr float kTwiceRoot = 1.59576912f, kCubic = 0.044715f;
};

namespace detail {

// On a GPU the intrinsics keep the compiler from contracting; on the CPU -ffp-contract=off does.
template <typename Float>
NARROW_HOST_DEVICE constexpr Float multiply(Float a, Float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

template <typename Float>
NARROW_HOST_DEVICE constexpr Float add(Float a, Float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

template <typename Float>
NARROW_HOST_DEVICE constexpr Float divide(Float a, Float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

}  // namespace detail

NARROW_HOST_DEVICE constexpr float exp_f32(float x) {
  using C = ExpConstants;
  using detail::add, detail::multiply;
  const float shifted = add(multiply(x, C::kLog2e), C::kRound);
  const float n = add(shifted, -C::kRound);
  const float r = add(add(x, -multiply(n, C::kLn2High)), -multiply(n, C::kLn2Low));
  float p = C::kC4;
  p = add(multiply(p, r), C::kC3);
  p = add(multiply(p, r), C::kC2);
  p = add(multiply(p, r), C::kC1);
  p = add(multiply(p, r), C::kC0);
  const float mantissa = add(add(multiply(multiply(r, r), p), r), 1.0f);
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;  // n modulo 2^9, in the exponent's place
  const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(mantissa) + exponent);
  // Selections, not ways out: the elements of a GPU's lane stay independent of one another.
  const float in_range = x > C::kHighest ? std::bit_cast<float>(0x7F800000u) : (x < C::kLowest ? 0.0f : result);
  return x != x ? x : in_range;
}

/// x / (1 + exp(-x)).
NARROW_HOST_DEVICE constexpr float silu_f32(float x) { return detail::divide(x, detail::add(1.0f, exp_f32(-x))); }

/// x * Phi(x), with the normal distribution's Phi (torch's default GELU).
NARROW_HOST_DEVICE constexpr float gelu_f32(float x) {
  using C = GeluConstants;
  using detail::add, detail::multiply;
  const float z = x < 0.0f ? -x : x;
  const float t = detail::divide(1.0f, add(1.0f, multiply(C::kT, z)));
  float p = C::kP7;
  p = add(multiply(p, t), C::kP6);
  p = add(multiply(p, t), C::kP5);
  p = add(multiply(p, t), C::kP4);
  p = add(multiply(p, t), C::kP3);
  p = add(multiply(p, t), C::kP2);
  p = add(multiply(p, t), C::kP1);
  p = add(multiply(p, t), C::kP0);
  const float tail = multiply(multiply(t, p), exp_f32(multiply(multiply(x, x), -0.5f)));
  return multiply(x, x < 0.0f ? tail : add(1.0f, -tail));
}

/// The tanh form of GELU (torch's approximate="tanh").
NARROW_HOST_DEVICE constexpr float gelu_tanh_f32(float x) {
  using C = GeluConstants;
  using detail::add, detail::multiply;
  const float cube = multiply(multiply(multiply(x, x), x), C::kCubic);
  const float u = multiply(C::kTwiceRoot, add(x, cube));
  return detail::divide(x, add(1.0f, exp_f32(-u)));
}

#if !defined(__CUDA_ARCH__)  // the device's intrinsics are not constant expressions
static_assert(exp_f32(0.0f) == 1.0f);
static_assert(silu_f32(0.0f) == 0.0f);
static_assert(gelu_f32(0.0f) == 0.0f);
#endif

}  // namespace narrow
