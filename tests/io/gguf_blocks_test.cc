// GGUF's blocks against bytes that ggml itself made, both ways.
#include "io/gguf_blocks.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

/// ((37 i + 11) mod 101 - 50) / 16: exact in fp32.
std::vector<float> golden_input(std::int64_t count) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>((i * 37 + 11) % 101 - 50) / 16.0f);
  return x;
}

std::vector<std::uint8_t> encoded(const GgmlTypeInfo& type, const std::vector<float>& x) {
  std::vector<std::uint8_t> blocks(x.size() / static_cast<std::size_t>(type.values) * type.bytes);
  encode_blocks(type, x, blocks);
  return blocks;
}

std::vector<float> decoded(const GgmlTypeInfo& type, const std::vector<std::uint8_t>& blocks) {
  std::vector<float> x(blocks.size() / type.bytes * static_cast<std::size_t>(type.values));
  decode_blocks(type, blocks, x);
  return x;
}

std::string hex(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

TEST(GgufBlocks, AreGgmlsBytes) {
  const struct {
    const char* type;
    std::int64_t values;
    std::string bytes;
  } golden[] = {
      {"q8_0", 32, "4d269dfb59b61472d02e8be947a50361be1c7ad73593f14fac0a68c62481df3d9af8"},
      {"q4_0", 32, "4036f258be1379df359bf147ac0268ce248a"},
      {"q4_1", 32, "893640c2f257bd1379cf358ae146ac0268bd2479"},
      {"q5_0", 32, "4032b4b4a525f4bf7b27e3ae5a16d19d4904c08c38f4"},
      {"q5_1", 32, "533240c2b4b4a525f3bf6b27e2ae5a16d19d4904c07c38f3"},
      {"mxfp4", 32, "7e7ec056fe9267ec147fda35feb056ed93"},
      {"q4_k", 256,
       "de1e802afffffffafff8fafaceafbfbcc2278dd3499e055ab1167cc2388de449af056bb1277cd3389ee45aa0166bc22748ad0469c0157bd1379cf358ae046ac0268"
       "be2379df359be"
       "157ad1268ce248ada0156bc1278cd3489e045ab0167bc2378de349ae056ab1267cd2389de459af15268ce248ad0459b0157bd1379ce348ae046ac0267bd2379df35"
       "9be156ac1268c"},
      {"bf16", 4, "1cc000be0c40e8bf"},
      {"f16", 4, "e0c000b0604040bf"},
      {"f32", 2, "00001cc0000000be"},
  };
  for (const auto& [type, values, bytes] : golden) EXPECT_EQ(hex(encoded(parse_ggml_type(type), golden_input(values))), bytes) << type;
}

/// Values of a block written by hand, for every type that shares out bits.
TEST(GgufBlocks, DecodeByTheirEquations) {
  const auto block_of = [](const GgmlTypeInfo& type, std::initializer_list<int> head) {
    std::vector<std::uint8_t> block(type.bytes);
    std::size_t i = 0;
    for (const int byte : head) block[i++] = static_cast<std::uint8_t>(byte);
    return block;
  };
  const GgmlTypeInfo& q5_1 = parse_ggml_type("q5_1");  // d = 0.5, m = -1, fifth bit of elements 0 and 31, byte 0: q[0] = 3, q[16] = 10
  std::vector<float> x = decoded(q5_1, block_of(q5_1, {0x00, 0x38, 0x00, 0xbc, 0x01, 0x00, 0x00, 0x80, 0xa3}));
  EXPECT_EQ(x[0], 0.5f * 19 - 1);
  EXPECT_EQ(x[16], 0.5f * 10 - 1);
  EXPECT_EQ(x[31], 0.5f * 16 - 1);
  EXPECT_EQ(x[1], -1.0f);
  const GgmlTypeInfo& q6_k = parse_ggml_type("q6_k");
  std::vector<std::uint8_t> block = block_of(q6_k, {0x5a});
  block[128] = 0b11'10'01'00;  // upper bits of elements 0, 32, 64, 96
  block[192] = 2;              // runs 0, 2, 4 and 6 hold elements 0, 32, 64, 96
  block[194] = block[196] = block[198] = 0xff;
  block[209] = 0x3c;  // d = 1
  x = decoded(q6_k, block);
  EXPECT_EQ(x[0], 2.0f * (10 - 32));
  EXPECT_EQ(x[32], -1.0f * (16 - 32));
  EXPECT_EQ(x[64], -1.0f * (5 + 32 - 32));
  EXPECT_EQ(x[96], -1.0f * (48 - 32));
  const GgmlTypeInfo& mxfp4 = parse_ggml_type("mxfp4");
  x = decoded(mxfp4, block_of(mxfp4, {128, 0xf1}));
  EXPECT_EQ(x[0], 2.0f * 0.5f);
  EXPECT_EQ(x[16], 2.0f * -6.0f);
  x = decoded(mxfp4, block_of(mxfp4, {0, 0x02}));
  EXPECT_EQ(x[0], std::ldexp(1.0f, -127));
}

TEST(GgufBlocks, ValuesStayWithinAStep) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> x(4096);
  for (float& value : x) value = normal(generator);
  double energy = 0.0;
  for (const float value : x) energy += double{value} * value;
  // Least signal-to-noise ratio in dB: 6 per bit less what the blocks' extremes cost.
  const std::pair<const char*, double> least[] = {{"f32", 300.0}, {"f16", 70.0},  {"bf16", 50.0}, {"q8_0", 42.0},
                                                  {"q6_k", 33.0}, {"q5_1", 25.0}, {"q5_0", 24.0}, {"q4_k", 21.0},
                                                  {"q4_1", 19.0}, {"q4_0", 18.0}, {"mxfp4", 16.0}};
  EXPECT_EQ(std::size(least), ggml_types().size());
  for (const auto& [name, decibels] : least) {
    const GgmlTypeInfo& type = parse_ggml_type(name);
    const std::vector<std::uint8_t> blocks = encoded(type, x);
    const std::vector<float> y = decoded(type, blocks);
    double noise = 1e-300;
    for (std::size_t i = 0; i < x.size(); ++i) noise += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    EXPECT_GT(10.0 * std::log10(energy / noise), decibels) << name;
  }
}

TEST(GgufBlocks, ZerosAndExtremesAreHeld) {
  for (const GgmlTypeInfo& type : ggml_types()) {
    const std::vector<float> zeros(256, 0.0f), ones(256, -1.0f);
    EXPECT_EQ(decoded(type, encoded(type, zeros)), zeros) << type.name;
    for (const float value : decoded(type, encoded(type, ones))) EXPECT_NEAR(value, -1.0f, 0.002f) << type.name;
    std::vector<float> tiny(256), wide(256);  // an inverse scale beyond fp32, and a range that is
    for (std::size_t i = 0; i < tiny.size(); ++i) {
      tiny[i] = (i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1e-42f : -3e-43f);
      wide[i] = (i % 2 == 0 ? 3e38f : -3e38f);
    }
    for (const float value : decoded(type, encoded(type, tiny))) EXPECT_NEAR(value, 0.0f, 2e-38f) << type.name;
    EXPECT_EQ(decoded(type, encoded(type, wide)).size(), wide.size()) << type.name;
  }
}

TEST(GgufBlocks, RefuseWhatIsNoBlock) {
  const GgmlTypeInfo& type = parse_ggml_type("q8_0");
  const std::vector<float> x(33);
  std::vector<std::uint8_t> blocks(34);
  EXPECT_THROW(encode_blocks(type, x, blocks), InvalidArgument);
  EXPECT_THROW(parse_ggml_type("q9_9"), InvalidArgument);
  EXPECT_THROW(ggml_type(31u), Unsupported);
}

}  // namespace
}  // namespace narrow::io
