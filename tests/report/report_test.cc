/// Tables, numbers, statistics and pictures.

#include <cmath>
#include <cstdio>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "report/json.h"
#include "report/numbers.h"
#include "report/plot.h"
#include "report/progress.h"
#include "report/statistics.h"
#include "report/table.h"

namespace narrow::report {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NumbersTest, ReadWell) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text((1u << 20) - 1), "1.00 MiB");
  EXPECT_EQ(bytes_text(std::uint64_t{8} << 30), "8.00 GiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
  EXPECT_EQ(rate_text(412e6), "412 MB/s");
  EXPECT_EQ(rate_text(999.9e6), "1.00 GB/s");
  EXPECT_EQ(rate_text(kInfinity), "-");
  EXPECT_EQ(duration_text(0.4), "0.40 s");
  EXPECT_EQ(duration_text(187.2), "3:07");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(count_text(12587904), "12,587,904");
  EXPECT_EQ(count_text(-100), "-100");
  EXPECT_EQ(count_text(-1000), "-1,000");
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(power_text(std::ldexp(1.0, -14)), "2^-14");
  EXPECT_EQ(power_text(0.25), "0.25");
  EXPECT_EQ(power_text(448), "448");
  EXPECT_EQ(decibel_text(kInfinity), "exact");
  EXPECT_EQ(percent_text(0.0), "0 %");
  EXPECT_EQ(percent_text(1.0), "100 %");
  EXPECT_EQ(percent_text(1e-9), "<0.01 %");
}

TEST(StyleTest, CountsAndCutsCodePoints) {
  EXPECT_EQ(display_width("─█…a"), 4u);
  EXPECT_EQ(shortened({}, "abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened({}, "abcdefghij", 6), "ab..ij");
  EXPECT_EQ(shortened({.color = false, .unicode = true, .width = 0}, "abcdefghij", 5), "ab…ij");
  EXPECT_EQ(painted({}, Paint::kBold, "x"), "x");
  EXPECT_EQ(painted({.color = true, .unicode = false, .width = 0}, Paint::kBold, "x"), "\x1b[1mx\x1b[0m");
}

TEST(TableTest, AlignsColumns) {
  Table table({{"name"}, {"size", Align::kRight}, {"why"}});
  table.add({"a", "10", "x"});
  table.add({"long", "7"});
  EXPECT_EQ(table.render({}), "name  size  why\n----  ----  ---\na       10  x\nlong     7\n");
}

TEST(TableTest, GivesWayOnNarrowTerminals) {
  Table table({{"tensor", Align::kLeft, true}, {"shape"}, {"mean", Align::kRight, false, true}});
  table.add({std::string(50, 'n'), "[2, 3]", "1"});
  for (const int width : {200, 60, 40, 30}) {
    const std::string text = table.render({.color = false, .unicode = false, .width = width});
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      EXPECT_LE(end - begin, static_cast<std::size_t>(width)) << text;
      begin = end + 1;
    }
    EXPECT_THAT(text, HasSubstr("[2, 3]"));
    EXPECT_EQ(text.find("mean") != std::string::npos, width > 30) << text;
  }
}

TEST(JsonTest, NumbersThatJsonLacksAreNull) {
  EXPECT_TRUE(number(kInfinity).is_null());
  EXPECT_EQ(number(1.5), 1.5);
  EXPECT_EQ(json_text(Json{{"name", "\xFF"}}), "{\n  \"name\": \"\xEF\xBF\xBD\"\n}\n");
}

Tensor noisy(std::int64_t rows, std::int64_t cols, double offset) {
  Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = static_cast<float>(offset + std::sin(static_cast<double>(i * i % 1009)));
  return x;
}

/// Moments by the definition, in one chunk and long double.
TEST(StatisticsTest, MatchTheDefinition) {
  const Tensor x = noisy(331, 257, 100.0);
  long double sum = 0, second = 0, fourth = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) sum += x.as<float>()[i];
  const long double mean = sum / x.size();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const long double delta = x.as<float>()[i] - mean;
    second += delta * delta;
    fourth += delta * delta * delta * delta;
  }
  const Statistics statistics = measure(x);
  EXPECT_NEAR(statistics.mean, static_cast<double>(mean), 1e-10);
  EXPECT_NEAR(statistics.deviation, static_cast<double>(std::sqrt(second / x.size())), 1e-10);
  EXPECT_NEAR(statistics.kurtosis, static_cast<double>(x.size() * fourth / (second * second)), 1e-9);
  ASSERT_EQ(statistics.column_amax.size(), 257u);
  for (std::int64_t col = 0; col < 257; ++col) {
    double amax = 0;
    for (std::int64_t row = 0; row < 331; ++row) amax = std::max(amax, std::fabs(double{x.as<float>()[row * 257 + col]}));
    EXPECT_EQ(statistics.column_amax[static_cast<std::size_t>(col)], amax);
  }
}

TEST(StatisticsTest, DoNotDependOnThreads) {
  const Tensor x = noisy(500, 333, -3.0);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Statistics one = measure(x);
  omp_set_num_threads(3);
  const Statistics three = measure(x);
  omp_set_num_threads(threads);
  EXPECT_EQ(one.mean, three.mean);
  EXPECT_EQ(one.deviation, three.deviation);
  EXPECT_EQ(one.kurtosis, three.kurtosis);
  EXPECT_EQ(one.column_amax, three.column_amax);
}

TEST(StatisticsTest, LeaveOutWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const Statistics statistics = measure(Tensor::of({1, -2, NAN, inf, -inf, 0}, {2, 3}));
  EXPECT_EQ(statistics.nans, 1);
  EXPECT_EQ(statistics.infinities, 2);
  EXPECT_EQ(statistics.zeros, 1);
  EXPECT_EQ(statistics.minimum, -2);
  EXPECT_EQ(statistics.maximum, 1);
  EXPECT_EQ(statistics.column_amax, (std::vector<double>{1, 2, 0}));
  EXPECT_EQ(measure(Tensor::of({NAN}, {1})).kurtosis, 0.0);
  EXPECT_EQ(measure(Tensor::empty(DType::kF32, {0, 4})).count, 0);
}

TEST(StatisticsTest, ReadEveryMeasurableType) {
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kI8, DType::kF8E5m2, DType::kF8E4m3, DType::kF8E8m0, DType::kI16, DType::kU16,
                            DType::kF16, DType::kBf16, DType::kI32, DType::kU32, DType::kF32, DType::kF64, DType::kI64, DType::kU64}) {
    ASSERT_TRUE(is_measurable(dtype));
    Tensor x = Tensor::empty(dtype, {4});
    std::fill_n(x.data(), x.byte_size(), std::byte{0});
    const Statistics statistics = measure(x);
    EXPECT_EQ(statistics.zeros, dtype == DType::kF8E8m0 ? 0 : 4) << name_of(dtype);
  }
}

TEST(StatisticsTest, FindOutlierColumns) {
  const OutlierColumns outliers = outlier_columns({1, 7, 1, 1, 30, 1, 5.9}, 6.0);
  ASSERT_EQ(outliers.found.size(), 2u);
  EXPECT_EQ(outliers.found[0], std::pair(std::int64_t{4}, 30.0));
  EXPECT_EQ(outliers.found[1], std::pair(std::int64_t{1}, 7.0));
  EXPECT_TRUE(outlier_columns({0, 0, 1}, 6.0).found.empty());
}

TEST(PlotTest, ValueLineMarksValues) {
  const std::string text = value_line({}, {1, 2, 4}, Axis::kLinear, 9);
  EXPECT_EQ(text.substr(0, 10), "--|-|---|\n");
  EXPECT_EQ(value_line({}, {1, 2, 4}, Axis::kLog2, 5).substr(0, 6), "|-|-|\n");
  EXPECT_EQ(value_line({}, {}, Axis::kLinear, 9), "");
}

TEST(PlotTest, HistogramCountsEveryValue) {
  const Histogram histogram = count_values(Tensor::of({0, 0.1f, 0.5f, 1, 1, NAN}, {6}), 0.0, 1.0, 4);
  EXPECT_EQ(histogram.bins, (std::vector<std::int64_t>{2, 0, 1, 2}));
  EXPECT_THAT(histogram_bars({}, histogram, 10, false), HasSubstr("##########  2"));
}

TEST(ProgressTest, BarsFillInEighths) {
  const Style unicode{.color = false, .unicode = true, .width = 80};
  EXPECT_EQ(bar_text(unicode, 0.0, 3), "   ");
  EXPECT_EQ(bar_text(unicode, 0.5, 3), "█▌ ");
  EXPECT_EQ(bar_text(unicode, 1.0, 3), "███");
  EXPECT_EQ(bar_text({}, 0.5, 4), "##..");
}

/// The lines that a progress of so many tensors writes for two of them.
std::string lines_of_progress(std::int64_t tensors) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, ProgressMode::kLines, {}, "convert", tensors);
    progress.update("a", "", 1, 2);
    progress.update("b", "", 2, 2);
  }
  std::string text(4096, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST(ProgressTest, CountsTowardsATotalWhereThereIsOne) {
  EXPECT_THAT(lines_of_progress(2), testing::AllOf(testing::StartsWith("convert 1/2 a "), testing::HasSubstr("\nconvert 2/2 b ")));
  EXPECT_THAT(lines_of_progress(0), testing::AllOf(testing::StartsWith("convert 1 a "), testing::HasSubstr("\nconvert 2 b ")));
}

}  // namespace
}  // namespace narrow::report
