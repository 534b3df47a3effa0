/// One row of fp32 against floats of 5 and 6 bits for AVX-512 with BF16, whose dot products (VDPBF16PS) take two k a step: a code is looked
/// up as bf16, which holds it exactly, and the activation is the sum of two bf16 (cpu::FloatTask::pairs_offset). Bound: memory; per 64
/// values 4 dot products and 4 to 5 operations that decode. Error: 2^-18 of an activation, which is at most K 2^-25 of it, and a rounding
/// per k of a group and per group: less than K / 2 roundings of the sum.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::avx512bf16 {
namespace {

constexpr std::int64_t kPrefetchBytes = 16384;

#include "kernels/cpu/x86/vec_avx512.inl"

#include "kernels/cpu/matmul_epilogue.inl"

#include "kernels/cpu/matmul_decode.inl"

#include "kernels/cpu/matmul_gemv.inl"

/// Where the words of [k][part][k or k + 16] come from: 32 first parts, then 32 second parts.
struct PairPlaces {
  alignas(64) std::uint16_t from[64];
  constexpr PairPlaces() : from{} {
    for (int i = 0; i < 64; ++i) from[i] = static_cast<std::uint16_t>(i / 4 + 16 * (i % 2) + 32 * (i / 2 % 2));
  }
};

// The masked forms of intrinsics keep g++ 12 from warning about its own undefined operand.
inline F widen_low(I words) { return as_float(shift_left<16>(_mm512_maskz_cvtepu16_epi32(0xFFFF, _mm512_castsi512_si256(words)))); }
inline F widen_high(I words) {
  return as_float(shift_left<16>(_mm512_maskz_cvtepu16_epi32(0xFFFF, _mm512_maskz_extracti64x4_epi64(0xF, words, 1))));
}

/// Whether two bf16 of every value, and its products, are normal numbers.
bool has_range(const float* x, std::int64_t count) {
  const I magnitude = set_lanes(0x7FFFFFFFu), one = set_lanes(1);
  I largest = set_lanes(0), smallest = set_lanes(~0u);  // of zeros none
  for (std::int64_t i = 0; i < count; i += 16) {
    const I of = bit_and(load_lanes(x + i), magnitude);
    largest = _mm512_max_epu32(largest, of);
    smallest = _mm512_min_epu32(smallest, _mm512_sub_epi32(of, one));
  }
  std::uint32_t high[16], low[16];
  store_lanes(high, largest);
  store_lanes(low, smallest);
  for (int i = 1; i < 16; ++i) {
    high[0] = high[i] > high[0] ? high[i] : high[0];
    low[0] = low[i] < low[0] ? low[i] : low[0];
  }
  const std::uint32_t field = high[0] >> 23;
  return field >= 99 && field <= 187 && low[0] >= (field - 60) << 23;
}

void pack_pairs(const float* x, std::int64_t groups, std::uint32_t* pairs) {
  static constexpr PairPlaces kPlaces;
  for (std::int64_t group = 0; group < groups; ++group, x += 32, pairs += 32) {
    const F low = load(x), high = load(x + 16);
    const I first = (I)_mm512_cvtne2ps_pbh(high, low);
    const I second = (I)_mm512_cvtne2ps_pbh(sub(high, widen_high(first)), sub(low, widen_low(first)));
    store_lanes(pairs, _mm512_permutex2var_epi16(first, load_lanes(kPlaces.from), second));
    store_lanes(pairs + 16, _mm512_permutex2var_epi16(first, load_lanes(kPlaces.from + 32), second));
  }
}

/// As AVX-512 packs it, and the pairs.
void pack(const MatmulProblem& problem, std::int64_t m_begin, std::int64_t m_end, std::byte* packed) {
  avx512::kMatmulBodies.float_pack(problem, m_begin, m_end, packed);
  auto& task = *reinterpret_cast<cpu::FloatTask*>(packed);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  task.has_pairs = has_range(x, task.groups * 32);
  if (task.has_pairs) pack_pairs(x, task.groups, reinterpret_cast<std::uint32_t*>(packed + task.pairs_offset));
}

/// A source of matmul_gemv.inl.
template <int kWidth>
struct PairRow {
  static constexpr int kBits = kWidth, kRows = 1;
  using Zeros = TableDecoder<4>;  // none
  const std::uint32_t* pairs;
  I low, high;  // of the table

  PairRow(const cpu::FloatTask& task, const std::byte* packed)
      : pairs(reinterpret_cast<const std::uint32_t*>(packed + task.pairs_offset)),
        low(load_lanes(task.words)),
        high(load_lanes(task.words + 32)) {}

  /// bf16 of the codes in the low bits of words.
  [[gnu::always_inline]] I look_up(I words) const {
    if constexpr (kBits == 5)
      return _mm512_permutexvar_epi16(words, low);
    else
      return _mm512_permutex2var_epi16(low, words, high);
  }

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&)[kCount][2], F (&sums)[1][kCount][2]) const {
    constexpr int kPer = 16 / kBits;
    F of_group[kCount][2];
    SpareCodes<kBits> spare[kCount];
    for (int p = 0; p < kCount; ++p) of_group[p][0] = of_group[p][1] = set(0.0f);
    const auto meet = [&](int k, const I(&values)[kCount]) __attribute__((always_inline)) {
      for (int part = 0; part < 2; ++part) {
        const I x = set_lanes(pairs[group * 32 + 2 * k + part]);
        for (int p = 0; p < kCount; ++p) of_group[p][part] = _mm512_dpbf16_ps(of_group[p][part], (__m512bh)values[p], (__m512bh)x);
      }
    };
    unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
      constexpr int v = decltype(vector)::value;
      I lanes[kCount], values[kCount];
      for (int p = 0; p < kCount; ++p) lanes[p] = load_part<kPrefetchBytes>(codes + v * kVectorBytes, p);
      unroll<0, kPer>([&](auto slot) __attribute__((always_inline)) {
        constexpr int j = decltype(slot)::value;
        for (int p = 0; p < kCount; ++p) values[p] = look_up(shift_right<kBits * j>(lanes[p]));
        meet(v * kPer + j, values);
      });
      for (int p = 0; p < kCount; ++p) spare[p].template take<v>(lanes[p]);
      unroll<0, SpareCodes<kBits>::ready(v)>([&](auto number) __attribute__((always_inline)) {
        constexpr int n = decltype(number)::value;
        for (int p = 0; p < kCount; ++p) values[p] = look_up(spare[p].template code<n>());
        meet(SpareCodes<kBits>::first_k(v) + n, values);
      });
    });
    asm("" : "+m"(sums));  // which wait in the cache: the registers are a group's
    for (int p = 0; p < kCount; ++p)
      for (int part = 0; part < 2; ++part) sums[0][p][part] = plus(sums[0][p][part], of_group[p][part]);
  }
};

std::size_t scratch_bytes(const MatmulProblem& problem) { return avx512::kMatmulBodies.float_scratch(problem); }

template <int kBits>
void run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::FloatTask*>(packed);
  const cpu::MatmulBodies& bodies = avx512::kMatmulBodies;
  if (!task.has_pairs) return (kBits == 6 ? bodies.float6 : bodies.code5)(problem, part, packed, scratch);
  const std::int64_t index = part.n_begin / kLanes;
  const FloatPanel panel{reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes, problem.w.scales,
                         problem.w.zero_points, index * task.scales.blocks * kLanes};
  float* sums = reinterpret_cast<float*>(scratch);
  gemv(task, panel, PairRow<kBits>(task, packed), sums);
  finish_row(problem.epilogue, part.m_begin, part.n_begin, static_cast<int>(part.n_end - part.n_begin), sums);
}

}  // namespace

const cpu::OneRowBodies kOneRow{pack, scratch_bytes, run<6>, run<5>};

}  // namespace narrow::avx512bf16
