#pragma once
/// DeepSeek's fp8: M.weight F8_E4M3 [n, k]; M.weight_scale_inv F32 [ceil(n / 128), ceil(k / 128)], which multiplies, its name
/// notwithstanding.

#include "io/interop.h"

namespace narrow::io {

InteropFormat deepseek_fp8_format();

}  // namespace narrow::io
