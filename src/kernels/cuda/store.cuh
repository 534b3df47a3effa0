#pragma once
/// Packed codes of a chunk to memory. Widths of 8 and 4 bits go straight; 5 and 6 bits are first joined by the warp in shared
/// memory, so that lanes store 16 aligned bytes.

#include "kernels/cuda/encode.cuh"

namespace narrow::cuda {

/// Elements that one lane holds: 16 bytes of input, or 32 of fp32 where fewer than 8 codes would not fill bytes.
NARROW_HOST_DEVICE constexpr int elements_per_lane(Element element, DType dtype) {
  return dtype == DType::kF32 && bits_of(element) == 8 ? 4 : 8;
}

NARROW_HOST_DEVICE constexpr bool is_staged(Element element) { return bits_of(element) == 5 || bits_of(element) == 6; }

/// Shared memory of one warp for staging: 32 times kParts chunks.
template <Element kElement, int kParts = 1>
struct Stage {
  alignas(16) std::uint8_t bytes[is_staged(kElement) ? 32 * kParts * bits_of(kElement) : 16];
};

/// A warp's stage to memory: of its 32 chunks (or spans) of kBytes bytes those that are among the `count`. All lanes have written.
template <int kBytes>
__device__ inline void store_stage(std::uint8_t* codes, std::int64_t chunk, std::int64_t count, const std::uint8_t* stage) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t first = chunk - lane;
  const int filled = kBytes * static_cast<int>(min(count - first, std::int64_t{32}));
  __syncwarp();
  if (lane * 16 < filled)
    *reinterpret_cast<uint4*>(codes + first * kBytes + lane * 16) = *reinterpret_cast<const uint4*>(stage + lane * 16);
  __syncwarp();
}

/// The codes of chunk `chunk` of the `count` of `codes`; all lanes of a warp call with neighbouring chunks, some of which may be behind the
/// last. Staged widths: counts are multiples of 16, and the warp's first byte is aligned.
template <Element kElement, int kPer>
__device__ inline void store_codes(std::uint8_t* codes, std::int64_t chunk, std::int64_t count, Codes packed, Stage<kElement>& stage) {
  if constexpr (bits_of(kElement) == 8 && kPer == 8) {
    if (chunk < count) *reinterpret_cast<uint2*>(codes + chunk * 8) = make_uint2(packed.low, packed.high);
  } else if constexpr (!is_staged(kElement)) {
    if (chunk < count) *reinterpret_cast<std::uint32_t*>(codes + chunk * 4) = packed.low;
  } else {
    constexpr int kBytes = bits_of(kElement);
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kBytes == 6) {
      std::uint16_t* halves = reinterpret_cast<std::uint16_t*>(stage.bytes + lane * kBytes);
      halves[0] = static_cast<std::uint16_t>(packed.low);
      halves[1] = static_cast<std::uint16_t>(packed.low >> 16);
      halves[2] = static_cast<std::uint16_t>(packed.high);
    } else {
      std::uint8_t* mine = stage.bytes + lane * kBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[i] = static_cast<std::uint8_t>(packed.low >> (8 * i));
      mine[4] = static_cast<std::uint8_t>(packed.high);
    }
    store_stage<kBytes>(codes, chunk, count, stage.bytes);
  }
}

/// The codes of span `span` of `count`: kParts neighbouring chunks of 8 elements in one lane. As store_codes otherwise.
template <Element kElement, int kParts>
__device__ inline void store_span(std::uint8_t* codes, std::int64_t span, std::int64_t count, const Codes (&packed)[kParts],
                                  Stage<kElement, kParts>& stage) {
  if constexpr (kParts == 1) {
    store_codes<kElement, 8>(codes, span, count, packed[0], stage);
  } else if constexpr (bits_of(kElement) == 8) {
    if (span < count)
      *reinterpret_cast<uint4*>(codes + span * 16) = make_uint4(packed[0].low, packed[0].high, packed[1].low, packed[1].high);
  } else if constexpr (bits_of(kElement) == 4) {
    if (span < count) *reinterpret_cast<uint2*>(codes + span * 8) = make_uint2(packed[0].low, packed[1].low);
  } else if constexpr (bits_of(kElement) == 6) {
    std::uint32_t* mine = reinterpret_cast<std::uint32_t*>(stage.bytes) + threadIdx.x % 32 * 3;
    mine[0] = packed[0].low;
    mine[1] = packed[0].high | (packed[1].low << 16);
    mine[2] = (packed[1].low >> 16) | (packed[1].high << 16);
    store_stage<12>(codes, span, count, stage.bytes);
  } else {  // 80 bits: of two lanes' five words the even one stores three
    const std::uint32_t first = packed[0].low, second = packed[0].high | (packed[1].low << 8),
                        third = __funnelshift_r(packed[1].low, packed[1].high, 24);
    const std::uint32_t next = __shfl_down_sync(0xFFFFFFFFu, first, 1);
    const bool odd = threadIdx.x & 1u;
    std::uint32_t* mine = reinterpret_cast<std::uint32_t*>(stage.bytes) + threadIdx.x % 32 / 2 * 5 + (odd ? 3 : 0);
    mine[0] = odd ? __funnelshift_r(first, second, 16) : first;
    mine[1] = odd ? __funnelshift_r(second, third, 16) : second;
    if (!odd) mine[2] = third | (next << 16);
    store_stage<10>(codes, span, count, stage.bytes);
  }
}

}  // namespace narrow::cuda
