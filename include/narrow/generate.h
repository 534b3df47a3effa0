#pragma once
/// Text from a model: one token after the other.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "narrow/model.h"

namespace narrow {

struct SampleOptions {
  double temperature = 0.0;  ///< 0: always the most likely token
  std::int64_t top_k = 0;    ///< keep the k most likely tokens; 0: all
  double top_p = 1.0;        ///< then the fewest whose probabilities reach p
  std::uint64_t seed = 0;    ///< the same seed gives the same text
};

/// A token drawn from softmax(logits / temperature), cut to top_k and top_p; `step` numbers the draws of a seed.
std::int32_t sample(std::span<const float> logits, const SampleOptions& options, std::uint64_t step);

struct GenerateOptions {
  std::int64_t tokens = 128;  ///< at most
  SampleOptions sampling{};
  Scheme cache = Scheme::parse("fp32");
  bool stop_at_end = true;  ///< at an end-of-text token of the config
};

struct Generation {
  std::vector<std::int32_t> tokens;
  double prompt_seconds = 0.0, seconds = 0.0;  ///< reading the prompt; all tokens after the first
  bool ended = false;                          ///< by an end-of-text token, which is not in tokens
};

/// Continues the prompt. `on_token` sees each token as it is made; false stops.
Generation generate(const Model& model, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                    const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace narrow
