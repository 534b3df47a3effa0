#pragma once
/// Packed codes of a chunk to memory. Widths of 8 and 4 bits go straight; 5 and 6 bits are first joined by the warp in shared
/// memory, so that lanes store 16 aligned bytes.

#include "kernels/cuda/encode.cuh"

namespace narrow::cuda {

/// Elements that one lane holds: 16 bytes of input, or 32 of fp32 where fewer than 8 codes would not fill bytes.
NARROW_HOST_DEVICE constexpr int elements_per_lane(Element element, DType dtype) { return dtype == DType::kF32 && bits_of(element) == 8 ? 4 : 8; }

NARROW_HOST_DEVICE constexpr bool is_staged(Element element) { return bits_of(element) == 5 || bits_of(element) == 6; }

/// Shared memory of one warp for staging: 32 times kParts chunks.
template <Element kElement, int kParts = 1>
struct Stage {
  alignas(16) std::uint8_t bytes[is_staged(kElement) ? 32 * kParts * bits_of(kElement) : 16];
};

/// The codes of chunk `chunk` of `codes`, where chunk - lane is the warp's first; all lanes of the warp call, `valid` says which
/// of them hold a chunk. Staged widths: the valid lanes come first and are a multiple of 16, and the warp's first byte is aligned.
template <Element kElement, int kPer>
__device__ inline void store_codes(std::uint8_t* codes, std::int64_t chunk, bool valid, Codes packed, Stage<kElement>& stage) {
  if constexpr (bits_of(kElement) == 8 && kPer == 8) {
    if (valid) *reinterpret_cast<uint2*>(codes + chunk * 8) = make_uint2(packed.low, packed.high);
  } else if constexpr (!is_staged(kElement)) {
    if (valid) *reinterpret_cast<std::uint32_t*>(codes + chunk * 4) = packed.low;
  } else {
    constexpr int kBytes = bits_of(kElement);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int filled = __popc(__ballot_sync(0xFFFFFFFFu, valid)) * kBytes;
    std::uint8_t* mine = stage.bytes + lane * kBytes;
    if constexpr (kBytes == 6) {
      std::uint16_t* halves = reinterpret_cast<std::uint16_t*>(mine);
      halves[0] = static_cast<std::uint16_t>(packed.low);
      halves[1] = static_cast<std::uint16_t>(packed.low >> 16);
      halves[2] = static_cast<std::uint16_t>(packed.high);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[i] = static_cast<std::uint8_t>(packed.low >> (8 * i));
      mine[4] = static_cast<std::uint8_t>(packed.high);
    }
    __syncwarp();
    if (lane * 16 < filled)
      *reinterpret_cast<uint4*>(codes + (chunk - lane) * kBytes + lane * 16) = *reinterpret_cast<const uint4*>(stage.bytes + lane * 16);
    __syncwarp();
  }
}

/// The codes of span `span`: kParts neighbouring chunks of 8 elements in one lane. As store_codes otherwise.
template <Element kElement, int kParts>
__device__ inline void store_span(std::uint8_t* codes, std::int64_t span, bool valid, const Codes (&packed)[kParts], Stage<kElement, kParts>& stage) {
  static_assert(!is_staged(kElement) || bits_of(kElement) == 6);
  if constexpr (kParts == 1) {
    store_codes<kElement, 8>(codes, span, valid, packed[0], stage);
  } else if constexpr (bits_of(kElement) == 8) {
    if (valid) *reinterpret_cast<uint4*>(codes + span * 16) = make_uint4(packed[0].low, packed[0].high, packed[1].low, packed[1].high);
  } else if constexpr (bits_of(kElement) == 4) {
    if (valid) *reinterpret_cast<uint2*>(codes + span * 8) = make_uint2(packed[0].low, packed[1].low);
  } else {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int filled = __popc(__ballot_sync(0xFFFFFFFFu, valid)) * 12;
    std::uint32_t* mine = reinterpret_cast<std::uint32_t*>(stage.bytes + lane * 12);
    mine[0] = packed[0].low;
    mine[1] = packed[0].high | (packed[1].low << 16);
    mine[2] = (packed[1].low >> 16) | (packed[1].high << 16);
    __syncwarp();
    if (lane * 16 < filled)
      *reinterpret_cast<uint4*>(codes + (span - lane) * 12 + lane * 16) = *reinterpret_cast<const uint4*>(stage.bytes + lane * 16);
    __syncwarp();
  }
}

}  // namespace narrow::cuda
