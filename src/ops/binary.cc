/// Binary convolution: validate, gather windows of the image into rows of bits, multiply them on the int1 kernels.

#include "narrow/binary.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "dispatch/binary.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr std::int64_t kTilePixels = 96;  // output positions whose windows are gathered at a time

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Bits [begin, begin + count) of a packed row as 32-bit words; the last word's spare bits are zero.
void copy_bits(const std::uint8_t* row, std::int64_t begin, std::int64_t count, std::uint32_t* words) {
  const std::int64_t whole = ceil_div(count, 32);
  if (begin % 8 == 0) {
    words[whole - 1] = 0;
    std::memcpy(words, row + begin / 8, packed_bytes(count, 1));
    if (count % 32 != 0) words[whole - 1] &= (1u << (count % 32)) - 1u;
    return;
  }
  std::fill(words, words + whole, 0u);
  for (std::int64_t i = 0; i < count; ++i) words[i / 32] |= read_code(row, begin + i, 1) << (i % 32);
}

void require_int1(const QuantizedTensor& q, const char* what) {
  if (q.scheme.element != kInt1)
    throw InvalidArgument(fmt::format("binary_conv2d: {} are {}; they must be int1", what, q.scheme.to_string()));
  if (!q.device().is_cpu()) throw Unsupported(fmt::format("binary_conv2d: {} must be on the CPU; copy them there first", what));
}

float scale_at(const QuantizedTensor& q, std::int64_t cell) {
  return effective_scale(q.scheme, load_scale_code(q.scales.data(), q.scheme.scale, cell), q.outer_scale);
}

/// The sizes of a convolution, and how its bits lie.
struct Geometry {
  std::int64_t height, width, out_height, out_width;
  std::int64_t taps, group_channels, group_outputs, tap_words, words, panels;
};

Geometry geometry_of(const PreparedBinaryConv2d& w, std::int64_t height, std::int64_t width) {
  const BinaryConv2dOptions& o = w.options;
  Geometry g{};
  g.height = height;
  g.width = width;
  g.out_height = (height + 2 * o.pad_h - o.kernel_h) / o.stride_h + 1;
  g.out_width = (width + 2 * o.pad_w - o.kernel_w) / o.stride_w + 1;
  g.taps = o.kernel_h * o.kernel_w;
  g.group_channels = w.channels / o.groups;
  g.group_outputs = w.outputs / o.groups;
  g.tap_words = ceil_div(g.group_channels, 32);
  g.words = g.taps * g.tap_words;
  g.panels = ceil_div(g.group_outputs, kBinaryPanel);
  return g;
}

/// One tile: output positions [begin, end), counted over all images, of one group.
struct Tile {
  std::int64_t begin, end, group;
};

struct Convolution {
  const QuantizedTensor& x;
  const PreparedBinaryConv2d& w;
  Geometry g;
  float x_scale;
  Tensor y;
};

/// Calls visit(tap, row of x or null outside of the image) for the window of an output position.
template <typename Visit>
void for_each_tap(const Convolution& c, std::int64_t position, const Visit& visit) {
  const BinaryConv2dOptions& o = c.w.options;
  const std::int64_t image = position / (c.g.out_height * c.g.out_width);
  const std::int64_t top = position / c.g.out_width % c.g.out_height * o.stride_h - o.pad_h,
                     left = position % c.g.out_width * o.stride_w - o.pad_w;
  const std::size_t row_bytes = c.x.row_bytes();
  for (std::int64_t tap = 0; tap < c.g.taps; ++tap) {
    const std::int64_t row = top + tap / o.kernel_w, col = left + tap % o.kernel_w;
    const bool inside = row >= 0 && row < c.g.height && col >= 0 && col < c.g.width;
    const std::int64_t pixel = (image * c.g.height + row) * c.g.width + col;
    visit(tap, inside ? c.x.codes.as<std::uint8_t>() + static_cast<std::size_t>(pixel) * row_bytes : nullptr);
  }
}

void run_tile(const Convolution& c, const Tile& tile, std::uint32_t* a, std::int32_t* sums) {
  const Geometry& g = c.g;
  for (std::int64_t position = tile.begin; position < tile.end; ++position)
    for_each_tap(c, position, [&](std::int64_t tap, const std::uint8_t* row) {
      std::uint32_t* words = a + (position - tile.begin) * g.words + tap * g.tap_words;
      if (row == nullptr) {
        std::fill(words, words + g.tap_words, 0u);
      } else {
        copy_bits(row, tile.group * g.group_channels, g.group_channels, words);
      }
    });

  const BinaryProblem problem{.m = tile.end - tile.begin,
                              .n = g.group_outputs,
                              .k = g.taps * g.group_channels,
                              .words = g.words,
                              .a = a,
                              .a_stride = g.words,
                              .w = c.w.codes.as<std::uint32_t>() + tile.group * g.panels * g.words * kBinaryPanel,
                              .y = sums,
                              .y_stride = g.group_outputs};
  find(problem).run(problem, 0, problem.m, 0, g.panels);

  for (std::int64_t position = tile.begin; position < tile.end; ++position) {
    std::int32_t* row = sums + (position - tile.begin) * g.group_outputs;
    const std::int64_t first = tile.group * g.group_outputs, index = position * c.w.outputs + first;
    for_each_tap(c, position, [&](std::int64_t tap, const std::uint8_t* inside) {
      if (inside != nullptr) return;
      for (std::int64_t i = 0; i < g.group_outputs; ++i) row[i] -= c.w.tap_sums.as<std::int32_t>()[(first + i) * g.taps + tap];
    });
    if (c.y.dtype() == DType::kI32) {
      std::copy_n(row, g.group_outputs, c.y.as<std::int32_t>() + index);
    } else {
      for (std::int64_t i = 0; i < g.group_outputs; ++i)
        c.y.as<float>()[index + i] = static_cast<float>(row[i]) * (c.x_scale * c.w.scales.as<float>()[first + i]);
    }
  }
}

}  // namespace

PreparedBinaryConv2d prepare_binary_conv2d(const QuantizedTensor& w, const BinaryConv2dOptions& options) {
  require_int1(w, "weights");
  const BinaryConv2dOptions& o = options;
  if (o.kernel_h < 1 || o.kernel_w < 1 || o.stride_h < 1 || o.stride_w < 1 || o.pad_h < 0 || o.pad_w < 0 || o.groups < 1)
    throw InvalidArgument("binary_conv2d: kernel, stride and groups are at least 1 and padding is not negative");
  const std::int64_t taps = o.kernel_h * o.kernel_w;
  if (w.shape.size() != 2 || w.shape[0] % o.groups != 0 || w.shape[0] == 0 || w.shape[1] == 0 || w.shape[1] % taps != 0)
    throw InvalidArgument(fmt::format(
        "binary_conv2d: the weight is {}; it must be [outputs, {} * channels per group], with outputs a multiple of the {} groups",
        to_string(w.shape), taps, o.groups));
  const ScaleGrid grid = w.grid();
  if (!grid.whole_tensor && grid.cols != 1)
    throw InvalidArgument(
        fmt::format("binary_conv2d: weights of {} have scales along the sum; use int1:row or int1:tensor", w.scheme.to_string()));

  PreparedBinaryConv2d p;
  p.options = options;
  p.outputs = w.shape[0];
  p.channels = w.shape[1] / taps * o.groups;
  const Geometry g = geometry_of(p, o.kernel_h, o.kernel_w);
  p.codes = Buffer::allocate(static_cast<std::size_t>(o.groups * g.panels * g.words * kBinaryPanel) * 4);
  p.scales = Buffer::allocate(static_cast<std::size_t>(p.outputs) * 4);
  p.tap_sums = Buffer::allocate(static_cast<std::size_t>(p.outputs * taps) * 4);
  std::memset(p.codes.data(), 0, p.codes.size());
  const Buffer words = Buffer::allocate(static_cast<std::size_t>(g.tap_words) * 4);
  for (std::int64_t output = 0; output < p.outputs; ++output) {
    const std::int64_t group = output / g.group_outputs, lane = output % g.group_outputs;
    std::uint32_t* panel =
        p.codes.as<std::uint32_t>() + (group * g.panels + lane / kBinaryPanel) * g.words * kBinaryPanel + lane % kBinaryPanel;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      auto* bits = words.as<std::uint32_t>();
      copy_bits(w.codes.as<std::uint8_t>() + static_cast<std::size_t>(output) * w.row_bytes(), tap * g.group_channels, g.group_channels,
                bits);
      std::int32_t ones = 0;
      for (std::int64_t i = 0; i < g.tap_words; ++i) {
        ones += std::popcount(bits[i]);
        panel[(tap * g.tap_words + i) * kBinaryPanel] = bits[i];
      }
      p.tap_sums.as<std::int32_t>()[output * taps + tap] = static_cast<std::int32_t>(g.group_channels) - 2 * ones;
    }
    p.scales.as<float>()[output] = scale_at(w, grid.whole_tensor ? 0 : grid.grid_row(output));
  }
  return p;
}

Tensor binary_conv2d(const QuantizedTensor& x, const PreparedBinaryConv2d& w, DType out) {
  require_int1(x, "activations");
  if (out != DType::kF32 && out != DType::kI32)
    throw InvalidArgument(fmt::format("binary_conv2d: results are F32 or I32, not {}", name_of(out)));
  if (x.shape.size() != 4 || x.shape[3] != w.channels)
    throw InvalidArgument(
        fmt::format("binary_conv2d: x is {}; it must be [images, height, width, {} channels]", to_string(x.shape), w.channels));
  if (!x.grid().whole_tensor || !x.scheme.has_scales())
    throw InvalidArgument(fmt::format("binary_conv2d: activations of {} have more than one scale; use int1:tensor", x.scheme.to_string()));
  const Geometry g = geometry_of(w, x.shape[1], x.shape[2]);
  if (x.shape[1] + 2 * w.options.pad_h < w.options.kernel_h || x.shape[2] + 2 * w.options.pad_w < w.options.kernel_w)
    throw InvalidArgument(fmt::format("binary_conv2d: the padded image of {} is smaller than the {} x {} kernel", to_string(x.shape),
                                      w.options.kernel_h, w.options.kernel_w));

  const Convolution c{x, w, g, scale_at(x, 0), Tensor::empty(out, {x.shape[0], g.out_height, g.out_width, w.outputs})};
  const std::int64_t positions = x.shape[0] * g.out_height * g.out_width;
  const std::int64_t tiles = ceil_div(positions, kTilePixels), count = tiles * w.options.groups;
  const std::size_t a_bytes = static_cast<std::size_t>(kTilePixels * g.words + 15) / 16 * 64,
                    sum_bytes = static_cast<std::size_t>(kTilePixels * g.group_outputs + 15) / 16 * 64;
  const Buffer scratch = Buffer::allocate(static_cast<std::size_t>(omp_get_max_threads()) * (a_bytes + sum_bytes));
#pragma omp parallel if (count > 1)
  {
    const FloatEnvironment environment;
    std::byte* mine = scratch.data() + static_cast<std::size_t>(omp_get_thread_num()) * (a_bytes + sum_bytes);
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = i / w.options.groups * kTilePixels;
      run_tile(c, {begin, std::min(positions, begin + kTilePixels), i % w.options.groups}, reinterpret_cast<std::uint32_t*>(mine),
               reinterpret_cast<std::int32_t*>(mine + a_bytes));
    }
  }
  return c.y;
}

}  // namespace narrow
