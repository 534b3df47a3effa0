// Shards made by any process in any order are the bytes of one run, and reports that do not belong together are refused.
#include "narrow/shards.h"

#include <limits>

#include <gmock/gmock.h>

#include "io/files.h"
#include "methods/shard.h"
#include "model/small_model.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

using test::contents;

template <typename Kind>
void expect_refused(const std::function<void()>& work, const std::string& words) {
  try {
    work();
    FAIL() << "not refused";
  } catch (const Kind& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

class ShardsTest : public testing::Test {
 protected:
  void SetUp() override { test::write_model(place_ / "in", test::small_model(), true); }
  test::TemporaryDirectory place_;
};

TEST_F(ShardsTest, AreTheBytesOfOneRun) {
  for (const char* scheme : {"int4:block32:asym", "nvfp4", "int8:tensor"}) {
    SCOPED_TRACE(scheme);
    Recipe recipe = Recipe::of(scheme);
    recipe.rules.emplace_back("down_proj", Scheme::parse("fp8_e4m3:row"));
    const QuantizeReport one = quantize_checkpoint(place_ / "in", place_ / "one", recipe);
    fs::create_directory(place_ / "many");
    std::vector<std::string> reports;
    const std::size_t count = ShardedQuantize(place_ / "in", recipe).shards().size();
    ASSERT_EQ(count, 2u);
    for (std::size_t shard = count; shard-- > 0;)  // a worker of its own each, which has nothing but the recipe's text
      reports.push_back(ShardedQuantize(place_ / "in", Recipe::from_json(recipe.to_json())).write(shard, place_ / "many"));
    const QuantizeReport many = ShardedQuantize(place_ / "in", recipe).finish(place_ / "many", reports);
    EXPECT_EQ(contents(place_ / "many"), contents(place_ / "one"));
    EXPECT_EQ(many.sqnr_db, one.sqnr_db);
    ASSERT_EQ(many.tensors.size(), one.tensors.size());
    for (std::size_t i = 0; i < one.tensors.size(); ++i) {
      EXPECT_EQ(many.tensors[i].name, one.tensors[i].name);
      EXPECT_EQ(many.tensors[i].error.cosine, one.tensors[i].error.cosine);
    }
    EXPECT_TRUE(verify_checkpoint(place_ / "many").problems.empty());
    fs::remove_all(place_ / "one");
    fs::remove_all(place_ / "many");
  }
}

TEST_F(ShardsTest, SayWhatTheyCost) {
  const ShardedQuantize run(place_ / "in", Recipe::of("int4:block32"));
  std::uint64_t before = 0, after = 0;
  for (const Shard& shard : run.shards()) {
    before += shard.bytes_before;
    after += shard.file_bytes;
    EXPECT_GT(shard.tensors, 0u);
  }
  EXPECT_EQ(before, run.plan().bytes_before);
  EXPECT_EQ(after, run.plan().file_bytes);
}

TEST_F(ShardsTest, AMethodsCodesComeFromItsJournal) {
  test::write_decoder(place_ / "decoder", {});
  std::vector<std::vector<std::int32_t>> windows{test::random_tokens(32, 96, 1)};
  const Recipe recipe = Recipe::of("int4:block32:asym");
  const Method method = Method::parse("gptq");
  quantize_checkpoint(place_ / "decoder", place_ / "one", recipe, method, {.windows = windows});
  // A run that is stopped after its last weight leaves a complete journal.
  struct Stop {};
  EXPECT_THROW(quantize_checkpoint(place_ / "decoder", place_ / "two", recipe, method, {.windows = windows},
                                   {.journal = place_ / "journal", .progress = [](const TensorProgress&) { throw Stop(); }}),
               Stop);
  const ShardedQuantize run(place_ / "decoder", recipe);
  fs::create_directory(place_ / "many");
  const std::string fingerprint = test::read_bytes(place_ / "journal" / "fingerprint");
  std::vector<std::string> reports;
  for (std::size_t shard = 0; shard < run.shards().size(); ++shard)
    reports.push_back(run.write(shard, place_ / "many", {place_ / "journal", fingerprint, method}));
  run.finish(place_ / "many", reports);
  EXPECT_EQ(contents(place_ / "many"), contents(place_ / "one"));
}

TEST_F(ShardsTest, ReportsMustBeOfThisPlanAndComplete) {
  const ShardedQuantize run(place_ / "in", Recipe::of("int8:row")), other(place_ / "in", Recipe::of("int4:row"));
  EXPECT_NE(run.fingerprint(), other.fingerprint());
  EXPECT_EQ(run.fingerprint(), ShardedQuantize(place_ / "in", Recipe::of("int8:row")).fingerprint());
  fs::create_directory(place_ / "a");
  fs::create_directory(place_ / "b");
  const std::string first = run.write(0, place_ / "a"), second = run.write(1, place_ / "a"), foreign = other.write(1, place_ / "b");
  const auto finish = [&](std::vector<std::string> reports) { return [&, reports] { run.finish(place_ / "a", reports); }; };
  expect_refused<InvalidArgument>(finish({first}), "is not reported");
  expect_refused<InvalidArgument>(finish({first, second, second}), "twice");
  expect_refused<InvalidArgument>(finish({first, foreign}), "of another plan");
  expect_refused<InvalidArgument>([&] { run.write(2, place_ / "a"); }, "shard 2 is not one of the 2");
  std::string damaged = first;
  damaged[damaged.find("xxh3") + 9] ^= 1;
  expect_refused<CorruptFile>(finish({damaged, second}), "");
  expect_refused<CorruptFile>(finish({"{}", second}), "lacks a field");
  expect_refused<CorruptFile>(finish({"", second}), "");
  EXPECT_FALSE(fs::exists(place_ / "a" / "narrow_manifest.json"));
}

TEST(ShardResultTest, InfinitiesTravel) {
  ShardResult result;
  result.manifest.narrow_version = "1";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  result.tensors.push_back({"w", Scheme::parse("int8:row"), {.sqnr_db = kInfinity, .cosine = 1.0 / 3.0}, 0.1});
  const ShardResult back = parse_shard_result(print_shard_result(result), "test");
  EXPECT_EQ(back.tensors.front().error.sqnr_db, kInfinity);
  EXPECT_EQ(back.tensors.front().error.cosine, 1.0 / 3.0);
  EXPECT_EQ(back.tensors.front().clipped, 0.1);
}

TEST(RecipeJson, KeepsEverything) {
  Recipe recipe = Recipe::of("W8A8-static");
  recipe.targets = {"re:.*proj", "Linear"};
  recipe.ignore = {"a\"b", "lm_head"};
  recipe.rules = {{"x", Scheme::parse("nvfp4")}, {"y", Scheme::parse("int3:block64:asym:scale=fp16")}};
  recipe.options.rounding = Rounding::kStochastic;
  recipe.options.overflow = Overflow::kIeee;
  recipe.options.nonfinite = NonFinite::kSaturate;
  recipe.options.seed = 0xFFFFFFFFFFFFFFFFu;
  recipe.activations->scales["m"] = {0.1f, 7};
  recipe.activations->rules.emplace_back("z", std::nullopt);
  const Recipe back = Recipe::from_json(recipe.to_json());
  EXPECT_EQ(back.to_json(), recipe.to_json());
  EXPECT_EQ(back.scheme, recipe.scheme);
  EXPECT_EQ(back.targets, recipe.targets);
  EXPECT_EQ(back.ignore, recipe.ignore);
  EXPECT_EQ(back.rules, recipe.rules);
  EXPECT_EQ(back.options.rounding, recipe.options.rounding);
  EXPECT_EQ(back.options.overflow, recipe.options.overflow);
  EXPECT_EQ(back.options.nonfinite, recipe.options.nonfinite);
  EXPECT_EQ(back.options.seed, recipe.options.seed);
  EXPECT_EQ(back.activations->scales.at("m").scale, 0.1f);
  EXPECT_FALSE(back.activations->scheme_of("z"));
}

TEST(RecipeJson, RefusesWhatItDoesNotWrite) {
  const std::string good = Recipe::of("int8:row").to_json();
  const auto parse = [](std::string text) { return [text] { Recipe::from_json(text); }; };
  expect_refused<InvalidArgument>(parse(""), "");
  expect_refused<InvalidArgument>(parse("{}"), "lacks a field");
  std::string bad = good;
  bad.replace(bad.find("nearest_even"), 12, "upwards_only");
  expect_refused<InvalidArgument>(parse(bad), "its rounding cannot be 'upwards_only'");
  for (const char* seed : {"1.5", "-1", "1e300", "null"}) {
    std::string other = good;
    const std::size_t place = other.find("\"seed\":") + 7;
    other.replace(place, other.find_first_of(",}", place) - place, seed);
    expect_refused<InvalidArgument>(parse(other), "its seed is not a whole number");
  }
  Recipe recipe = Recipe::of("int8:row");
  recipe.options.outer_scale = 1.0f;
  expect_refused<InvalidArgument>([&] { recipe.to_json(); }, "belong to one tensor");
}

}  // namespace
}  // namespace narrow
