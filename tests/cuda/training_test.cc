/// Training pieces on the device against their equations on the host, bit for bit.

#include <bit>
#include <cmath>
#include <cstring>

#include "format/row_sum.h"
#include "format/training_rule.h"
#include "harness.h"
#include "kernels/storage.h"
#include "narrow/cuda_training.h"

namespace narrow::cuda::testing {
namespace {

struct Expected {
  Tensor grad_x, grad_scales;
};

Expected reference(const Tensor& x, const Tensor& grad_y, const Scheme& scheme, const Tensor& scales, float factor) {
  const MatrixShape matrix = as_matrices(x.shape());
  const ScaleGrid grid = scale_grid(scheme, x.shape());
  Expected expected{Tensor::empty(x.dtype(), x.shape()), Tensor::empty(DType::kF32, {grid.count()})};
  const std::int64_t width = grid.whole_tensor || scheme.granularity.cols == 0 ? matrix.cols : scheme.granularity.cols;
  const std::int64_t cells = (matrix.cols + width - 1) / width;
  std::vector<double> row_sums;
  for (std::int64_t row = 0; row < matrix.total_rows(); ++row)
    for (std::int64_t cell = 0; cell < cells; ++cell) {
      const std::int64_t begin = cell * width, count = std::min(width, matrix.cols - begin), start = row * matrix.cols + begin;
      const float scale = scales.as<float>()[grid.whole_tensor ? 0 : row * cells + cell];
      const double sum = row_sum(count, [&](float part, std::int64_t i) {
        const float gradient = load_value(grad_y.data(), x.dtype(), start + i);
        const StepGradient step = step_gradient(scheme.element, load_value(x.data(), x.dtype(), start + i), scale);
        store_value(expected.grad_x.data(), x.dtype(), start + i, step.passes ? gradient : 0.0f, Overflow::kIeee);
        return part + gradient * step.step;
      });
      if (grid.whole_tensor)
        row_sums.push_back(sum);
      else
        expected.grad_scales.as<float>()[row * cells + cell] = scale_gradient(sum, factor);
    }
  if (grid.whole_tensor)
    expected.grad_scales.as<float>()[0] = scale_gradient(
        lane_sum(static_cast<std::int64_t>(row_sums.size()), [&](std::int64_t i) { return row_sums[static_cast<std::size_t>(i)]; }),
        factor);
  return expected;
}

TEST(CudaTraining, FakeQuantizeBackward) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 1;
  for (const char* text :
       {"int8:tensor", "int8:row", "int4:block128", "int8:block128", "fp8_e4m3:tensor", "fp8_e4m3:row", "fp4_e2m1:block32", "int2:row"})
    for (const DType dtype : kTypes)
      for (const Shape& shape : {Shape{1, 1}, Shape{7, 130}, Shape{40, 3000}, Shape{2, 3, 1024}, Shape{300, 64}}) {
        const Scheme scheme = Scheme::parse(text);
        const Tensor x = random_values(dtype, shape, seed % 2 == 0 ? Values::kNormal : Values::kTies, seed),
                     grad_y = random_values(dtype, shape, Values::kNormal, seed + 1);
        const std::int64_t cells = scale_grid(scheme, shape).count();
        Tensor scales = Tensor::empty(DType::kF32, {cells});
        const float largest = static_cast<float>(scheme.element.largest());
        for (std::int64_t i = 0; i < cells; ++i)
          scales.as<float>()[i] = (0.5f + 0.25f * static_cast<float>(i % 9)) / largest;  // some values lie outside
        seed += 2;
        const float factor = 1.0f / std::sqrt(static_cast<float>(x.size()) * largest);
        const Expected expected = reference(x, grad_y, scheme, scales, factor);
        const std::string what = std::string(text) + " " + std::string(name_of(dtype)) + " " + to_string(shape);
        const GuardedValues grad_x(grad_y, 0, 0, stream);
        const Guarded grad_scales(static_cast<std::size_t>(cells) * 4, 0, stream);
        const Tensor device_grad_y = to_device(grad_y, kDevice, stream),
                     device_scales = Tensor::borrow(grad_scales.data(), DType::kF32, {cells}, {}, kDevice);
        fake_quantize_backward({.x = to_device(x, kDevice, stream),
                                .scales = to_device(scales, kDevice, stream),
                                .grad_y = device_grad_y,
                                .grad_x = grad_x.x,
                                .grad_scales = device_scales,
                                .factor = factor},
                               scheme, stream);
        expect_equal(expected.grad_x, to_host(grad_x.x, stream), what + ": gradient of x");
        expect_equal(expected.grad_scales, to_host(device_scales, stream), what + ": gradient of scales");
        grad_x.memory.check(stream, what);
        grad_scales.check(stream, what);
        ASSERT_FALSE(HasFatalFailure());
        // Straight-through alone, in place.
        fake_quantize_backward({.x = to_device(x, kDevice, stream),
                                .scales = to_device(scales, kDevice, stream),
                                .grad_y = device_grad_y,
                                .grad_x = device_grad_y},
                               scheme, stream);
        expect_equal(expected.grad_x, to_host(device_grad_y, stream), what + ": in place");
        ASSERT_FALSE(HasFatalFailure());
      }
}

TEST(CudaTraining, UnscaleFindsWhatIsNotFinite) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const DType dtype : kTypes)
    for (const Values values : {Values::kNormal, Values::kNonFinite}) {
      const Tensor gradient = random_values(dtype, {3, 1001}, values, 7);
      const float scale = 1024.5f;
      Tensor expected = Tensor::empty(DType::kF32, gradient.shape());
      std::uint32_t flags = 0;
      for (std::int64_t i = 0; i < gradient.size(); ++i) {
        const float value = load_value(gradient.data(), dtype, i);
        if (std::isnan(value)) flags |= 1;
        if (std::isinf(value)) flags |= 2;
        expected.as<float>()[i] = std::isnan(value) ? std::bit_cast<float>(0x7FC00000u) : value * (1.0f / scale);
      }
      const Tensor device_scale = to_device(Tensor::of({scale}, {1}), kDevice, stream),
                   zero = to_device(Tensor::of({0.0f}, {1}), kDevice, stream);
      const Tensor device_flags = Tensor::borrow(zero.data(), DType::kU32, {1}, {}, kDevice),
                   out = Tensor::empty(DType::kF32, gradient.shape(), kDevice);
      unscale_gradient(to_device(gradient, kDevice, stream), device_scale, out, device_flags, stream);
      expect_equal(expected, to_host(out, stream), std::string(name_of(dtype)));
      EXPECT_EQ(to_host(device_flags, stream).as<std::uint32_t>()[0], flags);
    }
}

TEST(CudaTraining, LossScaleGrowsAndBacksOff) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Tensor scale = to_device(Tensor::of({65536.0f}, {1}), kDevice, stream),
               memory = to_device(Tensor::of({0.0f, 0.0f}, {2}), kDevice, stream);
  const Tensor steps = Tensor::borrow(memory.data(), DType::kU32, {1}, {}, kDevice),
               flags = Tensor::borrow(memory.data() + 4, DType::kU32, {1}, {}, kDevice);
  LossScaleState expected{65536.0f, 0};
  const LossScaleOptions options{.interval = 3};
  for (int step = 0; step < 400; ++step) {  // long enough to reach the largest finite scale
    const bool overflowed = step % 50 == 7 && step < 200;
    if (overflowed) copy(Tensor::borrow(scale.data(), DType::kU32, {1}, {}, kDevice), flags, stream);
    update_loss_scale(scale, steps, flags, options, stream);
    expected = next_loss_scale(expected, overflowed, options.growth, options.backoff, options.interval);
    ASSERT_EQ(to_host(scale, stream).as<float>()[0], expected.scale) << step;
    ASSERT_EQ(to_host(steps, stream).as<std::uint32_t>()[0], expected.steps) << step;
    ASSERT_EQ(to_host(flags, stream).as<std::uint32_t>()[0], 0u) << step;
  }
}

TEST(CudaTraining, AmaxHistory) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const std::int64_t length : {std::int64_t{1}, std::int64_t{16}, std::int64_t{1000}})
    for (const bool recent : {false, true}) {
      constexpr std::int64_t kTensors = 5;
      std::vector<std::vector<float>> history(kTensors, std::vector<float>(static_cast<std::size_t>(length), 0.0f));
      std::vector<float> scales(kTensors, 1.0f);
      Tensor zeros = Tensor::empty(DType::kF32, {kTensors, length}), ones = Tensor::empty(DType::kF32, {kTensors});
      std::memset(zeros.data(), 0, zeros.byte_size());
      std::fill_n(ones.as<float>(), kTensors, 1.0f);
      const Tensor device_history = to_device(zeros, kDevice, stream), device_scales = to_device(ones, kDevice, stream),
                   device_amax = Tensor::empty(DType::kF32, {kTensors}, kDevice);
      for (int step = 0; step < 20; ++step) {
        Tensor amax = random_values(DType::kF32, {kTensors}, Values::kWide, static_cast<unsigned>(step));
        for (std::int64_t i = 0; i < kTensors; ++i) {
          float& value = amax.as<float>()[i];
          value = std::fabs(value);
          if (step == 5 && i == 2) value = INFINITY;
          if (step == 6 && i == 3) value = NAN;
          auto& mine = history[static_cast<std::size_t>(i)];
          mine.insert(mine.begin(), value);
          mine.pop_back();
          float highest = 0.0f;
          for (const float old : mine) highest = std::isnan(old) || std::isnan(highest) ? NAN : std::max(highest, old);
          scales[static_cast<std::size_t>(i)] = delayed_scale(recent ? value : highest, scales[static_cast<std::size_t>(i)], 448.0f, 2.0f);
        }
        copy(amax, device_amax, stream);
        update_amax_history(device_history, device_amax, device_scales, {.margin = 1, .most_recent = recent}, stream);
        const Tensor actual = to_host(device_scales, stream), actual_history = to_host(device_history, stream);
        for (std::int64_t i = 0; i < kTensors; ++i) {
          ASSERT_EQ(actual.as<float>()[i], scales[static_cast<std::size_t>(i)]) << length << " step " << step << " tensor " << i;
          ASSERT_EQ(std::memcmp(actual_history.as<float>() + i * length, history[static_cast<std::size_t>(i)].data(),
                                static_cast<std::size_t>(length) * 4),
                    0);
        }
        ASSERT_EQ(to_host(device_amax, stream).as<float>()[0], 0.0f);
      }
    }
}

}  // namespace
}  // namespace narrow::cuda::testing
