/// Quantize and dequantize for AArch64: four lanes.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/quantize/plan.h"

namespace narrow::cpu {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

inline VU load_codes(const std::uint8_t* from) {
  std::uint32_t four;
  __builtin_memcpy(&four, from, sizeof four);
  return (VU)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
inline VU load_codes(const std::uint16_t* from) { return (VU)vmovl_u16(vld1_u16(from)); }
inline void store_codes(std::uint16_t* to, VU codes) { vst1_u16(to, vmovn_u32((uint32x4_t)codes)); }
inline void store_codes(std::uint8_t* to, VU codes) {
  const uint16x4_t words = vmovn_u32((uint32x4_t)codes);
  const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
  __builtin_memcpy(to, &four, sizeof four);
}
/// The low byte of every 16-bit lane, side by side.
inline void store_low_bytes(std::uint8_t* to, VWords words) { vst1_u8(to, vmovn_u16((uint16x8_t)words)); }
inline VF widen_bf16(const std::uint16_t* from) { return as_float(load_codes(from) << 16); }
inline VHalf widen_bytes(const std::uint8_t* from) {
  std::uint32_t four;
  __builtin_memcpy(&four, from, sizeof four);
  return (VHalf)vget_low_u16(vmovl_u8(vcreate_u8(four)));
}
inline VF widen_half(VHalf half) { return (VF)vcvt_f32_f16((float16x4_t)half); }
inline VF widen_fp16(const std::uint16_t* from) { return (VF)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
inline VF multiply_add(VF a, VF b, VF c) { return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#include "kernels/cpu/arm/bytes_neon.inl"

struct Table {
  uint8x16x4_t bytes;
};
inline Table make_table(const float* values) {
  const std::uint8_t* bytes = reinterpret_cast<const std::uint8_t*>(values);
  return {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
}
inline VF look_up(const Table& table, VU code) {
  const VU positions = code * 0x04040404u + 0x03020100u;  // the four bytes of entry `code`
  return (VF)vqtbl4q_u8(table.bytes, (uint8x16_t)positions);
}

inline std::int32_t highest_lane(VI value) { return vmaxvq_s32((int32x4_t)value); }

[[gnu::always_inline]] inline VI max_of_each(const VI (&each)[4]) {
  const auto v = [&](int i) { return (int32x4_t)each[i]; };
  return (VI)vpmaxq_s32(vpmaxq_s32(v(0), v(1)), vpmaxq_s32(v(2), v(3)));
}

#include "kernels/cpu/quantize/portable.inl"

#include "kernels/cpu/quantize/leaf.inl"

}  // namespace

extern const QuantizeKernel kNeonQuantize;
extern const DequantizeKernel kNeonDequantize;
constinit const QuantizeKernel kNeonQuantize{"neon_quantize", Isa::kNeon, accepts_quantize, measure_tile, run_quantize};
constinit const DequantizeKernel kNeonDequantize{"neon_dequantize", Isa::kNeon, accepts_dequantize, run_dequantize};

}  // namespace narrow::cpu
