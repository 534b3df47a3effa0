// AVX-512 with VPOPCNTDQ: 8 columns per vector.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::avx512_binary {
namespace {

using VW8 [[gnu::vector_size(64)]] = std::uint64_t;

constexpr int kWords = 8, kRows = 8;
constexpr bool kBytewise = false;
inline VW8 count(VW8 bits) { return (VW8)_mm512_popcnt_epi64((__m512i)bits); }
inline VW8 sum_bytes(VW8 bytes) { return bytes; }

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"avx512_matmul_int1_int1", Isa::kAvx512, binary_accepts, binary_run};

}  // namespace narrow::cpu::avx512_binary
