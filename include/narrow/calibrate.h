#pragma once
/// Calibration: what the inputs of Linear layers look like over a text, in bounded memory, and the scales that follow from it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/recipe.h"
#include "narrow/tensor.h"

namespace narrow {

/// Counts of values in equal bins over [-2^exponent, 2^exponent). A value beyond doubles the range and joins neighbouring bins, so
/// that memory is bounded and two histograms merge exactly.
class StreamingHistogram {
 public:
  static constexpr int kBins = 4096;

  void add(std::span<const float> values);
  void merge(const StreamingHistogram& other);

  int exponent() const { return exponent_; }
  std::int64_t count() const { return count_; }
  double width() const;  ///< of a bin
  const std::vector<std::int64_t>& bins() const { return bins_; }
  /// Counts of magnitudes: bin i holds |x| in [i, i + 1) * width.
  std::vector<std::int64_t> magnitudes() const;

  static StreamingHistogram restore(int exponent, std::vector<std::int64_t> bins);

 private:
  void widen(int exponent);
  int exponent_ = -64;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> bins_ = std::vector<std::int64_t>(kBins, 0);
};

/// What was seen of one input [tokens, channels].
struct InputStatistics {
  std::int64_t tokens = 0, batches = 0;
  double minimum = 0.0, maximum = 0.0;                  ///< over all
  double average_minimum = 0.0, average_maximum = 0.0;  ///< mean over batches of each one's extremes
  StreamingHistogram histogram;
  std::vector<float> channel_max;     ///< largest magnitude of each channel: SmoothQuant, AWQ
  std::vector<double> second_moment;  ///< sum of x^T x, [channels, channels], where asked for: GPTQ

  /// Rows of fp32.
  void add(const Tensor& x, bool with_second_moment);
  void merge(const InputStatistics& other);
};

/// By module; modules that share their input share its statistics.
struct CalibrationStatistics {
  std::map<std::string, InputStatistics> inputs;  ///< by the first module of those that share
  std::map<std::string, std::string> shared;      ///< every module to its entry of inputs

  void add(std::span<const std::string> modules, const Tensor& x, bool with_second_moment);
  /// The same over the texts of both: statistics of several processes join.
  void merge(const CalibrationStatistics& other);
  const InputStatistics& of(std::string_view module) const;

  void save(const std::filesystem::path& path) const;
  static CalibrationStatistics load(const std::filesystem::path& path);
};

/// How a range follows from statistics.
struct RangeMethod {
  enum class Kind : std::uint8_t { kMinMax, kAverage, kPercentile, kEntropy, kMse };
  Kind kind = Kind::kMinMax;
  double percentile = 99.9;

  /// minmax, average, percentile (99.9) or percentile=P, entropy, mse.
  static RangeMethod parse(std::string_view text);
  std::string to_string() const;
};

/// The static scale of an activation scheme for an input with these statistics.
StaticScale static_scale(const InputStatistics& statistics, const Scheme& scheme, const RangeMethod& method);
/// Fills the recipe's scales for every module whose input is static.
void set_static_scales(ActivationRecipe& recipe, const CalibrationStatistics& statistics, const RangeMethod& method);

}  // namespace narrow
