/// Binary convolutions on a CUDA device: validate -> spread the pixels where they need it -> launch.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "device/cuda/runtime.h"
#include "kernels/cuda/bit_conv.h"
#include "narrow/cuda_binary.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;

void require(bool condition, const std::string& sentence) {
  if (!condition) throw InvalidArgument("binary_conv2d: " + sentence);
}

void require_int1(const DeviceQuantized& q, const char* what) {
  require(!q.device().is_cpu(),
          fmt::format("{} are on the CPU; copy them with cuda::to_device, or call the function without cuda::", what));
  require(q.scheme.element == kInt1 && q.scheme.scale == kFp32,
          fmt::format("{} are {}; they must be int1 with fp32 scales", what, q.scheme.to_string()));
}

BitConvShape shape_of(const DeviceBinaryConv2d& w, const Shape& x) {
  const BinaryConv2dOptions& o = w.options;
  const auto narrow_int = [](std::int64_t v) { return static_cast<int>(v); };
  BitConvShape s;
  s.kernel_h = narrow_int(o.kernel_h), s.kernel_w = narrow_int(o.kernel_w);
  s.stride_h = narrow_int(o.stride_h), s.stride_w = narrow_int(o.stride_w);
  s.pad_h = narrow_int(o.pad_h), s.pad_w = narrow_int(o.pad_w);
  s.groups = narrow_int(o.groups);
  s.channels = narrow_int(w.channels / o.groups);
  s.outputs = narrow_int(w.outputs / o.groups);
  if (x.empty()) return s;
  s.images = narrow_int(x[0]), s.height = narrow_int(x[1]), s.width = narrow_int(x[2]);
  s.out_height = narrow_int((x[1] + 2 * o.pad_h - o.kernel_h) / o.stride_h + 1);
  s.out_width = narrow_int((x[2] + 2 * o.pad_w - o.kernel_w) / o.stride_w + 1);
  return s;
}

void require_input(const Shape& x, const DeviceBinaryConv2d& w) {
  require(x.size() == 4 && x[3] == w.channels,
          fmt::format("x is {}; it must be [images, height, width, {} channels]", to_string(x), w.channels));
  const BinaryConv2dOptions& o = w.options;
  require(x[1] + 2 * o.pad_h >= o.kernel_h && x[2] + 2 * o.pad_w >= o.kernel_w,
          fmt::format("the padded image of {} is smaller than the {} x {} kernel", to_string(x), o.kernel_h, o.kernel_w));
  require(x[0] <= kMost && x[1] + 2 * o.pad_h <= kMost && x[2] + 2 * o.pad_w <= kMost, "a dimension has more than 2^30 elements");
}

/// Whether the kernel can read canonical pixels as they are: whole words in every group, aligned for 16-byte loads.
bool reads_pixels(const DeviceQuantized& x, const BitConvShape& s) {
  return s.channels % 32 == 0 && reinterpret_cast<std::uintptr_t>(x.codes.data()) % 16 == 0;
}

BitConvWeights weights_of(const DeviceBinaryConv2d& w) {
  return {w.codes.as<std::uint32_t>(), w.places.as<std::int32_t>(), w.offsets.as<std::int32_t>(), w.scales.as<float>()};
}

/// The convolution without its result.
BitConvProblem problem_of(const DeviceQuantized& x, const DeviceBinaryConv2d& w) {
  require_int1(x, "activations");
  require(x.scheme.granularity.kind == Granularity::Kind::kTensor,
          fmt::format("activations of {} have more than one scale; use int1:tensor", x.scheme.to_string()));
  require(x.device() == w.device(), "x and w must be on one device");
  require_input(x.shape, w);
  BitConvProblem p;
  p.shape = shape_of(w, x.shape);
  require(p.shape.positions() <= kMost, "there are more than 2^30 output positions");
  p.x = x.codes.as<std::uint32_t>();
  p.w = weights_of(w);
  p.x_scale = x.scales.as<float>();
  return p;
}

void run(BitConvProblem& p, const DeviceQuantized& x, const DeviceBinaryConv2d& w, Stream stream, Workspace workspace) {
  if (p.shape.positions() == 0) return;
  const DeviceGuard guard(x.device().index);
  const std::size_t bytes = binary_conv2d_workspace(x, w);
  if (bytes == 0) return check(launch_bit_conv(p, stream), "binary_conv2d");
  const Scratch spread(bytes, workspace, stream);
  const std::int64_t pixels = x.shape[0] * x.shape[1] * x.shape[2];
  check(launch_spread_pixels(x.codes.as<std::uint8_t>(), pixels, (w.channels + 7) / 8, p.shape, static_cast<std::uint32_t*>(spread.data()),
                             stream),
        "binary_conv2d");
  p.x = static_cast<const std::uint32_t*>(spread.data());
  check(launch_bit_conv(p, stream), "binary_conv2d");
}

}  // namespace

DeviceBinaryConv2d prepare_binary_conv2d(const DeviceQuantized& w, const BinaryConv2dOptions& options, Stream stream) {
  require_int1(w, "weights");
  const BinaryConv2dOptions& o = options;
  require(o.kernel_h >= 1 && o.kernel_w >= 1 && o.stride_h >= 1 && o.stride_w >= 1 && o.pad_h >= 0 && o.pad_w >= 0 && o.groups >= 1,
          "kernel, stride and groups are at least 1 and padding is not negative");
  const std::int64_t taps = o.kernel_h * o.kernel_w;
  if (taps > kConvMostTaps)
    throw Unsupported(fmt::format("binary_conv2d: a kernel of {} x {}; at most {} taps", o.kernel_h, o.kernel_w, kConvMostTaps));
  require(w.shape.size() == 2 && w.shape[0] % o.groups == 0 && w.shape[0] > 0 && w.shape[1] > 0 && w.shape[1] % taps == 0,
          fmt::format("the weight is {}; it must be [outputs, {} * channels per group], with outputs a multiple of the {} groups",
                      to_string(w.shape), taps, o.groups));
  const bool per_row = w.scheme.granularity == Granularity::row();
  require(per_row || w.scheme.granularity.kind == Granularity::Kind::kTensor,
          fmt::format("weights of {} have scales along the sum; use int1:row or int1:tensor", w.scheme.to_string()));
  require(std::max(w.shape[0], w.shape[1]) <= kMost, "a dimension has more than 2^30 elements");
  DeviceBinaryConv2d p;
  p.options = options;
  p.outputs = w.shape[0];
  p.channels = w.shape[1] / taps * o.groups;
  const BitConvShape s = shape_of(p, {});
  const DeviceGuard guard(w.device().index);
  const auto words = [&](std::int64_t count) { return Buffer::allocate(static_cast<std::size_t>(count) * 4, w.device()); };
  if (w.shape[1] > kConvMostProducts)
    throw Unsupported(fmt::format("binary_conv2d: a window of {} products; at most {}", w.shape[1], kConvMostProducts));
  p.codes = words(s.weight_words());
  p.places = words(s.steps() * s.units_of_step());
  p.offsets = words(o.groups * s.padded_outputs());
  p.scales = words(o.groups * s.padded_outputs());
  check(launch_prepare_conv(w.codes.as<std::uint8_t>(), (w.shape[1] + 7) / 8, w.scales.as<float>(), per_row ? 1 : 0, s, weights_of(p),
                            stream),
        "prepare_binary_conv2d");
  return p;
}

Shape binary_conv2d_shape(const Shape& x, const DeviceBinaryConv2d& w) {
  require_input(x, w);
  const BitConvShape s = shape_of(w, x);
  return {x[0], s.out_height, s.out_width, w.outputs};
}

std::size_t binary_conv2d_workspace(const DeviceQuantized& x, const DeviceBinaryConv2d& w) {
  require_input(x.shape, w);
  const BitConvShape s = shape_of(w, x.shape);
  return reads_pixels(x, s)
             ? 0
             : static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2]) * static_cast<std::size_t>(s.groups * s.tap_words()) * 4;
}

void binary_conv2d(const DeviceQuantized& x, const DeviceBinaryConv2d& w, const Tensor& y, Stream stream, Workspace workspace) {
  BitConvProblem p = problem_of(x, w);
  if (!is_floating(y.dtype()) && y.dtype() != DType::kI32)
    throw Unsupported(fmt::format("binary_conv2d: y is {}; use I32, F32, F16 or BF16", name_of(y.dtype())));
  const Shape expected = binary_conv2d_shape(x.shape, w);
  require(y.shape() == expected && y.is_contiguous() && y.device() == x.device(),
          fmt::format("y is {}; it must be {}, contiguous, on x's device", to_string(y.shape()), to_string(expected)));
  p.out = y.dtype();
  p.y = y.data();
  run(p, x, w, stream, workspace);
}

void binary_conv2d(const DeviceQuantized& x, const DeviceBinaryConv2d& w, const BinaryThresholds& thresholds, const DeviceQuantized& y,
                   Stream stream, Workspace workspace) {
  BitConvProblem p = problem_of(x, w);
  require_int1(y, "one-bit results");
  const Shape expected = binary_conv2d_shape(x.shape, w);
  require(y.shape == expected && y.device() == x.device(),
          fmt::format("y is {}; it must be {} on x's device", to_string(y.shape), to_string(expected)));
  require(
      thresholds.thresholds.size() == static_cast<std::size_t>(w.outputs) * 4 && thresholds.signs.size() == thresholds.thresholds.size(),
      fmt::format("there must be {} thresholds and signs", w.outputs));
  if (w.options.groups > 1 && p.shape.outputs % 8 != 0)
    throw Unsupported(fmt::format("binary_conv2d: one-bit results of {} outputs in each of {} groups; use a multiple of 8", p.shape.outputs,
                                  w.options.groups));
  p.thresholds = thresholds.thresholds.as<std::int32_t>();
  p.signs = thresholds.signs.as<std::int32_t>();
  p.bits = y.codes.as<std::uint8_t>();
  p.bit_pitch = (w.outputs + 7) / 8;
  run(p, x, w, stream, workspace);
}

BinaryThresholds fold_batch_norm(const BatchNorm& norm, const Tensor& scales, std::int64_t most, Device device, Stream stream) {
  const std::int64_t outputs = scales.size();
  for (const Tensor* t : {&norm.weight, &norm.bias, &norm.mean, &norm.variance, &scales})
    if (!t->device().is_cpu() || t->dtype() != DType::kF32 || !t->is_contiguous() || t->size() != outputs)
      throw InvalidArgument(fmt::format("fold_batch_norm: weight, bias, mean, variance and scales must be fp32 [{}] on the host", outputs));
  if (most < 0 || most > kMost) throw InvalidArgument(fmt::format("fold_batch_norm: the largest sum is {}", most));
  Tensor thresholds = Tensor::empty(DType::kI32, {outputs}), signs = Tensor::empty(DType::kI32, {outputs});
  for (std::int64_t i = 0; i < outputs; ++i) {
    const auto at = [&](const Tensor& t) { return static_cast<double>(t.as<float>()[i]); };
    const auto positive = [&](std::int64_t sum) {
      return (at(scales) * static_cast<double>(sum) - at(norm.mean)) / std::sqrt(at(norm.variance) + norm.epsilon) * at(norm.weight) +
                 at(norm.bias) >
             0.0;
    };
    // The bit changes at most once from -most to most. With a positive sign it is 1 from a sum on, else up to one.
    const std::int32_t sign = positive(-most) ? -1 : 1;
    std::int64_t low = -most, high = most + 1;  // of sign * sum: the smallest from which the bit is 1
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (positive(sign * middle))
        high = middle;
      else
        low = middle + 1;
    }
    thresholds.as<std::int32_t>()[i] = static_cast<std::int32_t>(low);
    signs.as<std::int32_t>()[i] = sign;
  }
  const DeviceGuard guard(device.index);
  const auto upload = [&](const Tensor& t) {
    Buffer buffer = Buffer::allocate(t.byte_size(), device);
    copy_bytes(buffer.data(), t.data(), t.byte_size(), stream);
    return buffer;
  };
  BinaryThresholds result{upload(thresholds), upload(signs)};
  synchronize(stream);
  return result;
}

}  // namespace narrow::cuda
