// Whole checkpoints: quantized, verified, flipped, interrupted, refused.
#include <omp.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "io/files.h"
#include "methods/value_check.h"
#include "methods/whole_scales.h"
#include "narrow/error.h"
#include "narrow/recipe.h"
#include "ops/error_accumulator.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

bool same(std::span<const std::byte> a, std::span<const std::byte> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && same({a.data(), a.byte_size()}, {b.data(), b.byte_size()});
}

using test::contents;

std::uint64_t tensor_file_bytes(const fs::path& directory) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  return bytes;
}

Recipe with_experts(const Scheme& scheme) { return {.scheme = scheme, .targets = {"Linear", "model.experts", "re:.*bias"}}; }

void check_output(const Checkpoint& source, const fs::path& output, const Scheme& scheme, const QuantizeReport& report) {
  const Checkpoint result = open_checkpoint(output);
  ASSERT_TRUE(result.is_quantized());
  EXPECT_EQ(result.names(), source.names());
  std::size_t quantized_count = 0;
  for (const std::string& name : source.names()) {
    const Tensor x = source.tensor(name);
    const std::optional<QuantizedInfo> info = result.quantized_info(name);
    EXPECT_EQ(result.shape(name), x.shape());
    EXPECT_EQ(result.dtype(name), x.dtype());
    if (!info) {
      EXPECT_TRUE(same(result.tensor(name), x)) << name;
      continue;
    }
    EXPECT_EQ(info->scheme, scheme);
    const QuantizedTensor expected = quantize(x, scheme), stored = result.quantized(name);
    EXPECT_TRUE(same(expected.codes.bytes(), stored.codes.bytes())) << name;
    EXPECT_TRUE(same(expected.scales.bytes(), stored.scales.bytes())) << name;
    EXPECT_TRUE(same(expected.zero_points.bytes(), stored.zero_points.bytes())) << name;
    EXPECT_EQ(expected.outer_scale, stored.outer_scale);
    EXPECT_TRUE(same(result.tensor(name), dequantize(expected, x.dtype())));
    ASSERT_LT(quantized_count, report.tensors.size());
    const TensorResult& told = report.tensors[quantized_count++];
    const ErrorMetrics error = compare(x, dequantize(expected));
    EXPECT_EQ(told.name, name);
    EXPECT_EQ(told.error.sqnr_db, error.sqnr_db);
    EXPECT_EQ(told.error.max_absolute, error.max_absolute);
    EXPECT_EQ(told.error.cosine, error.cosine);
    EXPECT_EQ(told.clipped, clipped_share(x, expected)) << name << " " << scheme.to_string();
  }
  EXPECT_EQ(quantized_count, report.tensors.size());
  EXPECT_GE(quantized_count, 6u);
}

TEST(QuantizeCheckpoint, EverySchemeRoundTripsAndVerifies) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  const Checkpoint source = open_checkpoint(place / "in");
  for (const Scheme& scheme : standard_schemes()) {
    SCOPED_TRACE(scheme.to_string());
    const Plan plan = plan_quantize(source, with_experts(scheme), place / "out");
    const QuantizeReport report = quantize_checkpoint(place / "in", place / "out", with_experts(scheme));
    EXPECT_EQ(plan.file_bytes, tensor_file_bytes(place / "out"));
    EXPECT_EQ(plan.bytes_after, report.plan.bytes_after);
    std::uint64_t stored = 0;
    const Checkpoint written = open_checkpoint(place / "out");
    for (const TensorInfo& info : written.stored()) stored += info.byte_size();
    EXPECT_EQ(plan.bytes_after, stored);
    check_output(source, place / "out", scheme, report);
    const VerifyReport verified = verify_checkpoint(place / "out");
    EXPECT_TRUE(verified.problems.empty()) << verified.problems.front();
    EXPECT_EQ(verified.tensors, static_cast<std::int64_t>(source.names().size()));
    fs::remove_all(place / "out");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), {}), 1);
}

TEST(QuantizeCheckpoint, OtherSourceTypesAndOneFile) {
  const test::TemporaryDirectory place;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    test::write_model(place / "in", test::small_model(dtype), false);
    for (const fs::path& input : {place / "in", place / "in" / "model.safetensors"}) {
      const QuantizeReport report = quantize_checkpoint(input, place / "out", with_experts(Scheme::parse("int4:block32:asym")));
      check_output(open_checkpoint(input), place / "out", Scheme::parse("int4:block32:asym"), report);
      EXPECT_TRUE(verify_checkpoint(place / "out").problems.empty());
      fs::remove_all(place / "out");
    }
    fs::remove_all(place / "in");
  }
}

TEST(QuantizeCheckpoint, TheExampleModel) {
  const fs::path model = fs::path(NARROW_EXAMPLES) / "docs-llama-13m";
  if (!fs::exists(model / "config.json")) GTEST_SKIP() << "no example model in this tree";
  const test::TemporaryDirectory place;
  const QuantizeReport report = quantize_checkpoint(model, place / "out", {.scheme = Scheme::parse("nvfp4")});
  EXPECT_EQ(report.tensors.size(), 42u);
  EXPECT_EQ(report.plan.file_bytes, tensor_file_bytes(place / "out"));
  EXPECT_TRUE(verify_checkpoint(place / "out").problems.empty());
}

TEST(QuantizeCheckpoint, CarriesSideFilesAndSaysWhatItIs) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  quantize_checkpoint(place / "in", place / "out",
                      {.scheme = Scheme::parse("int8:row"), .rules = {{"down_proj", Scheme::parse("msfp12")}}});
  const auto files = contents(place / "out");
  EXPECT_EQ(files.size(), 6u);
  EXPECT_EQ(files.at("tokenizer.json"), test::read_bytes(place / "in" / "tokenizer.json"));
  EXPECT_FALSE(files.contains("pytorch_model.bin"));
  const std::string& config = files.at("config.json");
  for (const char* text : {"\"model_type\": \"llama\"", "\"rms_norm_eps\": 1e-05", "\"quant_method\": \"narrow\"",
                           "\"scheme\": \"int8:row\"", "\"scheme\": \"msfp12\"", "\"lm_head\""})
    EXPECT_NE(config.find(text), std::string::npos) << text;
  EXPECT_NE(files.at("model.safetensors.index.json").find("mlp.up_proj.weight.codes"), std::string::npos);
  EXPECT_EQ(open_checkpoint(place / "out").metadata("model-00001-of-00002.safetensors").at("format"), "pt");
}

TEST(QuantizeCheckpoint, TheSameBytesForAnyNumberOfThreadsAndEveryRun) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  const int before = omp_get_max_threads();
  for (const char* scheme : {"int8:tensor", "nvfp4", "int4:block128:asym", "int1:row", "fp8_e4m3:128x128"}) {
    std::map<std::string, std::string> first;
    std::vector<double> sqnr;
    for (const int threads : {1, 2, 3, 1}) {
      omp_set_num_threads(threads);
      sqnr.push_back(quantize_checkpoint(place / "in", place / "out", with_experts(Scheme::parse(scheme))).sqnr_db);
      const auto files = contents(place / "out");
      if (first.empty()) first = files;
      EXPECT_EQ(files, first) << scheme << " on " << threads;
      EXPECT_EQ(sqnr.back(), sqnr.front());
      fs::remove_all(place / "out");
    }
  }
  omp_set_num_threads(before);
}

/// The tensor whose bytes lie at an offset of a file; empty in the header.
std::string tensor_at(const Checkpoint& checkpoint, const std::string& file, std::uint64_t offset) {
  for (const TensorInfo& info : checkpoint.stored())
    if (info.file == file && offset >= info.begin && offset < info.end) {
      for (const std::string& name : checkpoint.names())
        if (info.name == name || (checkpoint.quantized_info(name) && info.name.starts_with(name + "."))) return name;
    }
  return {};
}

TEST(VerifyCheckpoint, FindsOneFlippedBitAnywhere) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  quantize_checkpoint(place / "in", place / "out", with_experts(Scheme::parse("int4:block32:asym")));
  const Checkpoint checkpoint = open_checkpoint(place / "out");
  std::mt19937_64 random(7);
  int data_flips = 0;
  for (const auto& [name, bytes] : contents(place / "out")) {
    const fs::path path = place / "out" / name;
    const bool is_tensor_file = name.ends_with(".safetensors");
    for (int i = 0; i < (is_tensor_file ? 250 : 60); ++i) {
      const std::uint64_t offset = i < 12 ? static_cast<std::uint64_t>(i) : (i == 12 ? bytes.size() - 1 : random() % bytes.size());
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      const char flipped = static_cast<char>(bytes[offset] ^ (1 << random() % 8));
      file.seekp(static_cast<std::streamoff>(offset)).put(flipped).flush();
      const VerifyReport report = verify_checkpoint(place / "out");
      ASSERT_FALSE(report.problems.empty()) << name << " at " << offset;
      const std::string tensor = is_tensor_file ? tensor_at(checkpoint, name, offset) : std::string();
      test::expect_sentence(report.problems.front(), tensor.empty() ? name : "'" + tensor + "'");
      data_flips += tensor.empty() ? 0 : 1;
      file.seekp(static_cast<std::streamoff>(offset)).put(bytes[offset]).flush();
    }
  }
  EXPECT_GT(data_flips, 200);
  EXPECT_TRUE(verify_checkpoint(place / "out").problems.empty());
}

TEST(VerifyCheckpoint, NoticesMissingTruncatedAndAddedFiles) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")});
  for (const auto& [name, bytes] : contents(place / "out")) {
    fs::rename(place / "out" / name, place / "kept");
    try {
      const VerifyReport report = verify_checkpoint(place / "out");
      EXPECT_FALSE(report.problems.empty()) << name;
    } catch (const Error& error) {
      ADD_FAILURE() << name << ": " << error.what();
    }
    test::write_bytes(place / "out" / name, bytes.substr(0, bytes.size() - 1));
    EXPECT_FALSE(verify_checkpoint(place / "out").problems.empty()) << name;
    test::write_bytes(place / "out" / name, bytes + "\n");
    EXPECT_FALSE(verify_checkpoint(place / "out").problems.empty()) << name;
    fs::rename(place / "kept", place / "out" / name);
  }
  EXPECT_TRUE(verify_checkpoint(place / "out").problems.empty());
}

TEST(OpenCheckpoint, SaysThatAWriteWasInterrupted) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), false);
  quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")});
  fs::remove(place / "out" / "narrow_manifest.json");
  try {
    open_checkpoint(place / "out");
    FAIL();
  } catch (const CorruptFile& error) {
    test::expect_sentence(error.what(), "interrupted");
  }
}

TEST(QuantizeCheckpoint, AnExceptionLeavesNothing) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  int calls = 0;
  for (int stop = 1; stop < 30; stop += 5) {
    calls = 0;
    EXPECT_THROW(quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")},
                                     [&](const TensorProgress&) {
                                       if (++calls == stop) throw InvalidArgument("stop");
                                     }),
                 InvalidArgument);
    EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), {}), 1);
  }
}

TEST(QuantizeCheckpointDeathTest, AKilledRunLeavesNoOutput) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TemporaryDirectory own;
  if (std::getenv("NARROW_TEST_PLACE") == nullptr) ::setenv("NARROW_TEST_PLACE", own.path().c_str(), 1);
  const fs::path place = std::getenv("NARROW_TEST_PLACE");
  if (!fs::exists(place / "in")) test::write_model(place / "in", test::small_model(), true);
  EXPECT_EXIT(quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")},
                                  [](const TensorProgress& progress) {
                                    if (progress.stage == Stage::kVerified) ::_exit(9);
                                  }),
              testing::ExitedWithCode(9), "");
  ::unsetenv("NARROW_TEST_PLACE");
  EXPECT_FALSE(fs::exists(place / "out"));
  std::size_t partial = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(place))
    partial += entry.path().filename().string().starts_with(".out.narrow-partial-") ? 1 : 0;
  EXPECT_EQ(partial, 1u);
  EXPECT_NO_THROW(quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")}));
}

TEST(QuantizeCheckpoint, RefusesBeforeAnyWork) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  fs::create_directory(place / "full");
  test::write_bytes(place / "full" / "x", "x");
  test::write_bytes(place / "file", "x");
  fs::create_directory_symlink(place / "in", place / "link");
  const auto expect_refused = [&](const fs::path& input, const fs::path& output, std::string_view why,
                                  const Recipe& recipe = {.scheme = Scheme::parse("int8:row")}) {
    const auto before = std::distance(fs::recursive_directory_iterator(place.path()), {});
    try {
      quantize_checkpoint(input, output, recipe, [](const TensorProgress&) { ADD_FAILURE() << "work was begun"; });
      ADD_FAILURE() << "accepted " << output;
    } catch (const Error& error) {
      test::expect_sentence(error.what(), why);
    }
    EXPECT_EQ(std::distance(fs::recursive_directory_iterator(place.path()), {}), before);
  };
  expect_refused(place / "in", place / "in", "is the input itself");
  expect_refused(place / "in", place / "link", "is the input itself");
  expect_refused(place / "link", place / "in", "is the input itself");
  expect_refused(place / "in", place / "in" / "out", "inside the input");
  expect_refused(place / "in", place / "link" / "out", "inside the input");
  expect_refused(place / "in", place / "full", "is not empty");
  expect_refused(place / "in", place / "file", "exists already");
  expect_refused(place / "in", place / "file" / "out", "is not a directory");
  expect_refused(place / "in", place / "absent" / "out", "is not a directory");
  expect_refused(place / "in", "", "not named");
  expect_refused(place / "absent", place / "out", "does not exist");
  expect_refused(place / "in", place / "out", "not narrower", {.scheme = Scheme::parse("fp32")});
  expect_refused(place / "in", "/proc/out", "bytes, but only 0 are free");
  test::write_bytes(place / "in" / "config.json", R"({"quantization_config": {"quant_method": "gptq"}})");
  expect_refused(place / "in", place / "out", "already quantized by 'gptq'");
  test::write_bytes(place / "in" / "config.json", "[]");
  expect_refused(place / "in", place / "out", "config.json");
  test::write_bytes(place / "in" / "config.json", test::kConfig);
  fs::create_directory(place / "empty");
  EXPECT_NO_THROW(
      quantize_checkpoint(place / "in", place / "empty", {.scheme = Scheme::parse("int8:row")}));  // an empty directory is a place
  expect_refused(place / "empty", place / "out", "already quantized by narrow");
}

TEST(QuantizeCheckpoint, NamesTheTensorAndTheElementThatIsNotFinite) {
  const test::TemporaryDirectory place;
  auto model = test::small_model(DType::kF32);
  model.at("model.layers.1.mlp.up_proj.weight").as<float>()[1234] = std::numeric_limits<float>::quiet_NaN();
  test::write_model(place / "in", model, true);
  try {
    quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")});
    FAIL();
  } catch (const InvalidArgument& error) {
    test::expect_sentence(error.what(), "'model.layers.1.mlp.up_proj.weight' has NaN at element 1234");
  }
  EXPECT_FALSE(fs::exists(place / "out"));
  EXPECT_NO_THROW(quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row"), .ignore = {"up_proj"}}));
}

const TensorResult& result_of(const QuantizeReport& report, std::string_view name) {
  for (const TensorResult& result : report.tensors)
    if (result.name == name) return result;
  throw InvalidArgument("the tensor was not quantized");
}

/// A model with NaN and infinities in one weight, zeros, one value and subnormals in others.
constexpr const char *kPoisoned = "model.layers.1.mlp.up_proj.weight", *kZero = "model.layers.0.mlp.up_proj.weight",
                     *kConstant = "model.layers.0.mlp.down_proj.weight", *kSubnormal = "model.layers.1.mlp.down_proj.weight";
std::map<std::string, Tensor> poisoned_model() {
  auto model = test::small_model(DType::kF32);
  float* values = model.at(kPoisoned).as<float>();
  values[3] = values[1234] = std::numeric_limits<float>::quiet_NaN();
  values[77] = -std::numeric_limits<float>::infinity();
  const auto fill = [&](const char* name, float value) { std::fill_n(model.at(name).as<float>(), model.at(name).size(), value); };
  fill(kZero, 0.0f);
  fill(kConstant, 0.25f);
  fill(kSubnormal, 1e-40f);
  return model;
}

TEST(QuantizeCheckpoint, RoundsNonFiniteValuesToTheNearestAndCountsThem) {
  const test::TemporaryDirectory place;
  const auto model = poisoned_model();
  test::write_model(place / "in", model, true);
  for (const Scheme& scheme : standard_schemes()) {
    SCOPED_TRACE(scheme.to_string());
    const QuantizeReport report =
        quantize_checkpoint(place / "in", place / "out", {.scheme = scheme, .on_nonfinite = OnNonFinite::kNearest});
    const SpecialValues &poison = result_of(report, kPoisoned).source, &zero = result_of(report, kZero).source;
    EXPECT_EQ(poison.nans, 2);
    EXPECT_EQ(poison.infinities, 1);
    EXPECT_FALSE(poison.is_constant || poison.is_zero);
    EXPECT_TRUE(std::isfinite(result_of(report, kPoisoned).error.rms));
    EXPECT_TRUE(zero.is_zero && zero.is_constant && zero.all_finite());
    EXPECT_TRUE(result_of(report, kConstant).source.is_constant);
    EXPECT_FALSE(result_of(report, kConstant).source.is_zero);
    EXPECT_EQ(result_of(report, kSubnormal).source.subnormals, model.at(kSubnormal).size());
    EXPECT_TRUE(report.kept.empty());
    const Tensor y = open_checkpoint(place / "out").tensor(kPoisoned);
    EXPECT_NE(std::isfinite(y.as<float>()[3]), scheme.element.has_nan());
    EXPECT_TRUE(std::isfinite(y.as<float>()[77]));
    fs::remove_all(place / "out");
  }
}

TEST(QuantizeCheckpoint, KeepsTensorsThatAreNotFinite) {
  const test::TemporaryDirectory place;
  const auto model = poisoned_model();
  test::write_model(place / "in", model, true);
  const QuantizeReport report =
      quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row"), .on_nonfinite = OnNonFinite::kKeep});
  ASSERT_EQ(report.kept.size(), 1u);
  EXPECT_EQ(report.kept[0].name, kPoisoned);
  EXPECT_EQ(report.kept[0].source.nans, 2);
  EXPECT_EQ(report.kept[0].source.infinities, 1);
  const Checkpoint written = open_checkpoint(place / "out");
  EXPECT_FALSE(written.quantized_info(kPoisoned));
  EXPECT_TRUE(same(written.tensor(kPoisoned), model.at(kPoisoned)));
  EXPECT_EQ(report.plan.file_bytes, tensor_file_bytes(place / "out"));
  EXPECT_TRUE(verify_checkpoint(place / "out").problems.empty());
  // fp8_e4m3 holds a NaN, an infinity it does not.
  auto nans = test::small_model(DType::kF32);
  nans.at(kPoisoned).as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  test::write_model(place / "nans", nans, true);
  const QuantizeReport held =
      quantize_checkpoint(place / "nans", place / "held", {.scheme = Scheme::parse("fp8_e4m3:row"), .on_nonfinite = OnNonFinite::kKeep});
  EXPECT_TRUE(held.kept.empty());
  EXPECT_EQ(result_of(held, kPoisoned).source.nans, 1);
  EXPECT_TRUE(std::isnan(open_checkpoint(place / "held").tensor(kPoisoned).as<float>()[3]));
}

TEST(QuantizeCheckpoint, ParsesPolicies) {
  for (const char* name : {"error", "keep", "nearest"}) EXPECT_EQ(name_of(parse_on_nonfinite(name)), name);
  EXPECT_THROW(parse_on_nonfinite("ignore"), InvalidArgument);
}

TEST(QuantizeCheckpoint, RefusesPartsThatCollide) {
  const test::TemporaryDirectory place;
  auto model = test::small_model();
  model.emplace("model.layers.0.mlp.up_proj.weight.codes", Tensor::of({1}, {1}));
  test::write_model(place / "in", model, false);
  EXPECT_THROW(quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int8:row")}), InvalidArgument);
}

TEST(DequantizeCheckpoint, GivesAPlainOne) {
  const test::TemporaryDirectory place;
  test::write_model(place / "in", test::small_model(), true);
  quantize_checkpoint(place / "in", place / "q", with_experts(Scheme::parse("nvfp4")));
  const Checkpoint q = open_checkpoint(place / "q");
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    dequantize_checkpoint(place / "q", place / "out", dtype);
    const Checkpoint plain = open_checkpoint(place / "out");
    EXPECT_FALSE(plain.is_quantized());
    EXPECT_EQ(plain.names(), q.names());
    EXPECT_EQ(plain.config().find("quantization_config"), std::string::npos);
    for (const std::string& name : plain.names()) {
      const Tensor expected = q.quantized_info(name) ? dequantize(q.quantized(name), dtype)
                                                     : (is_floating(q.dtype(name)) ? convert(q.tensor(name), dtype) : q.tensor(name));
      EXPECT_TRUE(same(plain.tensor(name), expected)) << name;
    }
    fs::remove_all(place / "out");
  }
  EXPECT_THROW(dequantize_checkpoint(place / "in", place / "out", DType::kF32), InvalidArgument);
  EXPECT_THROW(dequantize_checkpoint(place / "q", place / "out", DType::kI8), InvalidArgument);
  EXPECT_THROW(dequantize_checkpoint(place / "q", place / "q", DType::kF32), InvalidArgument);
}

TEST(RowChunks, GiveTheBytesOfTheWhole) {
  std::set<std::string> cut_schemes;
  for (const Scheme& scheme : standard_schemes())
    for (const Shape& shape : {Shape{300}, Shape{150, 40}, Shape{3, 70, 24}, Shape{2, 2, 5, 16}, Shape{0, 8}, Shape{8, 0}}) {
      const Tensor x = test::random_values(DType::kF32, shape, 3);
      const QuantizedTensor whole = quantize(x, scheme);
      std::vector<std::byte> codes, scales, zero_points;
      const std::int64_t cols = as_matrices(shape).cols;
      const auto rows_of = [&](const RowChunk& chunk) {
        return Tensor::borrow(x.as<float>() + chunk.first * cols, DType::kF32, chunk.shape);
      };
      const Reading reading = plan_reading(scheme, {}, shape, DType::kF32, 3000);
      std::optional<WholeScales> whole_scales;
      if (reading.twice) whole_scales.emplace(scheme, shape, reading.chunks, rows_of);
      std::int64_t grid_rows = 0;
      for (const RowChunk& chunk : reading.chunks) {
        const QuantizedTensor q = quantize(rows_of(chunk), scheme, whole_scales ? whole_scales->options_for(chunk, {}) : QuantizeOptions{});
        codes.insert(codes.end(), q.codes.bytes().begin(), q.codes.bytes().end());
        EXPECT_EQ(q.outer_scale, whole.outer_scale);
        if (chunk.first_grid_row < grid_rows) continue;  // they share the run's before
        scales.insert(scales.end(), q.scales.bytes().begin(), q.scales.bytes().end());
        zero_points.insert(zero_points.end(), q.zero_points.bytes().begin(), q.zero_points.bytes().end());
        grid_rows = chunk.first_grid_row + chunk.grid_rows;
      }
      if (reading.chunks.size() > 1) cut_schemes.insert(scheme.to_string());
      EXPECT_TRUE(same(codes, whole.codes.bytes())) << scheme.to_string() << to_string(shape);
      EXPECT_TRUE(same(zero_points, whole.zero_points.bytes())) << scheme.to_string() << to_string(shape);
      EXPECT_TRUE(same(scales, whole.scales.bytes())) << scheme.to_string() << to_string(shape);
      std::int64_t rows = 0;
      for (const RowChunk& chunk : dequantize_chunks(scheme, shape, DType::kF32, 3000)) {
        EXPECT_EQ(chunk.first, rows);
        EXPECT_EQ(scale_grid(scheme, chunk.shape).rows, chunk.grid_rows) << scheme.to_string() << to_string(shape);
        rows += chunk.count;
      }
      EXPECT_EQ(rows, as_matrices(shape).total_rows());
    }
  EXPECT_EQ(cut_schemes.size(), standard_schemes().size());  // none of them needs a large tensor in one piece
}

TEST(ErrorAccumulator, DoesNotDependOnTheCut) {
  const Tensor x = test::random_values(DType::kF32, {100'000}, 1), y = test::random_values(DType::kF32, {100'000}, 2);
  const ErrorMetrics whole = compare(x, y);
  for (const std::int64_t piece : {1000, 16383, 16384, 16385, 70'000}) {
    ErrorAccumulator sums;
    for (std::int64_t i = 0; i < x.size(); i += piece) {
      const Shape shape{std::min(piece, x.size() - i)};
      sums.add(Tensor::borrow(x.as<float>() + i, DType::kF32, shape), Tensor::borrow(y.as<float>() + i, DType::kF32, shape));
    }
    const ErrorMetrics metrics = sums.metrics();
    EXPECT_EQ(metrics.mean_absolute, whole.mean_absolute);
    EXPECT_EQ(metrics.sqnr_db, whole.sqnr_db);
    EXPECT_EQ(metrics.cosine, whole.cosine);
    EXPECT_EQ(metrics.max_absolute, whole.max_absolute);
  }
}

TEST(ValueCheck, FindsAValueThatIsOneStepOff) {
  for (const Scheme& scheme : standard_schemes()) {
    const Tensor x = test::random_values(DType::kF32, {37, 50}, 5, 1.0f);
    const QuantizedTensor q = quantize(x, scheme);
    Tensor y = dequantize(q);
    EXPECT_EQ(check_values(x, y, q).first_violation, -1) << scheme.to_string();
    // The smallest value is never clipped; anything as large as the largest value is further from it than a step, in a row's scale.
    std::int64_t smallest = 0;
    for (std::int64_t i = 0; i < x.size(); ++i)
      if (std::fabs(x.as<float>()[i]) < std::fabs(x.as<float>()[smallest])) smallest = i;
    y.as<float>()[smallest] = 1000.0f;
    EXPECT_EQ(check_values(x, y, q).first_violation, smallest) << scheme.to_string();
  }
}

}  // namespace
}  // namespace narrow
