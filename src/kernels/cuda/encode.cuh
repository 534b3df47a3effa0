#pragma once
/// Chunks to packed codes: round to nearest even, saturate. Bit for bit what codec.h's encode(x / s) gives.

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/divide.cuh"
#include "narrow/codec.h"

namespace narrow::cuda {

/// Which trick turns quotients into codes.
enum class Family : std::uint8_t {
  kConvert43,  ///< the hardware's fp32 -> e4m3: also e2m3, whose codes are e4m3's with the bias moved by a factor
  kConvert52,  ///< the hardware's fp32 -> e5m2: also e3m2 and e2m2
  kInteger,    ///< adding 1.5 * 2^23 rounds to an integer in the low bits
  kE2m1,       ///< code = min(round(2q), round(q + 2), round(q/2 + 4)): the code is concave in q, one line per spacing
  kMagnitude,  ///< MSFP: an evenly spaced magnitude
};

NARROW_HOST_DEVICE constexpr Family family_of(Element element) {
  switch (element) {
    case Element::kE4m3:
    case Element::kE2m3: return Family::kConvert43;
    case Element::kE5m2:
    case Element::kE3m2:
    case Element::kE2m2: return Family::kConvert52;
    case Element::kInt8:
    case Element::kInt4: return Family::kInteger;
    case Element::kE2m1: return Family::kE2m1;
    case Element::kMsfp12: return Family::kMagnitude;
  }
  return Family::kInteger;
}

/// Quotients are taken of s * 2^prescale, so that the hardware's exponent field becomes the format's own.
NARROW_HOST_DEVICE constexpr float prescale_of(Element element) {
  switch (family_of(element)) {
    case Family::kConvert43: return static_cast<float>(power_of_two(kFp8E4m3.bias - format_of(element).bias));
    case Family::kConvert52: return static_cast<float>(power_of_two(kFp8E5m2.bias - format_of(element).bias));
    case Family::kMagnitude: return 0.25f;  // the spacing 2^-(m-1)
    default: return 1.0f;
  }
}

/// Packed codes of a chunk, the low bits first.
struct Codes {
  std::uint32_t low, high;
};

/// Four codes of one byte each by the hardware's conversion; a is the lowest byte.
template <bool kE4m3>
__device__ inline std::uint32_t convert_four(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  unsigned short low, high;
  if constexpr (kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  }
  return low | (static_cast<std::uint32_t>(high) << 16);
#else
  constexpr Format kFormat = kE4m3 ? kFp8E4m3 : kFp8E5m2;
  return encode(kFormat, a) | (encode(kFormat, b) << 8) | (encode(kFormat, c) << 16) | (encode(kFormat, d) << 24);
#endif
}

/// Four codes of kBits bits, one per byte, squeezed into 4 * kBits bits.
template <int kBits>
__device__ inline std::uint32_t squeeze_four(std::uint32_t x) {
  constexpr std::uint32_t kOne = (1u << kBits) - 1u, kTwo = (1u << (2 * kBits)) - 1u;
  x = (x & (kOne * 0x00010001u)) | ((x >> (8 - kBits)) & ((kOne << kBits) * 0x00010001u));
  return (x & kTwo) | ((x >> (16 - 2 * kBits)) & (kTwo << (2 * kBits)));
}

/// Eight 4-bit codes from four words that hold two codes each, in bits 0..3 and 16..19.
__device__ inline std::uint32_t join_nibbles(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const std::uint32_t low = a + (b << 8), high = c + (d << 8);  // elements 0, 2 in the low half, 1, 3 in the high one
  return __byte_perm(low | (low >> 12), high | (high >> 12), 0x5410);
}

/// Of two words with -k in their low halves: 127 - k there, within 0 .. 254. Its low byte is that of k with 7 bits turned over.
__device__ inline std::uint32_t clamp_two(std::uint32_t a, std::uint32_t b) {
  return __viaddmin_s16x2_relu(__byte_perm(a, b, 0x5410), 0x007F007Fu, 0x00FE00FEu);
}

/// Quotients (already prescaled) to codes, for the families that work on quotients. kClamp: they may be beyond the largest value, up to
/// 2^14.
template <Element kElement, int kPer, bool kClamp>
__device__ inline Codes encode_quotients(const float (&quotients)[kPer]) {
  constexpr Format kFormat = format_of(kElement);
  constexpr Family kFamily = family_of(kElement);
  constexpr float kLargest = static_cast<float>(kFormat.largest()) / prescale_of(kElement);
  constexpr bool kSaturates = kElement == Element::kE4m3 || kElement == Element::kE5m2 || kElement == Element::kInt8;
  float q[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) q[i] = kClamp && !kSaturates ? fminf(fmaxf(quotients[i], -kLargest), kLargest) : quotients[i];

  if constexpr (kFamily == Family::kInteger && kFormat.bits == 8) {
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      std::uint32_t t[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) t[j] = __float_as_uint(__fadd_rn(kClamp ? -q[i + j] : q[i + j], 12582912.0f));
      if constexpr (kClamp)
        words[i / 4] = __byte_perm(clamp_two(t[0], t[1]), clamp_two(t[2], t[3]), 0x6420) ^ 0x7F7F7F7Fu;
      else
        words[i / 4] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
    }
    return {words[0], words[1]};
  } else if constexpr (kFamily == Family::kInteger) {
    static_assert(kFormat.bits == 4 && kPer == 8);
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)  // k + 8 is never negative; its low byte is clean, 1.5 * 2^23 + 8 having zeros above
      pairs[i] = __float_as_uint(__fadd_rn(q[2 * i], 12582920.0f)) + (__float_as_uint(__fadd_rn(q[2 * i + 1], 12582920.0f)) << 4);
    const std::uint32_t word = __byte_perm(__byte_perm(pairs[0], pairs[1], 0x0040), __byte_perm(pairs[2], pairs[3], 0x0040), 0x5410);
    return {word ^ 0x88888888u, 0};
  } else {
    constexpr bool kE4m3 = kFamily == Family::kConvert43;
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      std::uint32_t bytes = convert_four<kE4m3>(q[i], q[i + 1], q[i + 2], q[i + 3]);
      if constexpr (kFormat.bits < 8) {  // the sign moves down to the format's top bit
        constexpr std::uint32_t kMagnitude = ((1u << (kFormat.bits - 1)) - 1u) * 0x01010101u;
        constexpr std::uint32_t kSign = (1u << (kFormat.bits - 1)) * 0x01010101u;
        bytes = squeeze_four<kFormat.bits>((bytes & kMagnitude) | ((bytes >> (8 - kFormat.bits)) & kSign));
      }
      words[i / 4] = bytes;
    }
    if constexpr (kFormat.bits == 8)
      return {words[0], words[1]};
    else
      return {words[0] | (words[1] << (4 * kFormat.bits)), words[1] >> (32 - 4 * kFormat.bits)};
  }
}

/// Sign-magnitude codes of 4 bits: the code is in the low bits of t = 2^23 + code, the sign in the chunk.
template <DType kType>
__device__ inline Codes join_magnitudes(const Chunk<kType, 8>& chunk, const float (&t)[8]) {
  std::uint32_t pairs[4];  // two codes in the low byte
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __float_as_uint(t[2 * i]) + (__float_as_uint(t[2 * i + 1]) << 4);
  const std::uint32_t magnitudes = __byte_perm(__byte_perm(pairs[0], pairs[1], 0x0040), __byte_perm(pairs[2], pairs[3], 0x0040), 0x5410);
  return {magnitudes | (signs_of(chunk) & 0x88888888u), 0};
}

/// The code of min(round(2q), round(q + 2), round(q/2 + 4)), 7 at most, above 2^23: q = magnitude * factor, one rounding each.
/// Below 7 the last of the three is at most 7 by itself.
template <bool kClamp>
__device__ inline float e2m1_code(float magnitude, float factor) {
  constexpr float kBase = 8388608.0f;
  const float fine = __fmaf_rn(magnitude, 2.0f * factor, kBase);
  const float middle = __fmaf_rn(magnitude, factor, kBase + 2.0f);
  const float coarse = __fmaf_rn(magnitude, 0.5f * factor, kBase + 4.0f);
  // Positive floats order like their bits, of which the hardware takes the least of three at once.
  const int least = __vimin3_s32(__float_as_int(fine), __float_as_int(middle), __float_as_int(coarse));
  return __int_as_float(kClamp ? min(least, __float_as_int(kBase + 7.0f)) : least);
}

template <bool kClamp, DType kType>
__device__ inline Codes encode_e2m1(const Chunk<kType, 8>& chunk, float factor) {
  float t[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) t[i] = e2m1_code<kClamp>(magnitude_of(chunk, i), factor);
  return join_magnitudes<kType>(chunk, t);
}

/// Whether encode_e2m1 of 1 / s, rounded to nearest, gives the codes of x / s for all x of a 16-bit type: x / s, the same rounded, and the
/// product are within 2^-23 of one another, so none of the x / s may be that close to a tie of codes, T 2^e with T = 1, 3, 5, 7
/// (tests/format/division_test.cc tries all significands of s).
/// With integers x = X 2^i (X < 2^p) and s = B 2^j (24 bits), X 2^h - B T, h >= 24 - p, is as far from 0 as B T from the multiples of
/// 2^(24 - p), and that must be more than 2^-23 B T < 2 T. Where it is not, 105 B is at most 105 / T * 2 T = 210 from one.
template <DType kType>
__device__ inline bool is_product_divisor(float s) {
  constexpr std::uint32_t kStep = 1u << (kType == DType::kBf16 ? 24 - 8 : 24 - 11);
  return is_16_bit(kType) && ((__float_as_uint(s) * 105u + 256u) & (kStep - 1u)) >= 512u;
}

/// The codes of a chunk divided by a plain divisor (of s * prescale).
template <Element kElement, DType kType, int kPer, bool kClamp>
__device__ inline Codes encode_chunk(const Chunk<kType, kPer>& chunk, const Divisor& divisor) {
  float q[kPer];
  if constexpr (family_of(kElement) == Family::kE2m1) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) q[i] = e2m1_code<kClamp>(divide<kType>(magnitude_of(chunk, i), divisor), 1.0f);
    return join_magnitudes<kType>(chunk, q);
  } else {
#pragma unroll
    for (int i = 0; i < kPer; ++i) q[i] = divide<kType>(value_of(chunk, i), divisor);
    return encode_quotients<kElement, kPer, kClamp>(q);
  }
}

/// fma(|x|, factor, base) of two bf16, factor a power of two: from 128 on the last of the 8 bits counts ones, so this rounds to an integer.
__device__ inline __nv_bfloat162 round_magnitudes(std::uint32_t pair, float factor, float base) {
  const std::uint32_t magnitudes = pair & 0x7FFF7FFFu;
  return __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&magnitudes), __float2bfloat162_rn(factor), __float2bfloat162_rn(base));
}

/// encode_chunk_shifted of 4-bit sign-magnitude codes from bf16, two elements at a time: everything is exact in bf16 too.
template <Element kElement>
__device__ inline Codes encode_pairs_shifted(const Chunk<DType::kBf16, 8>& chunk, float reciprocal) {
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t word = chunk.words[i];
    __nv_bfloat162 code = __float2bfloat162_rn(135.0f);
    if constexpr (family_of(kElement) == Family::kE2m1) {
      code = __hmin2(code, round_magnitudes(word, 0.5f * reciprocal, 132.0f));
      code = __hmin2(code, round_magnitudes(word, reciprocal, 130.0f));
      code = __hmin2(code, round_magnitudes(word, 2.0f * reciprocal, 128.0f));
    } else {
      code = __hmin2(code, round_magnitudes(word, reciprocal, 128.0f));
    }
    pairs[i] = (*reinterpret_cast<const std::uint32_t*>(&code) & 0x00070007u) | ((word >> 12) & 0x00080008u);
  }
  return {join_nibbles(pairs[0], pairs[1], pairs[2], pairs[3]), 0};
}

/// The codes of a chunk divided by a power of two, given as its reciprocal (of s * prescale): products are exact.
template <Element kElement, DType kType, int kPer>
__device__ inline Codes encode_chunk_shifted(const Chunk<kType, kPer>& chunk, float reciprocal) {
  if constexpr (kType == DType::kBf16 && (family_of(kElement) == Family::kE2m1 || family_of(kElement) == Family::kMagnitude))
    return encode_pairs_shifted<kElement>(chunk, reciprocal);
  float q[kPer];
  if constexpr (family_of(kElement) == Family::kE2m1) {
    return encode_e2m1<true>(chunk, reciprocal);
  } else if constexpr (family_of(kElement) == Family::kMagnitude) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) q[i] = fminf(__fmaf_rn(magnitude_of(chunk, i), reciprocal, 8388608.0f), 8388615.0f);
    return join_magnitudes<kType>(chunk, q);
  } else {
#pragma unroll
    for (int i = 0; i < kPer; ++i) q[i] = __fmul_rn(value_of(chunk, i), reciprocal);
    return encode_quotients<kElement, kPer, true>(q);
  }
}

/// One code by the definition, for chunks that the fast ways do not take (Inf, NaN, extreme scales).
template <Element kElement>
__device__ __noinline__ std::uint32_t encode_by_definition(float x, float scale) {
  constexpr Format kFormat = format_of(kElement);
  return encode(kFormat, x != x ? x : __fdiv_rn(x, scale));  // a division would drop the sign of a NaN
}

template <Element kElement, DType kType, int kPer>
__device__ inline Codes encode_chunk_slowly(const Chunk<kType, kPer>& chunk, float scale) {
  std::uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    packed |= static_cast<std::uint64_t>(encode_by_definition<kElement>(exact_value_of(chunk, i), scale)) << (i * bits_of(kElement));
  return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
}

}  // namespace narrow::cuda
