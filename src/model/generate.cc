#include "narrow/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "model/cuda/decode_loop.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Uniform in [0, 1), from (seed, step) alone: two rounds of splitmix64's mixing.
double uniform(std::uint64_t seed, std::uint64_t step) {
  const auto mix = [](std::uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  };
  return static_cast<double>(mix(mix(seed) + step) >> 11) * 0x1p-53;
}

void check(const SampleOptions& options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature))
    throw InvalidArgument(fmt::format("sample: the temperature is {}; it must not be negative", options.temperature));
  if (options.top_k < 0) throw InvalidArgument(fmt::format("sample: top_k is {}; it must not be negative", options.top_k));
  if (!(options.top_p > 0.0 && options.top_p <= 1.0))
    throw InvalidArgument(fmt::format("sample: top_p is {}; it must be above 0 and at most 1", options.top_p));
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const SampleOptions& options, std::uint64_t step) {
  check(options);
  if (logits.empty()) throw InvalidArgument("sample: there are no logits");
  const std::int32_t likeliest = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature == 0.0 || options.top_k == 1) return likeliest;
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t kept = options.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(options.top_k)) : logits.size();
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);
  order.resize(kept);
  const double top = static_cast<double>(logits[static_cast<std::size_t>(likeliest)]);
  std::vector<double> weights;
  double total = 0.0;
  for (const std::int32_t token : order) {
    weights.push_back(std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) - top) / options.temperature));
    total += weights.back();
  }
  std::size_t count = 0;
  double reached = 0.0;
  while (count < weights.size() && (count == 0 || reached < options.top_p * total)) reached += weights[count++];
  double left = uniform(options.seed, step) * reached;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (left < weights[i]) return order[i];
    left -= weights[i];
  }
  return order[count - 1];
}

Generation generate(const Model& model, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                    const std::function<bool(std::int32_t)>& on_token) {
  if (prompt.empty()) throw InvalidArgument("generate: the prompt is empty; give at least one token");
  check(options.sampling);
  if (const auto& decoder = model.state().on_device) return model::generate_on_device(*decoder, model, prompt, options, on_token);
  KvCache cache = model.make_cache(options.cache);
  Generation result;
  auto begin = Clock::now();
  Sequence sequence{prompt, &cache};
  Tensor logits = model.forward({&sequence, 1}, Logits::kLast);
  result.prompt_seconds = seconds_since(begin);
  begin = Clock::now();
  const std::vector<std::int64_t>& ends = model.config().eos;
  while (static_cast<std::int64_t>(result.tokens.size()) < options.tokens) {
    const std::int32_t token =
        sample({logits.as<float>(), static_cast<std::size_t>(logits.size())}, options.sampling, result.tokens.size());
    result.ended = options.stop_at_end && std::find(ends.begin(), ends.end(), token) != ends.end();
    if (result.ended) break;
    result.tokens.push_back(token);
    if ((on_token && !on_token(token)) || static_cast<std::int64_t>(result.tokens.size()) == options.tokens) break;
    sequence.tokens = {&token, 1};
    logits = model.forward({&sequence, 1}, Logits::kLast);
  }
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace narrow
