#pragma once
/// The element formats that have fast code on the GPU, and the scalings they come with. Host and device.

#include "narrow/format.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow::cuda {

enum class Element : std::uint8_t { kE4m3, kE5m2, kE3m2, kE2m3, kE2m2, kE2m1, kInt8, kInt4, kMsfp12 };

NARROW_HOST_DEVICE constexpr Format format_of(Element element) {
  switch (element) {
    case Element::kE4m3: return kFp8E4m3;
    case Element::kE5m2: return kFp8E5m2;
    case Element::kE3m2: return kFp6E3m2;
    case Element::kE2m3: return kFp6E2m3;
    case Element::kE2m2: return kFp5E2m2;
    case Element::kE2m1: return kFp4E2m1;
    case Element::kInt8: return kInt8;
    case Element::kInt4: return kInt4;
    case Element::kMsfp12: return msfp_element(3);
  }
  return {};
}

NARROW_HOST_DEVICE constexpr int bits_of(Element element) { return format_of(element).bits; }

/// How a block's largest magnitude becomes its divisor.
enum class ScaleKind : std::uint8_t {
  kLargest,         ///< fp32 amax / largest
  kSharedExponent,  ///< e8m0: MX and MSFP
  kTwoLevel,        ///< fp8_e4m3 under an fp32 outer scale: NVFP4
  kGiven,           ///< one fp32 for everything, in memory: static, or made by a pass before
};

/// x as 16 bytes per lane: how many elements that is.
NARROW_HOST_DEVICE constexpr bool is_16_bit(DType dtype) { return dtype != DType::kF32; }

}  // namespace narrow::cuda
