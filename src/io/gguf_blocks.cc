#include "io/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "device/float_environment.h"
#include "io/gguf_k_blocks.h"
#include "io/text.h"
#include "narrow/codec.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr int kBlock = 32, kHalf = 16;

/// The signed element of largest magnitude, the first of equals.
float extreme_of(const float* x) {
  float extreme = 0.0f;
  for (int i = 0; i < kBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  return extreme;
}

/// Of a scale so small that its inverse overflows, as of none: fp16 holds it as zero.
float inverse(float d) {
  const float inverted = 1.0f / d;
  return std::isfinite(inverted) ? inverted : 0.0f;
}

/// Truncated, as a conversion to int8 does, from 0 to `largest`; 0 for what is no number, as differences beyond fp32 make it.
std::uint8_t truncated(float value, int largest) {
  return static_cast<std::uint8_t>(value > 0.0f ? static_cast<int>(std::min(value, static_cast<float>(largest))) : 0);
}

void put_halves(const std::uint8_t* codes, std::uint8_t* bytes) {
  for (int j = 0; j < kHalf; ++j) bytes[j] = static_cast<std::uint8_t>((codes[j] & 15) | (codes[j + kHalf] & 15) << 4);
}

void get_halves(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int j = 0; j < kHalf; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + kHalf] = bytes[j] >> 4;
  }
}

void put_fifth_bits(const std::uint8_t* codes, std::uint8_t* bytes) {
  for (int i = 0; i < kBlock; ++i) bytes[i / 8] = static_cast<std::uint8_t>((i % 8 == 0 ? 0 : bytes[i / 8]) | (codes[i] >> 4) << i % 8);
}

void add_fifth_bits(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | (bytes[i / 8] >> i % 8 & 1) << 4);
}

/// Q4_0 and Q5_0: d = extreme / -2^(b-1), so that the extreme has the code 0.
template <int kBits>
void encode_centered(const float* x, std::uint8_t* block) {
  constexpr int kMiddle = 1 << (kBits - 1);
  const float d = extreme_of(x) / -kMiddle, scale = inverse(d);
  std::uint8_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) codes[i] = truncated(x[i] * scale + (kMiddle + 0.5f), 2 * kMiddle - 1);
  put_half(block, d);
  if (kBits == 5) put_fifth_bits(codes, block + 2);
  put_halves(codes, block + (kBits == 5 ? 6 : 2));
}

template <int kBits>
void decode_centered(const std::uint8_t* block, float* x) {
  const float d = get_half(block);
  std::uint8_t codes[kBlock];
  get_halves(block + (kBits == 5 ? 6 : 2), codes);
  if (kBits == 5) add_fifth_bits(block + 2, codes);
  for (int i = 0; i < kBlock; ++i) x[i] = static_cast<float>(codes[i] - (1 << (kBits - 1))) * d;
}

/// Q4_1 and Q5_1: the least value has the code 0.
template <int kBits>
void encode_with_minimum(const float* x, std::uint8_t* block) {
  constexpr int kLargest = (1 << kBits) - 1;
  const auto [least, most] = std::minmax_element(x, x + kBlock);
  const float d = (*most - *least) / kLargest, scale = inverse(d);
  std::uint8_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) codes[i] = truncated((x[i] - *least) * scale + 0.5f, kLargest);
  put_half(block, d);
  put_half(block + 2, *least);
  if (kBits == 5) put_fifth_bits(codes, block + 4);
  put_halves(codes, block + (kBits == 5 ? 8 : 4));
}

template <int kBits>
void decode_with_minimum(const std::uint8_t* block, float* x) {
  const float d = get_half(block), minimum = get_half(block + 2);
  std::uint8_t codes[kBlock];
  get_halves(block + (kBits == 5 ? 8 : 4), codes);
  if (kBits == 5) add_fifth_bits(block + 4, codes);
  for (int i = 0; i < kBlock; ++i) x[i] = static_cast<float>(codes[i]) * d + minimum;
}

void encode_q8_0(const float* x, std::uint8_t* block) {
  const float d = std::fabs(extreme_of(x)) / 127.0f, scale = inverse(d);
  put_half(block, d);
  for (int i = 0; i < kBlock; ++i) block[2 + i] = static_cast<std::uint8_t>(static_cast<int>(std::round(x[i] * scale)));
}

void decode_q8_0(const std::uint8_t* block, float* x) {
  const float d = get_half(block);
  for (int i = 0; i < kBlock; ++i) x[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

/// 2^(e - 128): ggml's tables hold the doubled values of fp4_e2m1.
float half_power(std::uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23); }

void encode_mxfp4(const float* x, std::uint8_t* block) {
  const float amax = std::fabs(extreme_of(x));
  const int e = amax > 0.0f ? std::clamp(std::ilogb(amax) - 2 + 127, 0, 254) : 0;
  const float d = half_power(static_cast<std::uint8_t>(e));
  std::uint8_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    float best = std::fabs(x[i]);  // of code 0
    codes[i] = 0;
    for (std::uint8_t code = 1; code < 16; ++code) {
      const float error = std::fabs(2.0f * decode(kFp4E2m1, code) * d - x[i]);
      if (error < best) {
        best = error;
        codes[i] = code;
      }
    }
  }
  block[0] = static_cast<std::uint8_t>(e);
  put_halves(codes, block + 1);
}

void decode_mxfp4(const std::uint8_t* block, float* x) {
  const float d = half_power(block[0]);
  std::uint8_t codes[kBlock];
  get_halves(block + 1, codes);
  for (int i = 0; i < kBlock; ++i) x[i] = 2.0f * decode(kFp4E2m1, codes[i]) * d;
}

void encode_f32(const float* x, std::uint8_t* block) { std::memcpy(block, x, sizeof *x); }
void decode_f32(const std::uint8_t* block, float* x) { std::memcpy(x, block, sizeof *x); }
void encode_f16(const float* x, std::uint8_t* block) { put_half(block, *x); }
void decode_f16(const std::uint8_t* block, float* x) { *x = get_half(block); }

void encode_bf16(const float* x, std::uint8_t* block) {
  const std::uint32_t code = encode(kBf16, *x, Rounding::kNearestEven, Overflow::kIeee);
  block[0] = static_cast<std::uint8_t>(code);
  block[1] = static_cast<std::uint8_t>(code >> 8);
}
void decode_bf16(const std::uint8_t* block, float* x) {
  *x = std::bit_cast<float>(static_cast<std::uint32_t>(block[0]) << 16 | static_cast<std::uint32_t>(block[1]) << 24);
}

constexpr std::array kTypes{
    GgmlTypeInfo{GgmlType::kF32, "f32", 1, 4, encode_f32, decode_f32},
    GgmlTypeInfo{GgmlType::kF16, "f16", 1, 2, encode_f16, decode_f16},
    GgmlTypeInfo{GgmlType::kBf16, "bf16", 1, 2, encode_bf16, decode_bf16},
    GgmlTypeInfo{GgmlType::kQ8_0, "q8_0", 32, 34, encode_q8_0, decode_q8_0},
    GgmlTypeInfo{GgmlType::kQ4_0, "q4_0", 32, 18, encode_centered<4>, decode_centered<4>},
    GgmlTypeInfo{GgmlType::kQ4_1, "q4_1", 32, 20, encode_with_minimum<4>, decode_with_minimum<4>},
    GgmlTypeInfo{GgmlType::kQ5_0, "q5_0", 32, 22, encode_centered<5>, decode_centered<5>},
    GgmlTypeInfo{GgmlType::kQ5_1, "q5_1", 32, 24, encode_with_minimum<5>, decode_with_minimum<5>},
    GgmlTypeInfo{GgmlType::kQ4K, "q4_k", 256, 144, encode_q4_k, decode_q4_k},
    GgmlTypeInfo{GgmlType::kQ6K, "q6_k", 256, 210, encode_q6_k, decode_q6_k},
    GgmlTypeInfo{GgmlType::kMxfp4, "mxfp4", 32, 17, encode_mxfp4, decode_mxfp4},
};

std::int64_t checked_blocks(const GgmlTypeInfo& type, std::size_t values, std::size_t bytes) {
  const std::size_t blocks = values / static_cast<std::size_t>(type.values);
  if (blocks * static_cast<std::size_t>(type.values) != values || blocks * type.bytes != bytes)
    throw InvalidArgument(fmt::format("{} values and {} bytes are no whole blocks of {}: {} values in {} bytes each", values, bytes,
                                      type.name, type.values, type.bytes));
  return static_cast<std::int64_t>(blocks);
}

}  // namespace

std::span<const GgmlTypeInfo> ggml_types() { return kTypes; }

const GgmlTypeInfo& ggml_type(std::uint32_t number) {
  for (const GgmlTypeInfo& info : kTypes)
    if (static_cast<std::uint32_t>(info.type) == number) return info;
  throw Unsupported(fmt::format("GGUF's type {} is none that narrow reads", number));
}

const GgmlTypeInfo& parse_ggml_type(std::string_view name) {
  std::string names;
  for (const GgmlTypeInfo& info : kTypes) {
    if (info.name == name) return info;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", info.name);
  }
  throw InvalidArgument(fmt::format("{} is no type of GGUF that narrow writes; there are {}", in_quotes(name), names));
}

void encode_blocks(const GgmlTypeInfo& type, std::span<const float> x, std::span<std::uint8_t> blocks) {
  const std::int64_t count = checked_blocks(type, x.size(), blocks.size());
#pragma omp parallel
  {
    const FloatEnvironment standard;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i)
      type.encode(x.data() + i * type.values, blocks.data() + i * static_cast<std::int64_t>(type.bytes));
  }
}

void decode_blocks(const GgmlTypeInfo& type, std::span<const std::uint8_t> blocks, std::span<float> x) {
  const std::int64_t count = checked_blocks(type, x.size(), blocks.size());
#pragma omp parallel
  {
    const FloatEnvironment standard;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i)
      type.decode(blocks.data() + i * static_cast<std::int64_t>(type.bytes), x.data() + i * type.values);
  }
}

}  // namespace narrow::io
