#include "report/model_page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "narrow/calibrate.h"
#include "narrow/checkpoint.h"
#include "narrow/codec.h"
#include "narrow/quantize.h"
#include "report/page_template.h"
#include "report/statistics.h"

namespace narrow::report {
namespace {

constexpr std::size_t kBars = 96, kMostCodes = 256, kOutliers = 6, kActivationWindows = 4;

/// Counts over [low, high], as the page draws them.
Json bars_object(double low, double high, const std::vector<std::int64_t>& counts) {
  return {{"low", low}, {"high", high}, {"counts", counts}};
}

/// Every finite value of a format, ordered.
std::vector<double> code_values(const Format& format) {
  std::vector<double> values;
  if (format.bits > 8) return values;
  for (std::uint32_t code = 0; code < format.code_count() && values.size() < kMostCodes; ++code)
    if (const float value = decode(format, code); std::isfinite(value)) values.push_back(static_cast<double>(value));
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

/// The median over all scales of a tensor, outer scale included.
double median_scale(const QuantizedTensor& q) {
  std::vector<double> scales;
  for (std::int64_t i = 0; i < q.grid().count(); ++i)
    scales.push_back(q.scheme.has_scales() ? static_cast<double>(effective_scale(
                                                 q.scheme, load_scale_code(q.scales.data(), q.scheme.scale, i), q.outer_scale))
                                           : 1.0);
  if (scales.empty()) return 1.0;
  std::nth_element(scales.begin(), scales.begin() + static_cast<std::ptrdiff_t>(scales.size() / 2), scales.end());
  return scales[scales.size() / 2];
}

Json outlier_list(const std::vector<double>& channels) {
  Json list = Json::array();
  const OutlierColumns found = outlier_columns(channels, 3.0);
  for (std::size_t i = 0; i < std::min(kOutliers, found.found.size()); ++i)
    list.push_back({{"channel", found.found[i].first}, {"ratio", found.found[i].second}});
  return list;
}

/// The input's histogram in kBars bars over its own range.
Json input_object(const InputStatistics& input) {
  const double amax = std::max(-input.minimum, input.maximum), width = input.histogram.width();
  std::vector<std::int64_t> counts(kBars, 0);
  const auto& bins = input.histogram.bins();
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const double value = (static_cast<double>(i) + 0.5 - StreamingHistogram::kBins / 2) * width;
    const double place = (value + amax) / (2.0 * amax) * static_cast<double>(kBars);
    if (bins[i] > 0) counts[static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(kBars - 1)))] += bins[i];
  }
  Json object = bars_object(-amax, amax, counts);
  object["outliers"] = outlier_list({input.channel_max.begin(), input.channel_max.end()});
  return object;
}

CalibrationStatistics observe(const PageInput& page) {
  CalibrationStatistics statistics;
  for (std::size_t i = 0; i < std::min(kActivationWindows, page.windows.size()); ++i) {
    KvCache cache = page.base.make_cache();
    const Sequence sequence{page.windows[i], &cache};
    page.base.forward({&sequence, 1}, Logits::kLast,
                      [&](std::span<const std::string> modules, const Tensor& x) { statistics.add(modules, x, false); });
  }
  return statistics;
}

}  // namespace

Json page_data(const PageInput& page) {
  const Checkpoint checkpoint = open_checkpoint(page.path);
  const CalibrationStatistics statistics = observe(page);
  Json data = page.answer;
  Json tensors = Json::array();
  for (const LinearInfo& linear : page.base.linears()) {
    const std::string name = linear.module + ".weight";
    const Tensor weight = checkpoint.tensor(name);
    const Statistics about = measure(weight);
    const Histogram histogram = count_values(weight, -about.amax, about.amax, kBars);
    Json tensor{{"name", linear.module},
                {"shape", {linear.n, linear.k}},
                {"amax", about.amax},
                {"deviation", about.deviation},
                {"kurtosis", about.kurtosis}};
    tensor["weight"] = bars_object(-about.amax, about.amax, histogram.bins);
    tensor["weight"]["outliers"] = outlier_list(about.column_amax);
    tensor["input"] = input_object(statistics.of(linear.module));
    Json errors = Json::array();
    for (const PageModel& candidate : page.models) {
      const auto& linears = candidate.model.linears();
      const auto same =
          std::find_if(linears.begin(), linears.end(), [&](const LinearInfo& other) { return other.module == linear.module; });
      if (same == linears.end() || same->weight.element.bits > 8) {
        errors.push_back(nullptr);
        continue;
      }
      const QuantizedTensor q = quantize(weight, same->weight);
      Json error = error_object(compare(weight, dequantize(q)));
      error["scale"] = median_scale(q);
      errors.push_back(std::move(error));
    }
    tensor["errors"] = std::move(errors);
    tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < page.models.size(); ++i) {
    const auto& linears = page.models[i].model.linears();
    if (!linears.empty()) data["schemes"][i]["codes"] = code_values(linears.front().weight.element);
  }
  data["tensors"] = std::move(tensors);
  return data;
}

std::string model_page(const PageInput& page) {
  constexpr std::string_view kPlace = "/*DATA*/";
  std::string text(page_template());
  std::string data = page_data(page).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // "</script>" inside a string would end the script.
  for (std::size_t at = data.find("</"); at != std::string::npos; at = data.find("</", at + 3)) data.replace(at, 2, "<\\/");
  text.replace(text.find(kPlace), kPlace.size(), data);
  return text;
}

}  // namespace narrow::report
