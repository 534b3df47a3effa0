/// config.json to ModelConfig: Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3's mixture of experts; whatever the executor would compute
/// differently is refused by name.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/file_reader.h"
#include "io/json.h"
#include "io/text.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

using io::Json;

constexpr std::int64_t kLargestDimension = std::int64_t{1} << 24, kMostLayers = std::int64_t{1} << 14, kMostExperts = std::int64_t{1} << 12;

class Reader {
 public:
  Reader(const Json& json, std::filesystem::path path) : json_(json), path_(std::move(path)) {}

  [[noreturn]] void corrupt(std::string_view why) const { throw CorruptFile(fmt::format("{}: {}", path_.string(), why)); }
  [[noreturn]] void unsupported(std::string_view why) const { throw Unsupported(fmt::format("{}: {}", path_.string(), why)); }

  /// The value; null and a missing key are the same.
  const Json* find(const Json& object, const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* find(const char* key) const { return find(json_, key); }

  std::int64_t dimension(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    const Json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) corrupt(fmt::format("it has no {}", key));
    if (!value->is_number_integer() || value->get<double>() < 1.0 || value->get<double>() > static_cast<double>(kLargestDimension))
      corrupt(fmt::format("{} is {}, which is no size", key, io::in_quotes(value->dump())));
    return value->get<std::int64_t>();
  }
  double number(const Json& object, const char* key, std::optional<double> otherwise = {}) const {
    const Json* value = find(object, key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) corrupt(fmt::format("its RoPE parameters have no {}", key));
    if (!value->is_number() || !std::isfinite(value->get<double>()))
      corrupt(fmt::format("{} is {}, which is no number", key, io::in_quotes(value->dump())));
    return value->get<double>();
  }
  double number(const char* key, double otherwise) const { return number(json_, key, otherwise); }
  /// The whole part of a number, which may be written 8192.0; what no counter holds is no number here.
  std::int64_t whole(const char* key, double value) const {
    constexpr double kLargest = 9007199254740992.0;  // 2^53
    if (!(value >= -kLargest && value <= kLargest)) corrupt(fmt::format("{} is {}, which is no count", key, value));
    return static_cast<std::int64_t>(value);
  }
  bool flag(const Json& object, const char* key, bool otherwise) const {
    const Json* value = find(object, key);
    if (value != nullptr && !value->is_boolean()) corrupt(fmt::format("{} is {}, not true or false", key, io::in_quotes(value->dump())));
    return value == nullptr ? otherwise : value->get<bool>();
  }
  bool flag(const char* key, bool otherwise) const { return flag(json_, key, otherwise); }
  std::string text(const Json& object, const char* key, const std::string& otherwise) const {
    const Json* value = find(object, key);
    if (value != nullptr && !value->is_string()) corrupt(fmt::format("{} is {}, not a text", key, io::in_quotes(value->dump())));
    return value == nullptr ? otherwise : value->get<std::string>();
  }
  std::string text(const char* key, const std::string& otherwise) const { return text(json_, key, otherwise); }

  std::string model_type() const;
  RopeConfig rope(std::int64_t max_positions) const;
  std::vector<std::int64_t> windows(const ModelConfig& config) const;
  void experts(ModelConfig& config) const;
  std::vector<std::int64_t> token_ids(const char* key) const;

 private:
  const Json& json_;
  std::filesystem::path path_;
};

std::string Reader::model_type() const {
  const std::string type = text("model_type", "");
  for (const char* known : {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"})
    if (type == known) return type;
  unsupported(fmt::format("the executor has llama, mistral, mixtral, qwen2, qwen3 and qwen3_moe, but no architecture {}",
                          type.empty() ? "(model_type is missing)" : io::in_quotes(type)));
}

RopeConfig Reader::rope(std::int64_t max_positions) const {
  RopeConfig rope;
  const Json* object = find("rope_parameters");
  if (object == nullptr) object = find("rope_scaling");
  if (object != nullptr && !object->is_object()) corrupt("its RoPE parameters are no object");
  static const Json kNothing = Json::object();
  const Json& parameters = object == nullptr ? kNothing : *object;
  rope.theta = number(parameters, "rope_theta", number("rope_theta", 10000.0));
  if (!(rope.theta > 1.0)) corrupt(fmt::format("rope_theta is {}; it must be above 1", rope.theta));
  if (number(parameters, "partial_rotary_factor", number("partial_rotary_factor", 1.0)) != 1.0)
    unsupported("the executor turns whole heads; it has no partial_rotary_factor");
  const std::string kind = text(parameters, "rope_type", text(parameters, "type", "default"));
  if (kind == "default") return rope;
  rope.factor = number(parameters, "factor");
  if (!(rope.factor >= 1.0)) corrupt(fmt::format("the RoPE factor is {}; it must be at least 1", rope.factor));
  constexpr const char* kOriginal = "original_max_position_embeddings";
  rope.original_positions = whole(kOriginal, number(parameters, kOriginal, number(kOriginal, static_cast<double>(max_positions))));
  if (rope.original_positions < 1) corrupt("original_max_position_embeddings is not positive");
  if (kind == "linear") {
    rope.kind = RopeConfig::Kind::kLinear;
  } else if (kind == "dynamic") {
    rope.kind = RopeConfig::Kind::kDynamic;
  } else if (kind == "llama3") {
    rope.kind = RopeConfig::Kind::kLlama3;
    rope.low_frequency = number(parameters, "low_freq_factor");
    rope.high_frequency = number(parameters, "high_freq_factor");
    if (!(rope.low_frequency > 0.0 && rope.high_frequency > rope.low_frequency))
      corrupt("low_freq_factor must be positive and below high_freq_factor");
  } else if (kind == "yarn") {
    rope.kind = RopeConfig::Kind::kYarn;
    rope.beta_fast = number(parameters, "beta_fast", 32.0);
    rope.beta_slow = number(parameters, "beta_slow", 1.0);
    if (!(rope.beta_fast > 0.0 && rope.beta_slow > 0.0)) corrupt("beta_fast and beta_slow must be positive");
    rope.truncate = flag(parameters, "truncate", true);
    for (const auto& [key, place] :
         {std::pair{"attention_factor", &rope.attention_factor}, {"mscale", &rope.mscale}, {"mscale_all_dim", &rope.mscale_all_dim}})
      if (find(parameters, key) != nullptr) *place = number(parameters, key);
  } else {
    unsupported(fmt::format("the executor has the RoPE types default, linear, dynamic, llama3 and yarn, but not {}", io::in_quotes(kind)));
  }
  return rope;
}

/// Mistral and Mixtral: one window for all layers. Qwen: the layers that layer_types (or max_window_layers) names, where use_sliding_window
/// says so.
std::vector<std::int64_t> Reader::windows(const ModelConfig& config) const {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(config.layers), 0);
  if (find("sliding_window") == nullptr || config.model_type == "llama") return windows;
  const bool slides_everywhere = config.model_type == "mistral" || config.model_type == "mixtral";
  if (!slides_everywhere && !flag("use_sliding_window", false)) return windows;
  const std::int64_t window = dimension("sliding_window");
  const Json* types = slides_everywhere ? nullptr : find("layer_types");
  const std::int64_t first = slides_everywhere ? 0 : whole("max_window_layers", number("max_window_layers", 28.0));
  if (types != nullptr && (!types->is_array() || types->size() != windows.size())) corrupt("layer_types does not have one entry per layer");
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const bool slides = types != nullptr ? (*types)[i] == "sliding_attention" : static_cast<std::int64_t>(i) >= first;
    if (slides) windows[i] = window;
  }
  return windows;
}

/// Mixtral: in every layer, of intermediate_size. Qwen3: of moe_intermediate_size, in every decoder_sparse_step'th layer that
/// mlp_only_layers does not name.
void Reader::experts(ModelConfig& config) const {
  const bool is_mixtral = config.model_type == "mixtral";
  if (!is_mixtral && config.model_type != "qwen3_moe") return;
  ExpertsConfig& experts = config.experts.emplace();
  experts.count = dimension(find("num_experts") != nullptr ? "num_experts" : "num_local_experts");
  if (experts.count > kMostExperts) corrupt(fmt::format("it has {} experts; narrow takes {} at most", experts.count, kMostExperts));
  experts.per_token = dimension("num_experts_per_tok");
  if (experts.per_token > experts.count)
    corrupt(fmt::format("a token goes through {} experts and there are {}", experts.per_token, experts.count));
  experts.intermediate = is_mixtral ? config.intermediate : dimension("moe_intermediate_size");
  if (is_mixtral) return;
  experts.shares_sum_to_one = flag("norm_topk_prob", false);
  const std::int64_t step = dimension("decoder_sparse_step", 1);
  for (std::int64_t i = 0; i < config.layers; ++i)
    if ((i + 1) % step != 0) config.dense_layers.insert(i);
  const Json* dense = find("mlp_only_layers");
  if (dense == nullptr) return;
  if (!dense->is_array()) corrupt("mlp_only_layers is no list of layers");
  for (const Json& layer : *dense) {
    if (!layer.is_number_integer()) corrupt(fmt::format("mlp_only_layers has {}, which is no layer", io::in_quotes(layer.dump())));
    config.dense_layers.insert(layer.get<std::int64_t>());
  }
}

std::vector<std::int64_t> Reader::token_ids(const char* key) const {
  const Json* value = find(key);
  std::vector<std::int64_t> ids;
  if (value == nullptr) return ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_integer()) corrupt(fmt::format("{} is {}, which is no token", key, io::in_quotes(value->dump())));
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

ModelConfig parse(const Json& json, const std::filesystem::path& path) {
  const Reader reader(json, path);
  if (!json.is_object()) reader.corrupt("it is no object");
  ModelConfig config;
  config.model_type = reader.model_type();
  config.hidden = reader.dimension("hidden_size");
  config.intermediate = reader.dimension("intermediate_size");
  config.layers = reader.dimension("num_hidden_layers");
  if (config.layers > kMostLayers)
    reader.corrupt(fmt::format("num_hidden_layers is {}; narrow takes {} at most", config.layers, kMostLayers));
  config.heads = reader.dimension("num_attention_heads");
  config.kv_heads = reader.dimension("num_key_value_heads", config.heads);
  config.head_dim = reader.dimension("head_dim", std::max<std::int64_t>(1, config.hidden / config.heads));
  config.vocabulary = reader.dimension("vocab_size");
  config.max_positions = reader.dimension("max_position_embeddings", 2048);
  config.norm_epsilon = static_cast<float>(reader.number("rms_norm_eps", 1e-6));
  config.tied_head = reader.flag("tie_word_embeddings", false);
  if (config.heads % config.kv_heads != 0)
    reader.corrupt(fmt::format("{} query heads cannot share {} key heads", config.heads, config.kv_heads));
  if (config.head_dim % 2 != 0) reader.corrupt(fmt::format("head_dim is {}; RoPE turns pairs and needs an even one", config.head_dim));
  if (!(config.norm_epsilon >= 0.0f && std::isfinite(config.norm_epsilon))) reader.corrupt("rms_norm_eps is negative or beyond fp32");
  if (const std::string activation = reader.text("hidden_act", "silu"); activation != "silu")
    reader.unsupported(fmt::format("the executor has silu between gate and down_proj, but not {}", io::in_quotes(activation)));
  config.rope = reader.rope(config.max_positions);
  config.windows = reader.windows(config);
  reader.experts(config);
  if (const auto bos = reader.token_ids("bos_token_id"); !bos.empty()) config.bos = bos.front();
  config.eos = reader.token_ids("eos_token_id");
  return config;
}

}  // namespace

namespace {

ModelConfig parse_text(const std::string& text, const std::filesystem::path& path) {
  try {
    return parse(io::parse_json(text, path), path);
  } catch (const nlohmann::json::exception& error) {
    throw CorruptFile(fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace

ModelConfig read_model_config(const Checkpoint& checkpoint) {
  const std::string text = checkpoint.config();
  if (text.empty()) throw Unsupported(fmt::format("{}: a model needs its config.json beside the tensors", checkpoint.directory().string()));
  return parse_text(text, checkpoint.directory() / io::kConfigFile);
}

ModelConfig read_model_config(const std::filesystem::path& config_json) {
  constexpr std::uint64_t kLargestConfig = std::uint64_t{1} << 24;
  return parse_text(io::read_text(config_json, kLargestConfig), config_json);
}

}  // namespace narrow
