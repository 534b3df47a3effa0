/// MSFP products for AVX-512 VNNI: sixteen outputs per vector; VPDPBUSD takes the weights as unsigned bytes, 128 added.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/msfp_rows.h"

namespace narrow::cpu::avx512_msfp {
namespace {

constexpr int kLanes = 16;
#include "kernels/cpu/vector.inl"

constexpr int kRows = 6, kVectors = 4;
constexpr std::int32_t kOffset = 128;
inline VU ready(VU w) { return w ^ 0x80808080u; }
inline VI dot4(VI sums, VU w, std::uint32_t a) {
  return (VI)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(static_cast<int>(a)));
}

#include "kernels/cpu/msfp.inl"

}  // namespace

extern const MsfpKernel kRow;
const MsfpKernel kRow{"avx512_matmul_msfp_msfp", Isa::kAvx512, msfp_unpack, msfp_run};

}  // namespace narrow::cpu::avx512_msfp
