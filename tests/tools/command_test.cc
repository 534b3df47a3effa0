/// The real command on a tiny checkpoint: every subcommand, exit codes, JSON, terminals, pipes and interrupts.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/small_model.h"
#include "narrow/checkpoint.h"
#include "narrow/cuda.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"
#include "tools/process.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Smooth, deterministic values with one loud column.
Tensor values(Shape shape, DType dtype, float phase) {
  Tensor x = Tensor::empty(DType::kF32, shape);
  const std::int64_t cols = shape.back();
  for (std::int64_t i = 0; i < x.size(); ++i)
    x.as<float>()[i] = std::sin(0.7f * static_cast<float>(i) + phase) * (i % cols == 3 ? 20.0f : 1.0f);
  return dtype == DType::kF32 ? x : convert(x, dtype);
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// File names and bytes of a directory.
std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> result;
  for (const auto& entry : fs::directory_iterator(directory)) result[entry.path().filename().string()] = read_all(entry.path());
  return result;
}

class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("narrow_command_" + std::string(info->name()) + "_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "model");
    const std::map<std::string, Tensor> tensors{
        {"lm_head.weight", values({32, 64}, DType::kBf16, 0.1f)},
        {"model.embed_tokens.weight", values({32, 64}, DType::kBf16, 0.2f)},
        {"model.layers.0.mlp.down_proj.weight", values({64, 96}, DType::kBf16, 0.3f)},
        {"model.layers.0.mlp.up_proj.weight", values({96, 64}, DType::kBf16, 0.4f)},
        {"model.norm.weight", values({64}, DType::kBf16, 0.5f)},
    };
    write_safetensors(folder_ / "model" / "model.safetensors", tensors);
    std::ofstream(folder_ / "model" / "config.json") << R"({"model_type": "llama"})";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string model() const { return path("model"); }
  static std::vector<std::string> command(std::vector<std::string> words) {
    words.insert(words.begin(), NARROW_COMMAND);
    return words;
  }
  static Outcome narrow(std::vector<std::string> words) { return test::run(command(std::move(words))); }
  static json narrow_json(std::vector<std::string> words) {
    words.push_back("--json");
    const Outcome outcome = narrow(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }
  void quantize(const std::string& scheme, const std::string& out) const {
    const Outcome outcome = narrow({"quantize", "--quiet", model(), path(out), scheme});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    ASSERT_EQ(outcome.out + outcome.err, "");
  }
  /// One sentence on standard error, nothing on standard output.
  static void expect_failure(const Outcome& outcome, int code, const std::string& part) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("narrow: "));
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }

  fs::path folder_;
};

TEST_F(CommandTest, FormatsListsEveryFormat) {
  const json list = narrow_json({"formats"});
  ASSERT_TRUE(list.is_array());
  std::map<std::string, json> by_name;
  for (const json& format : list) {
    for (const char* key : {"name", "bits", "max", "min_normal", "min_subnormal"}) EXPECT_TRUE(format.contains(key)) << format;
    by_name[format["name"]] = format;
  }
  for (const NamedFormat& named : kNamedFormats) EXPECT_TRUE(by_name.contains(std::string(named.name))) << named.name;
  for (const BlockFormat& block : block_formats()) EXPECT_TRUE(by_name.contains(std::string(block.name))) << block.name;
  EXPECT_EQ(by_name["fp8_e4m3"]["max"], 448.0);
  EXPECT_EQ(by_name["fp8_e4m3"]["min_normal"], std::ldexp(1.0, -6));
  EXPECT_EQ(by_name["fp8_e4m3"]["min_subnormal"], std::ldexp(1.0, -9));
  EXPECT_EQ(by_name["fp6_e3m2"]["bits"], 6);
  EXPECT_TRUE(by_name["fp4_e3m0"]["min_subnormal"].is_null());
  EXPECT_EQ(by_name["nvfp4"]["bits_per_weight"], 4.5);
  for (const Preset& preset : presets()) EXPECT_EQ(by_name[std::string(preset.name)]["weights"], preset.weights);
}

TEST_F(CommandTest, FormatsShowsOneFormatWithItsCodes) {
  const json fp6 = narrow_json({"formats", "fp6_e3m2"});
  ASSERT_EQ(fp6["codes"].size(), 64u);
  EXPECT_EQ(fp6["codes"][31]["value"], 28.0);
  EXPECT_EQ(fp6["codes"][31]["bits"], "0|111|11");
  for (const char* name : {"fp6_e3m2", "fp7_e3m3", "fp12_e5m6", "fp32", "int4", "uint8", "int1", "nf4", "e8m0", "fp4_e3m0", "nvfp4",
                           "msfp12", "mxint8", "int4:block128:asym", "int8:tensor"}) {
    const Outcome outcome = narrow({"formats", name});
    EXPECT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(std::string(name).substr(0, 3)));
  }
  expect_failure(narrow({"formats", "fp6_e9m9"}), 2, "fp6_e9m9");
  expect_failure(narrow({"formats", "float"}), 2, "'float'");
  const json preset = narrow_json({"formats", "W8A8"});
  EXPECT_EQ(preset["activations"], "int8:row:dynamic") << preset["kind"];
  EXPECT_EQ(preset["codes"].size(), 256u);
  EXPECT_THAT(narrow({"formats", "W8A8"}).out, HasSubstr("weights int8:row, inputs int8:row:dynamic"));
}

TEST_F(CommandTest, LayoutDrawsAddresses) {
  const json object = narrow_json({"layout", "COL32", "2", "64"});
  EXPECT_EQ(object["size"], 128);
  EXPECT_EQ(object["offsets"][1][0], 32);  // the second row of the first stripe of 32 columns
  EXPECT_EQ(object["offsets"][0][32], 64);
  EXPECT_EQ(narrow({"layout", "COL33", "2", "64"}).code, 2);
  EXPECT_EQ(narrow({"layout", "ROW", "0", "64"}).code, 2);
}

TEST_F(CommandTest, InspectMeasuresValues) {
  const json object = narrow_json({"inspect", model()});
  EXPECT_EQ(object["tensor_count"], 5);
  EXPECT_EQ(object["quantized"], false);
  const json& up = object["tensors"][3];
  EXPECT_EQ(up["name"], "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(up["shape"], json({96, 64}));
  EXPECT_EQ(up["outlier_columns"]["count"], 1);
  EXPECT_EQ(up["outlier_columns"]["largest"][0]["column"], 3);
  EXPECT_GT(up["kurtosis"], 3.0);
  const json headers = narrow_json({"inspect", model(), "--headers"});
  EXPECT_FALSE(headers["tensors"][0].contains("kurtosis"));

  const json one = narrow_json({"inspect", model(), "--tensor", "model.norm.weight"});
  std::int64_t counted = 0;
  for (const json& count : one["histogram"]["counts"]) counted += count.get<std::int64_t>();
  EXPECT_EQ(counted, 64);
  EXPECT_THAT(narrow({"inspect", model()}).out, HasSubstr("Outlier columns"));
  EXPECT_THAT(narrow({"inspect", model(), "--tensor", "lm_head.weight"}).out, HasSubstr("Values per bin"));
  EXPECT_EQ(narrow({"inspect", model(), "--tensor", "no.such"}).code, 2);
}

TEST_F(CommandTest, PlanSaysWhatQuantizeDoes) {
  const json plan = narrow_json({"plan", model(), "int8:row"});
  std::map<std::string, std::string> fates;
  for (const json& tensor : plan["tensors"]) fates[tensor["name"]] = tensor["fate"];
  EXPECT_EQ(fates["model.layers.0.mlp.up_proj.weight"], "quantize");
  EXPECT_EQ(fates["model.norm.weight"], "copy");
  EXPECT_EQ(fates["lm_head.weight"], "copy");
  EXPECT_EQ(fates["model.embed_tokens.weight"], "copy");

  const json done = narrow_json({"quantize", model(), path("out"), "int8:row", "--quiet"});
  EXPECT_EQ(done["bytes_after"], plan["bytes_after"]);
  EXPECT_EQ(done["size"], plan["file_bytes"]);
  std::uintmax_t written = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "out"))
    if (entry.path().extension() == ".safetensors") written += entry.file_size();
  EXPECT_EQ(written, plan["file_bytes"].get<std::uintmax_t>());
}

TEST_F(CommandTest, RecipeFlagsChooseTensors) {
  const auto scheme_of = [](const json& plan, const std::string& name) {
    for (const json& tensor : plan["tensors"])
      if (tensor["name"] == name) return tensor["scheme"];
    return json();
  };
  const std::string down = "model.layers.0.mlp.down_proj.weight", up = "model.layers.0.mlp.up_proj.weight";
  const json ruled = narrow_json({"plan", model(), "int8:row", "--rule", "re:.*down_proj=int4:block32:scale=fp16"});
  EXPECT_EQ(scheme_of(ruled, down), "int4:block32:scale=fp16");
  EXPECT_EQ(scheme_of(ruled, up), "int8:row");
  const json targeted = narrow_json({"plan", "--targets", "re:.*up_proj.*", "--ignore", "lm_head", "nothing", "--", model(), "nvfp4"});
  EXPECT_TRUE(scheme_of(targeted, down).is_null());
  EXPECT_EQ(scheme_of(targeted, up), "nvfp4");
  const json ignored = narrow_json({"plan", "--ignore", "down_proj", "--quiet", model(), "int8:row"});
  EXPECT_TRUE(scheme_of(ignored, down).is_null());
  EXPECT_EQ(scheme_of(ignored, "lm_head.weight"), "int8:row");

  std::ofstream(path("recipe.yaml")) << "scheme: fp8_e4m3:row\nignore: [lm_head, down_proj]\n";
  const json from_file = narrow_json({"plan", model(), "--recipe", path("recipe.yaml")});
  EXPECT_EQ(scheme_of(from_file, up), "fp8_e4m3:row");
  EXPECT_TRUE(scheme_of(from_file, down).is_null());
  expect_failure(narrow({"plan", model(), "int8:row", "--rule", "int8"}), 2, "PATTERN=SCHEME");
  expect_failure(narrow({"plan", model(), "int8:row", "--rounding", "up"}), 2, "nearest_even");
}

TEST_F(CommandTest, PatternsThatChangeNothingAreWarnedOf) {
  const std::vector<std::string> words{"int8:row",         "--quiet",  "--json",  "--rule", "mlp=int4:row",
                                       "lm_head=int4:row", "--ignore", "lm_head", "norms"};
  std::vector<std::string> plan{"plan", model()}, quantize{"quantize", model(), path("out")};
  plan.insert(plan.end(), words.begin(), words.end());
  quantize.insert(quantize.end(), words.begin(), words.end());
  for (const std::vector<std::string>& command : {plan, quantize}) {
    const Outcome outcome = narrow(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(json::parse(outcome.out)["idle"].size(), 3u);
    EXPECT_THAT(outcome.err, HasSubstr("narrow: warning: the rule 'mlp' matches no tensor\n"));
    EXPECT_THAT(outcome.err, HasSubstr("the rule 'lm_head' changes nothing: lm_head.weight is left as it is (ignored by lm_head)\n"));
    EXPECT_THAT(outcome.err, HasSubstr("the pattern to ignore 'norms' matches no tensor\n"));
  }
  EXPECT_EQ(narrow_json({"plan", model(), "int8:row", "--rule", "re:.*down_proj=int4:row"})["idle"].size(), 0u);
  const json head = narrow_json({"plan", model(), "int8:row", "--rule", "lm_head=int4:row", "--ignore", "none"});
  EXPECT_EQ(head["idle"].size(), 0u);
  EXPECT_EQ(head["tensors"][0]["scheme"], "int4:row") << head["tensors"][0]["name"];
  expect_failure(narrow({"quantize", model(), path("none"), "int8:row", "--targets", "mlp"}), 2, "nothing would be quantized");
  expect_failure(narrow({"quantize", model(), path("none"), "int8:row", "--targets", "mlp", "--export", "ct"}), 2,
                 "nothing would be quantized");
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(CommandTest, StaticInputsNeedACalibration) {
  expect_failure(narrow({"quantize", model(), path("out"), "W8A8-static"}), 2, "is int8:tensor:static, but no calibration gives its scale");
  expect_failure(narrow({"quantize", model(), path("out"), "NVFP4"}), 2, "--stats");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(CommandTest, QuantizeCompareVerifyDequantize) {
  const json done = narrow_json({"quantize", model(), path("out"), "int8:row", "--quiet"});
  EXPECT_EQ(done["scheme"], "int8:row");
  EXPECT_EQ(done["tensors"].size(), 2u);
  EXPECT_GT(done["sqnr_db"], 20.0);
  EXPECT_THAT(done["worst_tensor"].get<std::string>(), HasSubstr("proj"));

  const json verified = narrow_json({"verify", path("out")});
  EXPECT_EQ(verified["ok"], true);
  EXPECT_THAT(narrow({"verify", path("out")}).out, StartsWith("ok"));

  const json compared = narrow_json({"compare", model(), path("out")});
  EXPECT_EQ(compared["tensors"].size(), 5u);
  EXPECT_EQ(compared["identical"], 3);
  EXPECT_NEAR(compared["sqnr_db"].get<double>(), done["sqnr_db"].get<double>(), 1e-6);
  EXPECT_EQ(compared["tensors"][0]["name"], done["worst_tensor"]);
  EXPECT_LE(compared["tensors"][0]["sqnr_db"], compared["tensors"][1]["sqnr_db"]);

  const json inspected = narrow_json({"inspect", path("out")});
  EXPECT_EQ(inspected["quantized"], true);
  EXPECT_NEAR(inspected["bits_per_weight"].get<double>(), done["bits_per_weight"].get<double>(), 1e-9);

  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    const std::string plain = path(std::string("plain_") + dtype);
    const json plain_done = narrow_json({"dequantize", path("out"), plain, "--dtype", dtype, "--quiet"});
    EXPECT_EQ(plain_done["tensors"], 5);
    EXPECT_EQ(narrow({"compare", model(), plain, "--quiet"}).code, 0);
  }
  expect_failure(narrow({"dequantize", path("out"), path("again"), "--dtype", "int8"}), 2, "fp32");
  expect_failure(narrow({"quantize", model(), path("out"), "int8:row", "--quiet"}), 2, "out");
}

TEST_F(CommandTest, EveryStandardSchemeQuantizesAndVerifies) {
  for (const Scheme& scheme : standard_schemes()) {
    const Outcome outcome = narrow({"quantize", "--quiet", model(), path("scheme"), scheme.to_string()});
    EXPECT_EQ(outcome.code, 0) << scheme.to_string() << ": " << outcome.err;
    EXPECT_EQ(narrow({"verify", path("scheme"), "--quiet"}).code, 0) << scheme.to_string();
    fs::remove_all(folder_ / "scheme");
  }
}

TEST_F(CommandTest, ThreadsAndInstructionSetsDoNotChangeABit) {
  for (const std::string scheme : {"int4:block128:asym", "nvfp4", "fp6_e3m2:row"}) {
    ASSERT_EQ(narrow({"--threads", "1", "quantize", model(), path("one"), scheme, "--quiet"}).code, 0);
    ASSERT_EQ(narrow({"quantize", model(), path("two"), scheme, "--quiet", "--threads", "2"}).code, 0);
    ASSERT_EQ(narrow({"quantize", model(), path("scalar"), scheme, "--quiet", "--cpu", "scalar"}).code, 0);
    EXPECT_EQ(contents(folder_ / "one"), contents(folder_ / "two"));
    EXPECT_EQ(contents(folder_ / "one"), contents(folder_ / "scalar"));
    for (const char* name : {"one", "two", "scalar"}) fs::remove_all(folder_ / name);
  }
  const auto inspect = [&](const char* threads) { return narrow({"inspect", model(), "--json", "--threads", threads}).out; };
  EXPECT_EQ(inspect("1"), inspect("2"));
}

class DecoderCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    test::write_decoder(path("decoder"), {});
    const Tensor windows = Tensor::empty(DType::kI32, {4, 24});
    const std::vector<std::int32_t> tokens = test::random_tokens(static_cast<std::size_t>(windows.size()), 96, 1);
    std::copy(tokens.begin(), tokens.end(), windows.as<std::int32_t>());
    write_safetensors(path("tokens.safetensors"), {{"calib", windows}});
  }
};

TEST_F(DecoderCommandTest, SearchWritesItsReportAsOnePage) {
  const json found =
      narrow_json({"search", path("decoder"), "--bits", "6", "--menu", "int4:row", "int8:row", "--tokens", path("tokens.safetensors"),
                   "--probe-windows", "1", "-o", path("mix.yaml"), "--report", path("mix.html")});
  const std::string page = read_all(path("mix.html"));
  const auto count = [&](const std::string& part) {
    std::size_t times = 0;
    for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++times;
    return times;
  };
  for (const json& module : found["modules"]) EXPECT_EQ(count("<tr><td>" + module["module"].get<std::string>() + "<td"), 1u) << module;
  EXPECT_EQ(count("<td class=chosen"), found["modules"].size());
  EXPECT_EQ(count("<th>int4:row") + count("<th>int8:row"), 2u);
  EXPECT_EQ(count("bits: "), found["curve"].size());
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST_F(DecoderCommandTest, DeviceOfQuantizeIsOfStepsThatFitWeights) {
  const auto quantize = [&](const char* method, const char* device) {
    return narrow({"quantize", path("decoder"), path("not"), "int4:row", "--method", method, "--tokens", path("tokens.safetensors"),
                   "--device", device});
  };
  expect_failure(quantize("awq", "cuda"), 2, "--device is where gptq, clip and refine compute");
  expect_failure(quantize("correct+gptq", "cuda"), 5, "the method correct+gptq runs on the CPU");
  expect_failure(quantize("gptq", "tpu"), 2, "--device is 'tpu'");
  EXPECT_EQ(narrow_json({"quantize", path("decoder"), path("cpu"), "int4:row", "--method", "gptq", "--tokens", path("tokens.safetensors"),
                         "--device", "cpu"})["factored_by"],
            nullptr);
}

TEST_F(DecoderCommandTest, TuneSaysWhatItGained) {
  const json made = narrow_json({"quantize", path("decoder"), path("tuned"), "int3:row", "--method", "clip+tune", "--passes", "4",
                                 "--tokens", path("tokens.safetensors"), "--spill", path(".")});
  EXPECT_GT(made["tuned"]["best_pass"], 0);
  EXPECT_LT(made["tuned"]["divergence_after"], made["tuned"]["divergence_before"]);
  expect_failure(narrow({"quantize", path("decoder"), path("not"), "int3:row", "--passes", "4"}), 2, "--passes is of tune");
  expect_failure(narrow({"quantize", path("decoder"), path("not"), "int3:row", "--method", "tune"}), 2, "--tokens FILE or --text FILE");
  expect_failure(narrow({"quantize", path("decoder"), path("not"), "int3:row", "--spill", path(".")}), 2, "--spill keeps what layers see");
  EXPECT_EQ(narrow_json({"quantize", path("decoder"), path("plain"), "int3:row"})["tuned"], nullptr);
}

TEST_F(CommandTest, VerifyNamesTheDamagedTensor) {
  quantize("int8:row", "out");
  fs::path file;
  for (const auto& entry : fs::directory_iterator(folder_ / "out"))
    if (entry.path().extension() == ".safetensors") file = entry.path();
  std::string bytes = read_all(file);
  const Checkpoint checkpoint = open_checkpoint(folder_ / "out");
  for (const TensorInfo& tensor : checkpoint.stored()) {
    std::string damaged = bytes;
    damaged[tensor.begin + tensor.byte_size() / 2] ^= 0x10;
    std::ofstream(file, std::ios::binary) << damaged;
    const Outcome outcome = narrow({"verify", path("out")});
    EXPECT_EQ(outcome.code, 1) << tensor.name;
    EXPECT_THAT(outcome.out, HasSubstr(tensor.name));
    EXPECT_THAT(outcome.out, StartsWith("damaged"));
  }
  std::ofstream(file, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  EXPECT_EQ(narrow({"verify", path("out")}).code, 1);
}

TEST_F(CommandTest, CompareReportsWhatCannotBeCompared) {
  fs::create_directories(folder_ / "other");
  write_safetensors(folder_ / "other" / "model.safetensors",
                    {{"lm_head.weight", values({16, 64}, DType::kBf16, 0.0f)}, {"extra", values({4}, DType::kF32, 0.0f)}});
  const Outcome outcome = narrow({"compare", model(), path("other"), "--json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(json::parse(outcome.out)["problems"].size(), 6u);
}

TEST_F(CommandTest, KernelsListsTheTables) {
  const json object = narrow_json({"kernels"});
  EXPECT_THAT(object["instruction_sets"], Contains("scalar"));
  std::vector<std::string> ops;
  for (const json& kernel : object["kernels"]) ops.push_back(kernel["op"]);
  for (const char* op : {"quantize", "dequantize", "matmul", "fused", "binary"}) EXPECT_THAT(ops, Contains(op));
  const json reference = narrow_json({"--cpu", "scalar", "kernels", "int8:row"});
  EXPECT_EQ(reference["choices"][0]["kernel"], "ref_quantize");
}

TEST_F(CommandTest, TunedKernelsThatCannotBeUsedAreIgnoredWithOneSentence) {
  std::ofstream(folder_ / "damaged.json") << "{\"format\": ";
  for (const char* name : {"damaged.json", "missing.json"}) {
    const Outcome outcome = narrow({"formats", "--tuned", path(name)});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(name));
    EXPECT_THAT(outcome.err, HasSubstr("; the file is ignored\n"));
    EXPECT_EQ(outcome.out, narrow({"formats"}).out);
  }
  expect_failure(narrow({"kernels", "--tune", "8", "0", "3", "int8:row"}), 2, "'0' is not a size; write --tune M N K SCHEME");
  expect_failure(narrow({"kernels", "--tune", "8", "64", "64", "nvfp4"}), 5, "--tune takes weights in fp8_e4m3 and int8");
}

TEST_F(CommandTest, WrongUsageIsOneSentenceAndExitCodeTwo) {
  expect_failure(narrow({"quantise"}), 2, "quantise");
  expect_failure(narrow({"formats", "--no-such-flag"}), 2, "--no-such-flag");
  expect_failure(narrow({"quantize", model()}), 2, "quantize --help");
  expect_failure(narrow({"quantize", model(), path("out"), "int9:row"}), 2, "int9");
  expect_failure(narrow({"quantize", model(), path("out"), "int8:rows"}), 2, "rows");
  expect_failure(narrow({"--threads", "0", "formats"}), 2, "threads");
  expect_failure(narrow({"--cpu", "sse9", "formats"}), 2, "sse9");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(narrow({}).code, 2);
}

TEST_F(CommandTest, ComplaintsNameWhatTheHelpNames) {
  expect_failure(narrow({"--no-such-flag"}), 2, "'--no-such-flag' is not an option");
  expect_failure(narrow({"quantise", model()}), 2, "'quantise' is not a command, quantize is;");
  expect_failure(narrow({"something"}), 2, "'something' is not a command;");
  expect_failure(narrow({"quant", model()}), 2, "'quant' is not a command, quantize is;");
  expect_failure(narrow({"perplexity", model()}), 2, "'perplexity' is not a command, eval is;");
  expect_failure(narrow({"version"}), 2, "'version' is not a command, --version is;");
  expect_failure(narrow({"-v"}), 2, "'-v' is not an option, --version is;");
  expect_failure(narrow({"onnx", "lint"}), 2, "python -m narrow onnx");
  expect_failure(narrow({"plan", model(), "int8:row", "--ignor", "x"}), 2, "'--ignor' is not an option of plan, --ignore is;");
  expect_failure(narrow({"plan", model(), "int8:row", "--treads=2"}), 2, "'--treads' is not an option of plan, --threads is;");
  expect_failure(narrow({"doctor", "now"}), 2, "doctor has no place for 'now';");
  expect_failure(narrow({"plan", model(), "INT8:row"}), 2, "'INT8' is not a format; write int8");
  expect_failure(narrow({"plan", model(), "fp8"}), 2, "write fp8_e4m3 or fp8_e5m2");
  expect_failure(narrow({"plan", model(), "int4:group64"}), 2, "; write block64");
  expect_failure(narrow({"plan", model(), "w8a8"}), 2, "the preset is written W8A8");
  expect_failure(narrow({"plan", model(), "Q4_K_M"}), 2, "--to gguf:q4_k");
  expect_failure(narrow({"inspect", model(), "--tensor", "up_proj"}), 2, "model.layers.0.mlp.up_proj.weight");
  expect_failure(narrow({"inspect", model(), "--tensor", "nothing"}), 2, "--headers lists them all");
  expect_failure(narrow({"--threads", "2"}), 2, "a command is missing");
  expect_failure(narrow({"bench", "--report"}), 2, "--report needs a value: FILE");
  expect_failure(narrow({"kernels", "--explain", "1", "2", "3"}), 2, "--explain takes M N K SCHEME, not 3 values");
  expect_failure(narrow({"kernels", "--explain", "0", "2", "3", "int8:row"}), 2, "'0' is not a size");
  for (const char* seconds : {"nan", "-1", "inf", "1e9", "soon"}) {
    expect_failure(narrow({"doctor", "--seconds", seconds}), 2, std::string("'") + seconds + "' is not a number from 0 to 3600");
    expect_failure(narrow({"bench", "--report", path("page.html"), "--seconds", seconds}), 2, "is not a number from 0 to 60");
  }
  expect_failure(narrow({"bench", "--model", "llama-2-7b", "--batch", "0"}), 2, "a batch of 0 sequences");
  expect_failure(narrow({"manual", "quantize", "--markdown"}), 2, "one thing");
  std::ofstream(path("file")) << "a file";
  expect_failure(narrow({"manual", "--write", path("file")}), 4, "Not a directory");
  EXPECT_EQ(narrow_json({"completion", "bash"})["text"], narrow({"completion", "bash"}).out);
  EXPECT_FALSE(fs::exists(path("page.html")));
}

TEST_F(CommandTest, ClustersAreNamedBeforePythonIsAsked) {
  for (const char* address : {"local:0", "local:-3", "local:x", "local:", "cluster", "ray://", "ray://host", "host:0", "host:99999"})
    expect_failure(narrow({"quantize", model(), path("out"), "int8:row", "--cluster", address}), 2,
                   std::string("'") + address + "' is no address");
  const auto with_python = [&](const char* program) {
    return narrow({"quantize", model(), path("out"), "int8:row", "--cluster", "local:2", "--python", program});
  };
  expect_failure(with_python("/no/such/python"), 5, "/no/such/python cannot be run");
  expect_failure(with_python("true"), 5, "true is no Python");  // it would have done nothing, and called it done
  expect_failure(narrow({"quantize", model(), path("out"), "int8:row", "--python", "python3"}), 2, "--cluster");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CommandTest, PlacesThatCannotBeWrittenAreSaidBeforeTheWork) {
  std::ofstream(path("tokens")) << "not read: the place comes first";
  const std::string nowhere = path("missing/file");
  expect_failure(narrow({"compare", model(), "int8:row", "--tokens", path("tokens"), "--report", nowhere}), 4, "is not a directory");
  expect_failure(narrow({"search", model(), "--bits", "4", "--tokens", path("tokens"), "-o", nowhere}), 4, "is not a directory");
  expect_failure(narrow({"calibrate", model(), "--tokens", path("tokens"), "-o", nowhere}), 4, "is not a directory");
  expect_failure(narrow({"tokenize", model(), path("tokens"), "-o", model()}), 4, "it is a directory");
  expect_failure(narrow({"bench", "--report", "/dev/null"}), 4, "not a regular file");
  expect_failure(narrow({"compare", model(), model(), "--report", path("page.html")}), 2, "--tokens");
  expect_failure(narrow({"compare", model(), "int8:row", "--errors"}), 2, "one model");
  expect_failure(narrow({"compare", model(), "nothing", "--tokens", path("tokens")}), 2, "nothing does not exist, and it is no scheme");
  expect_failure(narrow({"search", model(), "--tokens", path("tokens")}), 2, "one budget: --bits");
  expect_failure(narrow({"quantize", path("missing"), path("out"), "int8:row", "--export", "gguf"}), 4, "missing does not exist");
  EXPECT_EQ(contents(folder_ / "model").size(), 2u);
  EXPECT_FALSE(fs::exists(path("page.html")) || fs::exists(path("out")));
}

TEST_F(CommandTest, GgufFilesAreToldApart) {
  std::ofstream(path("llama.gguf"), std::ios::binary) << std::string("GGUF\3\0\0\0", 8) << std::string(64, '\0');
  expect_failure(narrow({"inspect", path("llama.gguf")}), 3, "narrow convert");
  expect_failure(narrow({"eval", model(), "--tokens", path("llama.gguf")}), 3, "`narrow tokenize` makes one), --text a text");
}

TEST_F(CommandTest, UnsupportedInstructionSetIsExitCodeFive) {
  const Outcome outcome = narrow({"kernels", "--cpu", "neon"});
  const Outcome other = narrow({"kernels", "--cpu", "avx2"});
  expect_failure(outcome.code == 0 ? other : outcome, 5, "this CPU has no");  // no CPU has both
}

TEST_F(CommandTest, GpusAreRefusedInOneSentence) {
  expect_failure(narrow({"bench"}), 2, "--model");
  expect_failure(narrow({"bench", "--model", "llama-9"}), 2, "llama-2-7b");
  expect_failure(narrow({"bench", "--model", path("missing.json")}), 4, "missing.json");
  expect_failure(narrow({"bench", "--model", "llama-2-7b", "--device", "tpu"}), 2, "--device");
  expect_failure(narrow({"bench", "--model", "llama-2-7b", "--device", "cpu"}), 5, "CUDA");
  expect_failure(narrow({"bench", "--model", "llama-2-7b", "--scheme", "int99"}), 2, "int99");
  std::ofstream(path("experts.json")) << R"({"model_type": "jamba"})";
  expect_failure(narrow({"bench", "--model", path("experts.json")}), 5, "jamba");
  if (cuda::device_count() > 0) return;
  expect_failure(narrow({"bench", "--model", "llama-2-7b"}), 5, "CUDA");
  expect_failure(narrow({"calibrate", model(), "--device", "cuda", "--tokens", "none", "-o", path("stats")}), 4, "none");
}

TEST_F(CommandTest, BadInputLeavesNothingBehind) {
  expect_failure(narrow({"inspect", path("missing")}), 4, "missing");
  std::ofstream(path("broken.safetensors")) << "this is not a safetensors file";
  expect_failure(narrow({"inspect", path("broken.safetensors")}), 3, "broken.safetensors");
  expect_failure(narrow({"quantize", path("broken.safetensors"), path("out"), "int8:row", "--quiet"}), 3, "broken.safetensors");
  expect_failure(narrow({"quantize", path("missing"), path("out"), "int8:row", "--json"}), 4, "missing");
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_)) left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, testing::UnorderedElementsAre("model", "broken.safetensors"));
}

TEST_F(CommandTest, HelpAndVersion) {
  const Outcome help = narrow({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"formats", "inspect", "plan", "quantize", "dequantize", "compare", "verify", "kernels", "bench"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
    const Outcome own = narrow({name, "--help"});
    EXPECT_EQ(own.code, 0);
    EXPECT_THAT(own.out, HasSubstr("Example:\n  narrow " + std::string(name)));
    EXPECT_THAT(own.out, HasSubstr("Usage: narrow " + std::string(name)));
  }
  EXPECT_THAT(help.out, HasSubstr("Exit codes:"));
  EXPECT_EQ(narrow({"help"}).out, help.out);
  EXPECT_EQ(narrow({"help", "quantize"}).out, narrow({"quantize", "--help"}).out);
  EXPECT_THAT(narrow({"--version"}).out, StartsWith("narrow "));
}

TEST_F(CommandTest, PipesGetPlainText) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"formats"},
                                                                                     {"formats", "fp6_e3m2"},
                                                                                     {"kernels"},
                                                                                     {"inspect", model()},
                                                                                     {"plan", model(), "nvfp4"},
                                                                                     {"quantize", model(), path("out"), "nvfp4"},
                                                                                     {"compare", model(), path("out")},
                                                                                     {"verify", path("out")}}) {
    const Outcome outcome = narrow(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (const char letter : outcome.out + outcome.err)
      ASSERT_TRUE(letter == '\n' || (letter >= ' ' && letter <= '~')) << words[0] << int{letter};
    if (words[0] == "quantize") {
      EXPECT_THAT(outcome.err, HasSubstr("quantize 1/10 "));  // five tensors, written and verified
      EXPECT_THAT(outcome.err, HasSubstr("ETA"));
    }
  }
}

TEST_F(CommandTest, TerminalsGetColourAndABar) {
  const Outcome colored = test::run_on_terminal(command({"quantize", model(), path("out"), "int8:row"}), 100);
  EXPECT_EQ(colored.code, 0);
  EXPECT_THAT(colored.out, HasSubstr("\x1b["));
  EXPECT_THAT(colored.out, HasSubstr("█"));
  EXPECT_THAT(colored.out, HasSubstr("ETA"));
  fs::remove_all(folder_ / "out");
  const Outcome plain = test::run_on_terminal(command({"quantize", model(), path("out"), "int8:row", "--no-color"}), 100);
  EXPECT_THAT(plain.out, Not(HasSubstr("\x1b[")));

  // Tables keep within the terminal.
  for (const unsigned short width : {std::uint16_t{100}, std::uint16_t{140}}) {
    std::istringstream lines(test::run_on_terminal(command({"inspect", model(), "--no-color"}), width).out);
    for (std::string line; std::getline(lines, line);) {
      const std::string last = line.substr(line.rfind('\r', line.size() - 2) + 1);  // after the bar
      const auto columns =
          std::count_if(last.begin(), last.end(), [](char letter) { return (static_cast<unsigned char>(letter) & 0xC0u) != 0x80u; });
      EXPECT_LE(columns, width + 1) << last;
    }
  }
}

TEST_F(CommandTest, AReaderThatLeavesIsNoError) {
  EXPECT_EQ(test::run_unread(command({"formats"})).code, 0);
  EXPECT_EQ(test::run_unread(command({"quantize", model(), path("out"), "int8:row"})).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "out"));
  EXPECT_EQ(narrow({"verify", path("out")}).code, 0);
}

TEST_F(CommandTest, InterruptLeavesNothingBehind) {
  std::map<std::string, Tensor> tensors;
  for (int i = 0; i < 400; ++i)
    tensors["model.layers." + std::to_string(i) + ".mlp.up_proj.weight"] = values({32, 64}, DType::kBf16, static_cast<float>(i));
  fs::create_directories(folder_ / "many");
  write_safetensors(folder_ / "many" / "model.safetensors", tensors);
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome outcome = test::run_and_signal(command({"quantize", path("many"), path("out"), "int8:row"}), signal);
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder_)) left.push_back(entry.path().filename().string());
    EXPECT_THAT(left, testing::UnorderedElementsAre("model", "many"));
  }
}

}  // namespace
}  // namespace narrow
