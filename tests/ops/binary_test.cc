#include "narrow/binary.h"

#include <omp.h>

#include <bit>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "format/packing.h"
#include "kernels/binary.h"
#include "narrow/error.h"
#include "random_tensor.h"

namespace narrow {
namespace {

using test::random_tensor;

/// +1 or -1 of a code.
int sign_at(const QuantizedTensor& q, std::int64_t row, std::int64_t col) {
  return read_code(q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes(), col, 1) != 0 ? 1 : -1;
}

struct Operands {
  std::vector<std::uint32_t> a, w;
  std::vector<float> a_scales, w_scales;
  BinaryProblem problem;
};

Operands random_operands(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t extra, std::mt19937& generator) {
  Operands o;
  const std::int64_t words = (k + 31) / 32, panels = (n + kBinaryPanel - 1) / kBinaryPanel, stride = words + extra;
  o.a.resize(static_cast<std::size_t>(m * stride));
  o.w.resize(static_cast<std::size_t>(panels * words * kBinaryPanel));
  const std::uint32_t last = k % 32 == 0 ? ~0u : (1u << (k % 32)) - 1u;
  for (std::size_t i = 0; i < o.a.size(); ++i)
    o.a[i] = static_cast<std::uint32_t>(generator()) & (static_cast<std::int64_t>(i) % stride == words - 1 ? last : ~0u);
  for (std::size_t i = 0; i < o.w.size(); ++i)
    o.w[i] = static_cast<std::uint32_t>(generator()) & (static_cast<std::int64_t>(i) / kBinaryPanel % words == words - 1 ? last : ~0u);
  std::uniform_real_distribution<float> scale(0.01f, 2.0f);
  for (std::int64_t i = 0; i < m; ++i) o.a_scales.push_back(scale(generator));
  for (std::int64_t i = 0; i < n; ++i) o.w_scales.push_back(scale(generator));
  o.problem = {.m = m, .n = n, .k = k, .words = words, .a = o.a.data(), .a_stride = stride, .w = o.w.data()};
  return o;
}

TEST(Binary, EveryKernelEqualsTheReference) {
  std::mt19937 generator(1);
  for (const BinaryKernel& kernel : binary_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    for (int round = 0; round < 300; ++round) {
      const std::int64_t m = generator() % 20, n = 1 + generator() % 200, k = 1 + generator() % (round % 10 == 0 ? 5000 : 300),
                         extra = generator() % 3;
      Operands o = random_operands(m, n, k, extra, generator);
      const std::int64_t stride = n + static_cast<std::int64_t>(generator() % 4), panels = (n + kBinaryPanel - 1) / kBinaryPanel,
                         half = panels / 2;
      for (const bool scaled : {false, true}) {
        std::vector<std::uint32_t> mine(static_cast<std::size_t>(m * stride), 0xABCDu), theirs = mine;
        BinaryProblem problem = o.problem;
        problem.a_scales = scaled ? o.a_scales.data() : nullptr;
        problem.w_scales = scaled ? o.w_scales.data() : nullptr;
        problem.y_stride = stride;
        problem.y = mine.data();
        kernel.run(problem, 0, m / 2, 0, panels);
        kernel.run(problem, m / 2, m, 0, half);
        kernel.run(problem, m / 2, m, half, panels);
        problem.y = theirs.data();
        reference::kBinary.run(problem, 0, m, 0, panels);
        ASSERT_EQ(mine, theirs) << kernel.name << " " << m << "x" << n << "x" << k;
      }
    }
  }
}

TEST(Binary, ReferenceIsTheSumOfSigns) {
  std::mt19937 generator(2);
  Operands o = random_operands(3, 70, 45, 1, generator);
  std::vector<std::int32_t> y(3 * 70);
  o.problem.y = y.data();
  o.problem.y_stride = 70;
  reference::kBinary.run(o.problem, 0, 3, 0, 2);
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t col = 0; col < 70; ++col) {
      int sum = 0;
      for (std::int64_t k = 0; k < 45; ++k) {
        const bool a = (o.a[static_cast<std::size_t>(row * o.problem.a_stride + k / 32)] >> (k % 32) & 1u) != 0;
        const bool w = (o.w[static_cast<std::size_t>((col / 64 * o.problem.words + k / 32) * 64 + col % 64)] >> (k % 32) & 1u) != 0;
        sum += a == w ? 1 : -1;
      }
      ASSERT_EQ(y[static_cast<std::size_t>(row * 70 + col)], sum);
    }
}

struct ConvCase {
  std::int64_t images, height, width, channels, outputs;
  BinaryConv2dOptions options;
};

const ConvCase kConvCases[] = {
    {1, 5, 5, 64, 64, {.kernel_h = 3, .kernel_w = 3, .pad_h = 1, .pad_w = 1}},
    {2, 7, 6, 3, 5, {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 1, .pad_h = 2, .pad_w = 1}},
    {1, 12, 13, 40, 70, {.kernel_h = 1, .kernel_w = 1}},
    {1, 9, 9, 12, 6, {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 3, .pad_h = 1, .pad_w = 1, .groups = 3}},
    {3, 8, 11, 96, 130, {.kernel_h = 5, .kernel_w = 3, .pad_h = 2, .pad_w = 0, .groups = 2}},
    {1, 4, 4, 33, 1, {.kernel_h = 4, .kernel_w = 4}},
    {1, 1, 1, 7, 14, {.kernel_h = 3, .kernel_w = 3, .pad_h = 1, .pad_w = 1, .groups = 7}},
    {0, 4, 4, 8, 8, {.kernel_h = 2, .kernel_w = 2}},
};

TEST(BinaryConv2d, EqualsTheConvolutionWithZeroPadding) {
  for (const ConvCase& c : kConvCases) {
    const BinaryConv2dOptions& o = c.options;
    const std::int64_t per_group = c.channels / o.groups, outputs_per_group = c.outputs / o.groups;
    const QuantizedTensor x = quantize(random_tensor({c.images, c.height, c.width, c.channels}, 3), Scheme::parse("int1:tensor"));
    const QuantizedTensor w = quantize(random_tensor({c.outputs, o.kernel_h * o.kernel_w * per_group}, 4), Scheme::parse("int1:row"));
    const PreparedBinaryConv2d prepared = prepare_binary_conv2d(w, o);
    for (const int threads : {1, 2, 3, 7}) {
      omp_set_num_threads(threads);
      const Tensor sums = binary_conv2d(x, prepared, DType::kI32), y = binary_conv2d(x, prepared);
      ASSERT_EQ(sums.shape(), y.shape());
      const std::int64_t out_height = sums.shape()[1], out_width = sums.shape()[2];
      ASSERT_EQ(out_height, (c.height + 2 * o.pad_h - o.kernel_h) / o.stride_h + 1);
      for (std::int64_t i = 0; i < sums.size(); ++i) {
        const std::int64_t output = i % c.outputs, px = i / c.outputs % out_width, py = i / c.outputs / out_width % out_height,
                           image = i / c.outputs / out_width / out_height;
        int expected = 0;
        for (std::int64_t ky = 0; ky < o.kernel_h; ++ky)
          for (std::int64_t kx = 0; kx < o.kernel_w; ++kx) {
            const std::int64_t row = py * o.stride_h - o.pad_h + ky, col = px * o.stride_w - o.pad_w + kx;
            if (row < 0 || row >= c.height || col < 0 || col >= c.width) continue;
            for (std::int64_t channel = 0; channel < per_group; ++channel)
              expected += sign_at(x, (image * c.height + row) * c.width + col, output / outputs_per_group * per_group + channel) *
                          sign_at(w, output, (ky * o.kernel_w + kx) * per_group + channel);
          }
        ASSERT_EQ(sums.as<std::int32_t>()[i], expected) << "element " << i;
        ASSERT_EQ(y.as<float>()[i], static_cast<float>(expected) * (x.scales.as<float>()[0] * w.scales.as<float>()[output]));
      }
    }
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST(BinaryConv2d, RefusesWhatDoesNotFit) {
  const QuantizedTensor w = quantize(random_tensor({4, 9 * 8}, 1), Scheme::parse("int1:row"));
  const PreparedBinaryConv2d p = prepare_binary_conv2d(w, {.kernel_h = 3, .kernel_w = 3});
  EXPECT_THROW(binary_conv2d(quantize(random_tensor({1, 4, 4, 7}, 2), Scheme::parse("int1:tensor")), p), InvalidArgument);
  EXPECT_THROW(binary_conv2d(quantize(random_tensor({1, 4, 4, 8}, 2), Scheme::parse("int1:row")), p), InvalidArgument);
  EXPECT_THROW(binary_conv2d(quantize(random_tensor({1, 2, 4, 8}, 2), Scheme::parse("int1:tensor")), p), InvalidArgument);
  EXPECT_THROW(prepare_binary_conv2d(w, {.kernel_h = 5, .kernel_w = 5}), InvalidArgument);
  EXPECT_THROW(prepare_binary_conv2d(w, {.kernel_h = 3, .kernel_w = 3, .groups = 3}), InvalidArgument);
  EXPECT_THROW(prepare_binary_conv2d(quantize(random_tensor({4, 9}, 1), Scheme::parse("int8:row")), {.kernel_h = 3, .kernel_w = 3}),
               InvalidArgument);
}

}  // namespace
}  // namespace narrow
