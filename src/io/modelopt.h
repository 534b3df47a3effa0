#pragma once
/// ModelOpt's unified Hugging Face form (quant_method "modelopt"), read alone: its runtimes want static scales of activations, which narrow's
/// weights do not have. Of a module M with weight [n, k]:
///   FP8    M.weight F8_E4M3 [n, k], M.weight_scale F32, one for the tensor or [n] for its rows
///   NVFP4  M.weight U8 [n, k / 2], M.weight_scale F8_E4M3 [n, k / 16], M.weight_scale_2 F32
/// M.input_scale, the activations' scale, is left behind.

#include "io/interop.h"

namespace narrow::io {

InteropFormat modelopt_format();

}  // namespace narrow::io
