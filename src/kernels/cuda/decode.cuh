#pragma once
/// Packed codes to fp32 values, and values to the output types, as codec.h's decode and encode round them.

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/scaled_value.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {

/// Floats are first laid into fp16 with their exponent field as it is: value = fp16 * 2^(15 - bias), subnormals included.
/// The factor goes into the scale.
NARROW_HOST_DEVICE constexpr float decode_factor(Element element) {
  const Format format = format_of(element);
  if (format.is_integer() || element == Element::kE4m3) return 1.0f;
  return static_cast<float>(power_of_two(15 - format.bias));
}

__device__ inline float2 halves_to_floats(std::uint32_t bits) {
  return __half22float2(__halves2half2(__ushort_as_half(static_cast<unsigned short>(bits & 0xFFFFu)),
                                       __ushort_as_half(static_cast<unsigned short>(bits >> 16))));
}

/// Two codes in bits 0.. and 16.. of a word, as two fp16.
template <Element kElement>
__device__ inline std::uint32_t codes_to_halves(std::uint32_t pair) {
  constexpr Format kFormat = format_of(kElement);
  if constexpr (kFormat.is_integer()) {  // 1024 + code + 2^(b-1), minus the constants: exact
    constexpr std::uint32_t kOffset = 1u << (kFormat.bits - 1);
    const std::uint32_t biased = (pair ^ (kOffset * 0x00010001u)) | 0x64006400u;
    const __half2 shift = __half2half2(__ushort_as_half(static_cast<unsigned short>(0x6400u + kOffset)));
    const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&biased), shift);
    return *reinterpret_cast<const std::uint32_t*>(&value);
  } else {
    constexpr std::uint32_t kMagnitude = (1u << (kFormat.bits - 1)) - 1u, kSign = 1u << (kFormat.bits - 1);
    return ((pair & (kMagnitude * 0x00010001u)) << (10 - kFormat.mantissa_bits)) | ((pair & (kSign * 0x00010001u)) << (16 - kFormat.bits));
  }
}

/// The values of a chunk's codes divided by decode_factor.
template <Element kElement, int kPer>
__device__ inline void decode_chunk(Codes codes, float (&values)[kPer]) {
  constexpr int kBits = bits_of(kElement);
  if constexpr (kBits == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = halves_to_floats(codes_to_halves<kElement>((codes.low >> (4 * i)) & 0x000F000Fu));
      values[i] = two.x;
      values[i + 4] = two.y;
    }
  } else if constexpr (kBits == 8) {
#pragma unroll
    for (int i = 0; i < kPer; i += 2) {
      const std::uint32_t word = i < 4 ? codes.low : codes.high;
      float2 two;
#if __CUDA_ARCH__ >= 890
      if constexpr (kElement == Element::kE4m3) {
        std::uint32_t halves;
        const unsigned short pair = static_cast<unsigned short>(i % 4 == 0 ? word & 0xFFFFu : word >> 16);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
        two = halves_to_floats(halves);
      } else
#endif
      {
        const std::uint32_t pair = __byte_perm(word, 0, i % 4 == 0 ? 0x4140 : 0x4342);
        two = halves_to_floats(codes_to_halves<kElement>(pair));
        if constexpr (kElement == Element::kE4m3) two = {two.x * 256.0f, two.y * 256.0f};  // the hardware's way has no factor
      }
      values[i] = two.x;
      values[i + 1] = two.y;
    }
  } else {
    constexpr std::uint32_t kTwo = (1u << (2 * kBits)) - 1u;
    const std::uint32_t fours[2] = {codes.low, __funnelshift_r(codes.low, codes.high, 4 * kBits)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // codes 0 and 1 to the low half of a word, 2 and 3 to the high one
      const std::uint32_t halves = (fours[i] & kTwo) | ((fours[i] << (16 - 2 * kBits)) & (kTwo << 16));
      const float2 even = halves_to_floats(codes_to_halves<kElement>(halves)),
                   odd = halves_to_floats(codes_to_halves<kElement>(halves >> kBits));
      values[4 * i] = even.x, values[4 * i + 1] = odd.x, values[4 * i + 2] = even.y, values[4 * i + 3] = odd.y;
    }
  }
}

/// Whether some code of the chunk is NaN: their bits in the output are the definition's.
template <Element kElement>
__device__ inline bool has_nan_code(Codes codes) {
  constexpr Format kFormat = format_of(kElement);
  if constexpr (!kFormat.has_nan()) return false;
  // Per byte: magnitude + (127 - largest code that is a number) reaches bit 7. E5M2's infinity counts as one: it only costs time.
  constexpr std::uint32_t kStep = (127u - kFormat.max_code()) * 0x01010101u;
  return ((((codes.low & 0x7F7F7F7Fu) + kStep) | ((codes.high & 0x7F7F7F7Fu) + kStep)) & 0x80808080u) != 0;
}

/// Two values in a 16-bit type, the first one low; beyond fp16's range they saturate, beyond bf16's they must not be.
template <DType kType>
__device__ inline std::uint32_t round_pair(float a, float b) {
  std::uint32_t result;
  if constexpr (kType == DType::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(b), "f"(a));
  } else {
    constexpr float kLargest = 65504.0f;
    a = fminf(fmaxf(a, -kLargest), kLargest);
    b = fminf(fmaxf(b, -kLargest), kLargest);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(b), "f"(a));
  }
  return result;
}

/// One value by the definition, in the output's own bits.
template <Element kElement, DType kType>
__device__ __noinline__ std::uint32_t decode_by_definition(std::uint32_t code, float scale) {
  constexpr Format kFormat = format_of(kElement);
  const float value = scaled_value(decode(kFormat, code), scale);
  if constexpr (kType == DType::kF32) return __float_as_uint(value);
  constexpr Format kOut = kType == DType::kBf16 ? kBf16 : kFp16;
  return encode(kOut, value);
}

}  // namespace narrow::cuda
