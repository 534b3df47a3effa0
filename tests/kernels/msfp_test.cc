/// The rows of the matmul table that have a product of their own: MSFP x MSFP and int1 x int1.

#include "kernels/msfp.h"

#include <omp.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/matmul.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "ops/matmul.h"
#include "random_tensor.h"

namespace narrow {
namespace {

using test::random_tensor;

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.byte_size() == b.byte_size() && std::equal(a.data(), a.data() + a.byte_size(), b.data());
}

TEST(Msfp, EveryKernelEqualsTheReference) {
  std::mt19937 generator(1);
  for (const MsfpKernel& kernel : msfp_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    for (int round = 0; round < 60; ++round) {
      const std::int64_t m = generator() % 15, groups = generator() % 5, boxes = groups * 2;
      const int magnitude = 2 + round % 6, bits = magnitude + 1 == 7 ? 8 : magnitude + 1;  // msfp11 to msfp16
      std::vector<std::uint32_t> lanes(static_cast<std::size_t>(groups * bits * 64) + 1);
      for (auto& lane : lanes) lane = static_cast<std::uint32_t>(generator());
      std::vector<std::uint32_t> w(static_cast<std::size_t>(groups * 8 * 64) + 1), expected_w = w;
      const MsfpPanel panel{lanes.data(), groups, magnitude, bits};
      kernel.unpack(panel, w.data());
      reference::kMsfp.unpack(panel, expected_w.data());
      ASSERT_EQ(w, expected_w) << kernel.name << " " << bits;

      std::vector<std::int8_t> a(static_cast<std::size_t>(m * boxes * 16) + 1);
      std::vector<float> a_scales(static_cast<std::size_t>(m * boxes) + 1), w_scales(static_cast<std::size_t>(boxes * 64) + 1);
      std::vector<std::int32_t> a_sums(a_scales.size(), 0);
      for (auto& value : a) value = static_cast<std::int8_t>(static_cast<int>(generator() % 255) - 127);
      const int spread = round % 3 == 0 ? 120 : 10;  // exponents whose sums overflow and underflow, too
      const auto power = [&] { return std::ldexp(1.0f, static_cast<int>(generator() % (2 * static_cast<unsigned>(spread))) - spread); };
      for (auto& scale : a_scales) scale = power();
      for (auto& scale : w_scales) scale = power();
      for (std::int64_t i = 0; i < m * boxes * 16; ++i) a_sums[static_cast<std::size_t>(i / 16)] += a[static_cast<std::size_t>(i)];
      std::vector<float> mine(static_cast<std::size_t>(m * 64) + 1, -1.0f), theirs = mine;
      MsfpProblem problem{boxes, a.data(), a_scales.data(), a_sums.data(), w.data(), w_scales.data(), mine.data()};
      kernel.run(problem, 0, m / 2);
      kernel.run(problem, m / 2, m);
      problem.y = theirs.data();
      reference::kMsfp.run(problem, 0, m);
      for (std::size_t i = 0; i < mine.size(); ++i)
        ASSERT_TRUE(std::bit_cast<std::uint32_t>(mine[i]) == std::bit_cast<std::uint32_t>(theirs[i]) ||
                    (std::isnan(mine[i]) && std::isnan(theirs[i])))
            << kernel.name << " " << i << ": " << mine[i] << " " << theirs[i];
    }
  }
}

/// |y - y64| <= gamma(boxes) * sum |a||w|: one rounding per box.
TEST(Msfp, MatmulIsExactWithinTheFormat) {
  for (const char* x_name : {"msfp11", "msfp12", "msfp13", "msfp14", "msfp15", "msfp16"})
    for (const char* w_name : {"msfp16", "msfp12", "msfp15"})
      for (const Shape& sizes : {Shape{1, 1, 1}, Shape{5, 70, 100}, Shape{33, 64, 256}, Shape{7, 129, 47}}) {
        const std::int64_t m = sizes[0], n = sizes[1], k = sizes[2];
        const QuantizedTensor x = quantize(random_tensor({m, k}, 1), Scheme::parse(x_name)),
                              w = quantize(random_tensor({n, k}, 2), Scheme::parse(w_name));
        const PreparedWeight prepared = prepare(w);
        const Tensor xv = dequantize(x), wv = dequantize(w);
        Tensor first;
        for (const int threads : {1, 2, 3, 7}) {
          omp_set_num_threads(threads);
          const Tensor y = matmul(x, prepared);
          if (threads == 1) first = y;
          ASSERT_TRUE(same_bytes(y, first));
        }
        omp_set_num_threads(omp_get_num_procs());
        for (std::int64_t i = 0; i < m * n; ++i) {
          double exact = 0.0, magnitude = 0.0;
          for (std::int64_t j = 0; j < k; ++j) {
            const double product = double{xv.as<float>()[i / n * k + j]} * wv.as<float>()[i % n * k + j];
            exact += product;
            magnitude += std::fabs(product);
          }
          const double boxes = static_cast<double>((k + 15) / 16), gamma = boxes * 0x1p-24 / (1.0 - boxes * 0x1p-24);
          ASSERT_LE(std::fabs(first.as<float>()[i] - exact), gamma * magnitude) << x_name << " " << w_name << " " << to_string(sizes);
        }
      }
}

TEST(Msfp, TheTableChoosesItsRow) {
  MatmulOptions options;
  options.quantize = ActivationQuantization{.scheme = Scheme::parse("msfp12")};
  for (const MatmulChoice& choice : explain_matmul(4, 64, 64, Scheme::parse("msfp16"), options))
    if (choice.chosen && cpu_supports(Isa::kAvx2)) {
      EXPECT_NE(choice.name.find("matmul_msfp_msfp"), std::string::npos) << choice.name;
    }
}

/// int1 x int1 through matmul: every row that takes it gives the reference's bits, with every epilogue.
TEST(BinaryMatmul, EveryRowEqualsTheReference) {
  std::mt19937 generator(3);
  for (int round = 0; round < 120; ++round) {
    const std::int64_t m = 1 + generator() % 110, n = 1 + generator() % 150, k = 1 + generator() % 200;
    const char* granularity = round % 3 == 0 ? "int1:tensor" : "int1:row";
    const QuantizedTensor x = quantize(random_tensor({m, k}, static_cast<unsigned>(round)), Scheme::parse(granularity));
    const PreparedWeight w = prepare(quantize(random_tensor({n, k}, 7), Scheme::parse("int1:row")));
    const Tensor bias = random_tensor({n}, 8), residual = random_tensor({m, n}, 9);
    MatmulProblem problem{.m = m, .n = n, .k = k, .x = view_of(x), .w = view_of(w), .epilogue = {}};
    const DType out = std::vector{DType::kF32, DType::kI32, DType::kF16, DType::kI8, DType::kF8E4m3}[static_cast<std::size_t>(round % 5)];
    if (out != DType::kI32 && round % 2 == 0) {
      problem.epilogue.bias = bias.as<float>();
      problem.epilogue.activation = Activation::kSilu;
      problem.epilogue.residual = residual.data();
      problem.epilogue.residual_stride = n;
    }
    problem.epilogue.out = out;
    problem.epilogue.out_scale = 0.25f;
    problem.epilogue.y_stride = n;
    const auto result = [&](const MatmulKernel& kernel) {
      Tensor y = Tensor::empty(out, {m, n});
      problem.epilogue.y = y.data();
      run_matmul(problem, kernel);
      return y;
    };
    const Tensor expected = result(reference::kMatmul);
    int taken = 0;
    for (const MatmulKernel& kernel : matmul_kernels()) {
      if (!cpu_supports(kernel.isa) || !kernel.accepts(problem) || std::string_view(kernel.name) == "ref_matmul") continue;
      ++taken;
      ASSERT_TRUE(same_bytes(result(kernel), expected)) << kernel.name << " " << m << "x" << n << "x" << k << " " << name_of(out);
    }
    ASSERT_GT(taken, 0);
  }
}

}  // namespace
}  // namespace narrow
