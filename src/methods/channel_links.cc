#include "methods/channel_links.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/text.h"
#include "io/weight_suffix.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::string_view kBias = ".bias";

std::vector<std::int64_t> identity(std::int64_t count) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) result[static_cast<std::size_t>(i)] = i;
  return result;
}

/// Factors on the rows (or elements) and on the columns of one tensor.
struct Scaling {
  std::vector<float> rows, columns;
};

}  // namespace

std::vector<ChannelLink> channel_links(const ModelConfig& config) {
  std::vector<ChannelLink> links;
  std::vector<std::int64_t> shared;
  const std::int64_t group = config.heads / config.kv_heads;
  for (std::int64_t c = 0; c < config.heads * config.head_dim; ++c)
    shared.push_back(c / config.head_dim / group * config.head_dim + c % config.head_dim);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i), attention = layer + "self_attn.";
    links.push_back({layer + "input_layernorm",
                     config.hidden,
                     {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                     identity(config.hidden)});
    links.push_back({attention + "v_proj", config.kv_heads * config.head_dim, {attention + "o_proj"}, shared});
    const std::vector<MlpModules> mlps = mlp_modules(config, i);
    ChannelLink& norm = links.emplace_back(ChannelLink{layer + "post_attention_layernorm", config.hidden, {}, identity(config.hidden)});
    if (config.has_experts(i)) norm.readers.push_back(router_module(config, i));
    for (const MlpModules& mlp : mlps) norm.readers.insert(norm.readers.end(), {mlp.gate, mlp.up});
    const std::int64_t width = mlp_width(config, i);
    for (const MlpModules& mlp : mlps) links.push_back({mlp.up, width, {mlp.down}, identity(width)});
  }
  return links;
}

TensorChanges scaled_channels(const Checkpoint& input, const ChannelFactors& factors) {
  const std::vector<ChannelLink> links = channel_links(read_matching_config(input));
  const auto scalings = std::make_shared<std::map<std::string, Scaling>>();
  for (const auto& [source, values] : factors) {
    const auto link = std::find_if(links.begin(), links.end(), [&source = source](const ChannelLink& l) { return l.source == source; });
    if (link == links.end()) throw InvalidArgument(fmt::format("{} is no module whose channels can be scaled", io::in_quotes(source)));
    if (static_cast<std::int64_t>(values.size()) != link->channels ||
        !std::all_of(values.begin(), values.end(), [](float s) { return std::isfinite(s) && s > 0.0f; }))
      throw InvalidArgument(fmt::format("{} needs {} factors, each finite and positive", io::in_quotes(source), link->channels));
    (*scalings)[source + std::string(io::kWeightSuffix)].rows = values;
    if (input.contains(source + std::string(kBias))) (*scalings)[source + std::string(kBias)].rows = values;
    for (const std::string& reader : link->readers)
      for (const std::int64_t channel : link->source_of)
        (*scalings)[reader + std::string(io::kWeightSuffix)].columns.push_back(values[static_cast<std::size_t>(channel)]);
  }
  TensorChanges changes;
  for (const auto& [name, scaling] : *scalings) changes.types[name] = DType::kF32;
  changes.values = [input, scalings](const std::string& name) {
    const Scaling& scaling = scalings->at(name);
    const Tensor from = convert(input.tensor(name), DType::kF32);
    Tensor to = Tensor::empty(DType::kF32, from.shape());
    const std::int64_t cols = from.rank() == 2 ? from.shape()[1] : 1, rows = from.size() / cols;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        float value = from.as<float>()[r * cols + c];
        if (!scaling.rows.empty()) value /= scaling.rows[static_cast<std::size_t>(r)];
        if (!scaling.columns.empty()) value *= scaling.columns[static_cast<std::size_t>(c)];
        to.as<float>()[r * cols + c] = value;
      }
    return to;
  };
  return changes;
}

CalibrationStatistics scaled_statistics(const CalibrationStatistics& statistics, const std::vector<ChannelLink>& links,
                                        const ChannelFactors& factors) {
  CalibrationStatistics result;
  result.shared = statistics.shared;
  for (const auto& [entry, seen] : statistics.inputs) {
    InputStatistics& scaled = result.inputs[entry];
    scaled.tokens = seen.tokens;
    scaled.batches = seen.batches;
    scaled.channel_max = seen.channel_max;
    scaled.second_moment = seen.second_moment;
    for (const ChannelLink& link : links) {
      if (std::find(link.readers.begin(), link.readers.end(), entry) == link.readers.end() || !factors.contains(link.source)) continue;
      const std::vector<float>& s = factors.at(link.source);
      const auto factor = [&](std::size_t column) { return s[static_cast<std::size_t>(link.source_of[column])]; };
      const std::size_t k = scaled.channel_max.size();
      for (std::size_t i = 0; i < k; ++i) scaled.channel_max[i] /= factor(i);
      for (std::size_t i = 0; i < scaled.second_moment.size(); ++i)
        scaled.second_moment[i] /= static_cast<double>(factor(i / k)) * static_cast<double>(factor(i % k));
    }
  }
  return result;
}

void scale_channels(const std::filesystem::path& input, const std::filesystem::path& output, const ChannelFactors& factors) {
  const Checkpoint checkpoint = open_checkpoint(input);
  const TensorChanges changes = scaled_channels(checkpoint, factors);
  io::AtomicDirectory directory(output);
  write_changed(checkpoint, directory.place(), changes);
  directory.commit();
}

}  // namespace narrow
