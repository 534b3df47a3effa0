#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <omp.h>

#include "calibrate/second_moment.h"
#include "narrow/calibrate.h"
#include "narrow/error.h"

namespace narrow {

void InputStatistics::add(const Tensor& x, bool with_second_moment) {
  const std::int64_t cols = x.shape().back(), rows = cols > 0 ? x.size() / cols : 0;
  if (rows == 0) return;
  if (!channel_max.empty() && static_cast<std::int64_t>(channel_max.size()) != cols)
    throw InvalidArgument(fmt::format("an input of {} channels follows one of {}", cols, channel_max.size()));
  channel_max.resize(static_cast<std::size_t>(cols), 0.0f);
  const float* values = x.as<float>();
  // Parts of the rows, merged in order: counts are whole numbers, so their order does not matter either.
  const std::int64_t parts = std::min<std::int64_t>(omp_get_max_threads(), rows);
  struct Part {
    StreamingHistogram histogram;
    float low = INFINITY, high = -INFINITY;
    std::vector<float> channels;
  };
  std::vector<Part> found(static_cast<std::size_t>(parts));
#pragma omp parallel for schedule(static)
  for (std::int64_t p = 0; p < parts; ++p) {
    Part& part = found[static_cast<std::size_t>(p)];
    part.channels.resize(static_cast<std::size_t>(cols), 0.0f);
    const std::int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
    part.histogram.add({values + begin * cols, static_cast<std::size_t>((end - begin) * cols)});
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        const float value = values[r * cols + c];
        part.low = std::min(part.low, value);
        part.high = std::max(part.high, value);
        part.channels[static_cast<std::size_t>(c)] = std::max(part.channels[static_cast<std::size_t>(c)], std::fabs(value));
      }
  }
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const Part& part : found) {
    histogram.merge(part.histogram);
    low = std::min(low, static_cast<double>(part.low));
    high = std::max(high, static_cast<double>(part.high));
    for (std::size_t c = 0; c < channel_max.size(); ++c) channel_max[c] = std::max(channel_max[c], part.channels[c]);
  }
  minimum = batches == 0 ? low : std::min(minimum, low);
  maximum = batches == 0 ? high : std::max(maximum, high);
  ++batches;
  average_minimum += (low - average_minimum) / static_cast<double>(batches);
  average_maximum += (high - average_maximum) / static_cast<double>(batches);
  tokens += rows;
  if (with_second_moment) add_second_moment(x, second_moment);
}

void InputStatistics::merge(const InputStatistics& other) {
  if (other.batches == 0) return;
  if (batches == 0) {
    *this = other;
    return;
  }
  if (channel_max.size() != other.channel_max.size() || second_moment.size() != other.second_moment.size())
    throw InvalidArgument("statistics of inputs with other channels cannot be merged");
  minimum = std::min(minimum, other.minimum);
  maximum = std::max(maximum, other.maximum);
  const double share = static_cast<double>(other.batches) / static_cast<double>(batches + other.batches);
  average_minimum += share * (other.average_minimum - average_minimum);
  average_maximum += share * (other.average_maximum - average_maximum);
  histogram.merge(other.histogram);
  for (std::size_t i = 0; i < channel_max.size(); ++i) channel_max[i] = std::max(channel_max[i], other.channel_max[i]);
  for (std::size_t i = 0; i < second_moment.size(); ++i) second_moment[i] += other.second_moment[i];
  tokens += other.tokens;
  batches += other.batches;
}

void CalibrationStatistics::add(std::span<const std::string> modules, const Tensor& x, bool with_second_moment) {
  for (const std::string& module : modules) shared[module] = modules.front();
  inputs[modules.front()].add(x, with_second_moment);
}

void CalibrationStatistics::merge(const CalibrationStatistics& other) {
  for (const auto& [module, entry] : other.shared)
    if (const auto known = shared.find(module); known != shared.end() && known->second != entry)
      throw InvalidArgument(
          fmt::format("the statistics are of different models: {} shares its input with {} and with {}", module, known->second, entry));
  shared.insert(other.shared.begin(), other.shared.end());
  for (const auto& [entry, statistics] : other.inputs) inputs[entry].merge(statistics);
}

const InputStatistics& CalibrationStatistics::of(std::string_view module) const {
  const auto found = shared.find(std::string(module));
  if (found == shared.end()) throw InvalidArgument(fmt::format("the calibration has not seen the input of {}", module));
  return inputs.at(found->second);
}

}  // namespace narrow
