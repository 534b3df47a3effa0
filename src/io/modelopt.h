#pragma once
/// ModelOpt's unified Hugging Face form (quant_method "modelopt"). Of a module M with weight [n, k]:
///   FP8    M.weight F8_E4M3 [n, k], M.weight_scale F32, one for the tensor or [n] for its rows
///   NVFP4  M.weight U8 [n, k / 2], M.weight_scale F8_E4M3 [n, k / 16], M.weight_scale_2 F32
/// M.input_scale F32 is the static scale of its inputs, where they are rounded.

#include "io/interop.h"

namespace narrow::io {

InteropFormat modelopt_format();

/// hf_quant_config.json, which older readers want beside the quantization_config.
Json modelopt_settings(const Json& quantization);

}  // namespace narrow::io
