/// Binary convolutions: bit for bit the CPU's, with results of every type in guarded and poisoned memory; one-bit results behind a batch
/// norm.

#include <cmath>

#include "narrow/cuda_binary.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

class BinaryConvTest : public ProductTest {
 protected:
  BinaryConvTest() : ProductTest(7) {}

  struct Case {
    QuantizedTensor x, w;
    BinaryConv2dOptions options;
    std::string text;
  };
  Case random_case() {
    BinaryConv2dOptions o;
    o.kernel_h = 1 + pick(4), o.kernel_w = 1 + pick(4);
    o.stride_h = 1 + pick(3), o.stride_w = 1 + pick(3);
    o.pad_h = pick(4), o.pad_w = pick(4);
    o.groups = pick(3) == 0 ? 1 + pick(4) : 1;
    const std::int64_t channels = pick(2) == 0 ? 32 * (1 + pick(8)) : 1 + pick(150),
                       outputs = pick(2) == 0 ? 8 * (1 + pick(20)) : 1 + pick(100);
    const std::int64_t images = 1 + pick(3), height = std::max<std::int64_t>(1 + pick(17), o.kernel_h),
                       width = std::max<std::int64_t>(1 + pick(17), o.kernel_w);
    return make(o, {images, height, width, channels * o.groups}, outputs * o.groups);
  }
  /// Enough for the large pieces of the kernel, which load one, two or four words at a time.
  Case many_windows(int words) {
    return make({.kernel_h = 3, .kernel_w = 3, .pad_h = 1, .pad_w = 1}, {19, 31, 33, words == 1 ? 30 : 32 * words}, 70);
  }
  Case make(const BinaryConv2dOptions& o, const Shape& shape, std::int64_t outputs) {
    const Tensor x = random_values(DType::kF32, shape, Values::kNormal, static_cast<unsigned>(generator_()));
    const Tensor w = random_values(DType::kF32, {outputs, o.kernel_h * o.kernel_w * shape[3] / o.groups}, Values::kNormal,
                                   static_cast<unsigned>(generator_()));
    return {narrow::quantize(x, Scheme::parse("int1:tensor")),
            narrow::quantize(w, Scheme::parse(pick(4) == 0 ? "int1:tensor" : "int1:row")), o,
            to_string(shape) + " outputs " + std::to_string(outputs) + " kernel " + std::to_string(o.kernel_h) + "x" +
                std::to_string(o.kernel_w) + " stride " + std::to_string(o.stride_h) + "x" + std::to_string(o.stride_w) + " pad " +
                std::to_string(o.pad_h) + "x" + std::to_string(o.pad_w) + " groups " + std::to_string(o.groups)};
  }
  void expect_the_cpus(const Case& c, DType out) {
    const Stream stream = *stream_;
    const DeviceQuantized x = to_device(c.x, kDevice, stream);
    const DeviceBinaryConv2d w = prepare_binary_conv2d(to_device(c.w, kDevice, stream), c.options, stream);
    Tensor expected =
        narrow::binary_conv2d(c.x, narrow::prepare_binary_conv2d(c.w, c.options), out == DType::kI32 ? DType::kI32 : DType::kF32);
    const Shape shape = binary_conv2d_shape(x.shape, w);
    ASSERT_EQ(shape, expected.shape()) << c.text;
    const Guarded memory(static_cast<std::size_t>(element_count(shape)) * static_cast<std::size_t>(bits_of(out)) / 8, 0, stream);
    const Tensor y = Tensor::borrow(memory.data(), out, shape, {}, kDevice);
    ASSERT_NO_THROW(binary_conv2d(x, w, y, stream)) << c.text;
    if (out == DType::kF16 || out == DType::kBf16) {  // one rounding of the CPU's fp32
      const Tensor rounded = Tensor::empty(out, shape, kDevice);
      convert(to_device(expected, kDevice, stream), rounded, stream);
      expected = to_host(rounded, stream);
    }
    expect_equal(expected, to_host(y, stream), c.text + " -> " + std::string(name_of(out)));
    memory.check(stream, c.text);
  }
};

TEST_F(BinaryConvTest, RandomShapesGiveTheBitsOfTheCpu) {
  constexpr DType kOutputs[] = {DType::kI32, DType::kF32, DType::kF16, DType::kBf16};
  for (int i = 0; i < 300; ++i) ASSERT_NO_FATAL_FAILURE(expect_the_cpus(random_case(), kOutputs[i % 4])) << "case " << i;
}

TEST_F(BinaryConvTest, ManyWindowsGiveTheBitsOfTheCpu) {
  for (const int words : {1, 2, 4})
    for (const DType out : {DType::kI32, DType::kF32, DType::kF16, DType::kBf16})
      ASSERT_NO_FATAL_FAILURE(expect_the_cpus(many_windows(words), out));
}

TEST_F(BinaryConvTest, LayersOfAResNetGiveTheBitsOfTheCpu) {
  for (const auto& [size, channels, outputs, stride] : {std::array{14, 64, 64, 1}, std::array{14, 128, 256, 2}, std::array{7, 512, 512, 1}})
    ASSERT_NO_FATAL_FAILURE(
        expect_the_cpus(make({.kernel_h = 3, .kernel_w = 3, .stride_h = stride, .stride_w = stride, .pad_h = 1, .pad_w = 1},
                             {2, size, size, channels}, outputs),
                        DType::kI32));
}

TEST_F(BinaryConvTest, OneBitResultsAreTheSignsOfTheBatchNorm) {
  for (int i = 0; i < 100; ++i) {
    Case c = i < 3 ? many_windows(1 << i) : random_case();
    const Stream stream = *stream_;
    const std::int64_t outputs = c.w.shape[0];
    if (c.options.groups > 1 && outputs / c.options.groups % 8 != 0) continue;
    const Tensor sums = narrow::binary_conv2d(c.x, narrow::prepare_binary_conv2d(c.w, c.options), DType::kI32);
    const auto values = [&](float scale, float offset) {
      Tensor t = Tensor::empty(DType::kF32, {outputs});
      std::normal_distribution<float> normal;
      for (std::int64_t j = 0; j < outputs; ++j) t.as<float>()[j] = offset + scale * normal(generator_);
      return t;
    };
    BatchNorm norm{values(1.0f, 0.2f), values(0.3f, 0.0f), values(2.0f, 0.0f), values(0.2f, 4.0f)};
    for (std::int64_t j = 0; j < outputs; ++j) norm.variance.as<float>()[j] = std::fabs(norm.variance.as<float>()[j]);
    norm.weight.as<float>()[0] = 0.0f;
    const Tensor scales = values(0.02f, 0.1f);
    const BinaryThresholds thresholds = fold_batch_norm(norm, scales, c.w.shape[1], kDevice, stream);
    const DeviceQuantized x = to_device(c.x, kDevice, stream);
    const DeviceBinaryConv2d w = prepare_binary_conv2d(to_device(c.w, kDevice, stream), c.options, stream);
    const GuardedQuantized y(Scheme::parse("int1:tensor"), binary_conv2d_shape(x.shape, w), 0, stream);
    binary_conv2d(x, w, thresholds, y.q, stream);
    const QuantizedTensor got = to_host(y.q, stream);
    const std::int64_t positions = sums.size() / outputs, row_bytes = (outputs + 7) / 8;
    for (std::int64_t at = 0; at < positions; ++at)
      for (std::int64_t bit = 0; bit < row_bytes * 8; ++bit) {
        bool expected = false;
        if (bit < outputs) {
          const auto of = [&](const Tensor& t) { return static_cast<double>(t.as<float>()[bit]); };
          const double sum = sums.as<std::int32_t>()[at * outputs + bit];
          expected =
              (of(scales) * sum - of(norm.mean)) / std::sqrt(of(norm.variance) + norm.epsilon) * of(norm.weight) + of(norm.bias) > 0.0;
        }
        const int code = std::to_integer<int>(got.codes.data()[at * row_bytes + bit / 8]) >> (bit % 8) & 1;
        ASSERT_EQ(code, expected ? 1 : 0) << "case " << i << ": " << c.text << " position " << at << " output " << bit;
      }
    y.check(stream, c.text);
  }
}

TEST_F(BinaryConvTest, RefusesWhatItCannotDoInOneSentence) {
  const Stream stream = *stream_;
  const DeviceQuantized w = allocate_quantized(Scheme::parse("int1:row"), {16, 9 * 8}, kDevice);
  const DeviceBinaryConv2d p = prepare_binary_conv2d(w, {.kernel_h = 3, .kernel_w = 3}, stream);
  const DeviceQuantized x = allocate_quantized(Scheme::parse("int1:tensor"), {1, 4, 4, 8}, kDevice);
  EXPECT_THROW(prepare_binary_conv2d(w, {.kernel_h = 5, .kernel_w = 5}, stream), InvalidArgument);
  EXPECT_THROW(prepare_binary_conv2d(w, {.kernel_h = 3, .kernel_w = 3, .stride_h = 0}, stream), InvalidArgument);
  EXPECT_THROW(
      prepare_binary_conv2d(allocate_quantized(Scheme::parse("int1:row"), {4, 17 * 17}, kDevice), {.kernel_h = 17, .kernel_w = 17}, stream),
      Unsupported);
  EXPECT_THROW(prepare_binary_conv2d(allocate_quantized(Scheme::parse("int1:row"), {1, 1 << 20}, kDevice), {}, stream), Unsupported);
  EXPECT_THROW(
      prepare_binary_conv2d(allocate_quantized(Scheme::parse("int8:row"), {16, 72}, kDevice), {.kernel_h = 3, .kernel_w = 3}, stream),
      InvalidArgument);
  EXPECT_THROW(binary_conv2d(x, p, Tensor::empty(DType::kF32, {1, 4, 4, 16}, kDevice), stream), InvalidArgument);
  EXPECT_THROW(binary_conv2d(x, p, Tensor::empty(DType::kU8, {1, 2, 2, 16}, kDevice), stream), Unsupported);
  EXPECT_THROW(binary_conv2d(allocate_quantized(Scheme::parse("int1:tensor"), {1, 4, 4, 9}, kDevice), p,
                             Tensor::empty(DType::kF32, {1, 2, 2, 16}, kDevice), stream),
               InvalidArgument);
  EXPECT_THROW(binary_conv2d(allocate_quantized(Scheme::parse("int1:row"), {1, 4, 4, 8}, kDevice), p,
                             Tensor::empty(DType::kF32, {1, 2, 2, 16}, kDevice), stream),
               InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
