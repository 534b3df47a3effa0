/// MSFP products for NEON: four outputs per vector; widening multiplications, no dot product instruction needed.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/msfp_rows.h"

namespace narrow::cpu::neon_msfp {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 4, kVectors = 4;
constexpr std::int32_t kOffset = 0;
inline VU ready(VU w) { return w; }

inline VI dot4(VI sums, VU w, std::uint32_t a) {
  const int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(a)), y = (int8x16_t)w;
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
  return (VI)vpadalq_s16((int32x4_t)sums, vpaddq_s16(low, high));
}

#include "kernels/cpu/msfp.inl"

}  // namespace

extern const MsfpKernel kRow;
const MsfpKernel kRow{"neon_matmul_msfp_msfp", Isa::kNeon, msfp_unpack, msfp_run};

}  // namespace narrow::cpu::neon_msfp
