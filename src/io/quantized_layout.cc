#include "io/quantized_layout.h"

namespace narrow::io {
namespace {

DType dtype_of_scales(const Format& scale) {
  if (scale == kFp32) return DType::kF32;
  if (scale == kFp16) return DType::kF16;
  if (scale == kBf16) return DType::kBf16;
  return scale == kE8m0 ? DType::kF8E8m0 : DType::kF8E4m3;
}

}  // namespace

std::vector<StoredPart> stored_parts(std::string_view name, const Scheme& scheme, const Shape& shape) {
  const std::string base(name);
  const MatrixShape matrix = as_matrices(shape);
  const ScaleGrid grid = scale_grid(scheme, shape);
  std::vector<StoredPart> parts{
      {Part::kCodes, base + ".codes", DType::kU8, {matrix.total_rows(), static_cast<std::int64_t>(packed_row_bytes(scheme, matrix.cols))}}};
  if (scheme.has_scales()) parts.push_back({Part::kScales, base + ".scales", dtype_of_scales(scheme.scale), {grid.rows, grid.cols}});
  if (scheme.asymmetric) parts.push_back({Part::kZeroPoints, base + ".zero_points", DType::kU8, {grid.rows, grid.cols}});
  if (scheme.has_outer_scale) parts.push_back({Part::kOuterScale, base + ".outer_scale", DType::kF32, {1}});
  return parts;
}

}  // namespace narrow::io
