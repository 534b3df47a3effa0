#include "report/evaluation.h"

#include <algorithm>
#include <map>
#include <numbers>

#include <fmt/format.h>

#include "report/numbers.h"
#include "report/table.h"

namespace narrow::report {
namespace {

/// Texts by how often they occur, joined.
template <typename Describe>
std::string most_used(const Model& model, const Describe& describe) {
  std::map<std::string, int> counts;
  for (const LinearInfo& linear : model.linears()) ++counts[describe(linear)];
  std::vector<std::pair<std::string, int>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : order) text += (text.empty() ? "" : ", ") + name;
  return text;
}

double bits_per_byte(const Evaluation& evaluation, std::uint64_t bytes) {
  return evaluation.nll * static_cast<double>(evaluation.tokens) / std::numbers::ln2 / static_cast<double>(bytes);
}

}  // namespace

std::string weights_text(const Model& model) {
  return most_used(
      model, [](const LinearInfo& linear) { return linear.weight.element.bits == 32 ? std::string("fp32") : linear.weight.to_string(); });
}

std::string activations_text(const Model& model) {
  return most_used(model,
                   [](const LinearInfo& linear) { return linear.activation ? linear.activation->to_string() : std::string("fp32"); });
}

Json model_object(const Model& model) {
  return {{"weights", weights_text(model)},
          {"activations", activations_text(model)},
          {"bits_per_weight", model.bits_per_weight()},
          {"weight_bytes", model.weight_bytes()}};
}

Json evaluation_object(const Evaluation& evaluation, std::uint64_t scored_bytes) {
  Json object{{"perplexity", number(evaluation.perplexity)},
              {"perplexity_stderr", number(evaluation.perplexity_stderr)},
              {"nll", number(evaluation.nll)},
              {"bits_per_byte", scored_bytes > 0 ? number(bits_per_byte(evaluation, scored_bytes)) : Json(nullptr)},
              {"windows", evaluation.windows},
              {"tokens", evaluation.tokens},
              {"seconds", evaluation.seconds},
              {"tokens_per_second", evaluation.tokens_per_second}};
  if (!evaluation.divergence) return object;
  const Divergence& d = *evaluation.divergence;
  object.update(Json{{"base_perplexity", number(d.base_perplexity)},
                     {"kl_mean", number(d.kl_mean)},
                     {"kl_stderr", number(d.kl_stderr)},
                     {"kl_median", number(d.kl_median)},
                     {"kl_90", number(d.kl_90)},
                     {"kl_95", number(d.kl_95)},
                     {"kl_99", number(d.kl_99)},
                     {"kl_999", number(d.kl_999)},
                     {"kl_max", number(d.kl_max)},
                     {"top1_agreement", d.top1_agreement},
                     {"delta_p_mean", number(d.delta_p_mean)},
                     {"delta_p_rms", number(d.delta_p_rms)},
                     {"delta_p_5", number(d.delta_p_5)},
                     {"delta_p_95", number(d.delta_p_95)}});
  return object;
}

std::string evaluation_text(const Style& style, const Model& model, const Evaluation& evaluation, std::uint64_t scored_bytes) {
  Table table({{""}, {""}});
  table.add({"weights", fmt::format("{} ({:.3f} bits per weight)", weights_text(model), model.bits_per_weight())});
  table.add({"activations", activations_text(model)});
  table.add({"perplexity", {fmt::format("{:.4f} +- {:.4f}", evaluation.perplexity, evaluation.perplexity_stderr), Paint::kBold}});
  if (scored_bytes > 0) table.add({"bits per byte", fmt::format("{:.4f}", bits_per_byte(evaluation, scored_bytes))});
  table.add({"tokens", fmt::format("{} scored in {}, {} read per second", count_text(evaluation.tokens), duration_text(evaluation.seconds),
                                   count_text(static_cast<std::int64_t>(evaluation.tokens_per_second)))});
  if (evaluation.divergence) {
    const Divergence& d = *evaluation.divergence;
    table.add({"base perplexity", fmt::format("{:.4f} (ratio {:.5f})", d.base_perplexity, evaluation.perplexity / d.base_perplexity)});
    table.add({"KL mean", {fmt::format("{:.6f} +- {:.6f}", d.kl_mean, d.kl_stderr), Paint::kBold}});
    table.add({"KL median, 90, 95, 99, 99.9 %, max",
               fmt::format("{:.6f}, {:.5f}, {:.5f}, {:.4f}, {:.4f}, {:.3f}", d.kl_median, d.kl_90, d.kl_95, d.kl_99, d.kl_999, d.kl_max)});
    table.add({"same top token", percent_text(d.top1_agreement)});
    table.add({"delta p mean, RMS, 5 %, 95 %",
               fmt::format("{:+.4f}, {:.4f}, {:+.4f}, {:+.4f}", d.delta_p_mean, d.delta_p_rms, d.delta_p_5, d.delta_p_95)});
  }
  return table.render(style);
}

}  // namespace narrow::report
