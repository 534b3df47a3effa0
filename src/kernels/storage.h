#pragma once
/// Reading values and scales in the types that problems come in. Scalar: for references and edges. Host and device.

#include <bit>
#include <cstdint>

#include "narrow/codec.h"
#include "narrow/tensor.h"

namespace narrow {

/// Element `index` of fp32, fp16 or bf16 data, exactly.
NARROW_HOST_DEVICE inline float load_value(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[index];
  constexpr Format kHalf = kFp16;  // device code cannot refer to a namespace-scope object
  return dtype == DType::kBf16 ? std::bit_cast<float>(bits << 16) : decode(kHalf, bits);
}

/// Stores with one rounding to nearest even; values beyond a 16-bit type's range saturate by default.
NARROW_HOST_DEVICE inline void store_value(void* data, DType dtype, std::int64_t index, float value,
                                           Overflow overflow = Overflow::kSaturate) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    constexpr Format kBrain = kBf16, kHalf = kFp16;
    const Format format = dtype == DType::kBf16 ? kBrain : kHalf;
    static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(encode(format, value, Rounding::kNearestEven, overflow));
  }
}

/// The stored code of scale `index`: 1, 2 or 4 bytes, by its format.
NARROW_HOST_DEVICE inline std::uint32_t load_scale_code(const void* scales, const Format& format, std::int64_t index) {
  if (format.bits == 32) return static_cast<const std::uint32_t*>(scales)[index];
  if (format.bits == 16) return static_cast<const std::uint16_t*>(scales)[index];
  return static_cast<const std::uint8_t*>(scales)[index];
}

NARROW_HOST_DEVICE inline void store_scale_code(void* scales, const Format& format, std::int64_t index, std::uint32_t code) {
  if (format.bits == 32) {
    static_cast<std::uint32_t*>(scales)[index] = code;
  } else if (format.bits == 16) {
    static_cast<std::uint16_t*>(scales)[index] = static_cast<std::uint16_t>(code);
  } else {
    static_cast<std::uint8_t*>(scales)[index] = static_cast<std::uint8_t>(code);
  }
}

}  // namespace narrow
