#pragma once
/// How well a model predicts a text, and how far it is from another one: perplexity and the KL divergence from a base model.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "narrow/model.h"

namespace narrow {

/// Token windows; each is read on its own, its tokens 1 .. length-1 are scored.
using TokenWindows = std::vector<std::vector<std::int32_t>>;

/// A tensor [windows, length] of whole numbers in a safetensors file.
TokenWindows read_token_windows(const std::filesystem::path& path, const std::string& tensor);

/// Against the base model, over all scored tokens. KL(base || model) in nats; delta p = p_model - p_base of the text's own token.
struct Divergence {
  double base_perplexity = 0.0;
  double kl_mean = 0.0, kl_stderr = 0.0, kl_median = 0.0, kl_90 = 0.0, kl_95 = 0.0, kl_99 = 0.0, kl_999 = 0.0, kl_max = 0.0;
  double top1_agreement = 0.0;  ///< share of tokens where both have the same most likely one
  double delta_p_mean = 0.0, delta_p_rms = 0.0, delta_p_5 = 0.0, delta_p_95 = 0.0;
};

struct Evaluation {
  std::int64_t windows = 0, tokens = 0;  ///< tokens scored
  double nll = 0.0;                      ///< mean negative log-likelihood, nats
  double perplexity = 0.0;               ///< exp(nll)
  double perplexity_stderr = 0.0;        ///< perplexity * standard error of the mean over tokens
  double seconds = 0.0;                  ///< of the model's own forward passes and scores, without the base
  double tokens_per_second = 0.0;        ///< tokens read, the first of each window too
  std::optional<Divergence> divergence{};
};

struct EvaluateOptions {
  const Model* base = nullptr;
  Scheme cache = Scheme::parse("fp32");
  std::int64_t batch_tokens = 1024;  ///< of one forward pass; at least one window
  /// Sees the logits [tokens, vocabulary] of every batch, in order.
  std::function<void(const Tensor& logits)> logits{};
  std::function<void(std::int64_t done, std::int64_t windows, double nll_so_far)> progress{};
};
Evaluation evaluate(const Model& model, const TokenWindows& windows, const EvaluateOptions& options = {});

}  // namespace narrow
