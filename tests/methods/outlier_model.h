#pragma once
/// The outlier variant of a model: some channels of every layer's norms made large, the inverse in the weights that read them.

#include "narrow/methods.h"
#include "narrow/model.h"

namespace narrow::test {

/// Factors 1/30, 1/36, ..., 1/60 on six channels of every layer norm: its outputs grow by as much.
inline ChannelFactors outlier_factors(const ModelConfig& config) {
  ChannelFactors factors;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      std::vector<float>& s = factors["model.layers." + std::to_string(layer) + "." + norm];
      s.assign(static_cast<std::size_t>(config.hidden), 1.0f);
      for (std::int64_t i = 0; i < 6; ++i)
        s[static_cast<std::size_t>((17 + 61 * i) % config.hidden)] = 1.0f / static_cast<float>(30 + 6 * i);
    }
  return factors;
}

inline void write_outlier_model(const std::filesystem::path& input, const std::filesystem::path& output) {
  scale_channels(input, output, outlier_factors(read_model_config(open_checkpoint(input))));
}

}  // namespace narrow::test
