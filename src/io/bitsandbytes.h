#pragma once
/// bitsandbytes' NF4 in safetensors files, read alone. Of a module M with weight [n, k]:
///   M.weight U8 [n k / 2, 1], the first of two codes in the high half; M.weight.quant_map F32 [16]
///   M.weight.absmax F32 [n k / block], or U8 codes of it: absmax = nested_quant_map[code] nested_absmax[i / nested block] + nested_offset
///   M.weight.quant_state.bitsandbytes__nf4 U8, JSON: blocksize, shape, nested_blocksize, nested_offset

#include "io/interop.h"

namespace narrow::io {

InteropFormat bitsandbytes_format();

}  // namespace narrow::io
