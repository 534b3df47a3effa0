/// Products of int8 activations with int4 weights on a CUDA device: validate -> choose -> launch. Nothing here waits; prepare_int4 alone
/// allocates.

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/runtime.h"
#include "narrow/error.h"
#include "ops/cuda_matmul.h"
#include "ops/cuda_operands.h"

namespace narrow::cuda {
namespace {

constexpr std::string_view kAnyName = "any_matmul_int8_int4";
/// So long that 16 times a sum of products stays in 32 bits.
constexpr std::int64_t kMostWholeK = 65536;

int config_of(std::string_view name) {
  for (int i = 0; i < static_cast<int>(int4_configs().size()); ++i)
    if (int4_configs()[static_cast<std::size_t>(i)].name == name) return i;
  throw InvalidArgument(fmt::format("matmul: there is no CUDA kernel '{}'", name));
}

/// Columns that share a scale, 0 for all of them; -1 where products do not take the scheme.
int block_of(const Scheme& scheme, std::int64_t n, std::int64_t k) {
  const bool element = scheme.element.is_integer() && scheme.element.bits == 4 && scheme.element.fraction_bits == 0 &&
                       (scheme.asymmetric || scheme.element == kInt4);
  const bool scale = scheme.scale == kFp32 || scheme.scale == kFp16 || scheme.scale == kBf16;
  if (!element || !scale || !scheme.has_scales() || scheme.has_outer_scale || scheme.is_msfp || n > kMost || k > kMost) return -1;
  const ScaleGrid grid = scale_grid(scheme, {n, k});
  if (grid.whole_tensor || grid.cols <= 1) return k <= kMostWholeK ? 0 : -1;
  return grid.tile_cols % kCellSide == 0 && grid.tile_cols <= kMostInt4Block ? static_cast<int>(grid.tile_cols) : -1;
}

Int4View view_of(const Int4Weight& w) {
  Int4View view{static_cast<int>(w.n), static_cast<int>(w.k), block_of(w.scheme, w.n, w.k)};
  view.cells = w.cells.as<std::uint8_t>();
  view.scales = w.scales.as<float>();
  if (w.scheme.asymmetric) view.zeros = w.zero_points.as<std::uint8_t>();
  return view;
}

Int4Canonical canonical_of(const DeviceQuantized& q) {
  return {q.scheme,
          scale_grid(q.scheme, q.shape),
          q.codes.as<std::uint8_t>(),
          static_cast<std::int64_t>(packed_row_bytes(q.scheme, q.shape[1])),
          q.scales.data(),
          q.zero_points.as<std::uint8_t>()};
}

}  // namespace

bool can_prepare_int4(const Scheme& scheme, std::int64_t n, std::int64_t k) { return block_of(scheme, n, k) >= 0; }

Int4Weight prepare_int4(const DeviceQuantized& q, Stream stream) {
  if (q.device().is_cpu()) throw InvalidArgument("prepare_int4: the tensor is on the CPU; copy it with cuda::to_device");
  if (q.shape.size() != 2) throw InvalidArgument(fmt::format("prepare_int4: {} is not a matrix", to_string(q.shape)));
  Int4Weight w{q.scheme, q.shape[0], q.shape[1], {}, {}, {}};
  if (!can_prepare_int4(q.scheme, w.n, w.k))
    throw Unsupported(fmt::format(
        "prepare_int4: {} with {} columns; products take int4 in tensors and rows of up to {} columns, and blocks of 32, 64, .. {} columns",
        q.scheme.to_string(), w.k, kMostWholeK, kMostInt4Block));
  Int4View view{static_cast<int>(w.n), static_cast<int>(w.k), block_of(w.scheme, w.n, w.k)};
  const std::size_t scales = static_cast<std::size_t>(view.blocks()) * static_cast<std::size_t>(view.padded_n());
  const DeviceGuard guard(q.device().index);
  w.cells = Buffer::allocate(static_cast<std::size_t>(view.cell_bytes()), q.device());
  w.scales = Buffer::allocate(scales * sizeof(float), q.device());
  if (w.scheme.asymmetric) w.zero_points = Buffer::allocate(scales, q.device());
  if (w.n > 0) check(launch_prepare_int4(canonical_of(q), view_of(w), stream), "prepare_int4");
  return w;
}

DeviceQuantized unprepare_int4(const Int4Weight& w, Stream stream) {
  DeviceQuantized q = allocate_quantized(w.scheme, {w.n, w.k}, w.device());
  const DeviceGuard guard(w.device().index);
  if (w.n > 0 && w.k > 0) check(launch_unprepare_int4(view_of(w), canonical_of(q), stream), "unprepare_int4");
  return q;
}

Int4Problem int4_problem(const Int8Matrix& x, const Int4Weight& w, const Tensor& y, const Int8MatmulOptions& options) {
  require_one_device(x.device(), w.device(), y.device());
  require(x.k == w.k, fmt::format("x has {} columns and w has {}", x.k, w.k));
  require(x.rows <= kMost, "x has more than 2^30 rows");
  if (x.layout != Layout::kRow || options.y_layout != Layout::kRow)
    throw Unsupported("matmul: products with int4 weights read and write rows");
  if (x.scheme.asymmetric)
    throw Unsupported(fmt::format("matmul: x is {}; products with int4 weights take symmetric activations", x.scheme.to_string()));
  if (y.dtype() == DType::kI32) throw Unsupported("matmul: y is I32; products with int4 weights give F32, F16, BF16 or I8");
  if (y.shape() != Shape{x.rows, w.n})
    throw InvalidArgument(fmt::format("matmul: y is {}, the product is {}", to_string(y.shape()), to_string(Shape{x.rows, w.n})));
  require(y.size() == 0 || y.is_contiguous() || y.strides()[1] == 1, "y's columns must be contiguous");
  if (options.residual) require(options.residual->shape() == y.shape(), "the residual must be [m, n]");
  Int4Problem p;
  p.m = static_cast<int>(x.rows);
  p.a = x.codes.as<std::uint8_t>();
  p.a_pitch = x.pitch;
  p.a_scales = x.scales.as<float>();
  p.a_scale_step = x.scheme.granularity == Granularity::row() ? 1 : 0;
  p.w = view_of(w);
  p.epilogue = integer_epilogue(y, w.n, options);
  p.d = y.data();
  p.d_pitch = y.is_contiguous() ? w.n : y.strides()[0];
  return p;
}

void matmul(const Int8Matrix& x, const Int4Weight& w, const Tensor& y, Stream stream, const Int8MatmulOptions& options) {
  const Int4Problem problem = int4_problem(x, w, y, options);
  const int asked = options.kernel.empty() || options.kernel == kAnyName ? -1 : config_of(options.kernel);
  if (y.size() == 0) return;
  const DeviceGuard guard(x.device().index);
  const ByteDevice device = byte_device();
  if (asked >= 0 &&
      !(int4_configs()[static_cast<std::size_t>(asked)].is_hopper ? device.is_hopper && has_int4_config(problem.w, asked) : device.has_mma))
    throw Unsupported(fmt::format("matmul: the kernel {} does not take this product", options.kernel));
  // A product over no columns is an empty sum: the simple kernel writes the epilogue of zero.
  if (options.kernel == kAnyName || !device.has_mma || problem.w.k == 0) return check(launch_int4_product_any(problem, stream), kAnyName);
  const int config = asked >= 0 ? asked : choose_int4_config(problem.m, problem.w, device.is_hopper, device.multiprocessors);
  check(launch_int4_product(problem, config, stream), "matmul");
}

std::vector<std::string> int4_matmul_kernel_names() {
  std::vector<std::string> names;
  for (const Int4Config& config : int4_configs()) names.emplace_back(config.name);
  names.emplace_back(kAnyName);
  return names;
}

std::vector<MatmulChoice> explain_int4_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, int multiprocessors) {
  if (int4_configs().empty() || std::max({m, n, k}) > kMost || multiprocessors < 1 || !can_prepare_int4(weight, n, k)) return {};
  const Int4View view{static_cast<int>(n), static_cast<int>(k), block_of(weight, n, k)};
  const int best = choose_int4_config(static_cast<int>(m), view, true, multiprocessors);
  std::vector<MatmulChoice> choices;
  for (int i = 0; i < static_cast<int>(int4_configs().size()); ++i) {
    const Int4Config& c = int4_configs()[static_cast<std::size_t>(i)];
    const std::int64_t tiles = (m + c.tile_m - 1) / c.tile_m * ((n + c.tile_n - 1) / c.tile_n);
    const bool accepted = has_int4_config(view, i);
    choices.push_back({c.name, c.is_hopper ? "sm_90a" : "sm_80", accepted, i == best,
                       accepted ? fmt::format("x in int8, {} tiles of {}x{}", tiles, c.tile_m, c.tile_n)
                                : "scales of 128 or 256 columns, or of whole rows"});
  }
  choices.push_back({std::string(kAnyName), "any", true, false, "x in int8, dp4a, without tensor cores"});
  return choices;
}

}  // namespace narrow::cuda
