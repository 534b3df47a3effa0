#include "narrow/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "dispatch/attention.h"
#include "model/cuda/device_decoder.h"
#include "model/cuda/device_score.h"
#include "model/weights.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// What is kept of every scored token.
struct Scores {
  std::vector<double> nll, base_nll, kl, delta_p;
  std::int64_t agreements = 0;
};

/// The sums of some rows, where the logits are.
std::vector<model::RowSums> sums_of(const Tensor& x, const Tensor* y, const std::vector<model::LogitRow>& rows) {
  if (!x.device().is_cpu()) return model::sums_on_device(x, y, rows);
  std::vector<model::RowSums> result(rows.size());
  const std::int64_t vocabulary = x.shape().back(), count = static_cast<std::int64_t>(rows.size());
  const LogitsKernel& kernel = find_logits();
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const model::LogitRow& item = rows[static_cast<std::size_t>(i)];
      const std::int64_t offset = item.row * vocabulary;
      const float* row = x.as<float>() + offset;
      result[static_cast<std::size_t>(i)] = {kernel.run(row, y != nullptr ? y->as<float>() + offset : nullptr, vocabulary),
                                             row[item.token]};
    }
  }
  return result;
}

/// Scores the logits of one batch; `base` is null without a base model.
void score(const TokenWindows& windows, std::size_t first, std::size_t last, const Tensor& logits, const Tensor* base, Scores& scores) {
  std::vector<model::LogitRow> rows;
  std::int32_t row = 0;
  for (std::size_t w = first; w < last; ++w, ++row)
    for (std::size_t i = 1; i < windows[w].size(); ++i, ++row) rows.push_back({row, windows[w][i]});
  const std::vector<model::RowSums> own = sums_of(logits, nullptr, rows);
  const auto log_p = [](const model::RowSums& of) { return static_cast<double>(of.logit) - of.sums.log_sum; };
  for (const model::RowSums& of : own) scores.nll.push_back(-log_p(of));
  if (base == nullptr) return;
  const std::vector<model::RowSums> theirs = sums_of(*base, &logits, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    scores.base_nll.push_back(-log_p(theirs[i]));
    scores.kl.push_back(std::max(0.0, theirs[i].sums.difference - theirs[i].sums.log_sum + own[i].sums.log_sum));
    scores.delta_p.push_back(std::exp(log_p(own[i])) - std::exp(log_p(theirs[i])));
    scores.agreements += own[i].sums.largest == theirs[i].sums.largest ? 1 : 0;
  }
}

struct Mean {
  double value = 0.0, error = 0.0;
};
Mean mean_of(const std::vector<double>& values) {
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += value;
  const double count = static_cast<double>(values.size()), mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / (count - 1.0) / count) : 0.0};
}

/// The value below which a share of the sorted ones lies, between neighbours by their distance.
double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const std::size_t below = static_cast<std::size_t>(place), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Divergence divergence_of(Scores& scores) {
  Divergence d;
  d.base_perplexity = std::exp(mean_of(scores.base_nll).value);
  const Mean kl = mean_of(scores.kl);
  d.kl_mean = kl.value;
  d.kl_stderr = kl.error;
  d.delta_p_mean = mean_of(scores.delta_p).value;
  double squares = 0.0;
  for (const double value : scores.delta_p) squares += value * value;
  d.delta_p_rms = std::sqrt(squares / static_cast<double>(scores.delta_p.size()));
  std::sort(scores.kl.begin(), scores.kl.end());
  std::sort(scores.delta_p.begin(), scores.delta_p.end());
  d.kl_median = percentile(scores.kl, 0.5);
  d.kl_90 = percentile(scores.kl, 0.9);
  d.kl_95 = percentile(scores.kl, 0.95);
  d.kl_99 = percentile(scores.kl, 0.99);
  d.kl_999 = percentile(scores.kl, 0.999);
  d.kl_max = scores.kl.back();
  d.delta_p_5 = percentile(scores.delta_p, 0.05);
  d.delta_p_95 = percentile(scores.delta_p, 0.95);
  d.top1_agreement = static_cast<double>(scores.agreements) / static_cast<double>(scores.nll.size());
  return d;
}

/// One model reading windows, with caches that are used again.
class Reader {
 public:
  /// `stays`: a CUDA device's logits stay there.
  Reader(const Model& model, const Scheme& cache, bool stays) : model_(model), scheme_(cache), stays_(stays) {}

  /// The logits, valid until the next call.
  Tensor read(const TokenWindows& windows, std::size_t first, std::size_t last) {
    while (caches_.size() < last - first) caches_.push_back(model_.make_cache(scheme_));
    std::vector<Sequence> sequences;
    for (std::size_t i = first; i < last; ++i) {
      caches_[i - first].truncate(0);
      sequences.push_back({windows[i], &caches_[i - first]});
    }
    if (const auto& decoder = model_.state().on_device; decoder && stays_) return decoder->forward_kept(sequences, logits_);
    return model_.forward(sequences);
  }

 private:
  const Model& model_;
  Scheme scheme_;
  bool stays_;
  std::vector<KvCache> caches_;
  Buffer logits_;  ///< on the device
};

}  // namespace

Evaluation evaluate(const Model& model, const TokenWindows& windows, const EvaluateOptions& options) {
  if (windows.empty()) throw InvalidArgument("evaluate: there are no windows of tokens");
  for (const auto& window : windows)
    if (window.size() < 2) throw InvalidArgument("evaluate: a window needs at least two tokens, one to read and one to score");
  if (options.base != nullptr && options.base->config().vocabulary != model.config().vocabulary)
    throw InvalidArgument(fmt::format("evaluate: the model has {} tokens and its base {}; only models of one vocabulary can be compared",
                                      model.config().vocabulary, options.base->config().vocabulary));
  Evaluation result;
  Scores scores;
  // Where both models are on one device and nobody else wants the logits, they are scored there.
  const bool stays = !options.logits && (options.base == nullptr || options.base->device() == model.device());
  Reader reader(model, options.cache, stays);
  std::optional<Reader> base;
  if (options.base != nullptr) base.emplace(*options.base, options.cache, stays);
  std::int64_t read = 0;
  double nll = 0.0;
  for (std::size_t first = 0, last = 0; first < windows.size(); first = last) {
    std::int64_t tokens = 0;
    while (last < windows.size() && (last == first || tokens + static_cast<std::int64_t>(windows[last].size()) <= options.batch_tokens))
      tokens += static_cast<std::int64_t>(windows[last++].size());
    std::optional<Tensor> theirs;
    if (base) theirs = base->read(windows, first, last);
    const std::size_t before = scores.nll.size();
    const auto begin = Clock::now();
    const Tensor logits = reader.read(windows, first, last);
    score(windows, first, last, logits, theirs ? &*theirs : nullptr, scores);
    result.seconds += seconds_since(begin);
    if (options.logits) options.logits(logits);
    read += tokens;
    for (std::size_t i = before; i < scores.nll.size(); ++i) nll += scores.nll[i];
    if (options.progress)
      options.progress(static_cast<std::int64_t>(last), static_cast<std::int64_t>(windows.size()),
                       nll / static_cast<double>(scores.nll.size()));
  }
  const Mean mean = mean_of(scores.nll);
  result.windows = static_cast<std::int64_t>(windows.size());
  result.tokens = static_cast<std::int64_t>(scores.nll.size());
  result.nll = mean.value;
  result.perplexity = std::exp(mean.value);
  result.perplexity_stderr = result.perplexity * mean.error;
  result.tokens_per_second = static_cast<double>(read) / result.seconds;
  if (base) result.divergence = divergence_of(scores);
  return result;
}

}  // namespace narrow
