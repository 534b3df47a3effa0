// Checkpoints of other ecosystems: written, read back, converted and returned, refused, damaged.
#include <algorithm>
#include <numeric>

#include "io/compressed_tensors.h"
#include "io/files.h"
#include "io/interop.h"
#include "methods/ecosystem_scales.h"
#include "methods/interop_values.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

using test::contents;

/// Shapes that every ecosystem takes: n and k are multiples of 128.
std::map<std::string, Tensor> regular_model() {
  std::map<std::string, Tensor> tensors;
  unsigned seed = 7;
  const auto add = [&](const std::string& name, Shape shape) {
    tensors.emplace(name, test::random_values(DType::kBf16, std::move(shape), seed++));
  };
  add("model.embed_tokens.weight", {64, 128});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    add(std::string(layer) + "self_attn.q_proj.weight", {128, 128});
    add(std::string(layer) + "mlp.up_proj.weight", {256, 128});
    add(std::string(layer) + "mlp.up_proj.bias", {256});
    add(std::string(layer) + "mlp.down_proj.weight", {128, 256});
    add(std::string(layer) + "input_layernorm.weight", {128});
  }
  add("lm_head.weight", {64, 128});
  return tensors;
}

struct Case {
  Ecosystem target;
  const char* scheme;
};

const Case kCases[] = {
    {Ecosystem::kCompressedTensors, "int2:block32"},
    {Ecosystem::kCompressedTensors, "int3:block128:asym"},
    {Ecosystem::kCompressedTensors, "int3:row:scale=bf16"},
    {Ecosystem::kCompressedTensors, "int4:block128:scale=bf16"},
    {Ecosystem::kCompressedTensors, "int4:block32:asym:scale=fp16"},
    {Ecosystem::kCompressedTensors, "int4:row"},
    {Ecosystem::kCompressedTensors, "int8:block64"},
    {Ecosystem::kCompressedTensors, "int8:row"},
    {Ecosystem::kCompressedTensors, "int8:tensor"},
    {Ecosystem::kCompressedTensors, "int8:row:asym"},
    {Ecosystem::kCompressedTensors, "fp8_e4m3:row"},
    {Ecosystem::kCompressedTensors, "fp8_e4m3:tensor"},
    {Ecosystem::kCompressedTensors, "fp8_e4m3:128x128"},
    {Ecosystem::kCompressedTensors, "nvfp4"},
    {Ecosystem::kCompressedTensors, "mxfp4"},
    {Ecosystem::kCompressedTensors, "mxfp8_e4m3"},
    {Ecosystem::kGptq, "int2:block64"},
    {Ecosystem::kGptq, "int3:block128"},
    {Ecosystem::kGptq, "int3:block32:asym"},
    {Ecosystem::kGptq, "int4:block128"},
    {Ecosystem::kGptq, "int4:row"},
    {Ecosystem::kGptq, "int4:block128:asym"},
    {Ecosystem::kGptq, "int8:block128"},
    {Ecosystem::kGptq, "int8:row:asym"},
    {Ecosystem::kAwq, "int4:block128"},
    {Ecosystem::kAwq, "int4:block32:asym"},
    {Ecosystem::kAwq, "int4:row"},
    {Ecosystem::kFp8Block, "fp8_e4m3:128x128"},
    {Ecosystem::kFp8Block, "fp8_e4m3:64x64"},
    {Ecosystem::kModelOpt, "nvfp4"},
    {Ecosystem::kModelOpt, "fp8_e4m3:tensor"},
    {Ecosystem::kModelOpt, "fp8_e4m3:row"},
};

class ConvertTest : public testing::Test {
 protected:
  void SetUp() override { test::write_model(place_ / "in", regular_model(), true); }
  fs::path export_to(const Case& c, const char* name) {
    export_checkpoint(place_ / "in", place_ / name, {.scheme = Scheme::parse(c.scheme)}, c.target);
    return place_ / name;
  }
  test::TemporaryDirectory place_;
};

TEST_F(ConvertTest, EveryCaseIsWhatQuantizeGives) {
  const Checkpoint source = open_checkpoint(place_ / "in");
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(name_of(c.target)) + " " + c.scheme);
    const InteropReport report = export_checkpoint(place_ / "in", place_ / "out", {.scheme = Scheme::parse(c.scheme)}, c.target);
    EXPECT_EQ(report.tensors.size(), 6u);
    const Checkpoint written = open_checkpoint(place_ / "out");
    EXPECT_EQ(ecosystem_of(written), c.target);
    const io::InteropReader reader = *io::InteropReader::open(written);
    EXPECT_EQ(reader.names(), source.names());
    std::size_t quantized = 0;
    for (const std::string& name : reader.names()) {
      if (!reader.is_quantized(name)) {
        const Tensor a = source.tensor(name), b = written.tensor(name);
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.byte_size(), b.data(), b.data() + b.byte_size())) << name;
        continue;
      }
      const io::InteropTensor tensor = reader.read(name);
      Scheme expected = Scheme::parse(c.scheme);
      if (c.target == Ecosystem::kGptq || c.target == Ecosystem::kAwq) expected.scale = kFp16;
      EXPECT_EQ(tensor.q.scheme, expected);
      QuantizeOptions options;
      if (expected.has_outer_scale) options.outer_scale = io::reciprocal_twice(quantize(source.tensor(name), expected).outer_scale);
      EXPECT_TRUE(holds_the_same(tensor, {quantize(source.tensor(name), expected, options)})) << name;
      EXPECT_EQ(report.tensors[quantized].name, name);
      EXPECT_EQ(report.tensors[quantized].error.sqnr_db, compare(source.tensor(name), dequantize(tensor.q)).sqnr_db);
      ++quantized;
    }
    EXPECT_EQ(quantized, 6u);
    EXPECT_TRUE(verify_as(place_ / "out", c.target).problems.empty());
    EXPECT_EQ(verify_as(place_ / "out", c.target == Ecosystem::kAwq ? Ecosystem::kGptq : Ecosystem::kAwq).problems.size(), 1u);
    fs::remove_all(place_ / "out");
  }
}

TEST_F(ConvertTest, ThereAndBackIsByteIdentical) {
  int pairs = 0;
  for (const Case& c : kCases)
    for (const Ecosystem other : all_ecosystems()) {
      if (other == c.target) continue;
      SCOPED_TRACE(std::string(name_of(c.target)) + " " + c.scheme + " through " + std::string(name_of(other)));
      const Scheme stored = io::interop_format(c.target).adapted(Scheme::parse(c.scheme));
      const bool fits = other == Ecosystem::kNarrow || io::interop_format(other).refusal(stored, {128, 256}, false).empty();
      if (!fits) continue;
      export_to(c, "a");
      const InteropReport there = convert_checkpoint(place_ / "a", place_ / "b", other);
      for (const TensorProof& proof : there.tensors) EXPECT_TRUE(proof.is_exact) << proof.name;
      const InteropReport back = convert_checkpoint(place_ / "b", place_ / "c", c.target);
      for (const TensorProof& proof : back.tensors) EXPECT_TRUE(proof.is_exact) << proof.name;
      EXPECT_EQ(contents(place_ / "a"), contents(place_ / "c"));
      ++pairs;
      for (const char* name : {"a", "b", "c"}) fs::remove_all(place_ / name);
    }
  EXPECT_GE(pairs, 54);
}

TEST_F(ConvertTest, ScalesThatDoNotFitAreRequantizedAndSaidSo) {
  export_to({Ecosystem::kCompressedTensors, "int4:block128"}, "ct");  // fp32 scales
  const InteropReport report = convert_checkpoint(place_ / "ct", place_ / "gptq", Ecosystem::kGptq);
  ASSERT_EQ(report.tensors.size(), 6u);
  for (const TensorProof& proof : report.tensors) {
    EXPECT_FALSE(proof.is_exact);
    EXPECT_GT(proof.error.sqnr_db, 50.0);
    EXPECT_LT(proof.error.sqnr_db, 100.0);
  }
}

TEST_F(ConvertTest, NarrowsOwnFormConvertsBothWays) {
  quantize_checkpoint(place_ / "in", place_ / "own", {.scheme = Scheme::parse("int4:block128:asym:scale=fp16")});
  for (const TensorProof& proof : convert_checkpoint(place_ / "own", place_ / "awq", Ecosystem::kAwq).tensors) EXPECT_TRUE(proof.is_exact);
  for (const TensorProof& proof : convert_checkpoint(place_ / "awq", place_ / "back", Ecosystem::kNarrow).tensors)
    EXPECT_TRUE(proof.is_exact);
  EXPECT_TRUE(verify_checkpoint(place_ / "back").problems.empty());
  EXPECT_EQ(contents(place_ / "own")["model-00001-of-00002.safetensors"], contents(place_ / "back")["model-00001-of-00002.safetensors"]);
  test::write_bytes(place_ / "own" / "config.json", "[]");
  EXPECT_THROW(convert_checkpoint(place_ / "own", place_ / "none", Ecosystem::kAwq), CorruptFile);
  EXPECT_FALSE(fs::exists(place_ / "none"));
}

TEST_F(ConvertTest, GoldenWordsOfGptq) {
  const auto zeros_of = [&](const char* scheme) {
    const fs::path path = export_to({Ecosystem::kGptq, scheme}, "gptq");
    const Tensor zeros = open_checkpoint(path).tensor("model.layers.0.mlp.up_proj.qzeros");
    const std::uint32_t word = *zeros.as<std::uint32_t>();
    fs::remove_all(path);
    return word;
  };
  EXPECT_EQ(zeros_of("int4:block128"), 0x77777777u);
  EXPECT_EQ(zeros_of("int8:block128"), 0x7f7f7f7fu);
  // One asymmetric weight makes the file v2: the symmetric ones store their zero points as they are.
  const Recipe recipe{.scheme = Scheme::parse("int4:block128"), .rules = {{"re:.*down_proj", Scheme::parse("int4:block128:asym")}}};
  export_checkpoint(place_ / "in", place_ / "mixed", recipe, Ecosystem::kGptq);
  const Checkpoint mixed = open_checkpoint(place_ / "mixed");
  EXPECT_EQ(*mixed.tensor("model.layers.0.mlp.up_proj.qzeros").as<std::uint32_t>(), 0x88888888u);
  EXPECT_NE(mixed.config().find("gptq_v2"), std::string::npos);
  EXPECT_TRUE(verify_as(place_ / "mixed", Ecosystem::kGptq).problems.empty());
}

TEST_F(ConvertTest, GoldenBytesOfFp4) {
  Tensor x = Tensor::empty(DType::kF32, {1, 32});
  std::fill_n(x.as<float>(), 32, 0.0f);
  const float values[] = {0.5f, -1.0f, 6.0f, -6.0f};
  std::copy_n(values, 4, x.as<float>());
  const QuantizedTensor q = quantize(x, Scheme::parse("mxfp4"));
  EXPECT_EQ(q.codes.as<std::uint8_t>()[0], 0xa1);
  EXPECT_EQ(q.codes.as<std::uint8_t>()[1], 0xf7);
}

/// A GPTQ directory whose columns belong to groups in an order of their own.
void write_ordered(const fs::path& directory, const char* format) {
  constexpr std::int64_t n = 32, k = 128;
  const Scheme scheme = Scheme::parse("int4:block32:asym:scale=fp16");
  io::InteropTensor tensor{quantize(test::random_values(DType::kF32, {n, k}, 11), scheme)};
  for (std::int32_t i = 0; i < k; ++i) tensor.order.push_back(i * 5 % 4);
  const io::Json config{{"quant_method", "gptq"}, {"bits", 4},        {"group_size", 32},
                        {"sym", false},           {"desc_act", true}, {"checkpoint_format", format}};
  const io::InteropFormat& gptq = io::interop_format(Ecosystem::kGptq);
  std::vector<io::StoredBytes> parts = gptq.parts("model.layers.0.up_proj", scheme, {n, k}, true);
  gptq.pack(tensor, config, parts);
  std::map<std::string, Tensor> tensors;
  for (const io::StoredBytes& part : parts) tensors.emplace(part.name, Tensor::over(part.bytes, part.dtype, part.shape));
  fs::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  test::write_bytes(directory / "config.json", io::Json{{"torch_dtype", "float16"}, {"quantization_config", config}}.dump());
  const io::InteropTensor read = io::InteropReader::open(open_checkpoint(directory))->read("model.layers.0.up_proj.weight");
  EXPECT_TRUE(holds_the_same(tensor, read));
  const Tensor values = values_of(read);
  for (const std::int64_t col : {0, 1, 77}) {  // by the equation, one column at a time
    const std::int64_t cell = read.order[static_cast<std::size_t>(col)];
    const float scale = decode(kFp16, read.q.scales.as<std::uint16_t>()[cell]);
    const int code = read.q.codes.as<std::uint8_t>()[col / 2] >> 4 * (col % 2) & 15;
    EXPECT_EQ(values.as<float>()[col], scale * static_cast<float>(code - read.q.zero_points.as<std::uint8_t>()[cell]));
  }
}

TEST_F(ConvertTest, OrderedColumnsKeepTheirCodesWhereThereIsAPlace) {
  for (const char* format : {"gptq", "gptq_v2"}) {
    write_ordered(place_ / "gptq", format);
    const InteropReport there = convert_checkpoint(place_ / "gptq", place_ / "ct", Ecosystem::kCompressedTensors);
    ASSERT_EQ(there.tensors.size(), 1u);
    EXPECT_TRUE(there.tensors[0].is_exact);
    EXPECT_TRUE(open_checkpoint(place_ / "ct").contains("model.layers.0.up_proj.weight_g_idx"));
    EXPECT_TRUE(convert_checkpoint(place_ / "ct", place_ / "back", Ecosystem::kGptq).tensors[0].is_exact);
    const InteropReport awq = convert_checkpoint(place_ / "gptq", place_ / "awq", Ecosystem::kAwq);
    EXPECT_FALSE(awq.tensors[0].is_exact);
    EXPECT_GT(awq.tensors[0].error.sqnr_db, 10.0);
    for (const char* name : {"gptq", "ct", "back", "awq"}) fs::remove_all(place_ / name);
  }
}

TEST_F(ConvertTest, WordsOfWholeCodesAreRead) {
  const fs::path path = export_to({Ecosystem::kCompressedTensors, "int3:block128:asym"}, "dense");
  const Checkpoint dense = open_checkpoint(path);
  const std::string module = "model.layers.0.mlp.down_proj";
  const io::InteropTensor expected = io::InteropReader::open(dense)->read(module + ".weight");
  std::map<std::string, Tensor> tensors;
  for (const char* suffix : {".weight_scale", ".weight_shape"}) tensors.emplace(module + suffix, dense.tensor(module + suffix));
  const auto words = [](const std::vector<std::uint32_t>& values, Shape shape) {
    Tensor tensor = Tensor::empty(DType::kI32, std::move(shape));
    std::copy(values.begin(), values.end(), tensor.as<std::uint32_t>());
    return tensor;
  };
  tensors.emplace(module + ".weight_packed",
                  words(io::pack_along_columns(io::unsigned_codes(expected.q), 3, io::WordPacking::kWholeCodes), {128, 26}));
  tensors.emplace(module + ".weight_zero_point",
                  words(io::pack_along_rows(io::zero_points_of(expected.q), 3, io::WordPacking::kWholeCodes), {13, 2}));
  fs::create_directories(place_ / "whole");
  write_safetensors(place_ / "whole" / "model.safetensors", tensors);
  test::write_bytes(place_ / "whole" / "config.json", dense.config());
  const Checkpoint whole = open_checkpoint(place_ / "whole");
  EXPECT_TRUE(holds_the_same(io::InteropReader::open(whole)->read(module + ".weight"), expected));
}

/// One module of a foreign file, and its weight as narrow reads it.
io::InteropTensor read_foreign(const fs::path& directory, std::map<std::string, Tensor> tensors, const std::string& quantization) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  test::write_bytes(directory / "config.json", R"({"torch_dtype": "bfloat16", "quantization_config": )" + quantization + "}");
  return io::InteropReader::open(open_checkpoint(directory))->read("m.weight");
}

Tensor single(float value) {
  Tensor tensor = Tensor::empty(DType::kF32, {});
  *tensor.as<float>() = value;
  return tensor;
}

TEST_F(ConvertTest, NoRowsDoNotExcuseTheirLength) {
  constexpr std::int64_t kOne = 1;
  for (const auto& [bits, words, columns] : {std::tuple{8, kOne << 57, (kOne << 62) - 1}, {2, kOne << 56, kOne << 60}}) {
    std::map<std::string, Tensor> tensors;
    tensors.emplace("m.weight_packed", Tensor::empty(DType::kI32, {0, words}));
    tensors.emplace("m.weight_scale", Tensor::empty(DType::kF16, {0, 1}));
    Tensor& shape = tensors.emplace("m.weight_shape", Tensor::empty(DType::kI64, {2})).first->second;
    shape.as<std::int64_t>()[0] = 0;
    shape.as<std::int64_t>()[1] = columns;
    const std::string weights = R"({"strategy": "group", "group_size": 16, "num_bits": )" + std::to_string(bits) + "}";
    const std::string config =
        R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": )" + weights + "}}}";
    EXPECT_THROW(read_foreign(place_ / "empty", tensors, config), CorruptFile) << bits;
  }
}

TEST_F(ConvertTest, ModelOptIsRead) {
  const std::string config = R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  const Tensor x = test::random_values(DType::kF32, {6, 64}, 21);
  const QuantizedTensor fp4 = quantize(x, Scheme::parse("nvfp4"));
  const std::map<std::string, Tensor> nvfp4{{"m.weight", Tensor::over(fp4.codes, DType::kU8, {6, 32})},
                                            {"m.weight_scale", Tensor::over(fp4.scales, DType::kF8E4m3, {6, 4})},
                                            {"m.weight_scale_2", single(fp4.outer_scale)},
                                            {"m.input_scale", single(0.5f)}};
  EXPECT_TRUE(holds_the_same(read_foreign(place_ / "nvfp4", nvfp4, config), {fp4}));
  for (const char* name : {"fp8_e4m3:tensor", "fp8_e4m3:row"}) {
    const QuantizedTensor fp8 = quantize(x, Scheme::parse(name));
    std::map<std::string, Tensor> tensors{{"m.weight", Tensor::over(fp8.codes, DType::kF8E4m3, {6, 64})}, {"m.input_scale", single(0.5f)}};
    tensors.emplace("m.weight_scale",
                    fp8.grid().count() == 1 ? single(*fp8.scales.as<float>()) : Tensor::over(fp8.scales, DType::kF32, {6}));
    EXPECT_TRUE(holds_the_same(read_foreign(place_ / "fp8", tensors, config), {fp8})) << name;
  }
  EXPECT_EQ(ecosystem_of(open_checkpoint(place_ / "nvfp4")), Ecosystem::kModelOpt);
  EXPECT_TRUE(convert_checkpoint(place_ / "nvfp4", place_ / "own", Ecosystem::kNarrow).tensors.at(0).is_exact);
  EXPECT_TRUE(verify_as(place_ / "nvfp4", Ecosystem::kModelOpt).problems.empty());
  std::map<std::string, Tensor> damaged = nvfp4;
  damaged.insert_or_assign("m.weight_scale_2", single(-1.0f));
  EXPECT_THROW(read_foreign(place_ / "bad", damaged, config), CorruptFile);
  damaged.insert_or_assign("m.weight_scale", Tensor::over(fp4.scales, DType::kF8E4m3, {3, 8}));
  EXPECT_THROW(read_foreign(place_ / "bad", damaged, config), CorruptFile);
  damaged.emplace("m.pre_quant_scale", single(1.0f));
  EXPECT_THROW(read_foreign(place_ / "bad", damaged, config), Unsupported);
}

TEST_F(ConvertTest, ModelOptIsWrittenWithItsSettingsAndStaticInputs) {
  const Recipe weights{.scheme = Scheme::parse("nvfp4"), .rules = {{"re:.*down_proj", Scheme::parse("fp8_e4m3:tensor")}}};
  export_checkpoint(place_ / "in", place_ / "mixed", weights, Ecosystem::kModelOpt);
  const io::Json mixed = io::Json::parse(test::read_bytes(place_ / "mixed" / "hf_quant_config.json")).at("quantization");
  EXPECT_EQ(mixed.at("quant_algo"), "MIXED_PRECISION");
  EXPECT_EQ(mixed.at("quantized_layers").at("model.layers.0.mlp.down_proj").at("quant_algo"), "FP8");
  EXPECT_EQ(mixed.at("exclude_modules"), io::Json({"lm_head"}));
  EXPECT_TRUE(verify_as(place_ / "mixed", Ecosystem::kModelOpt).problems.empty());

  Recipe both{.scheme = Scheme::parse("fp8_e4m3:tensor")};
  both.activations = ActivationRecipe{.scheme = ActivationScheme::parse("fp8_e4m3:tensor:static")};
  EXPECT_THROW(export_checkpoint(place_ / "in", place_ / "static", both, Ecosystem::kModelOpt), InvalidArgument);  // no scales yet
  float next = 0.5f;
  for (const std::string& name : open_checkpoint(place_ / "in").names())
    if (name.ends_with("_proj.weight")) both.activations->scales[name.substr(0, name.size() - 7)] = {.scale = next += 0.25f};
  export_checkpoint(place_ / "in", place_ / "static", both, Ecosystem::kModelOpt);
  const Checkpoint written = open_checkpoint(place_ / "static");
  EXPECT_EQ(*written.tensor("model.layers.0.mlp.down_proj.input_scale").as<float>(),
            both.activations->scales.at("model.layers.0.mlp.down_proj").scale);
  EXPECT_TRUE(verify_as(place_ / "static", Ecosystem::kModelOpt).problems.empty());
  both.activations->scheme = ActivationScheme::parse("int8:row:dynamic");
  EXPECT_THROW(export_checkpoint(place_ / "in", place_ / "dynamic", both, Ecosystem::kModelOpt), InvalidArgument);
}

/// Weights, their scales, zero points and unsigned codes as an ecosystem's own tools make them: worked out by hand from its rule.
TEST_F(ConvertTest, RulesOfOtherEcosystems) {
  const auto group = [](std::initializer_list<float> values, const char* scheme, Ecosystem target, DType dtype = DType::kF32) {
    Tensor x = Tensor::empty(DType::kF32, {1, 32});
    std::fill_n(x.as<float>(), 32, 0.0f);
    std::copy(values.begin(), values.end(), x.as<float>());
    return quantize_as(target, convert(x, dtype), Scheme::parse(scheme), {});
  };
  const auto codes = [](const QuantizedTensor& q, std::size_t count) {
    std::vector<int> first;
    for (std::size_t i = 0; i < count; ++i) first.push_back(io::unsigned_codes(q).at(0, static_cast<std::int64_t>(i)));
    return first;
  };
  // amax / 7.5 = 1: -7.5 rounds to -8, 7.5 to 8 and is clipped to 7, 2.5 to 2.
  for (const Ecosystem target : {Ecosystem::kCompressedTensors, Ecosystem::kGptq}) {
    const QuantizedTensor q = group({-7.5f, 7.5f, 2.5f, -1.0f}, "int4:block32", target);
    EXPECT_EQ(*q.scales.as<float>(), 1.0f);
    EXPECT_EQ(codes(q, 4), (std::vector<int>{0, 15, 10, 7}));
  }
  EXPECT_EQ(*group({-127.5f}, "int8:row", Ecosystem::kCompressedTensors).scales.as<float>(), 1.0f);
  EXPECT_EQ(*group({0.0f}, "int4:block32", Ecosystem::kCompressedTensors).scales.as<float>(), 0x1p-23f);  // epsilon of fp32
  // (10 - -5) / 15 = 1, z = round(-8 + 5) = -3; 0.5 - 3 = -2.5 is even at -2, whereas round(0.5) - 3 = -3.
  const QuantizedTensor ct = group({-5.0f, 10.0f, 0.5f, 1.5f}, "int4:block32:asym", Ecosystem::kCompressedTensors);
  EXPECT_EQ(ct.zero_points.as<std::uint8_t>()[0], 5);
  EXPECT_EQ(codes(ct, 4), (std::vector<int>{0, 15, 6, 6}));
  // bf16 weights with bf16 scales: 2.5 / 7.5 is 0.333984 there, and 2.5 / 0.333984 = 7.485 becomes 7.5, which rounds to 8.
  const QuantizedTensor half = group({2.5f, -2.5f}, "int4:block32:scale=bf16", Ecosystem::kCompressedTensors, DType::kBf16);
  EXPECT_EQ(decode(kBf16, *half.scales.as<std::uint16_t>()), 0.333984375f);
  EXPECT_EQ(codes(half, 2), (std::vector<int>{15, 0}));
  // AWQ's range does not hold zero: 16 .. 31 has s = 1 and z = clamp(-16) = 0, so that everything is clipped to 15.
  Tensor far = Tensor::empty(DType::kF32, {1, 32});
  for (int i = 0; i < 32; ++i) far.as<float>()[i] = 16.0f + static_cast<float>(i % 16);
  const QuantizedTensor awq = quantize_as(Ecosystem::kAwq, far, Scheme::parse("int4:block32:asym:scale=fp16"), {});
  EXPECT_EQ(decode(kFp16, *awq.scales.as<std::uint16_t>()), 1.0f);
  EXPECT_EQ(awq.zero_points.as<std::uint8_t>()[0], 0);
  EXPECT_EQ(codes(awq, 2), (std::vector<int>{15, 15}));
  // MX: 7 is 1.75 * 2^2 and becomes 2^3 with one bit of mantissa; narrow's own exponent is that of 2^2.
  EXPECT_EQ(*group({7.0f}, "mxfp4", Ecosystem::kCompressedTensors).scales.as<std::uint8_t>(), 128);
  EXPECT_EQ(*group({6.9f}, "mxfp4", Ecosystem::kCompressedTensors).scales.as<std::uint8_t>(), 127);
  EXPECT_EQ(*group({7.0f}, "mxfp4", Ecosystem::kNarrow).scales.as<std::uint8_t>(), 127);
  EXPECT_THROW(group({std::numeric_limits<float>::infinity()}, "int4:block32", Ecosystem::kGptq), InvalidArgument);
}

TEST_F(ConvertTest, ExportsByTheRulesOfOtherEcosystemsGoThereAndBack) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(name_of(c.target)) + " " + c.scheme);
    const Recipe recipe{.scheme = Scheme::parse(c.scheme)};
    export_checkpoint(place_ / "in", place_ / "a", recipe, c.target, {}, ScaleRules::kEcosystem);
    EXPECT_TRUE(verify_as(place_ / "a", c.target).problems.empty());
    for (const TensorProof& proof : convert_checkpoint(place_ / "a", place_ / "b", Ecosystem::kNarrow).tensors) EXPECT_TRUE(proof.is_exact);
    convert_checkpoint(place_ / "b", place_ / "c", c.target);
    EXPECT_EQ(contents(place_ / "a"), contents(place_ / "c"));
    for (const char* name : {"a", "b", "c"}) fs::remove_all(place_ / name);
  }
}

Tensor bytes(const std::string& text) {
  Tensor tensor = Tensor::empty(DType::kU8, {static_cast<std::int64_t>(text.size())});
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(tensor.data()));
  return tensor;
}

TEST_F(ConvertTest, BitsAndBytesIsRead) {
  const std::string config = R"({"quant_method": "bitsandbytes", "load_in_4bit": true})";
  const QuantizedTensor q = quantize(test::random_values(DType::kF32, {4, 128}, 22), Scheme::parse("nf4:block64"));
  Tensor codes = Tensor::empty(DType::kU8, {256, 1}), map = Tensor::empty(DType::kF32, {16});
  for (int i = 0; i < 256; ++i)
    codes.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(q.codes.as<std::uint8_t>()[i] << 4 | q.codes.as<std::uint8_t>()[i] >> 4);
  std::copy(kNf4Values.begin(), kNf4Values.end(), map.as<float>());
  const std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [4, 128]})";
  const std::string key = "m.weight.quant_state.bitsandbytes__nf4";
  std::map<std::string, Tensor> tensors{{"m.weight", codes}, {"m.weight.quant_map", map}, {key, bytes(state)}};
  tensors.emplace("m.weight.absmax", Tensor::over(q.scales, DType::kF32, {8}));
  EXPECT_TRUE(holds_the_same(read_foreign(place_ / "nf4", tensors, config), {q}));
  EXPECT_TRUE(convert_checkpoint(place_ / "nf4", place_ / "own", Ecosystem::kNarrow).tensors.at(0).is_exact);

  // Scales of scales: by the equation.
  Tensor nested_codes = Tensor::empty(DType::kU8, {8}), nested_map = Tensor::empty(DType::kF32, {256}),
         outer = Tensor::empty(DType::kF32, {2});
  for (int i = 0; i < 256; ++i) nested_map.as<float>()[i] = static_cast<float>(i) / 255.0f;
  for (int i = 0; i < 8; ++i) nested_codes.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(31 * i);
  outer.as<float>()[0] = 0.25f, outer.as<float>()[1] = 0.5f;
  tensors.insert_or_assign("m.weight.absmax", nested_codes);
  tensors.emplace("m.weight.nested_absmax", outer);
  tensors.emplace("m.weight.nested_quant_map", nested_map);
  tensors.insert_or_assign(key, bytes(R"({"blocksize": 64, "shape": [4, 128], "nested_blocksize": 4, "nested_offset": 0.125})"));
  const io::InteropTensor nested = read_foreign(place_ / "nested", tensors, config);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(nested.q.scales.as<float>()[i], static_cast<float>(31 * i) / 255.0f * (i < 4 ? 0.25f : 0.5f) + 0.125f);

  for (const char* wrong :
       {"[]", "{}", R"({"blocksize": 0, "shape": [4, 128]})", R"({"blocksize": 64, "shape": [4, 999999999999999]})",
        R"({"blocksize": 64, "shape": [4]})", R"({"blocksize": 32, "shape": [4, 128], "nested_blocksize": 4, "nested_offset": 0})",
        R"({"blocksize": 64, "shape": [4, 128]})"}) {
    tensors.insert_or_assign(key, bytes(wrong));
    EXPECT_THROW(read_foreign(place_ / "bad", tensors, config), CorruptFile) << wrong;
  }
  tensors.insert_or_assign(key, bytes(R"({"blocksize": 256, "shape": [4, 128]})"));
  EXPECT_THROW(read_foreign(place_ / "bad", tensors, config), Unsupported);
}

TEST_F(ConvertTest, FormsWithoutAWriterAreRefused) {
  for (const Ecosystem target : {Ecosystem::kBitsAndBytes}) {
    EXPECT_THROW(export_to({target, "nvfp4"}, "out"), InvalidArgument);
    EXPECT_THROW(convert_checkpoint(place_ / "in", place_ / "out", target), InvalidArgument);
  }
}

TEST_F(ConvertTest, SchemesWithoutAPlaceAreRefusedInOneSentence) {
  const Case refused[] = {{Ecosystem::kGptq, "fp8_e4m3:row"},
                          {Ecosystem::kGptq, "int4:tensor"},
                          {Ecosystem::kAwq, "int8:block128"},
                          {Ecosystem::kAwq, "nvfp4"},
                          {Ecosystem::kFp8Block, "fp8_e4m3:row"},
                          {Ecosystem::kFp8Block, "fp8_e5m2:128x128"},
                          {Ecosystem::kModelOpt, "mxfp4"},
                          {Ecosystem::kModelOpt, "int4:block128"},
                          {Ecosystem::kModelOpt, "fp8_e4m3:128x128"},
                          {Ecosystem::kCompressedTensors, "fp6_e3m2:row"},
                          {Ecosystem::kCompressedTensors, "int4:tensor"},
                          {Ecosystem::kCompressedTensors, "msfp12"},
                          {Ecosystem::kCompressedTensors, "int4:block96"}};
  for (const Case& c : refused) {
    try {
      export_to(c, "out");
      ADD_FAILURE() << c.scheme << " was not refused by " << name_of(c.target);
    } catch (const InvalidArgument& error) {
      test::expect_sentence(error.what(), name_of(c.target));
    }
    EXPECT_FALSE(fs::exists(place_ / "out"));
  }
  EXPECT_THROW(convert_checkpoint(place_ / "in", place_ / "out", Ecosystem::kGptq), InvalidArgument);
  EXPECT_THROW(parse_ecosystem("exl2"), InvalidArgument);
  Recipe with_activations{.scheme = Scheme::parse("int8:row")};
  with_activations.activations = ActivationRecipe{.scheme = ActivationScheme::parse("int8:row:dynamic")};
  EXPECT_THROW(export_checkpoint(place_ / "in", place_ / "out", with_activations, Ecosystem::kGptq), InvalidArgument);
  with_activations.activations->scheme = ActivationScheme::parse("fp5_e2m2:row:dynamic");
  EXPECT_THROW(export_checkpoint(place_ / "in", place_ / "out", with_activations, Ecosystem::kCompressedTensors), InvalidArgument);
  EXPECT_FALSE(fs::exists(place_ / "out"));
}

/// Weights and rounded inputs, with a scale for every module where they are static.
Recipe recipe_with_inputs(const Checkpoint& model, const char* weights, const char* inputs) {
  Recipe recipe{.scheme = Scheme::parse(weights)};
  recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse(inputs)};
  recipe.activations->rules.emplace_back("re:.*layers\\.1\\.mlp\\.down_proj", std::nullopt);
  float next = 0.375f;
  for (const std::string& name : model.names())
    if (recipe.activations->scheme.is_static && name.ends_with("_proj.weight")) {
      const std::uint8_t zero = recipe.activations->scheme.scheme.asymmetric ? 100 : 0;
      recipe.activations->scales[name.substr(0, name.size() - 7)] = {.scale = next += 0.25f, .zero_point = zero};
    }
  return recipe;
}

TEST_F(ConvertTest, RoundedInputsTravelWithTheWeights) {
  const Checkpoint source = open_checkpoint(place_ / "in");
  struct {
    Ecosystem target;
    const char *weights, *inputs;
  } const cases[] = {{Ecosystem::kCompressedTensors, "int8:row", "int8:row:dynamic"},
                     {Ecosystem::kCompressedTensors, "int8:row", "int8:row:asym:dynamic"},
                     {Ecosystem::kCompressedTensors, "int8:row", "int8:tensor:static"},
                     {Ecosystem::kCompressedTensors, "int8:row", "int8:tensor:asym:static"},
                     {Ecosystem::kCompressedTensors, "fp8_e4m3:row", "fp8_e4m3:row:dynamic"},
                     {Ecosystem::kCompressedTensors, "fp8_e4m3:tensor", "fp8_e4m3:tensor:static"},
                     {Ecosystem::kCompressedTensors, "fp8_e4m3:128x128", "fp8_e4m3:block128:dynamic"},
                     {Ecosystem::kCompressedTensors, "int4:block128", "int8:row:dynamic"},
                     {Ecosystem::kCompressedTensors, "nvfp4", "nvfp4:static"},
                     {Ecosystem::kCompressedTensors, "mxfp4", "mxfp4:dynamic"},
                     {Ecosystem::kModelOpt, "nvfp4", "nvfp4:static"},
                     {Ecosystem::kModelOpt, "fp8_e4m3:tensor", "fp8_e4m3:tensor:static"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(name_of(c.target)) + " " + c.weights + " x " + c.inputs);
    const Recipe recipe = recipe_with_inputs(source, c.weights, c.inputs);
    export_checkpoint(place_ / "in", place_ / "a", recipe, c.target);
    const Checkpoint written = open_checkpoint(place_ / "a");
    const std::optional<ActivationRecipe> read = read_activations(written);
    ASSERT_TRUE(read);
    for (const TensorProof& proof : convert_checkpoint(place_ / "a", place_ / "b", Ecosystem::kNarrow).tensors) {
      const std::string module = proof.name.substr(0, proof.name.size() - 7);
      EXPECT_EQ(read->scheme_of(module), recipe.activations->scheme_of(module)) << module;
      if (!recipe.activations->scheme.is_static || !read->scheme_of(module)) continue;
      const StaticScale &there = read->scales.at(module), &here = recipe.activations->scales.at(module);
      EXPECT_FLOAT_EQ(there.scale, here.scale);  // nvfp4's goes through its reciprocal
      EXPECT_EQ(there.zero_point, here.zero_point);
    }
    convert_checkpoint(place_ / "b", place_ / "c", c.target);
    EXPECT_EQ(contents(place_ / "a"), contents(place_ / "c"));
    for (const char* name : {"a", "b", "c"}) fs::remove_all(place_ / name);
  }
}

/// DeepSeek's form and ModelOpt's rows have all inputs rounded.
TEST_F(ConvertTest, FormsThatRoundAllInputsTakeThemOrSayThatTheyAreNotMeant) {
  struct {
    Ecosystem target;
    const char *weights, *inputs;
  } const cases[] = {{Ecosystem::kFp8Block, "fp8_e4m3:128x128", "fp8_e4m3:block128:dynamic"},
                     {Ecosystem::kModelOpt, "fp8_e4m3:row", "fp8_e4m3:row:dynamic"},
                     {Ecosystem::kCompressedTensors, "int8:row", "int8:row:dynamic"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(name_of(c.target)) + " " + c.weights + " x " + c.inputs);
    Recipe recipe{.scheme = Scheme::parse(c.weights)};
    export_checkpoint(place_ / "in", place_ / "alone", recipe, c.target);
    EXPECT_FALSE(read_activations(open_checkpoint(place_ / "alone")));
    recipe.activations = ActivationRecipe{.scheme = ActivationScheme::parse(c.inputs)};
    export_checkpoint(place_ / "in", place_ / "both", recipe, c.target);
    const std::optional<ActivationRecipe> read = read_activations(open_checkpoint(place_ / "both"));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->scheme, recipe.activations->scheme);
    EXPECT_TRUE(read->rules.empty());
    recipe.activations->scheme = ActivationScheme::parse("int8:block64:dynamic");
    if (c.target != Ecosystem::kCompressedTensors) {
      EXPECT_THROW(export_checkpoint(place_ / "in", place_ / "other", recipe, c.target), InvalidArgument);
    }
    for (const char* name : {"alone", "both"}) fs::remove_all(place_ / name);
  }
}

TEST_F(ConvertTest, DamageIsNamed) {
  const fs::path path = export_to({Ecosystem::kGptq, "int4:block128"}, "gptq");
  std::string config = test::read_bytes(path / "config.json");
  const std::size_t place = config.find("\"group_size\": 128");
  ASSERT_NE(place, std::string::npos);
  test::write_bytes(path / "config.json", config.replace(place, 17, "\"group_size\": 640"));
  const VerifyReport report = verify_as(path, Ecosystem::kGptq);
  ASSERT_EQ(report.problems.size(), 2u);  // down_proj has two groups, the others still have one
  test::expect_sentence(report.problems[0], "down_proj");
}

}  // namespace
}  // namespace narrow
