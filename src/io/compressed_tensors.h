#pragma once
/// compressed-tensors: the tensors of a module M, weight [n, k], and the groups of config.json.
///   int-quantized         M.weight I8; M.weight_scale [1] or [n, 1]; asymmetric: M.weight_zero_point I8
///   float-quantized       M.weight F8_E4M3; M.weight_scale [1], [n, 1] or one per block
///   pack-quantized        M.weight_packed I32 [n, words]; M.weight_scale [n, groups]; M.weight_shape I64 [2];
///                         asymmetric: M.weight_zero_point I32, packed along n; ordered: M.weight_g_idx I32 [k]
///   nvfp4-pack-quantized  M.weight_packed U8 [n, k / 2]; M.weight_scale F8_E4M3 [n, k / 16]; M.weight_global_scale F32 [1]: divides
///   mxfp4-pack-quantized  M.weight_packed U8 [n, k / 2]; M.weight_scale U8 (e8m0) [n, k / 32]
///   mxfp8-quantized       M.weight F8_E4M3; M.weight_scale U8 (e8m0) [n, k / 32]
/// Weights alone are described, but for int-quantized and float-quantized, whose readers quantize activations as they come.

#include "io/interop.h"

namespace narrow::io {

InteropFormat compressed_tensors_format();

/// An outer scale that survives being stored as its reciprocal: 1 / (1 / s), and from then on itself.
inline float reciprocal_twice(float scale) { return 1.0f / (1.0f / scale); }

}  // namespace narrow::io
