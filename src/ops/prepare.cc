/// prepare and unprepare: canonical bytes to panels (kernels/panels.h) and back, bit for bit.

#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/matmul.h"
#include "kernels/panels.h"
#include "kernels/storage.h"
#include "narrow/error.h"
#include "ops/prepare.h"

namespace narrow {
namespace {

using panels::kGroup;
using panels::kLanes;

std::size_t scale_bytes(const Format& format) { return format.bits / 8u; }

Scheme dense_scheme(DType dtype) {
  Scheme scheme;
  scheme.element = dtype == DType::kF32 ? kFp32 : (dtype == DType::kF16 ? kFp16 : kBf16);
  scheme.granularity = Granularity::none();
  return scheme;
}

/// The codes of one row, one word each.
void read_row(const QuantizedTensor& w, std::int64_t row, std::int64_t cols, std::uint32_t* codes) {
  const int bits = w.scheme.element.bits;
  const std::uint8_t* packed = w.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * w.row_bytes();
  if (bits == 8) {
    for (std::int64_t k = 0; k < cols; ++k) codes[k] = packed[k];
  } else if (bits == 16) {
    for (std::int64_t k = 0; k < cols; ++k) codes[k] = static_cast<std::uint32_t>(packed[2 * k] | packed[2 * k + 1] << 8);
  } else if (bits == 32) {
    std::memcpy(codes, packed, static_cast<std::size_t>(cols) * 4);
  } else {
    for (std::int64_t k = 0; k < cols; ++k) codes[k] = read_code(packed, k, bits);
  }
}

/// Panels hold finite values alone, so that decoders need not look for special codes.
bool is_finite_code(const Format& format, std::uint32_t code) {
  if (!format.is_float()) return true;
  const std::uint32_t sign = 1u << (format.bits - 1);
  return format.bits == 32 ? std::isfinite(std::bit_cast<float>(code)) : (code & (sign - 1u)) <= format.max_code();
}

bool all_scales_finite(const QuantizedTensor& w) {
  for (std::int64_t i = 0; i < w.grid().count(); ++i)
    if (!std::isfinite(effective_scale(w.scheme, load_scale_code(w.scales.data(), w.scheme.scale, i), w.outer_scale))) return false;
  return true;
}

/// Writes rows of one panel; false where a code is not finite.
bool fill_panel(const QuantizedTensor& w, PreparedWeight& p, std::int64_t panel) {
  const Format& element = w.scheme.element;
  const int bits = panels::stored_bits(element);
  const ScaleGrid grid = w.grid();
  const std::int64_t blocks = panels::k_blocks(grid, p.k);
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(p.k));
  auto* words = p.codes.as<std::uint32_t>();
  for (std::int64_t n = panel * kLanes; n < std::min(p.n, (panel + 1) * kLanes); ++n) {
    read_row(w, n, p.k, codes.data());
    for (std::int64_t k = 0; k < p.k; ++k) {
      const std::uint32_t code = codes[static_cast<std::size_t>(k)];
      if (!is_finite_code(element, code)) return false;
      const std::uint32_t stored = panels::to_stored(element, code);
      panels::write_stored(words + panels::lane_index(n, k, p.k, bits), static_cast<int>(k % kGroup), bits, stored);
      if (p.sums.size() > 0)
        p.sums.as<std::int32_t>()[panels::scale_index(n, blocks > 1 ? grid.grid_col(k) : 0, blocks)] +=
            static_cast<std::int32_t>(element.bits == 1 ? 2 * stored : stored);
    }
    if (!w.scheme.has_scales()) continue;
    for (std::int64_t block = 0; block < std::max<std::int64_t>(grid.cols, 1); ++block) {
      const std::int64_t cell = grid.whole_tensor ? 0 : grid.grid_row(n) * grid.cols + block;
      const std::int64_t index = panels::scale_index(n, block, blocks);
      store_scale_code(p.scales.data(), w.scheme.scale, index, load_scale_code(w.scales.data(), w.scheme.scale, cell));
      if (w.scheme.asymmetric) p.zero_points.as<std::uint8_t>()[index] = w.zero_points.as<std::uint8_t>()[cell];
    }
  }
  return true;
}

Buffer zeros(std::int64_t size) {
  Buffer buffer = Buffer::allocate(static_cast<std::size_t>(size));
  std::memset(buffer.data(), 0, buffer.size());
  return buffer;
}

/// False where a code or scale is not finite.
bool fill_panels(const QuantizedTensor& w, PreparedWeight& p) {
  if (w.scheme.has_scales() && !all_scales_finite(w)) return false;
  const Format& element = w.scheme.element;
  const std::int64_t outputs = panels::padded_n(p.n), blocks = panels::k_blocks(w.grid(), p.k);
  p.codes = zeros(outputs * panels::padded_k(p.k) / 8 * panels::stored_bits(element));
  p.scales = zeros(w.scheme.has_scales() ? outputs * blocks * static_cast<std::int64_t>(scale_bytes(w.scheme.scale)) : 0);
  p.zero_points = zeros(w.scheme.asymmetric ? outputs * blocks : 0);
  p.sums = zeros(is_exact_integer(element) && element.bits <= 8 ? outputs * blocks * 4 : 0);
  const std::int64_t count = (p.n + kLanes - 1) / kLanes;
  bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
  for (std::int64_t panel = 0; panel < count; ++panel) finite = fill_panel(w, p, panel) && finite;
  return finite;
}

PreparedWeight prepare_checked(const QuantizedTensor& w, const PrepareOptions& options) {
  PreparedWeight p;
  p.scheme = w.scheme;
  p.n = w.shape[0];
  p.k = w.shape[1];
  p.outer_scale = w.outer_scale;
  const bool wanted = options.layout.value_or(WeightLayout::kPanels) == WeightLayout::kPanels;
  if (wanted && fits_panels(w.scheme, p.n, p.k) && fill_panels(w, p)) {
    p.layout = WeightLayout::kPanels;
    return p;
  }
  if (options.layout == WeightLayout::kPanels)
    throw Unsupported(fmt::format(
        "prepare: {} of {} does not fit panels; they take scales that are constant along k or in blocks of 16 or 32 i, and finite values",
        to_string(w.shape), w.scheme.to_string()));
  p.layout = WeightLayout::kCanonical;
  p.codes = w.codes;
  p.scales = w.scales;
  p.zero_points = w.zero_points;
  p.sums = Buffer();
  return p;
}

}  // namespace

bool fits_panels(const Scheme& scheme, std::int64_t n, std::int64_t k) {
  return n > 0 && k > 0 && scheme.element.kind != FormatKind::kExponent && panels::fits(scale_grid(scheme, {n, k}));
}

PreparedWeight prepare(const QuantizedTensor& w, const PrepareOptions& options) {
  if (w.shape.size() != 2)
    throw InvalidArgument(fmt::format("prepare: a weight is a matrix [n, k], not {}; split the tensor first", to_string(w.shape)));
  if (!w.device().is_cpu()) throw Unsupported("prepare: this build prepares weights for the CPU; copy the weight there first");
  return prepare_checked(w, options);
}

PreparedWeight prepare(const Tensor& w, const PrepareOptions& options) {
  if (w.rank() != 2)
    throw InvalidArgument(fmt::format("prepare: a weight is a matrix [n, k], not {}; split the tensor first", to_string(w.shape())));
  if (!is_floating(w.dtype()))
    throw InvalidArgument(fmt::format("prepare: dense weights are F32, F16 or BF16, not {}; quantize it first", name_of(w.dtype())));
  if (!w.device().is_cpu()) throw Unsupported("prepare: this build prepares weights for the CPU; copy the weight there first");
  const Tensor dense = w.contiguous();
  QuantizedTensor q;
  q.scheme = dense_scheme(w.dtype());
  q.shape = w.shape();
  q.codes = Buffer::allocate(dense.byte_size());
  std::memcpy(q.codes.data(), dense.data(), dense.byte_size());
  return prepare_checked(q, options);
}

QuantizedTensor unprepare(const PreparedWeight& w) {
  if (w.scheme.element.bits == 32) throw InvalidArgument("unprepare: a dense fp32 weight has no scheme; use unprepare_dense");
  return unprepare_codes(w);
}

Tensor unprepare_dense(const PreparedWeight& w) {
  if (w.scheme.has_scales() || w.scheme.element.bits < 16 ||
      (w.scheme.element.bits == 16 && w.scheme.element != kFp16 && w.scheme.element != kBf16))
    throw InvalidArgument(fmt::format("unprepare_dense: {} is not a dense type; use unprepare", w.scheme.to_string()));
  const DType dtype = w.scheme.element.bits == 32 ? DType::kF32 : (w.scheme.element == kFp16 ? DType::kF16 : DType::kBf16);
  return Tensor::over(unprepare_codes(w).codes, dtype, {w.n, w.k});
}

QuantizedTensor unprepare_codes(const PreparedWeight& w) {
  QuantizedTensor q{w.scheme, {w.n, w.k}, w.codes, w.scales, w.zero_points, w.outer_scale};
  if (w.layout == WeightLayout::kCanonical) return q;
  const Format& element = w.scheme.element;
  const int bits = panels::stored_bits(element);
  const ScaleGrid grid = q.grid();
  const std::int64_t blocks = panels::k_blocks(grid, w.k);
  q.codes = zeros(w.n * static_cast<std::int64_t>(q.row_bytes()));
  q.scales = zeros(grid.count() * static_cast<std::int64_t>(w.scheme.has_scales() ? scale_bytes(w.scheme.scale) : 0));
  q.zero_points = zeros(w.scheme.asymmetric ? grid.count() : 0);
  const auto* words = w.codes.as<std::uint32_t>();
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < w.n; ++n) {
    std::uint8_t* row = q.codes.as<std::uint8_t>() + static_cast<std::size_t>(n) * q.row_bytes();
    for (std::int64_t k = 0; k < w.k; ++k) {
      const std::uint32_t stored = panels::read_stored(words + panels::lane_index(n, k, w.k, bits), static_cast<int>(k % kGroup), bits);
      const std::uint32_t code = panels::from_stored(element, stored);
      if (bits == 32) {
        std::memcpy(row + 4 * k, &code, 4);
      } else {
        write_code(row, k, element.bits, code);
      }
    }
  }
  if (!w.scheme.has_scales()) return q;
  for (std::int64_t n = 0; n < w.n; ++n)
    for (std::int64_t block = 0; block < std::max<std::int64_t>(grid.cols, 1); ++block) {
      const std::int64_t cell = grid.whole_tensor ? 0 : grid.grid_row(n) * grid.cols + block;
      const std::int64_t index = panels::scale_index(n, block, blocks);
      store_scale_code(q.scales.data(), w.scheme.scale, cell, load_scale_code(w.scales.data(), w.scheme.scale, index));
      if (w.scheme.asymmetric) q.zero_points.as<std::uint8_t>()[cell] = w.zero_points.as<std::uint8_t>()[index];
    }
  return q;
}

}  // namespace narrow
