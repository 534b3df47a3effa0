#include "methods/channel_factors.h"

#include <algorithm>
#include <cmath>

#include "methods/hessian.h"
#include "narrow/model.h"

namespace narrow {
namespace {

constexpr int kStrengths = 20;  // steps from 0 to 1

/// A quantized weight that reads the channels.
struct Reader {
  std::string module;
  Tensor w;  ///< fp32 [n, k]
  Scheme scheme;
};

std::vector<Reader> quantized_readers(const Checkpoint& input, const Plan& plan, const ChannelLink& link) {
  std::vector<Reader> readers;
  for (const std::string& module : link.readers)
    for (const PlannedTensor& tensor : plan.tensors)
      if (tensor.name == module + ".weight" && tensor.fate == Fate::kQuantize)
        readers.push_back({module, convert(input.tensor(tensor.name), DType::kF32), tensor.scheme});
  return readers;
}

/// An expert that no token of the text went through keeps its channels; everything else was seen, or `of` says that it was not.
bool is_seen(const SeenInputs& seen, const ChannelLink& link) {
  return seen.statistics.shared.contains(link.readers.front()) || link.readers.front().find(".experts.") == std::string::npos;
}

/// x with its columns multiplied by s, or divided.
Tensor with_columns(const Tensor& x, const std::vector<float>& s, bool divide) {
  const std::int64_t k = x.shape().back();
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const float factor = s[static_cast<std::size_t>(i % k)];
    y.as<float>()[i] = divide ? x.as<float>()[i] / factor : x.as<float>()[i] * factor;
  }
  return y;
}

/// A value per column of the readers, as one per channel of the source: the largest.
std::vector<double> per_channel(const ChannelLink& link, const std::vector<double>& columns) {
  std::vector<double> result(static_cast<std::size_t>(link.channels), 0.0);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    double& largest = result[static_cast<std::size_t>(link.source_of[c])];
    largest = std::max(largest, columns[c]);
  }
  return result;
}

std::vector<float> per_column(const ChannelLink& link, const std::vector<float>& channels) {
  std::vector<float> result;
  for (const std::int64_t channel : link.source_of) result.push_back(channels[static_cast<std::size_t>(channel)]);
  return result;
}

double squared_difference(const Tensor& x, const Tensor& y) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x.as<float>()[i]) - static_cast<double>(y.as<float>()[i]);
    sum += difference * difference;
  }
  return sum;
}

/// Numbers that scales can hold: channels that are always zero, or all but, are left alone.
float usable(double s) { return std::isfinite(s) && s > 1e-5 && s < 1e5 ? static_cast<float>(s) : 1.0f; }

/// The input as the recipe rounds it; static scales from the largest magnitude of all tokens seen.
Tensor rounded_input(const Tensor& x, const ActivationScheme& activation, double largest) {
  QuantizeOptions options;
  options.nonfinite = NonFinite::kSaturate;
  if (activation.is_static && !activation.scheme.has_outer_scale && !activation.scheme.asymmetric)
    options.scales = Tensor::of({static_cast<float>(std::max(largest, 1e-30) / activation.scheme.element.largest())}, {1});
  return dequantize(quantize(x, activation.scheme, options));
}

}  // namespace

ChannelFactors smooth_factors(const Checkpoint& input, const Recipe& recipe, const Plan& plan, const SeenInputs& seen,
                              std::optional<double> strength) {
  ChannelFactors factors;
  for (const ChannelLink& link : channel_links(read_matching_config(input))) {
    const std::vector<Reader> readers = quantized_readers(input, plan, link);
    if (readers.empty() || !is_seen(seen, link)) continue;
    const auto activation = recipe.activations ? recipe.activations->scheme_of(readers.front().module) : std::nullopt;
    if (!activation) continue;
    const std::vector<float>& channel_max = seen.statistics.of(link.readers.front()).channel_max;
    std::vector<double> inputs(channel_max.begin(), channel_max.end()), weights(inputs.size(), 0.0);
    for (const Reader& reader : readers)
      for (std::int64_t i = 0; i < reader.w.size(); ++i) {
        double& largest = weights[static_cast<std::size_t>(i % reader.w.shape()[1])];
        largest = std::max(largest, std::fabs(static_cast<double>(reader.w.as<float>()[i])));
      }
    inputs = per_channel(link, inputs);
    weights = per_channel(link, weights);
    const auto factors_of = [&](double a) {
      std::vector<float> s;
      for (std::size_t c = 0; c < inputs.size(); ++c)
        s.push_back(inputs[c] > 0.0 && weights[c] > 0.0 ? usable(std::pow(inputs[c], a) / std::pow(weights[c], 1.0 - a)) : 1.0f);
      return s;
    };
    if (strength) {
      factors[link.source] = factors_of(*strength);
      continue;
    }
    const Tensor& x = seen.samples.at(link.readers.front());
    const auto error_of = [&](const std::vector<float>& channels) {
      const std::vector<float> s = per_column(link, channels);
      double largest = 0.0, error = 0.0;
      for (std::size_t c = 0; c < s.size(); ++c) largest = std::max(largest, static_cast<double>(channel_max[c] / s[c]));
      const Tensor rounded = rounded_input(with_columns(x, s, true), *activation, largest);
      for (const Reader& reader : readers)
        error += squared_difference(matmul(x, prepare(reader.w)),
                                    matmul(rounded, prepare(dequantize(quantize(with_columns(reader.w, s, false), reader.scheme)))));
      return error;
    };
    std::vector<float> best(static_cast<std::size_t>(link.channels), 1.0f);  // no smoothing at all is one of the candidates
    double least = error_of(best);
    for (int step = 0; step <= kStrengths; ++step) {
      const std::vector<float> made = factors_of(static_cast<double>(step) / kStrengths);
      const double error = error_of(made);
      if (error >= least) continue;
      least = error;
      best = made;
    }
    factors[link.source] = best;
  }
  return factors;
}

ChannelFactors awq_factors(const Checkpoint& input, const Plan& plan, const SeenInputs& seen) {
  ChannelFactors factors;
  for (const ChannelLink& link : channel_links(read_matching_config(input))) {
    const std::vector<Reader> readers = quantized_readers(input, plan, link);
    if (readers.empty() || !is_seen(seen, link)) continue;
    const std::int64_t k = static_cast<std::int64_t>(link.source_of.size());
    const Hessian hessian(seen.statistics.of(link.readers.front()).second_moment, k);
    std::vector<double> energy = hessian.diagonal();
    energy = per_channel(link, energy);
    std::vector<float> best(static_cast<std::size_t>(link.channels), 1.0f);
    double least = HUGE_VAL;
    std::vector<double> magnitude(static_cast<std::size_t>(k), 0.0);
    for (const Reader& reader : readers)
      for (std::int64_t i = 0; i < reader.w.size(); ++i)
        magnitude[static_cast<std::size_t>(i % k)] += std::fabs(static_cast<double>(reader.w.as<float>()[i]));
    magnitude = per_channel(link, magnitude);
    for (int step = 0; step <= 2 * kStrengths; ++step) {
      const bool by_both = step > kStrengths;
      const double a = static_cast<double>(by_both ? step - kStrengths : step) / kStrengths;
      std::vector<double> wanted;
      double low = HUGE_VAL, high = 0.0;
      for (std::size_t c = 0; c < energy.size(); ++c) {
        wanted.push_back(std::pow(std::max(energy[c], 1e-8), 0.5 * a) / (by_both ? std::pow(std::max(magnitude[c], 1e-8), 1.0 - a) : 1.0));
        low = std::min(low, wanted.back());
        high = std::max(high, wanted.back());
      }
      std::vector<float> channels;
      for (const double s : wanted) channels.push_back(usable(s / std::sqrt(low * high)));
      const std::vector<float> s = per_column(link, channels);
      double loss = 0.0;
      for (const Reader& reader : readers) {
        Tensor error = with_columns(dequantize(quantize(with_columns(reader.w, s, false), reader.scheme)), s, true);
        for (std::int64_t i = 0; i < error.size(); ++i) error.as<float>()[i] -= reader.w.as<float>()[i];
        loss += hessian.energy(error);
      }
      if (loss >= least) continue;
      least = loss;
      best = channels;
    }
    factors[link.source] = best;
  }
  return factors;
}

}  // namespace narrow
