#include "methods/ecosystem_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "io/interop.h"
#include "kernels/storage.h"
#include "narrow/error.h"

namespace narrow {
namespace {

struct Group {
  float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();
  void add(float x) { low = std::min(low, x), high = std::max(high, x); }
  float amax() const { return std::max(std::fabs(low), std::fabs(high)); }
};

/// A scale as stored, and the signed zero point.
struct Made {
  ScaleCode scale;
  float zero = 0.0f;
};

float epsilon_of(const Format& scale) { return std::ldexp(1.0f, -scale.mantissa_bits); }

class IntegerRule {
 public:
  IntegerRule(Ecosystem target, const Scheme& scheme, DType dtype)
      : target_(target), scheme_(scheme), lowest_(-std::ldexp(1.0f, scheme.element.bits - 1)), highest_(-lowest_ - 1.0f) {
    const bool is_ct = target == Ecosystem::kCompressedTensors;
    if (is_ct && dtype == DType::kBf16 && scheme.scale == kBf16) quotient_ = &kBf16;
    if (is_ct && dtype == DType::kF16 && scheme.scale == kFp16) quotient_ = &kFp16;
  }

  Made make(const Group& group) const {
    return scheme_.asymmetric ? asymmetric(group) : Made{stored(group.amax() / ((highest_ - lowest_) / 2.0f))};
  }

  /// As an unsigned number.
  std::uint8_t code(float x, const Made& made) const {
    const float quotient = rounded(x / made.scale.effective);
    const bool sums_first = target_ == Ecosystem::kCompressedTensors;
    const float value = sums_first ? std::nearbyint(std::clamp(rounded(quotient + made.zero), lowest_, highest_))
                                   : std::clamp(std::nearbyint(quotient) + made.zero, lowest_, highest_);
    return static_cast<std::uint8_t>(value - lowest_);
  }

  std::uint8_t zero_point(const Made& made) const { return static_cast<std::uint8_t>(made.zero - lowest_); }

 private:
  Made asymmetric(const Group& group) const {
    const float steps = highest_ - lowest_;
    if (target_ == Ecosystem::kAwq) {
      constexpr float kSmallestRange = 1e-5f;
      Made made{stored(std::max(group.high - group.low, kSmallestRange) / steps)};
      made.zero = std::clamp(-std::nearbyint(group.low / made.scale.effective), 0.0f, steps) + lowest_;
      return made;
    }
    const float low = std::min(group.low, 0.0f), high = std::max(group.high, 0.0f);
    Made made{stored(rounded(high - low) / steps)};
    made.zero = std::nearbyint(std::clamp(rounded(lowest_ - rounded(low / made.scale.effective)), lowest_, highest_));
    return made;
  }

  /// A scale of zero is the epsilon of its type.
  ScaleCode stored(float scale) const { return store_scale(scheme_.scale, scale > 0.0f ? scale : epsilon_of(scheme_.scale), 1.0f); }
  float rounded(float x) const { return quotient_ == nullptr ? x : decode(*quotient_, encode(*quotient_, x)); }

  Ecosystem target_;
  const Scheme& scheme_;
  float lowest_, highest_;
  const Format* quotient_ = nullptr;  ///< what quotients are rounded to
};

QuantizedTensor quantize_integers(Ecosystem target, const Tensor& x, const Scheme& scheme) {
  const IntegerRule rule(target, scheme, x.dtype());
  QuantizedTensor q = allocate_quantized(scheme, x.shape());
  const ScaleGrid grid = q.grid();
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1];
  io::CodeMatrix codes = io::make_codes(rows, cols);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    const FloatEnvironment environment;
    for (std::int64_t first = 0; first < cols; first += grid.tile_cols) {
      const std::int64_t end = std::min(cols, first + grid.tile_cols), cell = row * grid.cols + first / grid.tile_cols;
      Group group;
      for (std::int64_t col = first; col < end; ++col) group.add(load_value(x.data(), x.dtype(), row * cols + col));
      const Made made = rule.make(group);
      store_scale_code(q.scales.data(), scheme.scale, cell, made.scale.code);
      if (scheme.asymmetric) q.zero_points.as<std::uint8_t>()[cell] = rule.zero_point(made);
      for (std::int64_t col = first; col < end; ++col)
        codes.at(row, col) = rule.code(load_value(x.data(), x.dtype(), row * cols + col), made);
    }
  }
  q.codes = io::packed_codes(scheme, codes);
  return q;
}

/// 2^(exponent of amax, rounded to one bit of mantissa; minus the element's largest exponent).
float even_scale(const Scheme& scheme, float amax) {
  if (amax == 0.0f) return 1.0f;
  constexpr std::uint32_t kHalfOfOneBit = 1u << 21;
  const int exponent =
      static_cast<int>((std::bit_cast<std::uint32_t>(amax) + kHalfOfOneBit) >> 23) - 127 - largest_exponent(scheme.element);
  return std::ldexp(1.0f, std::clamp(exponent, -127, 127));
}

QuantizedTensor quantize_mx(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  const ScaleGrid grid = scale_grid(scheme, x.shape());
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1];
  const Tensor scales = Tensor::empty(DType::kF32, {grid.count()});
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t first = 0; first < cols; first += grid.tile_cols) {
      Group group;
      for (std::int64_t col = first; col < std::min(cols, first + grid.tile_cols); ++col)
        group.add(load_value(x.data(), x.dtype(), row * cols + col));
      scales.as<float>()[row * grid.cols + first / grid.tile_cols] = even_scale(scheme, group.amax());
    }
  QuantizeOptions with_scales = options;
  with_scales.scales = scales;
  return quantize(x, scheme, with_scales);
}

void require_finite(const Tensor& x) {
  for (std::int64_t i = 0; i < x.size(); ++i)
    if (!std::isfinite(load_value(x.data(), x.dtype(), i)))
      throw InvalidArgument(fmt::format("element {} is NaN or infinite, for which the ecosystem's own rule has no code", i));
}

}  // namespace

QuantizedTensor quantize_as(Ecosystem target, const Tensor& x, const Scheme& scheme, const QuantizeOptions& options) {
  const bool is_ct = target == Ecosystem::kCompressedTensors;
  const bool has_integer_rule =
      is_ct || (target == Ecosystem::kGptq && !scheme.asymmetric) || (target == Ecosystem::kAwq && scheme.asymmetric);
  if (has_integer_rule && x.rank() == 2 && io::is_grouped_integer(scheme)) {
    require_finite(x);
    return quantize_integers(target, x.contiguous(), scheme);
  }
  const bool is_mx = scheme.rule == ScaleRule::kSharedExponent && !scheme.is_msfp;
  return is_ct && is_mx && x.rank() == 2 ? quantize_mx(x.contiguous(), scheme, options) : quantize(x, scheme, options);
}

}  // namespace narrow
