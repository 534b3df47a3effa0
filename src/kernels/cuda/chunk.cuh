#pragma once
/// A chunk: the 8 (of fp32 also 4) neighbouring elements that one lane holds in registers. Loads are 16 bytes wide.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/elements.cuh"

namespace narrow::cuda {

template <DType kType, int kPer>
struct Chunk {
  static constexpr int kWords = is_16_bit(kType) ? kPer / 2 : kPer;
  std::uint32_t words[kWords];
};

/// 16 bytes that no kernel writes. Without a hint for the first-level cache: L1::no_allocate costs a tenth of the bandwidth on an H200.
__device__ inline uint4 load_words(const void* address) {
  uint4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
  return v;
}

template <DType kType, int kPer>
__device__ inline Chunk<kType, kPer> zero_chunk() {
  Chunk<kType, kPer> chunk;
#pragma unroll
  for (int i = 0; i < chunk.kWords; ++i) chunk.words[i] = 0;
  return chunk;
}

/// x + offset must be 16-byte aligned.
template <DType kType, int kPer>
__device__ inline Chunk<kType, kPer> load_chunk(const void* x, std::int64_t offset) {
  constexpr int kSize = is_16_bit(kType) ? 2 : 4;
  const char* address = static_cast<const char*>(x) + offset * kSize;
  Chunk<kType, kPer> chunk;
#pragma unroll
  for (int i = 0; i < chunk.kWords / 4; ++i) {
    const uint4 v = load_words(address + 16 * i);
    chunk.words[4 * i] = v.x;
    chunk.words[4 * i + 1] = v.y;
    chunk.words[4 * i + 2] = v.z;
    chunk.words[4 * i + 3] = v.w;
  }
  return chunk;
}

/// Element i as fp32, exactly.
template <DType kType, int kPer>
__device__ inline float value_of(const Chunk<kType, kPer>& chunk, int i) {
  if constexpr (kType == DType::kF32) {
    return __uint_as_float(chunk.words[i]);
  } else if constexpr (kType == DType::kBf16) {
    const std::uint32_t word = chunk.words[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  } else {
    const std::uint32_t word = chunk.words[i / 2];
    return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word & 0xFFFFu : word >> 16)));
  }
}

/// Element i by the definition: the GPU's own conversion of an fp16 NaN drops its sign.
template <DType kType, int kPer>
__device__ inline float exact_value_of(const Chunk<kType, kPer>& chunk, int i) {
  if constexpr (kType == DType::kF16) {
    const std::uint32_t bits = i % 2 == 0 ? chunk.words[i / 2] & 0xFFFFu : chunk.words[i / 2] >> 16;
    if ((bits & 0x7FFFu) > 0x7C00u) return __uint_as_float(((bits & 0x8000u) << 16) | 0x7FC00000u);
  }
  return value_of(chunk, i);
}

/// The signs of elements 2i and 2i+1 in bits 15 and 31.
template <DType kType, int kPer>
__device__ inline std::uint32_t sign_pair(const Chunk<kType, kPer>& chunk, int i) {
  if constexpr (is_16_bit(kType)) return chunk.words[i];
  else return __byte_perm(chunk.words[2 * i], chunk.words[2 * i + 1], 0x7632);
}

/// Magnitudes as integers order like the values; an Inf or NaN is above all finite ones. Of 16-bit types two lie side by side.
template <DType kType>
__device__ inline std::uint32_t max_magnitude(std::uint32_t a, std::uint32_t b) {
  if constexpr (is_16_bit(kType)) return __vmaxu2(a, b);
  else return max(a, b);
}

template <DType kType, int kPer>
__device__ inline std::uint32_t chunk_magnitude(const Chunk<kType, kPer>& chunk) {
  constexpr std::uint32_t kMask = is_16_bit(kType) ? 0x7FFF7FFFu : 0x7FFFFFFFu;
  std::uint32_t result = chunk.words[0] & kMask;
#pragma unroll
  for (int i = 1; i < chunk.kWords; ++i) result = max_magnitude<kType>(result, chunk.words[i] & kMask);
  return result;
}

/// The largest magnitude as an fp32; infinite or NaN where one was among them.
template <DType kType>
__device__ inline float magnitude_value(std::uint32_t magnitude) {
  if constexpr (kType == DType::kF32) return __uint_as_float(magnitude);
  const std::uint32_t one = max(magnitude & 0xFFFFu, magnitude >> 16);
  if constexpr (kType == DType::kBf16) return __uint_as_float(one << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(one)));
}

__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7FFFFFFFu) < 0x7F800000u; }

/// The largest finite magnitude, for the rare chunk that has others, which are told to flags.
template <DType kType, int kPer>
__device__ inline float finite_magnitude(const Chunk<kType, kPer>& chunk, std::uint32_t* flags) {
  float result = 0.0f;
  std::uint32_t seen = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float magnitude = fabsf(value_of(chunk, i));
    if (is_finite(magnitude)) result = fmaxf(result, magnitude);
    else seen |= magnitude != magnitude ? 1u : 2u;
  }
  if (seen != 0 && flags != nullptr) atomicOr(flags, seen);
  return result;
}

}  // namespace narrow::cuda
