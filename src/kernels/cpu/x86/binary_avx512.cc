/// int1 products for AVX-512 with VPOPCNTDQ: sixteen outputs per vector.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::avx512_binary {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 6, kVectors = 4;
constexpr bool kBytewise = false;
inline VU count(VU bits) { return (VU)_mm512_popcnt_epi32((__m512i)bits); }
[[maybe_unused]] inline VU sum_bytes(VU bytes) { return bytes; }

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"avx512_matmul_int1_int1", Isa::kAvx512, binary_accepts, binary_run};

}  // namespace narrow::cpu::avx512_binary
