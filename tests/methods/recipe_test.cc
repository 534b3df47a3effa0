#include "narrow/recipe.h"

#include "io/files.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"

namespace narrow {
namespace {

const Scheme kInt8Row = Scheme::parse("int8:row");
const Scheme kInt4 = Scheme::parse("int4:block128");

struct Case {
  const char* name;
  Shape shape;
};

bool quantizes(const Recipe& recipe, std::string_view name, const Shape& shape = {8, 8}, DType dtype = DType::kBf16) {
  return RecipeMatcher(recipe).decide(name, dtype, shape).fate == Fate::kQuantize;
}

TEST(Recipe, DefaultsAreTheWeightsOfLinearLayers) {
  const Recipe recipe{.scheme = kInt8Row};
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "transformer.h.3.mlp.c_fc.weight", "encoder.layer.1.attention.output.dense.weight"})
    EXPECT_TRUE(quantizes(recipe, name)) << name;
  for (const char* name :
       {"model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight", "bert.embeddings.word_embeddings.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "lm_head.weight", "model.norm.weight", "h.0.ln_1.weight",
        "model.layers.0.self_attn.rotary.inv_freq", "model.layers.0.mlp.gate.e_score_correction_bias"})
    EXPECT_FALSE(quantizes(recipe, name)) << name;
  EXPECT_FALSE(quantizes(recipe, "a.q_proj.weight", {8}));
  EXPECT_FALSE(quantizes(recipe, "a.conv.weight", {8, 8, 3}));
  EXPECT_FALSE(quantizes(recipe, "a.q_proj.weight", {8, 8}, DType::kI64));
  EXPECT_FALSE(quantizes(recipe, "a.q_proj.weight", {8, 8}, DType::kF8E4m3));
  EXPECT_EQ(RecipeMatcher(recipe).decide("lm_head.weight", DType::kF32, {8, 8}).reason, "ignored by lm_head");
  EXPECT_EQ(RecipeMatcher(recipe).decide("a.q_proj.weight", DType::kF32, {8, 8}).reason, "Linear weight");
}

TEST(Recipe, PatternsAreNamesModulesLastPartsAndExpressions) {
  const std::string name = "model.layers.3.mlp.down_proj.weight";
  for (const char* pattern : {"model.layers.3.mlp.down_proj.weight", "model.layers.3.mlp.down_proj", "down_proj", "re:.*down_proj",
                              "re:.*down_proj$", "re:model", "re:.*\\.[0-9]\\.mlp", "Linear"})
    EXPECT_TRUE(quantizes({.scheme = kInt8Row, .targets = {pattern}}, name)) << pattern;
  for (const char* pattern : {"mlp", "weight", "down", "model.layers.3", "re:down_proj", "re:.*up_proj", "layers.3.mlp.down_proj"})
    EXPECT_FALSE(quantizes({.scheme = kInt8Row, .targets = {pattern}}, name)) << pattern;
  EXPECT_TRUE(quantizes({.scheme = kInt8Row, .targets = {"re:.*embed"}}, "model.embed_tokens.weight"));
  EXPECT_FALSE(quantizes({.scheme = kInt8Row, .targets = {"re:.*"}, .ignore = {"down_proj"}}, name));
  EXPECT_FALSE(quantizes({.scheme = kInt8Row, .ignore = {"Linear"}}, name));
  EXPECT_FALSE(quantizes({.scheme = kInt8Row, .targets = {"re:.*"}}, "scalar.weight", {}));
  EXPECT_FALSE(quantizes({.scheme = kInt8Row}, "a.up_proj.weight", {std::int64_t{1} << 50, 0}));
}

TEST(Recipe, TheFirstRuleThatMatchesReplacesTheScheme) {
  const Recipe recipe{.scheme = kInt4, .rules = {{"re:.*down_proj", kInt8Row}, {"Linear", Scheme::parse("nvfp4")}}};
  const RecipeMatcher matcher(recipe);
  EXPECT_EQ(matcher.decide("a.down_proj.weight", DType::kF32, {8, 8}).scheme, kInt8Row);
  EXPECT_EQ(matcher.decide("a.up_proj.weight", DType::kF32, {8, 8}).scheme, Scheme::parse("nvfp4"));
  EXPECT_EQ(matcher.decide("lm_head.weight", DType::kF32, {8, 8}).fate, Fate::kCopy);
}

/// What a recipe does to four tensors, without files.
Plan plan_of(const Recipe& recipe) {
  const RecipeMatcher matcher(recipe);
  Plan plan;
  for (const char* name : {"lm_head.weight", "a.down_proj.weight", "a.up_proj.weight", "norm.weight"}) {
    const RecipeMatcher::Decision decision = matcher.decide(name, DType::kBf16, {8, 8});
    plan.tensors.push_back({.name = name, .fate = decision.fate, .scheme = decision.scheme, .reason = decision.reason, .shape = {8, 8}});
  }
  return plan;
}

TEST(Recipe, PatternsThatChangeNothingAreTold) {
  const auto idle = [](const Recipe& recipe) { return idle_patterns(plan_of(recipe), recipe); };
  EXPECT_TRUE(idle({.scheme = kInt8Row}).empty());
  EXPECT_TRUE(
      idle({.scheme = kInt8Row, .targets = {"Linear"}, .ignore = {"re:.*head"}, .rules = {{"up_proj", kInt4}, {"Linear", kInt4}}}).empty());
  EXPECT_EQ(idle({.scheme = kInt8Row, .targets = {"proj", "re:.*proj"}, .ignore = {"head"}}),
            (std::vector<std::string>{"the target 'proj' matches no tensor", "the pattern to ignore 'head' matches no tensor"}));
  EXPECT_EQ(idle({.scheme = kInt8Row, .rules = {{"Linear", kInt4}, {"up_proj", kInt4}, {"lm_head", kInt4}, {"gate", kInt4}}}),
            (std::vector<std::string>{"the rule 'up_proj' changes nothing: a.up_proj.weight is taken by the rule Linear before it",
                                      "the rule 'lm_head' changes nothing: lm_head.weight is left as it is (ignored by lm_head)",
                                      "the rule 'gate' matches no tensor"}));
  Recipe activations = Recipe::of("W8A8");
  activations.activations->rules = {{"down_proj", std::nullopt}, {"gate", std::nullopt}};
  EXPECT_EQ(idle(activations), std::vector<std::string>{"the activation rule 'gate' matches no tensor"});
}

TEST(Recipe, PlansThatNobodyWantsAreRefused) {
  EXPECT_NO_THROW(check_quantizes(plan_of({.scheme = kInt8Row})));
  EXPECT_THROW(check_quantizes(plan_of({.scheme = kInt8Row, .targets = {"proj"}})), InvalidArgument);
  EXPECT_THROW(check_quantizes(Plan{}), InvalidArgument);
  Recipe recipe = Recipe::of("W8A8-static");
  EXPECT_THROW(check_calibrated(plan_of(recipe), recipe), InvalidArgument);
  recipe.activations->scales = {{"a.down_proj", {}}};
  EXPECT_THROW(check_calibrated(plan_of(recipe), recipe), InvalidArgument);
  recipe.activations->rules = {{"up_proj", std::nullopt}};
  EXPECT_NO_THROW(check_calibrated(plan_of(recipe), recipe));
  EXPECT_NO_THROW(check_calibrated(plan_of(Recipe::of("W8A8")), Recipe::of("W8A8")));
}

TEST(Recipe, NamesOfElsewhereAreAnsweredWithOurs) {
  const auto sentence = [](std::string_view text) -> std::string {
    try {
      Recipe::of(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& [text, part] :
       {std::pair("w8a8", "written W8A8"), std::pair("fp8-dynamic", "written FP8_DYNAMIC"), std::pair("Q4_K_M", "GGUF"),
        std::pair("iq4_nl", "GGUF"), std::pair("INT8:row", "write int8"), std::pair("fp8", "write fp8_e4m3 or fp8_e5m2"),
        std::pair("int4:g64", "write block64"), std::pair("int4:channel", "write row"), std::pair("int9", "write int1, int2"),
        std::pair("posit8", "narrow formats")})
    EXPECT_NE(sentence(text).find(part), std::string::npos) << text << ": " << sentence(text);
}

TEST(Recipe, BadPatternsAreSentences) {
  for (const std::string& pattern :
       {std::string("re:("), std::string("re:["), std::string("re:a{2,1}"), std::string(), std::string("re:(a)\\1"),
        "re:" + std::string(600, 'a'), std::string("re:(((a{900}){900}){900})"), std::string("re:(?:a?){10000}"),
        std::string("re:((a?){200}){90}"), std::string("re:a{99999999999"), std::string("re:\\99999999999")})
    EXPECT_THROW(RecipeMatcher({.scheme = kInt8Row, .targets = {pattern}}), InvalidArgument) << pattern;
  EXPECT_TRUE(quantizes({.scheme = kInt8Row, .targets = {"re:model\\.layers\\.[0-9]{1,3}\\..*"}}, "model.layers.12.mlp.up_proj.weight"));
  EXPECT_THROW(RecipeMatcher(Recipe{}), InvalidArgument);
  EXPECT_THROW(RecipeMatcher({.scheme = Scheme::parse("fp32")}), InvalidArgument);
  EXPECT_FALSE(quantizes({.scheme = kInt8Row, .targets = {"re:(a+)+$"}}, std::string(1000, 'a') + "b"));  // not exponential
  EXPECT_THROW(quantizes({.scheme = kInt8Row, .targets = {"re:.*"}}, std::string(100'000, 'a')), InvalidArgument);
}

Recipe load(const std::string& text) {
  const test::TemporaryDirectory place;
  test::write_bytes(place / "recipe.yaml", text);
  return Recipe::load_yaml(place / "recipe.yaml");
}

TEST(RecipeYaml, IsReadWhole) {
  const Recipe recipe = load(
      "# a comment\nscheme: int4:block128\ntargets: ['re:.*proj']\nignore:\n  - lm_head\n  - re:.*gate\nrules:\n"
      "  - {match: 're:.*down_proj', scheme: int8:row}\n  - re:.*x=y=int4:block64:scale=fp16\n");
  EXPECT_EQ(recipe.scheme, kInt4);
  EXPECT_EQ(recipe.targets, std::vector<std::string>{"re:.*proj"});
  EXPECT_EQ(recipe.ignore, (std::vector<std::string>{"lm_head", "re:.*gate"}));
  ASSERT_EQ(recipe.rules.size(), 2u);
  EXPECT_EQ(recipe.rules[0].first, "re:.*down_proj");
  EXPECT_EQ(recipe.rules[0].second, kInt8Row);
  EXPECT_EQ(recipe.rules[1].first, "re:.*x=y");
  EXPECT_EQ(recipe.rules[1].second, Scheme::parse("int4:block64:scale=fp16"));
  EXPECT_EQ(load("scheme: msfp12").ignore, std::vector<std::string>{"lm_head"});
  EXPECT_TRUE(load("scheme: msfp12\nignore: []").ignore.empty());
  EXPECT_EQ(load("scheme: msfp12").on_nonfinite, OnNonFinite::kError);
  EXPECT_EQ(load("scheme: msfp12\non_nonfinite: keep").on_nonfinite, OnNonFinite::kKeep);
}

TEST(RecipeYaml, NamesActivationsAndPresets) {
  const Recipe recipe = load(
      "activations: int8:tensor:static\nscheme: int4:block128\nactivation_rules:\n  - down_proj=none\n"
      "  - {match: 're:.*o_proj', scheme: int8:row:dynamic}\n");
  ASSERT_TRUE(recipe.activations);
  EXPECT_EQ(recipe.activations->scheme, ActivationScheme::parse("int8:tensor:static"));
  ASSERT_EQ(recipe.activations->rules.size(), 2u);
  EXPECT_EQ(recipe.activations->scheme_of("model.layers.0.mlp.down_proj"), std::nullopt);
  EXPECT_EQ(recipe.activations->scheme_of("model.layers.0.self_attn.o_proj"), ActivationScheme::parse("int8:row"));
  const Recipe preset = load("activation_rules: [down_proj=none]\nscheme: FP8_DYNAMIC");
  EXPECT_EQ(preset.scheme, Recipe::of("FP8_DYNAMIC").scheme);
  ASSERT_TRUE(preset.activations);
  EXPECT_EQ(preset.activations->scheme, Recipe::of("FP8_DYNAMIC").activations->scheme);
  EXPECT_EQ(preset.activations->rules.size(), 1u);
  EXPECT_FALSE(load("scheme: FP8_DYNAMIC\nactivations: none").activations);
}

TEST(RecipeYaml, ErrorsNameTheLine) {
  const auto expect_line = [](const std::string& text, std::string_view line) {
    try {
      load(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const InvalidArgument& error) {
      test::expect_sentence(error.what(), line);
    }
  };
  expect_line("scheme: int9:row", "recipe.yaml:1:");
  expect_line("scheme: int8:row\nscheme: int8:row", "recipe.yaml:2:");
  expect_line("scheme: int8:row\nunknown: 1", "recipe.yaml:2:");
  expect_line("scheme: int8:row\non_nonfinite: ignore", "recipe.yaml:2:");
  expect_line("scheme: int8:row\n\nrules:\n  - {match: a}", "recipe.yaml:4:");
  expect_line("scheme: int8:row\nrules:\n  - a=int9", "recipe.yaml:3:");
  expect_line("scheme: int8:row\nrules: 5", "recipe.yaml:2:");
  expect_line("scheme: [int8:row]", "recipe.yaml:1:");
  expect_line("scheme: int8:row\n bad: [", "recipe.yaml:");
  expect_line("scheme: int8:row\nactivations: int8:tensor", "recipe.yaml:2:");
  expect_line("scheme: int8:row\nactivation_rules: [a=none]", "recipe.yaml:");
  expect_line("scheme: int8:row\nactivations: int8:row\nactivation_rules:\n  - a", "recipe.yaml:4:");
  expect_line("- a", "recipe.yaml:1:");
  expect_line("targets: [a]", "recipe.yaml:1:");
  expect_line("", "recipe.yaml:1:");
  EXPECT_THROW(Recipe::load_yaml("absent.yaml"), IoError);
}

}  // namespace
}  // namespace narrow
