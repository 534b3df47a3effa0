/// Measured choices: their file, what is ignored and why, and how they change the plan of a product. Needs no device.

#include "narrow/tuned_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/files.h"
#include "narrow/cuda_matmul.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using ::testing::HasSubstr;

const TunedMachine kMachine{"NVIDIA H200", 13000, "0.1.0"};

TunedKernel choice(std::int64_t m, const char* kernel, int parts = 1) {
  return {"fp8_e4m3 x fp8_e4m3", "block128 x 128x128", "BF16", m, 4096, 7168, kernel, parts, 9.5};
}

class TunedKernelsTest : public ::testing::Test {
 protected:
  void TearDown() override { cuda::set_tuned_kernels({}); }
  std::filesystem::path file(const std::string& text) {
    std::ofstream(place_ / "tuned.json") << text;
    return place_ / "tuned.json";
  }
  test::TemporaryDirectory place_;
};

std::string chosen(std::int64_t m) {
  for (const MatmulChoice& row : cuda::explain_fp8_matmul(m, 4096, 7168, Scheme::parse("fp8_e4m3:128x128")))
    if (row.chosen) return row.name + ": " + row.reason;
  return {};
}

TEST_F(TunedKernelsTest, FilesComeBackAsTheyWere) {
  TunedKernels kernels{kMachine, {}};
  kernels.add(choice(64, "sm90_matmul_fp8_fp8_64x64", 2));
  kernels.add(choice(128, "sm90_matmul_fp8_fp8_128x64"));
  kernels.add(choice(64, "sm90_matmul_fp8_fp8_128x64", 3));  // replaces the first
  write_tuned_kernels(place_ / "tuned.json", kernels);
  const TunedKernels back = read_tuned_kernels(place_ / "tuned.json");
  EXPECT_EQ(back.machine, kMachine);
  ASSERT_EQ(back.choices.size(), 2u);
  EXPECT_EQ(back.choices[0].kernel, "sm90_matmul_fp8_fp8_128x64");
  EXPECT_EQ(back.choices[0].parts, 3);
  EXPECT_EQ(back.choices[1].m, 128);
  EXPECT_TRUE(back.choices[1].is_for(choice(128, "")));
  EXPECT_EQ(back.choices[1].microseconds, 9.5);
}

TEST_F(TunedKernelsTest, DamagedAndForeignFilesAreIgnoredInOneSentence) {
  const std::string head =
      R"({"format": "narrow.tuned_kernels", "version": 1, "machine": {"gpu": "NVIDIA H200", "driver": 13000, "narrow": "0.1.0"})";
  const std::string good =
      R"({"types": "int8 x int8", "scales": "outer", "out": "BF16", "m": 1, "n": 2, "k": 3, "kernel": "x", "parts": 1, "microseconds": 2})";
  EXPECT_EQ(use_tuned_kernels(file(head + R"(, "choices": [)" + good + "]}"), kMachine), "");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string(R"({"format": "other"})"), head + "}",
        head + R"(, "choices": 3})", head + R"(, "choices": [3]})", head + R"(, "choices": [{}]})",
        std::string(R"({"format": "narrow.tuned_kernels", "version": 2})"),
        std::string(R"({"format": "narrow.tuned_kernels", "version": "1"})"), std::string(R"({"format": 7})"),
        head + R"(, "choices": [)" + std::string(good).replace(good.find("\"m\": 1"), 6, "\"m\": 0") + "]}",
        head + R"(, "choices": [)" + std::string(good).replace(good.find("\"m\": 1"), 6, "\"m\": 1e99") + "]}",
        head + R"(, "choices": [)" + std::string(good).replace(good.find("\"parts\": 1"), 10, "\"parts\": -1") + "]}",
        head + R"(, "choices": [)" + std::string(good).replace(good.find("\"x\""), 3, "[]") + "]}"}) {
    const std::string ignored = use_tuned_kernels(file(text), kMachine);
    EXPECT_THAT(ignored, HasSubstr("tuned.json")) << text;
    EXPECT_TRUE(ignored.ends_with("; the file is ignored")) << ignored;
    EXPECT_THROW(read_tuned_kernels(place_ / "tuned.json"), CorruptFile) << text;
  }
  EXPECT_THAT(use_tuned_kernels(place_ / "missing.json", kMachine), HasSubstr("missing.json"));
  const auto path = file(head + R"(, "choices": []})");
  EXPECT_THAT(use_tuned_kernels(path, {"NVIDIA A100", 13000, "0.1.0"}), HasSubstr("measured on 'NVIDIA H200'"));
  EXPECT_THAT(use_tuned_kernels(path, {"NVIDIA H200", 12000, "0.1.0"}), HasSubstr("driver 13000"));
  EXPECT_THAT(use_tuned_kernels(path, {"NVIDIA H200", 13000, "0.2.0"}), HasSubstr("narrow 0.1.0"));
}

TEST_F(TunedKernelsTest, ProductsTakeTheMeasuredRow) {
  const std::string before = chosen(64);
  if (before.empty()) GTEST_SKIP() << "a build without CUDA has no plans";
  EXPECT_EQ(before.find("tuned"), std::string::npos);
  cuda::set_tuned_kernels({choice(64, "sm90_matmul_fp8_fp8_128x128")});
  EXPECT_THAT(chosen(64), ::testing::StartsWith("sm90_matmul_fp8_fp8_128x128: "));
  EXPECT_THAT(chosen(64), HasSubstr("tuned: 9.5 us measured"));
  EXPECT_EQ(chosen(65).find("tuned"), std::string::npos) << "another shape";
  // Rows that are not there, or do not take the product, leave the choice to the model.
  for (const char* name : {"sm90_matmul_fp8_fp8_7x7", "sm90_matmul_fp8_fp8_128x256_cluster_1x2_col32", "nonsense"}) {
    cuda::set_tuned_kernels({choice(64, name)});
    EXPECT_EQ(chosen(64), before) << name;
  }
  cuda::set_tuned_kernels({});
  EXPECT_EQ(chosen(64), before);
}

}  // namespace
}  // namespace narrow
