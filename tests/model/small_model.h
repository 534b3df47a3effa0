#pragma once
/// Small random decoders as Hugging Face directories.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "io/files.h"
#include "narrow/checkpoint.h"

namespace narrow::test {

struct Decoder {
  std::string type = "llama";
  std::string extra{};  ///< more fields of config.json, each ended by a comma
  std::int64_t hidden = 64, intermediate = 128, layers = 2, heads = 4, kv_heads = 2, head_dim = 16, vocabulary = 96;
  std::int64_t experts = 0, per_token = 2;  ///< of mixtral and qwen3_moe, each of `intermediate`
  bool tied = false, biases = false;
  DType dtype = DType::kBf16;
};

inline void write_decoder(const std::filesystem::path& directory, const Decoder& d) {
  std::map<std::string, Tensor> tensors;
  unsigned seed = 100;
  const auto add = [&](const std::string& name, Shape shape, float spread) {
    tensors.emplace(name, random_values(d.dtype, std::move(shape), seed++, spread));
  };
  const auto ones = [&](const std::string& name, std::int64_t size) {
    Tensor x = random_values(DType::kF32, {size}, seed++, 0.1f);
    for (std::int64_t i = 0; i < size; ++i) x.as<float>()[i] += 1.0f;
    tensors.emplace(name, convert(x, d.dtype));
  };
  add("model.embed_tokens.weight", {d.vocabulary, d.hidden}, 0.5f);
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const std::string p = fmt::format("model.layers.{}.", i);
    const auto linear = [&](const std::string& name, std::int64_t n, std::int64_t k, bool bias) {
      add(p + name + ".weight", {n, k}, 0.1f);
      if (bias) add(p + name + ".bias", {n}, 0.2f);
    };
    linear("self_attn.q_proj", d.heads * d.head_dim, d.hidden, d.biases);
    linear("self_attn.k_proj", d.kv_heads * d.head_dim, d.hidden, d.biases);
    linear("self_attn.v_proj", d.kv_heads * d.head_dim, d.hidden, d.biases);
    linear("self_attn.o_proj", d.hidden, d.heads * d.head_dim, false);
    const auto mlp = [&](const std::string& gate, const std::string& up, const std::string& down) {
      linear(gate, d.intermediate, d.hidden, false);
      linear(up, d.intermediate, d.hidden, false);
      linear(down, d.hidden, d.intermediate, false);
    };
    if (d.experts == 0) mlp("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj");
    for (std::int64_t e = 0; e < d.experts; ++e) {
      const std::string expert = fmt::format("{}.experts.{}.", d.type == "mixtral" ? "block_sparse_moe" : "mlp", e);
      if (d.type == "mixtral")
        mlp(expert + "w1", expert + "w3", expert + "w2");
      else
        mlp(expert + "gate_proj", expert + "up_proj", expert + "down_proj");
    }
    if (d.experts > 0) linear(d.type == "mixtral" ? "block_sparse_moe.gate" : "mlp.gate", d.experts, d.hidden, false);
    ones(p + "input_layernorm.weight", d.hidden);
    ones(p + "post_attention_layernorm.weight", d.hidden);
    if (d.type.starts_with("qwen3")) {
      ones(p + "self_attn.q_norm.weight", d.head_dim);
      ones(p + "self_attn.k_norm.weight", d.head_dim);
    }
  }
  ones("model.norm.weight", d.hidden);
  if (!d.tied) add("lm_head.weight", {d.vocabulary, d.hidden}, 0.2f);
  std::string experts;
  if (d.experts > 0)
    experts = fmt::format(R"("num_local_experts": {}, "num_experts_per_tok": {}, "moe_intermediate_size": {}, )", d.experts, d.per_token,
                          d.intermediate);
  std::filesystem::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  write_bytes(
      directory / "config.json",
      fmt::format(
          R"({{{}{}"model_type": "{}", "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
"num_key_value_heads": {}, "head_dim": {}, "vocab_size": {}, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": {}}})",
          d.extra, experts, d.type, d.hidden, d.intermediate, d.layers, d.heads, d.kv_heads, d.head_dim, d.vocabulary, d.tied));
}

inline std::vector<std::int32_t> random_tokens(std::size_t count, std::int64_t vocabulary, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(vocabulary) - 1);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& t : tokens) t = token(generator);
  return tokens;
}

}  // namespace narrow::test
