#pragma once
/// The "K" blocks of GGUF: 256 values, whose runs have small integer scales under one fp16 scale. See gguf_blocks.h.

#include <cstdint>

#include "narrow/codec.h"

namespace narrow::io {

inline void put_half(std::uint8_t* bytes, float value) {
  const std::uint32_t code = encode(kFp16, value, Rounding::kNearestEven, Overflow::kIeee);
  bytes[0] = static_cast<std::uint8_t>(code);
  bytes[1] = static_cast<std::uint8_t>(code >> 8);
}
inline float get_half(const std::uint8_t* bytes) {
  return decode(kFp16, static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8);
}

void encode_q4_k(const float* x, std::uint8_t* block);
void decode_q4_k(const std::uint8_t* block, float* x);
void encode_q6_k(const float* x, std::uint8_t* block);
void decode_q6_k(const std::uint8_t* block, float* x);

}  // namespace narrow::io
