// AVX2: 4 columns per vector; a byte's count is two look-ups of a nibble's.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::avx2_binary {
namespace {

using VW4 [[gnu::vector_size(32)]] = std::uint64_t;

constexpr int kWords = 4, kRows = 2;
constexpr bool kBytewise = true;

inline VW4 count(VW4 bits) {
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i mask = _mm256_set1_epi8(15), x = (__m256i)bits;
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, mask));
  const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), mask));
  return (VW4)_mm256_add_epi8(low, high);
}

inline VW4 sum_bytes(VW4 bytes) { return (VW4)_mm256_sad_epu8((__m256i)bytes, _mm256_setzero_si256()); }

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"avx2_matmul_int1_int1", Isa::kAvx2, binary_accepts, binary_run};

}  // namespace narrow::cpu::avx2_binary
