// Words of a scheme, moved, changed, or taken from good ones.
#include "piece_mutator.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  constexpr std::string_view kWords[] = {
      "int1", "int2",       "int3",       "int4",       "int8",           "fp4_e2m1",  "fp6_e3m2",   "fp8_e4m3", "fp8_e5m2",
      "fp16", "bf16",       "fp9_e4m4",   "nf4",        "nvfp4",          "mxfp4",     "mxfp8_e4m3", "mxint8",   "msfp12",
      "row",  "col",        "tensor",     "block32",    "block128",       "128x128",   "1x128",      "block0",   "block9223372036854775807",
      "asym", "scale=fp16", "scale=bf16", "scale=e8m0", "scale=fp8_e4m3", "scale=fp32"};
  return narrow::fuzz::mutate_pieces(data, size, most, seed, ':', kWords);
}
