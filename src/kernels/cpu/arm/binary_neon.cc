/// int1 products for NEON: four outputs per vector; CNT counts per byte.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::neon_binary {
namespace {

constexpr int kLanes = 4;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 4, kVectors = 4;
constexpr bool kBytewise = true;
inline VU count(VU bits) { return (VU)vcntq_u8((uint8x16_t)bits); }
inline VU sum_bytes(VU bytes) { return (VU)vpaddlq_u16(vpaddlq_u8((uint8x16_t)bytes)); }

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"neon_matmul_int1_int1", Isa::kNeon, binary_accepts, binary_run};

}  // namespace narrow::cpu::neon_binary
