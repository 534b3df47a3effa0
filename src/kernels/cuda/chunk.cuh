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

/// The same of bytes that nobody reads again soon: the second-level cache lets them go first.
__device__ inline uint4 load_words_once(const void* address) {
  uint4 v;
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(address), "l"(policy));
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

/// The magnitude of element i as fp32.
template <DType kType, int kPer>
__device__ inline float magnitude_of(const Chunk<kType, kPer>& chunk, int i) {
  if constexpr (kType != DType::kBf16) return fabsf(value_of(chunk, i));
  const std::uint32_t pair = chunk.words[i / 2] & 0x7FFF7FFFu;
  return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

/// The signs of 8 elements in bits 3, 7, .. 31; the other bits are anything.
template <DType kType>
__device__ inline std::uint32_t signs_of(const Chunk<kType, 8>& chunk) {
  const std::uint32_t(&words)[Chunk<kType, 8>::kWords] = chunk.words;
  std::uint32_t low, high;  // the top bytes of elements 0, 2, 1, 3 and 4, 6, 5, 7
  if constexpr (is_16_bit(kType)) {
    low = __byte_perm(words[0], words[1], 0x7351), high = __byte_perm(words[2], words[3], 0x7351);
  } else {
    low = __byte_perm(__byte_perm(words[0], words[2], 0x0073), __byte_perm(words[1], words[3], 0x0073), 0x5410);
    high = __byte_perm(__byte_perm(words[4], words[6], 0x0073), __byte_perm(words[5], words[7], 0x0073), 0x5410);
  }
  return ((__byte_perm(low, high, 0x5410) >> 4) & 0x0F0F0F0Fu) | (__byte_perm(low, high, 0x7632) & 0xF0F0F0F0u);
}

/// The larger of two magnitudes, NaN where one is; signs in and out are anything. Of 16-bit types two lie side by side.
template <DType kType>
__device__ inline std::uint32_t max_magnitude(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 860
  std::uint32_t result;
  if constexpr (kType == DType::kF32)
    asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else if constexpr (kType == DType::kBf16)
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else  // as integers they order like the values, NaN above infinity
  if constexpr (kType == DType::kF32)
    return max(a & 0x7FFFFFFFu, b & 0x7FFFFFFFu);
  else
    return __vmaxu2(a & 0x7FFF7FFFu, b & 0x7FFF7FFFu);
#endif
}

/// The largest magnitude of a chunk, under any sign.
template <DType kType, int kPer>
__device__ inline std::uint32_t chunk_magnitude(const Chunk<kType, kPer>& chunk) {
  std::uint32_t result = max_magnitude<kType>(chunk.words[0], chunk.words[1]);
#pragma unroll
  for (int i = 2; i < chunk.kWords; ++i) result = max_magnitude<kType>(result, chunk.words[i]);
  return result;
}

/// The largest magnitude as an fp32; infinite or NaN where one was among them.
template <DType kType>
__device__ inline float magnitude_value(std::uint32_t magnitude) {
  if constexpr (kType == DType::kF32) return __uint_as_float(magnitude & 0x7FFFFFFFu);
  const std::uint32_t one = max(magnitude & 0x7FFFu, (magnitude >> 16) & 0x7FFFu);
  if constexpr (kType == DType::kBf16) return __uint_as_float(one << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(one)));
}

__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7FFFFFFFu) < 0x7F800000u; }

/// Whether a chunk_magnitude is at most the limit, or a little less of 16-bit types: of those both halves are compared at once.
template <DType kType>
__device__ inline bool is_at_most(std::uint32_t magnitude, float limit) {
  if constexpr (kType == DType::kF32)
    return fabsf(__uint_as_float(magnitude)) <= limit;
  else if constexpr (kType == DType::kBf16)
    return __hble2(__habs2(*reinterpret_cast<const __nv_bfloat162*>(&magnitude)), __bfloat162bfloat162(__float2bfloat16_rz(limit)));
  else
    return __hble2(__habs2(*reinterpret_cast<const __half2*>(&magnitude)), __half2half2(__float2half_rz(limit)));
}

/// The largest finite magnitude, for the rare chunk that has others, which are told to flags.
template <DType kType, int kPer>
__device__ inline float finite_magnitude(const Chunk<kType, kPer>& chunk, std::uint32_t* flags) {
  float result = 0.0f;
  std::uint32_t seen = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float magnitude = fabsf(value_of(chunk, i));
    if (is_finite(magnitude))
      result = fmaxf(result, magnitude);
    else
      seen |= magnitude != magnitude ? 1u : 2u;
  }
  if (seen != 0 && flags != nullptr) atomicOr(flags, seen);
  return result;
}

}  // namespace narrow::cuda
