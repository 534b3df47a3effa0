#pragma once
/// GPTQ: of a module M with weight [n, k], b bits and groups of g columns, everything transposed:
///   M.qweight I32 [k b / 32, n], packed along k; M.qzeros I32 [groups, n b / 32], packed along n; M.scales F16 [groups, n]; M.g_idx I32
///   [k]
/// w[n, k] = scales[g_idx[k], n] (u - z). Format v1 ("gptq") stores z - 1, v2 ("gptq_v2") z. Symmetric weights (z = 2^(b-1)) are written as
/// v1, which everyone reads; where one is asymmetric all are v2, since v1 has no place for z = 0.

#include "io/interop.h"

namespace narrow::io {

InteropFormat gptq_format();

}  // namespace narrow::io
