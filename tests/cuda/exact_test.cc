// What Compute::kFp32 has on a CUDA device, kernel by kernel: the CPU's bits.
#include <cmath>
#include <cstring>

#include "device/cuda/runtime.h"
#include "format/row_sum.h"
#include "harness.h"
#include "kernels/cuda/decoder/exact.h"
#include "ops/matmul.h"

namespace narrow::cuda::testing {
namespace {

Tensor normal(Shape shape, unsigned seed) { return random_values(DType::kF32, shape, Values::kNormal, seed); }

bool same_bits(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0; }

/// Few, some and many rows, which have kernels of their own, and columns that are no fours. Weights in fp32, or in fp8 with a scale per row
/// or per 128 columns.
TEST(Exact, ProductsAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const std::int64_t rows : {1, 8, 9, 33, 64, 65, 131})
    for (const auto& [n, k] : {std::pair{16, 16}, {40, 36}, {200, 130}, {72, 400}, {129, 1027}})
      for (const char* scheme : {"", "fp8_e4m3:row", "fp8_e4m3:block128", "fp8_e4m3:128x128"}) {
        const bool codes = *scheme != '\0';
        if (codes && (rows > 64 || k % 16 != 0)) continue;
        SCOPED_TRACE(::testing::Message() << rows << " x " << n << " x " << k << " " << scheme);
        const Tensor x = normal({rows, k}, 1), w = normal({n, k}, 2), bias = normal({n}, 3), residual = normal({rows, n}, 4);
        const Tensor x_there = to_device(x, kDevice, stream), w_there = to_device(w, kDevice, stream),
                     bias_there = to_device(bias, kDevice, stream), y = to_device(residual, kDevice, stream);
        MatmulOptions options;
        options.bias = bias;
        options.residual = residual;
        ExactProductProblem problem{.rows = rows, .n = n, .k = k, .x = x_there.as<float>()};
        problem.bias = bias_there.as<float>();
        problem.residual = problem.y = y.as<float>();
        problem.pitch = n;
        Tensor expected;
        DeviceQuantized q_there;
        if (codes) {
          const QuantizedTensor q = quantize(w, Scheme::parse(scheme));
          q_there = to_device(q, kDevice, stream);
          expected = matmul_in_fp64(x, prepare(q), options);
          problem.codes = q_there.codes.as<std::uint8_t>();
          problem.scales = q_there.scales.as<float>();
          problem.scale_row_shift = q.scheme.granularity == Granularity::block(128, 128) ? 7 : 0;
          problem.scale_pitch = q.scheme.granularity == Granularity::row() ? 1 : (k + 127) / 128;
        } else {
          expected = matmul_in_fp64(x, prepare(w), options);
          problem.w = w_there.as<float>();
        }
        check(launch_exact_product(problem, stream), "exact_product");
        EXPECT_TRUE(same_bits(expected, to_host(y, stream)));
      }
}

/// Rows of one segment of a sum, of several and of more than a thread block has at once; with what is added before, or not.
TEST(Exact, NormsAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  constexpr std::int64_t kRows = 3;
  constexpr float kEpsilon = 1e-5f;
  for (const std::int64_t cols : {64, 1000, 1024, 4096, 5120, 20001})
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(::testing::Message() << cols << (adds ? " with a delta" : ""));
      const Tensor x = normal({kRows, cols}, 1), delta = normal({kRows, cols}, 2), weight = normal({cols}, 3);
      Tensor sum = Tensor::empty(DType::kF32, x.shape()), expected = Tensor::empty(DType::kF32, x.shape());
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t first = row * cols;
        float* v = sum.as<float>() + first;
        for (std::int64_t i = 0; i < cols; ++i) {
          v[i] = x.as<float>()[first + i];
          if (adds) v[i] += delta.as<float>()[first + i];  // not + 0, which would change the sign of a zero
        }
        const auto square = [&](float total, std::int64_t i) { return multiply_add(v[i], v[i], total); };
        const float r = 1.0f / std::sqrt(mean_from_sum(row_sum(cols, square), cols) + kEpsilon);
        for (std::int64_t i = 0; i < cols; ++i) expected.as<float>()[first + i] = (v[i] * r) * weight.as<float>()[i];
      }
      const Tensor stream_there = to_device(x, kDevice, stream), delta_there = to_device(delta, kDevice, stream),
                   weight_there = to_device(weight, kDevice, stream), y = Tensor::empty(DType::kF32, x.shape(), kDevice);
      NormProblem problem{.rows = kRows, .cols = cols, .x = stream_there.as<float>()};
      if (adds) problem.delta = delta_there.data();
      problem.delta_type = DType::kF32;
      problem.weight = weight_there.as<float>();
      problem.epsilon = kEpsilon;
      problem.y = y.data();
      problem.y_type = DType::kF32;
      check(launch_rms_norm_exact(problem, stream), "rms_norm");
      EXPECT_TRUE(same_bits(expected, to_host(y, stream)));
      EXPECT_TRUE(same_bits(sum, to_host(stream_there, stream)));
    }
}

}  // namespace
}  // namespace narrow::cuda::testing
