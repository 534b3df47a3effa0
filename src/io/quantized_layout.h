#pragma once
/// How one quantized tensor X lies in a safetensors file:
///   X.codes        U8 [rows, row_bytes]            codes packed along the last dimension; rows over all matrices
///   X.scales       F32 | F16 | BF16 | F8_E8M0 | F8_E4M3, the scale grid's shape
///   X.zero_points  U8, the scale grid's shape       asymmetric schemes
///   X.outer_scale  F32 [1]                          schemes with an outer scale (nvfp4)

#include <string>
#include <string_view>
#include <vector>

#include "narrow/checkpoint.h"

namespace narrow::io {

enum class Part : std::uint8_t { kCodes, kScales, kZeroPoints, kOuterScale };

struct StoredPart {
  Part part;
  std::string name;
  DType dtype;
  Shape shape;
};
std::vector<StoredPart> stored_parts(std::string_view name, const Scheme& scheme, const Shape& shape);

}  // namespace narrow::io
