#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace narrow::model {
namespace {

constexpr double kTurn = 2.0 * std::numbers::pi;

/// theta^(2i / head_dim), rounded as fp32 frameworks round it.
std::vector<float> periods(double theta, std::int64_t head_dim) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    result.push_back(static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return result;
}

/// llama3: long waves are stretched, short ones kept, those between blended.
float llama3_frequency(const RopeConfig& config, float frequency) {
  const double length = static_cast<double>(config.original_positions), wave = kTurn / static_cast<double>(frequency);
  if (wave > length / config.low_frequency) return static_cast<float>(static_cast<double>(frequency) / config.factor);
  if (wave < length / config.high_frequency) return frequency;
  const double smooth = (length / wave - config.low_frequency) / (config.high_frequency - config.low_frequency);
  return static_cast<float>((1.0 - smooth) * static_cast<double>(frequency) / config.factor + smooth * static_cast<double>(frequency));
}

/// yarn: frequencies that turn more than beta_fast times over the trained length are kept, below beta_slow stretched, a ramp between.
void stretch_yarn(const RopeConfig& config, std::int64_t head_dim, RopeFrequencies& frequencies) {
  const double dim = static_cast<double>(head_dim);
  const auto index_of = [&](double turns) {
    return dim * std::log(static_cast<double>(config.original_positions) / (turns * kTurn)) / (2.0 * std::log(config.theta));
  };
  double low = index_of(config.beta_fast), high = index_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.values.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0),
                 frequency = static_cast<double>(frequencies.values[i]);
    frequencies.values[i] = static_cast<float>(frequency / config.factor * stretched + frequency * (1.0 - stretched));
  }
  const auto scale = [&](double multiple) { return config.factor <= 1.0 ? 1.0 : 0.1 * multiple * std::log(config.factor) + 1.0; };
  const bool both = config.mscale.value_or(0.0) != 0.0 && config.mscale_all_dim.value_or(0.0) != 0.0;
  frequencies.factor =
      static_cast<float>(config.attention_factor.value_or(both ? scale(*config.mscale) / scale(*config.mscale_all_dim) : scale(1.0)));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t head_dim, std::int64_t max_positions, std::int64_t length) {
  double theta = config.theta;
  if (config.kind == RopeConfig::Kind::kDynamic && head_dim > 2) {
    const double ratio = static_cast<double>(std::max(length, max_positions)) / static_cast<double>(max_positions);
    theta *= std::pow(config.factor * ratio - (config.factor - 1.0), static_cast<double>(head_dim) / static_cast<double>(head_dim - 2));
  }
  RopeFrequencies frequencies;
  for (const float period : periods(theta, head_dim)) frequencies.values.push_back(1.0f / period);
  if (config.kind == RopeConfig::Kind::kLinear)
    for (float& frequency : frequencies.values) frequency = static_cast<float>(static_cast<double>(frequency) / config.factor);
  if (config.kind == RopeConfig::Kind::kLlama3)
    for (float& frequency : frequencies.values) frequency = llama3_frequency(config, frequency);
  if (config.kind == RopeConfig::Kind::kYarn) stretch_yarn(config, head_dim, frequencies);
  return frequencies;
}

RopeTable rope_table(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count) {
  RopeTable table;
  table.pairs = static_cast<std::int64_t>(frequencies.values.size());
  table.cosine.resize(static_cast<std::size_t>(count * table.pairs));
  table.sine.resize(table.cosine.size());
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t i = 0; i < table.pairs; ++i) {
      const float angle = static_cast<float>(first + row) * frequencies.values[static_cast<std::size_t>(i)];
      const std::size_t place = static_cast<std::size_t>(row * table.pairs + i);
      table.cosine[place] = static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies.factor;
      table.sine[place] = static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies.factor;
    }
  return table;
}

void turn_head(const RopeTable& table, std::int64_t row, float* head) {
  const float* cosine = table.cosine.data() + row * table.pairs;
  const float* sine = table.sine.data() + row * table.pairs;
  float* second = head + table.pairs;
  for (std::int64_t i = 0; i < table.pairs; ++i) {
    const float a = head[i], b = second[i];
    head[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace narrow::model
