/// MSFP products for AVX2: eight outputs per vector. |a| times sign(a) w in pairs of at most 2 * 127 * 127: no saturation.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/msfp_rows.h"

namespace narrow::cpu::avx2_msfp {
namespace {

constexpr int kLanes = 8;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 2, kVectors = 2;
constexpr std::int32_t kOffset = 0;
inline VU ready(VU w) { return w; }

inline VI dot4(VI sums, VU w, std::uint32_t a) {
  const __m256i signs = _mm256_set1_epi32(static_cast<int>(a));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signs), _mm256_sign_epi8((__m256i)w, signs));
  return sums + (VI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "kernels/cpu/msfp.inl"

}  // namespace

extern const MsfpKernel kRow;
const MsfpKernel kRow{"avx2_matmul_msfp_msfp", Isa::kAvx2, msfp_unpack, msfp_run};

}  // namespace narrow::cpu::avx2_msfp
