#include "methods/interop_values.h"

#include <algorithm>

#include "format/packing.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

bool same_bytes(const Buffer& a, const Buffer& b) { return std::ranges::equal(a.bytes(), b.bytes()); }

float scale_at(const QuantizedTensor& q, std::int64_t cell) {
  return decode(q.scheme.scale, load_scale_code(q.scales.data(), q.scheme.scale, cell));
}

}  // namespace

Tensor values_of(const io::InteropTensor& tensor) {
  const QuantizedTensor& q = tensor.q;
  if (tensor.order.empty()) return dequantize(q);
  const ScaleGrid grid = q.grid();
  const std::int64_t rows = q.shape[0], cols = q.shape[1];
  const int bits = q.scheme.element.bits;
  const Tensor values = Tensor::empty(DType::kF32, q.shape);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t cell = grid.grid_row(row) * grid.cols + tensor.order[static_cast<std::size_t>(col)];
      const float code =
          decode(q.scheme.element, read_code(q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes(), col, bits));
      const float zero = q.scheme.asymmetric ? static_cast<float>(q.zero_points.as<std::uint8_t>()[cell]) : 0.0f;
      values.as<float>()[row * cols + col] = scale_at(q, cell) * (code - zero);
    }
  return values;
}

bool holds_the_same(const io::InteropTensor& a, const io::InteropTensor& b) {
  Scheme scheme = b.q.scheme;
  scheme.scale = a.q.scheme.scale;
  if (a.q.scheme != scheme || a.q.shape != b.q.shape || a.order != b.order || a.q.outer_scale != b.q.outer_scale) return false;
  if (!same_bytes(a.q.codes, b.q.codes) || !same_bytes(a.q.zero_points, b.q.zero_points)) return false;
  if (a.q.scheme.scale == b.q.scheme.scale) return same_bytes(a.q.scales, b.q.scales);
  for (std::int64_t cell = 0; cell < a.q.grid().count(); ++cell)
    if (scale_at(a.q, cell) != scale_at(b.q, cell)) return false;
  return true;
}

std::optional<io::InteropTensor> with_scale_format(const io::InteropTensor& tensor, const Format& scale) {
  if (tensor.q.scheme.scale == scale) return tensor;
  io::InteropTensor result = tensor;
  result.q.scheme.scale = scale;
  const std::int64_t cells = tensor.q.grid().count();
  result.q.scales = Buffer::allocate(static_cast<std::size_t>(cells) * scale.bits / 8u);
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    const float value = scale_at(tensor.q, cell);
    const std::uint32_t code = encode(scale, value);
    if (decode(scale, code) != value) return std::nullopt;
    store_scale_code(result.q.scales.data(), scale, cell, code);
  }
  return result;
}

}  // namespace narrow
