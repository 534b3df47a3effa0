// NEON: 2 columns per vector; CNT counts per byte.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::neon_binary {
namespace {

using VW2 [[gnu::vector_size(16)]] = std::uint64_t;

constexpr int kWords = 2, kRows = 2;
constexpr bool kBytewise = true;
inline VW2 count(VW2 bits) { return (VW2)vcntq_u8((uint8x16_t)bits); }
inline VW2 sum_bytes(VW2 bytes) { return (VW2)vpaddlq_u32(vpaddlq_u16(vpaddlq_u8((uint8x16_t)bytes))); }

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"neon_matmul_int1_int1", Isa::kNeon, binary_accepts, binary_run};

}  // namespace narrow::cpu::neon_binary
