#include "narrow/fused.h"

#include <omp.h>

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "kernels/fused.h"
#include "kernels/storage.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr FusedOp kOps[] = {FusedOp::kIdentity, FusedOp::kLayerNorm, FusedOp::kRmsNorm, FusedOp::kAddRmsNorm,
                            FusedOp::kSiluMul,  FusedOp::kGelu,      FusedOp::kGeluTanh};

Tensor random_tensor(DType dtype, Shape shape, unsigned seed, float spread = 1.0f) {
  Tensor x = Tensor::empty(dtype, std::move(shape));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.1f, spread);
  for (std::int64_t i = 0; i < x.size(); ++i) store_value(x.data(), dtype, i, normal(generator));
  return x;
}

Tensor copy_of(const Tensor& x) {
  Tensor y = Tensor::empty(x.dtype(), x.shape());
  std::copy_n(x.data(), x.byte_size(), y.data());
  return y;
}

bool same_bytes(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}
bool same_bytes(const Tensor& a, const Tensor& b) { return std::equal(a.data(), a.data() + a.byte_size(), b.data()); }

FusedInput input_for(FusedOp op, DType dtype, const Shape& shape, unsigned seed) {
  FusedInput input{.op = op, .x = random_tensor(dtype, shape, seed, 3.0f)};
  if (op == FusedOp::kSiluMul || op == FusedOp::kAddRmsNorm) input.other = random_tensor(dtype, shape, seed + 1);
  if (op == FusedOp::kLayerNorm || op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm)
    input.weight = random_tensor(DType::kF32, {shape.back()}, seed + 2);
  if (op == FusedOp::kLayerNorm) input.bias = random_tensor(DType::kF32, {shape.back()}, seed + 3);
  return input;
}

/// The fp32 rows of the reference producer; updates input's residual as the op does.
Tensor reference_rows(const FusedInput& input) {
  const MatrixShape matrix = as_matrices(input.x.shape());
  Tensor y = Tensor::empty(DType::kF32, input.x.shape());
  FusedProblem problem{.op = input.op,
                       .dtype = input.x.dtype(),
                       .rows = matrix.total_rows(),
                       .cols = matrix.cols,
                       .x = input.x.data(),
                       .x_stride = matrix.cols,
                       .other = input.other ? input.other->data() : nullptr,
                       .other_stride = matrix.cols,
                       .residual = input.other ? input.other->data() : nullptr,
                       .weight_dtype = input.weight ? input.weight->dtype() : DType::kF32,
                       .weight = input.weight ? input.weight->data() : nullptr,
                       .bias = input.bias ? input.bias->data() : nullptr,
                       .epsilon = input.epsilon};
  reference::kFused.run(problem, 0, problem.rows, y.as<float>());
  return y;
}

TEST(Fused, EqualsQuantizeOfTheEquation) {
  unsigned seed = 1;
  for (const FusedOp op : kOps)
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
      for (const Shape& shape : {Shape{7, 129}, Shape{1, 1}, Shape{3, 2048}, Shape{2, 5, 96}, Shape{40, 33}, Shape{0, 8}})
        for (const char* name : {"int8:row", "fp8_e4m3:row", "fp8_e4m3:block128", "int8:row:asym", "int4:block32", "mxfp8_e4m3"}) {
          FusedInput input = input_for(op, dtype, shape, seed++);
          FusedInput again = input;
          if (input.other) again.other = copy_of(*input.other);
          const Scheme scheme = Scheme::parse(name);
          const QuantizedTensor actual = fused_quantize(input, scheme);
          const QuantizedTensor expected = quantize(reference_rows(again), scheme, {.nonfinite = NonFinite::kSaturate});
          EXPECT_TRUE(same_bytes(actual.codes, expected.codes)) << name << " op " << int(op) << " " << to_string(shape);
          EXPECT_TRUE(same_bytes(actual.scales, expected.scales)) << name;
          EXPECT_TRUE(same_bytes(actual.zero_points, expected.zero_points)) << name;
          if (op == FusedOp::kAddRmsNorm) {
            EXPECT_TRUE(same_bytes(*input.other, *again.other));
          }
        }
}

TEST(Fused, ReferenceIsCloseToFp64) {
  const std::int64_t cols = 3000;
  for (const FusedOp op : kOps) {
    const FusedInput input = input_for(op, DType::kF32, {2, cols}, 5);
    const Tensor before = input.other ? copy_of(*input.other) : Tensor{};
    const Tensor y = reference_rows(input);
    for (std::int64_t row = 0; row < 2; ++row) {
      const float* x = input.x.as<float>() + row * cols;
      double mean = 0.0, square = 0.0, variance = 0.0;
      const auto at = [&](std::int64_t i) {
        return op == FusedOp::kAddRmsNorm ? double(x[i] + before.as<float>()[row * cols + i]) : double(x[i]);
      };
      for (std::int64_t i = 0; i < cols; ++i) mean += at(i) / cols, square += at(i) * at(i) / cols;
      for (std::int64_t i = 0; i < cols; ++i) variance += (at(i) - mean) * (at(i) - mean) / cols;
      for (std::int64_t i = 0; i < cols; ++i) {
        const double v = at(i), w = input.weight ? input.weight->as<float>()[i] : 1.0, b = input.bias ? input.bias->as<float>()[i] : 0.0;
        double exact = v;
        if (op == FusedOp::kLayerNorm) exact = (v - mean) / std::sqrt(variance + 1e-5) * w + b;
        if (op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm) exact = v / std::sqrt(square + 1e-5) * w;
        if (op == FusedOp::kSiluMul) exact = v / (1.0 + std::exp(-v)) * input.other->as<float>()[row * cols + i];
        if (op == FusedOp::kGelu) exact = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
        if (op == FusedOp::kGeluTanh)
          exact = 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)));
        ASSERT_NEAR(y.as<float>()[row * cols + i], exact, 2e-6 * std::max(1.0, std::fabs(exact))) << int(op);
      }
    }
  }
}

/// Every row of the table gives the reference's bits: all ops and types, tails, strides, offsets, special values.
TEST(Fused, EveryKernelEqualsTheReference) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const FusedKernel& kernel : fused_kernels()) {
    if (!cpu_supports(kernel.isa)) continue;
    for (const FusedOp op : kOps)
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
        for (const DType weight_dtype : {DType::kF32, DType::kF16, DType::kBf16})
          for (const std::int64_t cols : {1, 2, 15, 16, 17, 31, 33, 64, 100, 1023, 1024, 1025, 1060, 3333})
            for (const int special : {0, 1}) {
              const std::int64_t rows = 3, stride = cols + 5, offset = 1;
              const Tensor x =
                  random_tensor(dtype, {rows * stride + offset}, 11 + static_cast<unsigned>(cols), special != 0 ? 60.0f : 2.0f);
              Tensor other = random_tensor(dtype, {rows * stride + offset}, 12, 2.0f);
              if (special != 0) {
                int i = 0;
                for (const float v :
                     {0.0f, -0.0f, inf, -inf, std::nanf(""), 65504.0f, 3e38f, -3e38f, 1e-40f, -1e-42f, 89.0f, -89.0f, -87.0f, 88.72283f})
                  store_value(x.data(), dtype, 1 + 3 * i++ % (rows * stride), v, Overflow::kIeee);
              }
              const Tensor weight = random_tensor(weight_dtype, {cols}, 13), bias = random_tensor(weight_dtype, {cols}, 14);
              const std::size_t element = static_cast<std::size_t>(bits_of(dtype)) / 8;
              for (const bool with_weight : {true, false}) {
                Tensor mine = copy_of(other), theirs = copy_of(other);
                FusedProblem problem{.op = op,
                                     .dtype = dtype,
                                     .rows = rows,
                                     .cols = cols,
                                     .x = x.data() + element * offset,
                                     .x_stride = stride,
                                     .other_stride = stride,
                                     .weight_dtype = weight_dtype,
                                     .weight = with_weight ? weight.data() : nullptr,
                                     .bias = with_weight ? bias.data() : nullptr};
                if (!kernel.accepts(problem)) continue;
                std::vector<float> a(static_cast<std::size_t>(rows * cols), -7.0f), b = a;
                problem.other = problem.residual = mine.data() + element * offset;
                kernel.run(problem, 0, 1, a.data());
                kernel.run(problem, 1, rows, a.data() + cols);
                problem.other = problem.residual = theirs.data() + element * offset;
                reference::kFused.run(problem, 0, rows, b.data());
                for (std::size_t i = 0; i < a.size(); ++i)
                  ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
                      << kernel.name << " op " << int(op) << " " << name_of(dtype) << " cols " << cols << " at " << i << ": " << a[i] << " "
                      << b[i];
                ASSERT_TRUE(same_bytes(mine, theirs)) << kernel.name << " " << name_of(dtype) << " cols " << cols;
              }
            }
  }
}

TEST(Fused, ThreadsDoNotMatter) {
  for (const FusedOp op : kOps) {
    const FusedInput input = input_for(op, DType::kBf16, {131, 520}, 9);
    const Tensor before = input.other ? copy_of(*input.other) : Tensor{};
    QuantizedTensor first;
    for (const int threads : {1, 2, 3, 7}) {
      FusedInput mine = input;
      if (input.other) mine.other = copy_of(before);
      omp_set_num_threads(threads);
      const QuantizedTensor q = fused_quantize(mine, Scheme::parse("int8:row"));
      if (threads == 1) first = q;
      EXPECT_TRUE(same_bytes(q.codes, first.codes) && same_bytes(q.scales, first.scales)) << threads;
    }
    omp_set_num_threads(omp_get_num_procs());
  }
}

/// The fast quantization of a produced row, on every instruction set: ties, signed zeros, extreme scales, values that are not finite.
TEST(Fused, EveryInstructionSetGivesTheSameCodes) {
  const std::int64_t cols = 1000;
  std::mt19937 generator(77);
  for (const char* name : {"int8:row", "fp8_e4m3:row", "fp8_e5m2:row", "fp8_e4m3:block128", "int8:block64", "fp8_e5m2:block192"})
    for (int round = 0; round < 40; ++round) {
      Tensor x = random_tensor(DType::kF32, {3, cols}, static_cast<unsigned>(round), 1.0f);
      const float factor = std::ldexp(1.0f, round < 20 ? round * 8 - 80 : static_cast<int>(generator() % 20) - 10);
      for (std::int64_t i = 0; i < x.size(); ++i) {
        float& value = x.as<float>()[i];
        if (i % 3 == 0) value = (static_cast<float>(generator() % 512) - 256.0f) * 0.5f;  // ties of int8 where amax is 127
        if (i % 7 == 0) value = i % 2 == 0 ? 0.0f : -0.0f;
        value *= factor;
      }
      if (round % 2 == 0) std::fill_n(x.as<float>() + 2 * cols, 128, round % 4 == 0 ? 0.0f : -0.0f);
      if (round % 5 == 1) x.as<float>()[cols + 5] = std::numeric_limits<float>::infinity();
      if (round % 5 == 2) x.as<float>()[cols + 500] = std::nanf("");
      if (round % 5 == 3) x.as<float>()[2 * cols + 999] = 3e38f;
      const FusedInput input{.op = FusedOp::kIdentity, .x = x};
      limit_cpu(Isa::kScalar);
      const QuantizedTensor expected = fused_quantize(input, Scheme::parse(name));
      unlimit_cpu();
      for (const Isa isa : all_isas()) {
        if (!cpu_supports(isa)) continue;
        limit_cpu(isa);
        const QuantizedTensor actual = fused_quantize(input, Scheme::parse(name));
        unlimit_cpu();
        EXPECT_TRUE(same_bytes(actual.codes, expected.codes)) << name_of(isa) << " " << name << " round " << round;
        EXPECT_TRUE(same_bytes(actual.scales, expected.scales)) << name_of(isa) << " " << name << " round " << round;
      }
    }
}

TEST(Fused, WritesEveryLayout) {
  for (const Layout layout : all_layouts())
    for (const Shape& shape : {Shape{37, 96}, Shape{2, 17, 70}, Shape{1, 5}})
      for (const char* name : {"int8:row", "fp8_e4m3:block32"}) {
        const FusedInput input = input_for(FusedOp::kRmsNorm, DType::kF16, shape, 21);
        const LaidOutTensor laid = fused_quantize(input, Scheme::parse(name), layout);
        const QuantizedTensor rows = fused_quantize(input, Scheme::parse(name)), back = to_rows(laid);
        EXPECT_TRUE(same_bytes(back.codes, rows.codes) && same_bytes(back.scales, rows.scales))
            << name_of(layout) << " " << to_string(shape);
        std::int64_t sum = 0, expected = 0;  // padding is zero
        for (const std::byte b : laid.codes.bytes()) sum += static_cast<int>(b);
        for (const std::byte b : rows.codes.bytes()) expected += static_cast<int>(b);
        EXPECT_EQ(sum, expected);
      }
}

TEST(Fused, StaticScales) {
  const FusedInput plain = input_for(FusedOp::kRmsNorm, DType::kF32, {9, 70}, 31);
  const Tensor y = reference_rows(plain);
  FusedInput input = plain;
  input.scales = Tensor::of({0.03f}, {1});
  const QuantizedTensor a = fused_quantize(input, Scheme::parse("int8:tensor"));
  const QuantizedTensor b = quantize(y, Scheme::parse("int8:tensor"), {.scales = input.scales});
  EXPECT_TRUE(same_bytes(a.codes, b.codes) && same_bytes(a.scales, b.scales));
  input.zero_points = Tensor::empty(DType::kU8, {1});
  input.zero_points->as<std::uint8_t>()[0] = 120;
  const QuantizedTensor c = fused_quantize(input, Scheme::parse("int8:tensor:asym"));
  const QuantizedTensor d = quantize(y, Scheme::parse("int8:tensor:asym"), {.scales = input.scales, .zero_points = input.zero_points});
  EXPECT_TRUE(same_bytes(c.codes, d.codes));
}

TEST(Fused, RefusesWhatItCannotDo) {
  const FusedInput norm = input_for(FusedOp::kRmsNorm, DType::kF32, {4, 64}, 1);
  EXPECT_THROW(fused_quantize(norm, Scheme::parse("int8:tensor")), Unsupported);
  EXPECT_THROW(fused_quantize(norm, Scheme::parse("nvfp4")), Unsupported);
  EXPECT_THROW(fused_quantize(norm, Scheme::parse("int4:block32"), Layout::kCol32), Unsupported);
  FusedInput wrong = norm;
  wrong.op = FusedOp::kSiluMul;
  EXPECT_THROW(fused_quantize(wrong, Scheme::parse("int8:row")), InvalidArgument);
  wrong = norm;
  wrong.weight = random_tensor(DType::kF32, {63}, 2);
  EXPECT_THROW(fused_quantize(wrong, Scheme::parse("int8:row")), InvalidArgument);
  wrong = norm;
  wrong.op = FusedOp::kGelu;
  EXPECT_THROW(fused_quantize(wrong, Scheme::parse("int8:row")), InvalidArgument);
}

}  // namespace
}  // namespace narrow
