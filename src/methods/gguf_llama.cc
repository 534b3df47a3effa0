#include "methods/gguf_llama.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/file_reader.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLayers = "model.layers.", kBlocks = "blk.";

/// Names outside and inside the layers.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"}, {"model.norm.weight", "output_norm.weight"}, {"lm_head.weight", "output.weight"}};
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},   {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}};

/// ggml's kinds of tokens.
constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4;

/// ggml's number for "mostly this type".
std::uint32_t file_type(io::GgmlType type) {
  switch (type) {
    case io::GgmlType::kF32: return 0;
    case io::GgmlType::kF16: return 1;
    case io::GgmlType::kQ4_0: return 2;
    case io::GgmlType::kQ4_1: return 3;
    case io::GgmlType::kQ8_0: return 7;
    case io::GgmlType::kQ5_0: return 8;
    case io::GgmlType::kQ5_1: return 9;
    case io::GgmlType::kQ4K: return 14;
    case io::GgmlType::kQ6K: return 18;
    case io::GgmlType::kBf16: return 32;
    case io::GgmlType::kMxfp4: return 38;
  }
  return 0;
}

/// Metadata from config.json, each value from the first key that is there.
class Configuration {
 public:
  explicit Configuration(const Checkpoint& input)
      : path_(input.directory() / io::kConfigFile), json_(io::parse_json(input.config().empty() ? "{}" : input.config(), path_)) {
    if (!json_.is_object()) reject("it is not a JSON object");
    if (!json_.contains("model_type") || json_.at("model_type") != "llama")
      throw Unsupported(
          fmt::format("gguf: {} is not a Llama model; narrow knows the GGUF names of Llama alone", input.directory().string()));
  }

  /// A whole number that the 32 bits of GGUF hold.
  std::int64_t whole(const char* key, std::int64_t least) const {
    if (!json_.contains(key) || !json_.at(key).is_number_integer()) reject(fmt::format("it has no whole number {}", key));
    const std::int64_t number = json_.at(key).get<std::int64_t>();  // beyond 63 bits: negative
    if (number < least || number > std::int64_t{1} << 31) reject(fmt::format("{} is {}", key, json_.at(key).dump()));
    return number;
  }
  std::int64_t size(const char* key) const { return whole(key, 1); }
  std::int64_t size(const char* key, std::int64_t otherwise) const {
    return json_.contains(key) && json_.at(key).is_number_integer() ? size(key) : otherwise;
  }
  float real(const io::Json& object, const char* key, float otherwise) const {
    if (!object.contains(key) || object.at(key).is_null()) return otherwise;
    const float number = object.at(key).is_number() ? object.at(key).get<float>() : std::numeric_limits<float>::infinity();
    if (!std::isfinite(number)) reject(fmt::format("{} is {}, which is no fp32 number", key, io::in_quotes(object.at(key).dump())));
    return number;
  }

  AttentionHeads heads() const {
    const std::int64_t query = size("num_attention_heads");
    return {query, size("num_key_value_heads", query), size("head_dim", std::max<std::int64_t>(1, size("hidden_size") / query))};
  }

  GgufPairs metadata(const io::GgmlTypeInfo& type, const std::string& name) const {
    const auto number = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
    const io::Json rope = json_.value("rope_parameters", io::Json());
    if (!rope.is_object() && !rope.is_null()) reject("its rope_parameters are no object");
    const bool has_scaling = json_.contains("rope_scaling") && !json_.at("rope_scaling").is_null();
    if (has_scaling || (rope.contains("rope_type") && rope.at("rope_type") != "default"))
      throw Unsupported("gguf: rotary embeddings with scaling are not written yet");
    const float theta = real(json_, "rope_theta", real(rope, "rope_theta", 10000.0f));
    const AttentionHeads count = heads();
    return {{"general.architecture", std::string("llama")},
            {"general.name", name},
            {"general.file_type", file_type(type.type)},
            {"general.quantization_version", std::uint32_t{2}},
            {"llama.vocab_size", number(size("vocab_size"))},
            {"llama.context_length", number(size("max_position_embeddings"))},
            {"llama.embedding_length", number(size("hidden_size"))},
            {"llama.block_count", number(size("num_hidden_layers"))},
            {"llama.feed_forward_length", number(size("intermediate_size"))},
            {"llama.attention.head_count", number(count.query)},
            {"llama.attention.head_count_kv", number(count.key)},
            {"llama.attention.key_length", number(count.dimension)},
            {"llama.attention.value_length", number(count.dimension)},
            {"llama.attention.layer_norm_rms_epsilon", real(json_, "rms_norm_eps", 1e-6f)},
            {"llama.rope.dimension_count", number(count.dimension)},
            {"llama.rope.freq_base", theta}};
  }

  void add_token_ids(GgufPairs& pairs) const {
    for (const auto& [key, name] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"}})
      if (json_.contains(key) && json_.at(key).is_number_integer()) pairs.emplace_back(name, static_cast<std::uint32_t>(whole(key, 0)));
  }

 private:
  [[noreturn]] void reject(std::string_view why) const { throw CorruptFile(fmt::format("{}: {}", path_.string(), why)); }

  fs::path path_;
  io::Json json_;
};

/// The vocabulary of a byte-level BPE tokenizer (tokenizer.json) under ggml's names.
void add_tokenizer(const Checkpoint& input, GgufPairs& pairs) {
  const fs::path path = input.directory() / "tokenizer.json";
  const std::vector<std::string>& side = input.side_files();
  if (std::find(side.begin(), side.end(), "tokenizer.json") == side.end())
    throw Unsupported(fmt::format("gguf: {} has no tokenizer.json", input.directory().string()));
  const io::Json json = io::parse_json(io::read_text(path, io::kLargestJsonFile), path);
  const auto reject = [&](std::string_view why) { throw CorruptFile(fmt::format("{}: {}", path.string(), why)); };
  try {
    const io::Json& model = json.at("model");
    const io::Json& before = json.at("pre_tokenizer");
    if (model.at("type") != "BPE" || !before.is_object() || before.value("type", std::string()) != "ByteLevel" ||
        !before.value("use_regex", true))
      throw Unsupported(fmt::format(
          "gguf: {} is not a byte-level BPE tokenizer with GPT-2's pattern, the only kind that narrow carries over", path.string()));
    std::map<std::int64_t, std::pair<std::string, std::int32_t>> tokens;
    for (const auto& [token, id] : model.at("vocab").items()) {
      if (!id.is_number_integer()) reject(fmt::format("the token {} has no number", io::in_quotes(token)));
      tokens[id.get<std::int64_t>()] = {token, kNormal};
    }
    for (const io::Json& added : json.value("added_tokens", io::Json::array()))
      tokens[io::whole_number(added, "id")] = {added.at("content").get<std::string>(),
                                               added.value("special", false) ? kControl : kUserDefined};
    std::vector<std::string> texts, merges;
    std::vector<std::int32_t> types;
    for (const auto& [id, token] : tokens) {
      if (id != static_cast<std::int64_t>(texts.size())) reject(fmt::format("no token has the number {}", texts.size()));
      texts.push_back(token.first);
      types.push_back(token.second);
    }
    for (const io::Json& merge : model.at("merges"))
      merges.push_back(merge.is_string() ? merge.get<std::string>()
                                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    pairs.emplace_back("tokenizer.ggml.model", std::string("gpt2"));
    pairs.emplace_back("tokenizer.ggml.pre", std::string("gpt-2"));
    pairs.emplace_back("tokenizer.ggml.tokens", std::move(texts));
    pairs.emplace_back("tokenizer.ggml.token_type", std::move(types));
    pairs.emplace_back("tokenizer.ggml.merges", std::move(merges));
    pairs.emplace_back("tokenizer.ggml.add_bos_token", false);
  } catch (const nlohmann::json::exception&) {
    reject("it lacks a field, or one has another type");
  }
}

/// The metadata of a file, each value with its type checked.
class Metadata {
 public:
  Metadata(const io::GgufHeader& header, const fs::path& path) : path_(path) {
    for (const auto& [key, value] : header.metadata) values_[key] = &value;
  }

  [[noreturn]] void reject(std::string_view why) const { throw CorruptFile(fmt::format("{}: {}", path_.string(), why)); }
  bool has(const std::string& key) const { return values_.contains(key); }

  template <typename T>
  const T* find(const std::string& key) const {
    const auto place = values_.find(key);
    return place == values_.end() ? nullptr : std::get_if<T>(place->second);
  }

  /// A whole number of any kind: those that are not u32 are kept as their text.
  std::int64_t whole(const std::string& key) const {
    if (const std::uint32_t* number = find<std::uint32_t>(key)) return *number;
    std::int64_t number = 0;
    const std::string* text = find<std::string>(key);
    if (text == nullptr) reject(fmt::format("it has no whole number {}", key));
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc{} || end != text->data() + text->size())
      reject(fmt::format("{} is {}, no whole number", key, io::in_quotes(*text)));
    return number;
  }

  /// A size of something: 1 .. 2^31.
  std::int64_t size(const std::string& key) const {
    const std::int64_t number = whole(key);
    if (number < 1 || number > std::int64_t{1} << 31) reject(fmt::format("{} is {}", key, number));
    return number;
  }
  std::int64_t size(const std::string& key, std::int64_t otherwise) const { return has(key) ? size(key) : otherwise; }

  float real(const std::string& key, float otherwise) const {
    if (!has(key)) return otherwise;
    const float* number = find<float>(key);
    if (number == nullptr || !std::isfinite(*number)) reject(fmt::format("{} is no finite fp32 number", key));
    return *number;
  }

 private:
  fs::path path_;
  std::map<std::string, const io::GgufValue*> values_;
};

/// The shortest decimal that is this fp32 number: 1e-05 and not 9.999999747e-06.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

io::OrderedJson tokenizer_of(const Metadata& metadata) {
  const auto* model = metadata.find<std::string>("tokenizer.ggml.model");
  const auto* pattern = metadata.find<std::string>("tokenizer.ggml.pre");
  if (model == nullptr || *model != "gpt2" || pattern == nullptr || *pattern != "gpt-2") return nullptr;
  const auto* tokens = metadata.find<std::vector<std::string>>("tokenizer.ggml.tokens");
  const auto* types = metadata.find<std::vector<std::int32_t>>("tokenizer.ggml.token_type");
  const auto* merges = metadata.find<std::vector<std::string>>("tokenizer.ggml.merges");
  if (tokens == nullptr || types == nullptr || merges == nullptr || tokens->size() != types->size())
    metadata.reject("its tokenizer lacks tokens, their types or merges");
  io::OrderedJson added = io::OrderedJson::array(), pairs = io::OrderedJson::array();
  io::Json vocabulary = io::Json::object();  // ordered_json looks keys up one by one
  for (std::size_t id = 0; id < tokens->size(); ++id) {
    const std::string& token = (*tokens)[id];
    if (!io::is_utf8(token)) metadata.reject(fmt::format("token {} is not UTF-8", id));
    if (vocabulary.contains(token)) metadata.reject(fmt::format("token {} is there twice", io::in_quotes(token)));
    vocabulary[token] = id;
    if ((*types)[id] == kControl || (*types)[id] == kUserDefined)
      added.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", (*types)[id] == kControl}});
  }
  for (const std::string& merge : *merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos || !io::is_utf8(merge)) metadata.reject(fmt::format("{} is no pair of tokens", io::in_quotes(merge)));
    pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  const io::OrderedJson bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(pairs)}}}};
}

}  // namespace

std::string gguf_name(std::string_view name) {
  for (const auto& [from, to] : kNames)
    if (name == from) return std::string(to);
  if (!name.starts_with(kLayers)) return {};
  const std::string_view rest = name.substr(kLayers.size());
  const std::size_t dot = rest.find('.'), last = rest.rfind('.');
  if (dot == std::string_view::npos || last <= dot) return {};
  for (const auto& [from, to] : kLayerNames)
    if (rest.substr(dot + 1, last - dot - 1) == from) return fmt::format("blk.{}.{}{}", rest.substr(0, dot), to, rest.substr(last));
  return {};
}

std::string huggingface_name(std::string_view name) {
  for (const auto& [to, from] : kNames)
    if (name == from) return std::string(to);
  if (!name.starts_with(kBlocks)) return {};
  const std::string_view rest = name.substr(kBlocks.size());
  const std::size_t dot = rest.find('.'), last = rest.rfind('.');
  if (dot == std::string_view::npos || last <= dot) return {};
  for (const auto& [to, from] : kLayerNames)
    if (rest.substr(dot + 1, last - dot - 1) == from) return fmt::format("{}{}.{}{}", kLayers, rest.substr(0, dot), to, rest.substr(last));
  return {};
}

std::int64_t AttentionHeads::of(std::string_view gguf_name) const {
  return gguf_name.find(".attn_q.") != std::string_view::npos ? query : gguf_name.find(".attn_k.") != std::string_view::npos ? key : 0;
}

LlamaMetadata metadata_of(const Checkpoint& input, const io::GgmlTypeInfo& type) {
  const Configuration configuration(input);
  LlamaMetadata result{configuration.metadata(type, input.directory().filename().string()), configuration.heads()};
  add_tokenizer(input, result.pairs);
  configuration.add_token_ids(result.pairs);
  return result;
}

LlamaConfig config_of(const io::GgufHeader& header, const fs::path& path) {
  const Metadata metadata(header, path);
  const auto* architecture = metadata.find<std::string>("general.architecture");
  if (architecture == nullptr) metadata.reject("it has no text general.architecture");
  if (*architecture != "llama")
    throw Unsupported(
        fmt::format("{}: its architecture is {}; narrow knows the GGUF names of llama alone", path.string(), io::in_quotes(*architecture)));
  const auto* scaling = metadata.find<std::string>("llama.rope.scaling.type");
  if (scaling != nullptr && *scaling != "none")
    throw Unsupported(fmt::format("{}: rotary embeddings with scaling are not read from GGUF yet", path.string()));
  LlamaConfig result;
  const std::int64_t hidden = metadata.size("llama.embedding_length");
  AttentionHeads& heads = result.heads;
  heads.query = metadata.size("llama.attention.head_count");
  heads.key = metadata.size("llama.attention.head_count_kv", heads.query);
  heads.dimension = metadata.size("llama.attention.key_length", hidden / heads.query);
  if (heads.dimension < 2 || heads.dimension % 2 != 0 || metadata.size("llama.rope.dimension_count", heads.dimension) != heads.dimension)
    metadata.reject(fmt::format("{} heads of keys and {} numbers in each are none that narrow can rotate", heads.key, heads.dimension));
  const auto* tokens = metadata.find<std::vector<std::string>>("tokenizer.ggml.tokens");
  io::OrderedJson& config = result.config;
  config = {{"architectures", {"LlamaForCausalLM"}},
            {"attention_bias", false},
            {"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            {"head_dim", heads.dimension},
            {"hidden_act", "silu"},
            {"hidden_size", hidden},
            {"intermediate_size", metadata.size("llama.feed_forward_length")},
            {"max_position_embeddings", metadata.size("llama.context_length")},
            {"mlp_bias", false},
            {"model_type", "llama"},
            {"num_attention_heads", heads.query},
            {"num_hidden_layers", metadata.size("llama.block_count")},
            {"num_key_value_heads", heads.key},
            {"rms_norm_eps", as_written(metadata.real("llama.attention.layer_norm_rms_epsilon", 1e-6f))},
            {"rope_parameters", {{"rope_theta", as_written(metadata.real("llama.rope.freq_base", 10000.0f))}, {"rope_type", "default"}}},
            {"tie_word_embeddings", true},
            {"vocab_size", tokens != nullptr ? static_cast<std::int64_t>(tokens->size()) : metadata.size("llama.vocab_size")}};
  for (const char* id : {"bos_token_id", "eos_token_id"})
    if (const std::string key = fmt::format("tokenizer.ggml.{}", id); metadata.has(key)) config[id] = metadata.whole(key);
  for (const io::GgufTensor& tensor : header.tensors) {
    if (tensor.name == "output.weight") config["tie_word_embeddings"] = false;
    if (tensor.name.ends_with(".attn_q.bias")) config["attention_bias"] = true;
    if (tensor.name.ends_with(".ffn_gate.bias")) config["mlp_bias"] = true;
  }
  result.tokenizer = tokenizer_of(metadata);
  return result;
}

}  // namespace narrow
