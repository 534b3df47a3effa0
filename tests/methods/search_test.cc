// The search for the best mix: exact assignments, budgets kept to the byte, recipes that quantize follows.
#include "narrow/search.h"

#include <cmath>
#include <random>

#include "io/files.h"
#include "methods/knapsack.h"
#include "model/small_model.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

TEST(Knapsack, FindsTheBestOfAllAssignments) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<LayerChoice>> layers(5);
    for (auto& choices : layers)
      for (int c = 0; c < 4; ++c) choices.push_back({16 * (1 + random() % 40), 0.01 * static_cast<double>(random() % 1000)});
    const Knapsack knapsack(layers);
    const std::uint64_t budget = 200 + random() % 2500;
    double best = HUGE_VAL;
    for (int code = 0; code < 1024; ++code) {
      std::uint64_t bytes = 0;
      double cost = 0.0;
      for (int layer = 0, rest = code; layer < 5; ++layer, rest /= 4) {
        const LayerChoice& choice = layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(rest % 4)];
        bytes += choice.bytes;
        cost += choice.cost;
      }
      if (bytes <= budget) best = std::min(best, cost);
    }
    const auto found = knapsack.within(budget);
    ASSERT_EQ(found.has_value(), best < HUGE_VAL);
    if (!found) continue;
    EXPECT_NEAR(found->cost, best, 1e-9);
    EXPECT_LE(found->bytes, budget);
    const auto cheap = knapsack.below(found->cost + 1e-9);
    ASSERT_TRUE(cheap);
    EXPECT_LE(cheap->bytes, found->bytes);
    EXPECT_LE(cheap->cost, found->cost + 1e-9);
  }
}

TEST(Knapsack, NeverExceedsABudgetOfManyBytes) {
  std::mt19937_64 random(4);
  std::vector<std::vector<LayerChoice>> layers(40);
  for (auto& choices : layers)
    for (int c = 0; c < 6; ++c) choices.push_back({1000000007ull + random() % 4000000000ull, static_cast<double>(random() % 1000)});
  const Knapsack knapsack(layers);
  for (const double share : {1.0, 1.1, 1.5, 3.0}) {
    const std::uint64_t budget = static_cast<std::uint64_t>(share * static_cast<double>(knapsack.least_bytes()));
    const auto found = knapsack.within(budget);
    ASSERT_TRUE(found);
    EXPECT_LE(found->bytes, budget);
  }
  EXPECT_FALSE(knapsack.within(knapsack.least_bytes() - 1));
}

TEST(SearchMenu, IsOfKnownSchemes) { EXPECT_EQ(default_menu().size(), 10u); }

class Search : public testing::Test {
 protected:
  void SetUp() override {
    test::write_decoder(place_ / "in", {});
    for (unsigned seed = 0; seed < 4; ++seed) windows_.push_back(test::random_tokens(40, 96, seed));
  }
  SearchOptions options() const {
    SearchOptions result;
    for (const char* scheme : {"int3:block32", "int4:block32", "fp6_e2m3:row", "int8:row"}) result.menu.push_back(Scheme::parse(scheme));
    return result;
  }
  test::TemporaryDirectory place_;
  std::vector<std::vector<std::int32_t>> windows_;
};

TEST_F(Search, KeepsItsBudgetAndQuantizeFollows) {
  double last = HUGE_VAL;
  for (const double bits : {4.5, 5.25, 7.0}) {
    SearchOptions how = options();
    how.bits = bits;
    const SearchResult result = search_schemes(place_ / "in", windows_, how);
    EXPECT_EQ(result.modules.size(), 14u);
    EXPECT_LE(result.bits, bits);
    EXPECT_GT(result.bits, bits - 0.25);
    EXPECT_LT(result.divergence, last);
    last = result.divergence;
    test::write_bytes(place_ / "mix.yaml", recipe_yaml(result.recipe));
    const Recipe recipe = Recipe::load_yaml(place_ / "mix.yaml");
    const fs::path out = place_ / fmt::format("out{}", bits);
    const QuantizeReport report = quantize_checkpoint(place_ / "in", out, recipe);
    EXPECT_NEAR(report.plan.bits_per_weight, result.bits, 1e-12);
    std::uint64_t bytes = 0;
    for (const SearchedModule& module : result.modules) {
      const auto info = open_checkpoint(out).quantized_info(module.module + ".weight");
      ASSERT_TRUE(info);
      EXPECT_EQ(info->scheme, result.menu[module.choice]) << module.module;
      bytes += quantized_bytes(info->scheme, info->shape);
    }
    EXPECT_EQ(bytes, result.bytes);
  }
}

TEST_F(Search, OtherBudgets) {
  SearchOptions how = options();
  how.bytes = 100000;
  const SearchResult small = search_schemes(place_ / "in", windows_, how);
  const Plan plan = plan_quantize(open_checkpoint(place_ / "in"), small.recipe, place_.path());
  EXPECT_LE(plan.file_bytes, 100000u);
  EXPECT_GT(plan.file_bytes, 95000u);
  how.bytes.reset();
  how.divergence = small.divergence * 1.001;
  const SearchResult same = search_schemes(place_ / "in", windows_, how);
  EXPECT_LE(same.divergence, *how.divergence);
  EXPECT_LE(same.bytes, small.bytes);
  for (std::size_t i = 1; i < same.curve.size(); ++i) {
    EXPECT_GT(same.curve[i].bits, same.curve[i - 1].bits);
    EXPECT_LE(same.curve[i].divergence, same.curve[i - 1].divergence);
  }
}

TEST_F(Search, WrongUseIsOneSentence) {
  SearchOptions how = options();
  EXPECT_THROW(search_schemes(place_ / "in", windows_, how), InvalidArgument);  // no budget
  how.bits = 4.5;
  EXPECT_THROW(search_schemes(place_ / "in", {}, how), InvalidArgument);  // no text
  how.method = Method::parse("awq");
  EXPECT_THROW(search_schemes(place_ / "in", windows_, how), InvalidArgument);
  how.method = {};
  how.bits = 2.0;
  EXPECT_THROW(search_schemes(place_ / "in", windows_, how), InvalidArgument);  // too small
}

}  // namespace
}  // namespace narrow
