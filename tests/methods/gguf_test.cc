// A Llama model into GGUF and back: names, rows of q and k, codes, metadata and tokenizer; what is refused.
#include <algorithm>

#include "io/files.h"
#include "io/gguf_codes.h"
#include "methods/gguf_llama.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHidden = 64, kInner = 96, kVocabulary = 6;

std::map<std::string, Tensor> llama() {
  std::map<std::string, Tensor> tensors;
  unsigned seed = 3;
  const auto add = [&](const std::string& name, Shape shape) {
    tensors.emplace(name + ".weight", test::random_values(DType::kBf16, std::move(shape), seed++));
  };
  add("model.embed_tokens", {kVocabulary, kHidden});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj"}) add(std::string(layer) + name, {kHidden, kHidden});
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) add(std::string(layer) + name, {kHidden / 2, kHidden});
    for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) add(std::string(layer) + name, {kInner, kHidden});
    add(std::string(layer) + "mlp.down_proj", {kHidden, kInner});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(std::string(layer) + name, {kHidden});
  }
  add("model.norm", {kHidden});
  add("lm_head", {kVocabulary, kHidden});
  return tensors;
}

void write_llama(const fs::path& place) {
  fs::create_directories(place);
  write_safetensors(place / "model.safetensors", llama(), {{"format", "pt"}});
  test::write_bytes(place / "config.json",
                    R"({"model_type": "llama", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-05, "vocab_size": 6, "hidden_size": 64,
                        "max_position_embeddings": 128, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "rope_theta": 500000.0, "bos_token_id": 0, "eos_token_id": 1})");
  test::write_bytes(place / "tokenizer.json",
                    R"({"added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "<u>", "special": false}],
                        "pre_tokenizer": {"type": "ByteLevel", "use_regex": true},
                        "model": {"type": "BPE", "vocab": {"<s>": 0, "<u>": 1, "a": 2, "b": 3, "ab": 4, "aba": 5}, "merges": [["a", "b"], ["ab", "a"]]}})");
}

TEST(GgufNames, GoBothWays) {
  for (const auto& [name, tensor] : llama()) EXPECT_EQ(huggingface_name(gguf_name(name)), name);
  EXPECT_EQ(huggingface_name("blk.7.attn_k.bias"), "model.layers.7.self_attn.k_proj.bias");
  for (const char* name : {"", "blk.", "blk.3", "blk.3.weight", "blk.3.attn_k", "rope_freqs.weight"})
    EXPECT_EQ(huggingface_name(name), "") << name;
}

/// Every block type that has narrow's codes: the same codes both ways, and the same values as ggml's own decoder.
TEST(GgufCodes, AreTheSameBothWays) {
  const Tensor x = test::random_values(DType::kF32, {3, 96}, 11);
  for (const char* name : {"q8_0", "q4_0", "mxfp4"}) {
    const io::GgmlTypeInfo& type = io::parse_ggml_type(name);
    std::vector<std::uint8_t> blocks(static_cast<std::size_t>(x.size() / type.values) * type.bytes), again(blocks.size());
    io::encode_blocks(type, {x.as<float>(), static_cast<std::size_t>(x.size())}, blocks);
    const QuantizedTensor q = io::quantized_of_blocks(type, blocks, x.shape());
    EXPECT_EQ(io::blocks_of_scheme(q.scheme), &type);
    io::put_blocks(q, type, again);
    EXPECT_EQ(again, blocks) << name;
    const Tensor theirs = Tensor::empty(DType::kF32, x.shape()), ours = dequantize(q);
    io::decode_blocks(type, blocks, {theirs.as<float>(), static_cast<std::size_t>(theirs.size())});
    for (std::int64_t i = 0; i < x.size(); ++i) EXPECT_EQ(ours.as<float>()[i], theirs.as<float>()[i]) << name << " " << i;
    blocks[type.bytes] = blocks[type.bytes + 1] = 0xFF;  // the second block's scale
    EXPECT_THROW(io::quantized_of_blocks(type, blocks, x.shape()), InvalidArgument) << name;
  }
  EXPECT_EQ(io::scheme_of_blocks(io::parse_ggml_type("q4_1")), std::nullopt);
  EXPECT_EQ(io::blocks_of_scheme(Scheme::parse("int4:block32")), nullptr);  // fp32 scales
}

TEST(GgufModel, PlainModelComesBackAsItWas) {
  const test::TemporaryDirectory place;
  write_llama(place / "model");
  export_gguf(place / "model", place / "model.gguf", "bf16");
  const InteropReport report = import_gguf(place / "model.gguf", place / "back");
  EXPECT_TRUE(report.tensors.empty());
  const Checkpoint back = open_checkpoint(place / "back");
  EXPECT_FALSE(back.is_quantized());
  const std::map<std::string, Tensor> model = llama();
  ASSERT_EQ(back.names().size(), model.size());
  for (const auto& [name, tensor] : model) {
    EXPECT_EQ(back.dtype(name), DType::kBf16) << name;
    EXPECT_EQ(compare(tensor, back.tensor(name)).max_absolute, 0.0) << name;
  }
  const io::Json config = io::parse_json(back.config(), "config.json");
  EXPECT_EQ(config.at("num_key_value_heads"), 2);
  EXPECT_EQ(config.at("rms_norm_eps"), 1e-05);
  EXPECT_EQ(config.at("rope_parameters").at("rope_theta"), 500000.0);
  EXPECT_EQ(config.at("tie_word_embeddings"), false);
  EXPECT_EQ(config.at("eos_token_id"), 1);
  const io::Json tokenizer = io::parse_json(test::read_bytes(place / "back/tokenizer.json"), "tokenizer.json");
  EXPECT_EQ(tokenizer.at("model").at("vocab").at("aba"), 5);
  EXPECT_EQ(tokenizer.at("model").at("merges").at(1), (io::Json{"ab", "a"}));
  EXPECT_EQ(tokenizer.at("added_tokens").at(1).at("special"), false);
}

TEST(GgufModel, CodesSurviveTheWayThereAndBack) {
  for (const char* type : {"q8_0", "q4_0", "mxfp4"}) {
    const test::TemporaryDirectory place;
    write_llama(place / "model");
    export_gguf(place / "model", place / "first.gguf", type);
    fs::create_directory(place / "own");
    const InteropReport report = import_gguf(place / "first.gguf", place / "own/model");  // general.name is the directory's
    EXPECT_EQ(report.tensors.size(), 14u);
    for (const TensorProof& tensor : report.tensors) EXPECT_TRUE(tensor.is_exact && tensor.error.max_absolute == 0.0) << tensor.name;
    EXPECT_TRUE(verify_checkpoint(place / "own/model").problems.empty());
    const GgufReport again = export_gguf(place / "own/model", place / "second.gguf", "");
    for (const GgufTensorReport& tensor : again.tensors) EXPECT_EQ(tensor.is_exact, tensor.type == type) << tensor.name;
    EXPECT_EQ(test::read_bytes(place / "first.gguf"), test::read_bytes(place / "second.gguf")) << type;
    EXPECT_TRUE(verify_gguf(place / "second.gguf").problems.empty());
  }
}

TEST(GgufModel, OtherBlocksBecomeEightBits) {
  for (const char* type : {"q4_1", "q5_0", "q5_1"}) {
    const test::TemporaryDirectory place;
    write_llama(place / "model");
    export_gguf(place / "model", place / "model.gguf", type);
    for (const TensorProof& tensor : import_gguf(place / "model.gguf", place / "own").tensors) {
      EXPECT_EQ(tensor.scheme, Scheme::parse("int8:block32"));
      EXPECT_FALSE(tensor.is_exact);
      const QuantizedTensor q = open_checkpoint(place / "own").quantized(tensor.name);
      const float* scales = q.scales.as<float>();
      EXPECT_LE(tensor.error.max_absolute, 0.500001 * *std::max_element(scales, scales + q.grid().count())) << tensor.name;  // half a step
    }
  }
}

TEST(GgufModel, IsWrittenByARecipe) {
  const test::TemporaryDirectory place;
  write_llama(place / "model");
  const GgufReport report = export_gguf(place / "model", place / "model.gguf", {.scheme = Scheme::parse("int4:block32:scale=fp16")}, "");
  int exact = 0;
  for (const GgufTensorReport& tensor : report.tensors) exact += tensor.is_exact && tensor.type == "q4_0" ? 1 : 0;
  EXPECT_EQ(exact, 14);
  EXPECT_TRUE(verify_gguf(place / "model.gguf").problems.empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), {}), 2) << "something was left beside the output";
  EXPECT_THROW(export_gguf(place / "model", place / "other.gguf", {.scheme = Scheme::parse("int8:row")}, "q9_9"), InvalidArgument);
}

TEST(GgufModel, ConvertsToOtherEcosystems) {
  const test::TemporaryDirectory place;
  write_llama(place / "model");
  export_gguf(place / "model", place / "model.gguf", "q8_0");
  const InteropReport report = convert_checkpoint(place / "model.gguf", place / "ct", Ecosystem::kCompressedTensors);
  EXPECT_EQ(report.tensors.size(), 14u);
  for (const TensorProof& tensor : report.tensors) EXPECT_TRUE(tensor.is_exact) << tensor.name;
  EXPECT_TRUE(verify_as(place / "ct", Ecosystem::kCompressedTensors).problems.empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), {}), 3) << "something was left beside the output";
}

TEST(GgufModel, RefusesWhatItCannotRead) {
  const test::TemporaryDirectory place;
  write_llama(place / "model");
  export_gguf(place / "model", place / "model.gguf", "q8_0");
  const std::string good = test::read_bytes(place / "model.gguf");
  const auto refuses = [&](std::string_view from, std::string_view to) {
    std::string bytes = good;
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    test::write_bytes(place / "bad.gguf", bytes);
    try {
      import_gguf(place / "bad.gguf", place / "out");
      ADD_FAILURE() << "accepted " << to;
    } catch (const Error& error) {
      test::expect_sentence(error.what(), "bad.gguf");
    }
    EXPECT_FALSE(fs::exists(place / "out"));
  };
  refuses("blk.1.attn_q.weight", "blk.1.attn_z.weight");
  refuses("token_embd.weight", "token_embt.weight");
  refuses("llama.embedding_length", "llama.embedding_lengtj");
  refuses(std::string("llama.attention.head_count_kv\x04\0\0\0\x02", 34), std::string("llama.attention.head_count_kv\x04\0\0\0\x03", 34));
  refuses(std::string("llama.attention.head_count_kv\x04\0\0\0\x02\0\0\0", 37),
          std::string("llama.attention.head_count_kv\x04\0\0\0\0\0\0\x90", 37));
  refuses("llama.rope.freq_base\x06" + std::string(3, '\0') + std::string("\0\x24\xf4\x48", 4),
          "llama.rope.freq_base\x06" + std::string(3, '\0') + std::string("\0\0\x80\x7f", 4));      // an infinity
  refuses(std::string("\x05\0\0\0\0\0\0\0llama", 13), std::string("\x05\0\0\0\0\0\0\0gemma", 13));  // general.architecture
}

TEST(GgufModel, RefusesConfigurationsThatItHasNoPlaceFor) {
  const test::TemporaryDirectory place;
  write_llama(place / "model");
  const std::string good = test::read_bytes(place / "model/config.json");
  const auto refuses = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    test::write_bytes(place / "model/config.json", text.replace(at, from.size(), to));
    try {
      export_gguf(place / "model", place / "model.gguf", "q8_0");
      ADD_FAILURE() << "accepted " << to;
    } catch (const Error& error) {
      test::expect_sentence(error.what(), "");
    }
    EXPECT_FALSE(fs::exists(place / "model.gguf"));
  };
  refuses(good, "[]");
  refuses(good, "7");
  refuses("\"llama\"", "7");
  refuses("\"hidden_size\": 64", "\"hidden_size\": 4294967360");
  refuses("\"hidden_size\": 64", "\"hidden_size\": 18446744073709551615");
  refuses("\"vocab_size\": 6", "\"vocab_size\": 0");
  refuses("\"num_key_value_heads\": 2", "\"num_key_value_heads\": -2");
  refuses("1e-05", "\"1e-05\"");
  refuses("1e-05", "1e300");
  refuses("500000.0", "[500000.0]");
  refuses("\"bos_token_id\": 0", "\"bos_token_id\": -1");
  refuses("\"rope_theta\": 500000.0", "\"rope_parameters\": 5");
}

}  // namespace
}  // namespace narrow
