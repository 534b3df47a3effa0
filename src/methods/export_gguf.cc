/// export_gguf: a Llama checkpoint as one GGUF file, with the metadata and the tokenizer that llama.cpp needs.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/file_reader.h"
#include "io/gguf_file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/text.h"
#include "methods/preflight.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;
using Pairs = std::vector<std::pair<std::string, io::GgufValue>>;

constexpr std::string_view kLayers = "model.layers.";

/// Names outside and inside the layers.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"}, {"model.norm.weight", "output_norm.weight"}, {"lm_head.weight", "output.weight"}};
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},   {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}};

/// model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight; empty for a name that Llama does not have.
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

/// ggml's number for "mostly this type".
std::uint32_t file_type(io::GgmlType type) {
  switch (type) {
    case io::GgmlType::kF32:
      return 0;
    case io::GgmlType::kF16:
      return 1;
    case io::GgmlType::kQ4_0:
      return 2;
    case io::GgmlType::kQ4_1:
      return 3;
    case io::GgmlType::kQ8_0:
      return 7;
    case io::GgmlType::kQ5_0:
      return 8;
    case io::GgmlType::kQ5_1:
      return 9;
    case io::GgmlType::kQ4K:
      return 14;
    case io::GgmlType::kQ6K:
      return 18;
    case io::GgmlType::kBf16:
      return 32;
    case io::GgmlType::kMxfp4:
      return 38;
  }
  return 0;
}

/// The type itself, or the one that llama.cpp takes where rows are no whole blocks of 256.
const io::GgmlTypeInfo& fitting(const io::GgmlTypeInfo& type, std::int64_t cols) {
  if (cols % type.values == 0) return type;
  if (type.type == io::GgmlType::kQ4K) return fitting(io::ggml_type(io::GgmlType::kQ5_0), cols);
  if (type.type == io::GgmlType::kQ6K) return fitting(io::ggml_type(io::GgmlType::kQ8_0), cols);
  return io::ggml_type(io::GgmlType::kF16);
}

const io::GgmlTypeInfo& same_type(DType dtype) {
  return io::ggml_type(dtype == DType::kF16 ? io::GgmlType::kF16 : dtype == DType::kBf16 ? io::GgmlType::kBf16 : io::GgmlType::kF32);
}

struct Heads {
  std::int64_t query = 0, key = 0, dimension = 0;
};

/// Metadata from config.json, each value from the first key that is there.
class Configuration {
 public:
  explicit Configuration(const Checkpoint& input)
      : path_(input.directory() / io::kConfigFile), json_(io::parse_json(input.config().empty() ? "{}" : input.config(), path_)) {
    if (json_.value("model_type", std::string()) != "llama")
      throw Unsupported(
          fmt::format("gguf: {} is not a Llama model; narrow knows the GGUF names of Llama alone", input.directory().string()));
  }

  std::int64_t whole(const char* key) const {
    if (!json_.contains(key) || !json_.at(key).is_number_integer())
      throw CorruptFile(fmt::format("{}: it has no whole number {}", path_.string(), key));
    return json_.at(key).get<std::int64_t>();
  }
  std::int64_t whole(const char* key, std::int64_t otherwise) const {
    return json_.contains(key) && json_.at(key).is_number_integer() ? whole(key) : otherwise;
  }

  Heads heads() const {
    const std::int64_t query = whole("num_attention_heads");
    if (query <= 0) throw CorruptFile(fmt::format("{}: it has {} attention heads", path_.string(), query));
    return {query, whole("num_key_value_heads", query), whole("head_dim", whole("hidden_size") / query)};
  }

  Pairs metadata(const io::GgmlTypeInfo& type, const std::string& name) const {
    const auto number = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
    const io::Json rope = json_.value("rope_parameters", io::Json::object());
    const bool has_scaling = json_.contains("rope_scaling") && !json_.at("rope_scaling").is_null();
    if (has_scaling || rope.value("rope_type", std::string("default")) != "default")
      throw Unsupported("gguf: rotary embeddings with scaling are not written yet");
    const float theta = json_.contains("rope_theta") ? json_.at("rope_theta").get<float>() : rope.value("rope_theta", 10000.0f);
    const Heads count = heads();
    return {{"general.architecture", std::string("llama")},
            {"general.name", name},
            {"general.file_type", file_type(type.type)},
            {"general.quantization_version", std::uint32_t{2}},
            {"llama.vocab_size", number(whole("vocab_size"))},
            {"llama.context_length", number(whole("max_position_embeddings"))},
            {"llama.embedding_length", number(whole("hidden_size"))},
            {"llama.block_count", number(whole("num_hidden_layers"))},
            {"llama.feed_forward_length", number(whole("intermediate_size"))},
            {"llama.attention.head_count", number(count.query)},
            {"llama.attention.head_count_kv", number(count.key)},
            {"llama.attention.key_length", number(count.dimension)},
            {"llama.attention.value_length", number(count.dimension)},
            {"llama.attention.layer_norm_rms_epsilon", json_.value("rms_norm_eps", 1e-6f)},
            {"llama.rope.dimension_count", number(count.dimension)},
            {"llama.rope.freq_base", theta}};
  }

  void add_token_ids(Pairs& pairs) const {
    for (const auto& [key, name] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, std::pair{"eos_token_id", "tokenizer.ggml.eos_token_id"}})
      if (json_.contains(key) && json_.at(key).is_number_integer()) pairs.emplace_back(name, static_cast<std::uint32_t>(whole(key)));
  }

 private:
  fs::path path_;
  io::Json json_;
};

/// The vocabulary of a byte-level BPE tokenizer (tokenizer.json) under ggml's names.
void add_tokenizer(const Checkpoint& input, Pairs& pairs) {
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
    constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4;
    for (const auto& [token, id] : model.at("vocab").items()) tokens[id.get<std::int64_t>()] = {token, kNormal};
    for (const io::Json& added : json.value("added_tokens", io::Json::array()))
      tokens[added.at("id").get<std::int64_t>()] = {added.at("content").get<std::string>(),
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

/// Hugging Face rotates the halves of a head, ggml its neighbours: row 2 j + p of a head is row p d/2 + j there.
Tensor rotated_rows(const Tensor& x, std::int64_t heads, std::int64_t dimension) {
  const std::int64_t cols = as_matrices(x.shape()).cols;
  const Tensor y = Tensor::empty(DType::kF32, x.shape());
  for (std::int64_t row = 0; row < heads * dimension; ++row) {
    const std::int64_t inside = row % dimension, from = row - inside + inside % 2 * (dimension / 2) + inside / 2;
    std::copy_n(x.as<float>() + from * cols, cols, y.as<float>() + row * cols);
  }
  return y;
}

struct Item {
  std::string source;
  io::GgufTensor tensor;
};

class Export {
 public:
  Export(const Checkpoint& input, const io::GgmlTypeInfo& type) : input_(input), configuration_(input), heads_(configuration_.heads()) {
    for (const std::string& name : input.names()) {
      const std::string target = gguf_name(name);
      const Shape shape = input.shape(name);
      if (target.empty() || !is_floating(input.dtype(name)))
        throw Unsupported(fmt::format("gguf: tensor {} has no name there", io::in_quotes(name)));
      const bool is_quantized = is_linear_weight(name, shape) && name != "lm_head.weight";
      // ggml's norms and biases are fp32; embeddings and the head stay as they are.
      const io::GgmlTypeInfo& own = shape.size() < 2 ? io::ggml_type(io::GgmlType::kF32)
                                    : is_quantized   ? fitting(type, shape.back())
                                                     : same_type(input.dtype(name));
      items_.push_back({name, {target, shape, &own}});
      check_heads(items_.back());
    }
    Pairs pairs = configuration_.metadata(type, input.directory().filename().string());
    add_tokenizer(input, pairs);
    configuration_.add_token_ids(pairs);
    std::vector<io::GgufTensor> tensors;
    for (const Item& item : items_) tensors.push_back(item.tensor);
    header_ = io::layout_gguf(std::move(pairs), std::move(tensors));
  }

  const io::GgufHeader& header() const { return header_; }

  GgufReport write(const fs::path& output, const ProgressCallback& progress) {
    const auto begin = std::chrono::steady_clock::now();
    GgufReport report;
    report.bytes = header_.file_bytes;
    {
      io::AtomicFile file(output);
      file.write(0, std::as_bytes(std::span(header_.text)));
      for (std::size_t i = 0; i < items_.size(); ++i) {
        const io::GgufTensor& tensor = header_.tensors[i];
        std::vector<std::uint8_t> blocks = encoded(i);
        hashes_.push_back(io::hash_of(std::as_bytes(std::span(blocks))));
        blocks.resize((blocks.size() + io::kGgufAlignment - 1) / io::kGgufAlignment * io::kGgufAlignment);
        file.write(tensor.begin, std::as_bytes(std::span(blocks)));
        if (progress) progress({items_[i].source, Stage::kWritten, false, tensor.begin + tensor.bytes, 2 * header_.file_bytes, {}});
      }
      file.commit();
    }
    read_back(output, report, progress);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report;
  }

 private:
  std::int64_t heads_of(std::string_view name) const {
    return name.find(".attn_q.") != std::string_view::npos   ? heads_.query
           : name.find(".attn_k.") != std::string_view::npos ? heads_.key
                                                             : 0;
  }

  void check_heads(const Item& item) const {
    const std::int64_t heads = heads_of(item.tensor.name);
    if (heads > 0 && (heads_.dimension % 2 != 0 || item.tensor.shape.front() != heads * heads_.dimension))
      throw CorruptFile(fmt::format("{}: tensor {} has {} rows, not {} heads of {}", input_.directory().string(),
                                    io::in_quotes(item.source), item.tensor.shape.front(), heads, heads_.dimension));
  }

  Tensor values(std::size_t index) const {
    const Tensor x = convert(input_.tensor(items_[index].source), DType::kF32);
    const std::int64_t heads = heads_of(items_[index].tensor.name);
    return heads > 0 ? rotated_rows(x, heads, heads_.dimension) : x;
  }

  std::vector<std::uint8_t> encoded(std::size_t index) const {
    const Tensor x = values(index);
    const float* first = x.as<float>();
    const float* end = first + x.size();
    if (!std::all_of(first, end, [](float value) { return std::isfinite(value); }))
      throw InvalidArgument(fmt::format("gguf: tensor {} has values that are not finite", io::in_quotes(items_[index].source)));
    std::vector<std::uint8_t> blocks(static_cast<std::size_t>(header_.tensors[index].bytes));
    io::encode_blocks(*header_.tensors[index].type, {first, end}, blocks);
    return blocks;
  }

  void read_back(const fs::path& output, GgufReport& report, const ProgressCallback& progress) const {
    const io::FileReader file(output);
    const io::GgufHeader read = io::read_gguf(file);
    if (read.tensors.size() != items_.size() || file.size() != header_.file_bytes)
      throw CorruptFile(fmt::format("{}: it is not what was written to it", output.string()));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const io::GgufTensor& tensor = read.tensors[i];
      std::vector<std::uint8_t> blocks(static_cast<std::size_t>(tensor.bytes));
      file.read(tensor.begin, std::as_writable_bytes(std::span(blocks)));
      if (tensor.name != header_.tensors[i].name || io::hash_of(std::as_bytes(std::span(blocks))) != hashes_[i])
        throw CorruptFile(
            fmt::format("{}: tensor {} reads back different from what was written", output.string(), io::in_quotes(tensor.name)));
      const Tensor y = Tensor::empty(DType::kF32, tensor.shape);
      io::decode_blocks(*tensor.type, blocks, {y.as<float>(), static_cast<std::size_t>(y.size())});
      report.tensors.push_back({tensor.name, std::string(tensor.type->name), compare(values(i), y)});
      if (progress)
        progress({items_[i].source, Stage::kVerified, false, header_.file_bytes + tensor.begin + tensor.bytes, 2 * header_.file_bytes,
                  report.tensors.back().error});
    }
  }

  const Checkpoint& input_;
  Configuration configuration_;
  Heads heads_;
  std::vector<Item> items_;
  io::GgufHeader header_;
  std::vector<std::string> hashes_;
};

}  // namespace

GgufReport export_gguf(const fs::path& input, const fs::path& output, std::string_view type, const ProgressCallback& progress) {
  const Checkpoint checkpoint = open_checkpoint(input);
  Export run(checkpoint, io::parse_ggml_type(type));
  check_output_place(input, output, run.header().file_bytes);
  return run.write(output, progress);
}

}  // namespace narrow
