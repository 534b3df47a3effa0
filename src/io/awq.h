#pragma once
/// AWQ, version "gemm": of a module M with weight [n, k], four bits and groups of g columns, everything transposed:
///   M.qweight I32 [k, n / 8]; M.qzeros I32 [groups, n / 8]; M.scales F16 [groups, n]; words interleaved as in word_packing.h.
/// w[n, k] = scales[k / g, n] (u - z); symmetric weights have z = 8.

#include "io/interop.h"

namespace narrow::io {

InteropFormat awq_format();

}  // namespace narrow::io
