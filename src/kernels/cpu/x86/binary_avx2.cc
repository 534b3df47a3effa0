/// int1 products for AVX2: eight outputs per vector; a byte's count is two look-ups of a nibble's.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/binary_rows.h"

namespace narrow::cpu::avx2_binary {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 4, kVectors = 2;
constexpr bool kBytewise = true;

inline VU count(VU bits) {
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i mask = _mm256_set1_epi8(15), x = (__m256i)bits;
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, mask));
  const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), mask));
  return (VU)_mm256_add_epi8(low, high);
}

inline VU sum_bytes(VU bytes) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi8(1));
  return (VU)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "kernels/cpu/binary.inl"

}  // namespace

extern const BinaryKernel kRow;
const BinaryKernel kRow{"avx2_matmul_int1_int1", Isa::kAvx2, binary_accepts, binary_run};

}  // namespace narrow::cpu::avx2_binary
