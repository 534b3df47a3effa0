/// Statistics as a safetensors file: per input NAME.histogram, NAME.range, NAME.channel_max and, where asked for, NAME.second_moment;
/// the metadata names the modules that share an input.

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "format/quoted.h"
#include "narrow/calibrate.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr const char *kFormat = "narrow-calibration", *kVersion = "1";
constexpr std::string_view kHistogram = ".histogram";

/// The numbers of NAME.range, in order.
struct Range {
  double tokens, batches, minimum, maximum, average_minimum, average_maximum, exponent;
};
constexpr std::int64_t kRangeSize = sizeof(Range) / sizeof(double);

template <typename T>
Tensor copied(DType dtype, Shape shape, const T* values) {
  Tensor tensor = Tensor::empty(dtype, std::move(shape));
  std::copy_n(values, tensor.size(), tensor.as<T>());
  return tensor;
}

/// What narrow writes: counts that are whole, a range that is one, channels and moments that are finite and not negative.
std::string problem_of(const Range& range, const Tensor& channels, const Tensor* moment) {
  constexpr double kMost = 0x1p53;
  const auto is_count = [](double value) { return value >= 1.0 && value <= kMost && value == std::floor(value); };
  if (!is_count(range.tokens) || !is_count(range.batches)) return "its tokens and batches are no counts";
  if (range.exponent != std::floor(range.exponent) || std::fabs(range.exponent) > 1024.0) return "its histogram has no exponent";
  if (range.minimum > range.maximum || range.average_minimum > range.average_maximum) return "its smallest value is above its largest";
  if (channels.rank() != 1 || channels.size() == 0) return "it has no channels";
  for (std::int64_t i = 0; i < channels.size(); ++i)
    if (const float value = channels.as<float>()[i]; !std::isfinite(value) || value < 0.0f) return "a channel's largest magnitude is none";
  for (std::int64_t i = 0; moment != nullptr && i < moment->size(); ++i) {
    const double value = moment->as<double>()[i];
    if (!std::isfinite(value) || (i % (channels.size() + 1) == 0 && value < 0.0)) return "its second moment is none";
  }
  return {};
}

}  // namespace

void CalibrationStatistics::save(const std::filesystem::path& path) const {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata{{"format", kFormat}, {"version", kVersion}};
  for (const auto& [module, entry] : shared) metadata["shares." + module] = entry;
  for (const auto& [name, s] : inputs) {
    const Range range{static_cast<double>(s.tokens),
                      static_cast<double>(s.batches),
                      s.minimum,
                      s.maximum,
                      s.average_minimum,
                      s.average_maximum,
                      static_cast<double>(s.histogram.exponent())};
    const std::int64_t channels = static_cast<std::int64_t>(s.channel_max.size());
    tensors[name + std::string(kHistogram)] = copied(DType::kI64, {StreamingHistogram::kBins}, s.histogram.bins().data());
    tensors[name + ".range"] = copied(DType::kF64, {kRangeSize}, &range.tokens);
    tensors[name + ".channel_max"] = copied(DType::kF32, {channels}, s.channel_max.data());
    if (!s.second_moment.empty()) tensors[name + ".second_moment"] = copied(DType::kF64, {channels, channels}, s.second_moment.data());
  }
  write_safetensors(path, tensors, metadata);
}

CalibrationStatistics CalibrationStatistics::load(const std::filesystem::path& path) {
  const Checkpoint file = open_checkpoint(path);
  const auto corrupt = [&](const std::string& why) { return CorruptFile(fmt::format("{}: {}", path.string(), why)); };
  const std::map<std::string, std::string>& metadata = file.metadata(file.tensor_files().front());
  if (const auto format = metadata.find("format"); format == metadata.end() || format->second != kFormat)
    throw corrupt("it is no calibration of narrow");
  if (const auto version = metadata.find("version"); version == metadata.end() || version->second != kVersion)
    throw corrupt(fmt::format("it is not of version {}", kVersion));
  CalibrationStatistics result;
  const auto read = [&](const std::string& name, DType dtype, const Shape& shape) {
    if (!file.contains(name) || file.dtype(name) != dtype || (shape.front() >= 0 && file.shape(name) != shape))
      throw corrupt(fmt::format("the tensor {} is missing or has another type", in_quotes(name)));
    return file.tensor(name);
  };
  for (const std::string& tensor : file.names()) {
    if (!tensor.ends_with(kHistogram)) continue;
    const std::string name = tensor.substr(0, tensor.size() - kHistogram.size());
    const Tensor bins = read(tensor, DType::kI64, {StreamingHistogram::kBins}), numbers = read(name + ".range", DType::kF64, {kRangeSize}),
                 channels = read(name + ".channel_max", DType::kF32, {-1});
    Range range{};
    std::copy_n(numbers.as<double>(), kRangeSize, &range.tokens);
    for (std::int64_t i = 0; i < kRangeSize; ++i)
      if (!std::isfinite(numbers.as<double>()[i])) throw corrupt(fmt::format("{}.range has a number that is not finite", in_quotes(name)));
    std::optional<Tensor> moment;
    if (file.contains(name + ".second_moment")) moment = read(name + ".second_moment", DType::kF64, {channels.size(), channels.size()});
    if (const std::string problem = problem_of(range, channels, moment ? &*moment : nullptr); !problem.empty())
      throw corrupt(fmt::format("the input {}: {}", in_quotes(name), problem));
    InputStatistics& s = result.inputs[name];
    s.tokens = static_cast<std::int64_t>(range.tokens);
    s.batches = static_cast<std::int64_t>(range.batches);
    s.minimum = range.minimum;
    s.maximum = range.maximum;
    s.average_minimum = range.average_minimum;
    s.average_maximum = range.average_maximum;
    try {
      s.histogram =
          StreamingHistogram::restore(static_cast<int>(range.exponent), {bins.as<std::int64_t>(), bins.as<std::int64_t>() + bins.size()});
    } catch (const InvalidArgument& wrong) {
      throw corrupt(fmt::format("{}: {}", in_quotes(tensor), wrong.what()));
    }
    s.channel_max.assign(channels.as<float>(), channels.as<float>() + channels.size());
    if (moment) s.second_moment.assign(moment->as<double>(), moment->as<double>() + moment->size());
  }
  for (const auto& [key, entry] : metadata) {
    if (!key.starts_with("shares.")) continue;
    if (!result.inputs.contains(entry))
      throw corrupt(fmt::format("{} shares the input {}, which is not there", in_quotes(key.substr(7)), in_quotes(entry)));
    result.shared[key.substr(7)] = entry;
  }
  if (result.inputs.empty()) throw corrupt("it has no inputs");
  return result;
}

}  // namespace narrow
