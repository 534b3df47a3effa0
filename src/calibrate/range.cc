/// From statistics to a scale: min/max, moving average, percentile, entropy, mean squared error.

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "narrow/calibrate.h"
#include "narrow/codec.h"
#include "format/quoted.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// The magnitude below which a share of all values lies, between the bin's ends by proportion.
double magnitude_percentile(const StreamingHistogram& histogram, double share) {
  const std::vector<std::int64_t> counts = histogram.magnitudes();
  const double wanted = share * static_cast<double>(histogram.count());
  double seen = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double here = static_cast<double>(counts[i]);
    if (here > 0.0 && seen + here >= wanted)
      return (static_cast<double>(i) + std::clamp((wanted - seen) / here, 0.0, 1.0)) * histogram.width();
    seen += here;
  }
  return static_cast<double>(counts.size()) * histogram.width();
}

/// Mean squared error of symmetric quantization with largest value `limit`, over the histogram's bin centres.
double squared_error(const std::vector<std::int64_t>& counts, double width, const Format& format, double limit) {
  const float scale = static_cast<float>(limit / static_cast<double>(format.largest()));
  double error = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const float value = static_cast<float>((static_cast<double>(i) + 0.5) * width);
    const double back = static_cast<double>(decode(format, encode(format, value / scale)) * scale);
    error += static_cast<double>(counts[i]) * (static_cast<double>(value) - back) * (static_cast<double>(value) - back);
  }
  return error;
}

/// The best of 200 limits, the largest magnitude downwards.
double mse_limit(const StreamingHistogram& histogram, const Format& format, double amax) {
  constexpr int kSteps = 200;
  const std::vector<std::int64_t> counts = histogram.magnitudes();
  double best = amax, least = HUGE_VAL;
  for (int i = kSteps; i > 0; --i) {
    const double limit = amax * static_cast<double>(i) / kSteps, error = squared_error(counts, histogram.width(), format, limit);
    if (error < least) {
      least = error;
      best = limit;
    }
  }
  return best;
}

/// KL(P || Q) of the clipped distribution P and Q, P as `levels` codes would keep it: each code's count spread over its non-empty bins.
double entropy_loss(const std::vector<double>& counts, std::size_t kept, std::size_t levels) {
  std::vector<double> p(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(kept));
  for (std::size_t i = kept; i < counts.size(); ++i) p.back() += counts[i];
  double total_p = 0.0, total_q = 0.0;
  std::vector<double> q(kept, 0.0);
  for (std::size_t level = 0; level < levels; ++level) {
    const std::size_t begin = level * kept / levels, end = (level + 1) * kept / levels;
    double sum = 0.0, filled = 0.0;
    for (std::size_t i = begin; i < end; ++i) {
      sum += counts[i];
      filled += p[i] > 0.0 ? 1.0 : 0.0;
    }
    for (std::size_t i = begin; i < end; ++i) q[i] = p[i] > 0.0 && filled > 0.0 ? sum / filled : 0.0;
  }
  for (std::size_t i = 0; i < kept; ++i) {
    total_p += p[i];
    total_q += q[i];
  }
  if (total_p == 0.0 || total_q == 0.0) return HUGE_VAL;
  double loss = 0.0;
  for (std::size_t i = 0; i < kept; ++i)
    if (p[i] > 0.0) loss += p[i] / total_p * std::log(p[i] / total_p / std::max(q[i] / total_q, 1e-12));
  return loss;
}

double entropy_limit(const StreamingHistogram& histogram, const Format& format, double amax) {
  const std::vector<std::int64_t> integers = histogram.magnitudes();
  const std::size_t used = std::min(integers.size(), static_cast<std::size_t>(std::ceil(amax / histogram.width())));
  const std::vector<double> counts(integers.begin(), integers.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, used)));
  const std::size_t levels = (std::size_t{1} << (std::min<int>(format.bits, 8) - 1));
  if (counts.size() <= levels) return amax;
  double best = amax, least = HUGE_VAL;
  for (std::size_t kept = levels; kept <= counts.size(); kept += std::max<std::size_t>(1, counts.size() / 512)) {
    const double loss = entropy_loss(counts, kept, levels);
    if (loss < least) {
      least = loss;
      best = static_cast<double>(kept) * histogram.width();
    }
  }
  return std::min(best, amax);
}

}  // namespace

RangeMethod RangeMethod::parse(std::string_view text) {
  if (text == "minmax") return {Kind::kMinMax};
  if (text == "average") return {Kind::kAverage};
  if (text == "entropy") return {Kind::kEntropy};
  if (text == "mse") return {Kind::kMse};
  if (text == "percentile") return {Kind::kPercentile};
  constexpr std::string_view kPrefix = "percentile=";
  if (text.starts_with(kPrefix)) {
    RangeMethod method{Kind::kPercentile};
    const std::string_view digits = text.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), method.percentile);
    if (error == std::errc() && end == digits.data() + digits.size() && method.percentile > 0.0 && method.percentile <= 100.0)
      return method;
  }
  throw InvalidArgument(
      fmt::format("{} is no way to choose a range; there are minmax, average, percentile, percentile=P, entropy and mse", in_quotes(text)));
}

std::string RangeMethod::to_string() const {
  switch (kind) {
    case Kind::kMinMax: return "minmax";
    case Kind::kAverage: return "average";
    case Kind::kPercentile: return fmt::format("percentile={}", percentile);
    case Kind::kEntropy: return "entropy";
    case Kind::kMse: return "mse";
  }
  return {};
}

StaticScale static_scale(const InputStatistics& s, const Scheme& scheme, const RangeMethod& method) {
  double low = s.minimum, high = s.maximum;
  const double amax = std::max(-low, high);
  const Format& element = scheme.element;
  if (method.kind == RangeMethod::Kind::kAverage) {
    low = s.average_minimum;
    high = s.average_maximum;
  } else if (method.kind != RangeMethod::Kind::kMinMax && amax > 0.0) {
    double limit = amax;
    if (method.kind == RangeMethod::Kind::kPercentile) limit = std::min(amax, magnitude_percentile(s.histogram, method.percentile / 100.0));
    if (method.kind == RangeMethod::Kind::kMse) limit = mse_limit(s.histogram, element, amax);
    if (method.kind == RangeMethod::Kind::kEntropy) limit = entropy_limit(s.histogram, element, amax);
    low = std::max(low, -limit);
    high = std::min(high, limit);
  }
  StaticScale result;
  if (scheme.asymmetric) {
    const double bottom = std::min(low, 0.0), top = std::max(high, 0.0), codes = static_cast<double>(element.code_count() - 1u);
    if (top > bottom) result.scale = static_cast<float>((top - bottom) / codes);
    result.zero_point = static_cast<std::uint8_t>(std::clamp(std::nearbyint(-bottom / static_cast<double>(result.scale)), 0.0, codes));
    return result;
  }
  const double limit = std::max(-low, high), largest = static_cast<double>(element.largest()) *
                                                       (scheme.has_outer_scale ? static_cast<double>(scheme.scale.largest()) : 1.0);
  if (limit > 0.0) result.scale = static_cast<float>(limit / largest);
  return result;
}

void set_static_scales(ActivationRecipe& recipe, const CalibrationStatistics& statistics, const RangeMethod& method) {
  for (const auto& [module, entry] : statistics.shared)
    if (const auto scheme = recipe.scheme_of(module); scheme && scheme->is_static)
      recipe.scales[module] = static_scale(statistics.inputs.at(entry), scheme->scheme, method);
}

}  // namespace narrow
