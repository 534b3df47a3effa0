#pragma once
/// One row of x times chunks of packed weights: from shared memory to sums of 16 rows per warp.
///
/// A chunk's 128 columns are eight steps of mma.m16n8k16. x = high + 2^-11 low, two numbers of fp16: four columns of the B operand are the
/// same 16 values of high, four those of low, so that lanes of t = lane % 4 < 2 have the sums of high, the others those of low. Four
/// 16-byte loads bring either of a chunk: word 128 chunk + 32 (step / 2) + 16 (lane / 16) + 4 t + 2 (step % 2) + r holds the columns 16
/// step + 8 r + 2 t + {0, 1}. Where x is asked to be bf16 there is no low: all eight columns are the same, and a chunk has 64 words.
///
/// Integers are multiplied as bytes, by mma.m16n8k32, with x in four digits of 8 bits, each in two columns of the B operand: sums of digits
/// are exact, and become floats once per block of columns. That is half as many instructions as codes in fp16 take. The zero point is taken
/// off the sums: sum (code - zero) x = sum code x - zero sum x.

#include "kernels/cuda/decoder/step.h"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/weight_decode.cuh"

namespace narrow::cuda::sm90 {

/// Codes of integers as bytes: a register has columns 16 step + 2 t + {0, 8, 1, 9}, t = lane % 4, of one row.
template <class D>
struct StepBytes {
  /// Whether bytes of rows t / 4 + 8 also hold the codes of rows t / 4, in their low bits: those are taken off the sums.
  static constexpr bool kMixed = D::kBits == 4;
  /// How much larger the bytes of rows t / 4 + 8 are than the codes.
  static constexpr float kOddFactor = D::kBits < 8 && has_even_fields(D::kKind, D::kBits) ? static_cast<float>(1 << D::kBits) : 1.0f;

  template <int kPair>
  __device__ static std::uint32_t pair(const std::uint32_t* words) {
    if constexpr (!has_even_fields(D::kKind, D::kBits)) {
      return gather_bits<D::kKind, D::kBits, D::kMantissa, 0, kPair>(words, 0);
    } else {
      constexpr int kPerWord = 16 / D::kBits, kField = kPair % kPerWord * D::kBits, kPlace = kPair % 2 * D::kBits;
      constexpr std::uint32_t kMask = ((1u << D::kBits) - 1u) * 0x00010001u << kPlace;
      return (words[kPair / kPerWord] >> (kField - kPlace)) & kMask;
    }
  }
  /// Rows t / 4 and t / 4 + 8 of a step.
  template <int kStep>
  __device__ static void decode_step(const std::uint32_t* words, std::uint32_t& even, std::uint32_t& odd) {
    if constexpr (D::kBits == 4) {
      even = words[kStep] & 0x0F0F0F0Fu, odd = words[kStep];
    } else if constexpr (D::kBits == 8) {
      even = __byte_perm(words[kStep * 2], words[kStep * 2 + 1], 0x6240), odd = __byte_perm(words[kStep * 2], words[kStep * 2 + 1], 0x7351);
    } else {
      even = __byte_perm(pair<kStep * 4>(words), pair<kStep * 4 + 2>(words), 0x6240);
      odd = __byte_perm(pair<kStep * 4 + 1>(words), pair<kStep * 4 + 3>(words), 0x6240);
    }
  }
};

/// Powers of two that the compiler does not know: by them words are shifted in the pipe of multiplications, beside the masks in that of
/// integers, which is the fuller one.
static __constant__ std::uint32_t kStepPowers[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

/// Floats as the weight-only products decode them, but for pairs of two pieces of one word that one multiplication brings to both places,
/// and for shifts.
template <class D>
struct StepFloats {
  template <int kPair>
  static constexpr Moves kMoves = moves_of(kPlacement<D::kKind, D::kBits>, D::kKind, D::kBits, 10 - stored_mantissa(D::kBits), kPair);

  /// Whether (word & sources) * (2^first + 2^second) has both pieces at their places, whatever their bits are: what each is by the other's
  /// factor, and its carries, must miss those.
  static constexpr bool can_multiply(const Moves& moves) {
    if (moves.count != 2 || moves.word[0] != moves.word[1] || moves.shift[0] <= 0 || moves.shift[1] <= 0) return false;
    const std::uint32_t sources = moves.mask[0] >> moves.shift[0] | moves.mask[1] >> moves.shift[1], factor = factor_of(moves);
    for (std::uint32_t bits = sources;; bits = (bits - 1) & sources) {
      const std::uint32_t wanted = (bits << moves.shift[0] & moves.mask[0]) | (bits << moves.shift[1] & moves.mask[1]);
      if ((bits * factor & (moves.mask[0] | moves.mask[1])) != wanted) return false;
      if (bits == 0) return true;
    }
  }
  static constexpr std::uint32_t factor_of(const Moves& moves) { return (1u << moves.shift[0]) + (1u << moves.shift[1]); }

  template <bool kBf16, int kPair>
  __device__ static std::uint32_t pair(const std::uint32_t* words) {
    constexpr Moves kIts = kMoves<kPair>;
    if constexpr (!kBf16 && can_multiply(kIts)) {
      constexpr std::uint32_t kSources = kIts.mask[0] >> kIts.shift[0] | kIts.mask[1] >> kIts.shift[1];
      return (words[kIts.word[0]] & kSources) * factor_of(kIts) & (kIts.mask[0] | kIts.mask[1]);
    } else if constexpr (!kBf16) {
      std::uint32_t result = 0;
#pragma unroll
      for (int i = 0; i < kIts.count; ++i) {
        const std::uint32_t word = words[kIts.word[i]];
        const std::uint32_t moved =
            kIts.shift[i] > 0 ? word * kStepPowers[kIts.shift[i]] : (kIts.shift[i] < 0 ? word >> -kIts.shift[i] : word);
        result = and_or(moved, kIts.mask[i], result);
      }
      return result;
    } else {
      return D::template pair<kBf16, kPair>(words, DecodeState{});
    }
  }
  template <bool kBf16, int kStep>
  __device__ static void decode_step(const std::uint32_t* words, std::uint32_t* a) {
    a[0] = pair<kBf16, kStep * 4>(words);
    a[1] = pair<kBf16, kStep * 4 + 1>(words);
    a[2] = pair<kBf16, kStep * 4 + 2>(words);
    a[3] = pair<kBf16, kStep * 4 + 3>(words);
  }
};

/// d = a * b.
template <bool kBf16>
__device__ inline void mma_row(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kBf16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

__device__ inline void mma_bytes(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_bytes(int (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b));
}

/// Words of a chunk of x that is not in digits.
template <bool kBf16>
inline constexpr int kStepChunk = kBf16 ? kChunkDepth / 2 : kChunkDepth;
/// What low is multiplied by: high has 11 bits.
constexpr float kStepLow = 0x1p11f;

/// A lane's part of a chunk of x in digits: the B operand's columns are the four digits, twice. Word 128 chunk + 64 (step / 4) + 16 digit +
/// 4 t + step % 4 holds columns 16 step + 2 t + {0, 8, 1, 9}.
struct StepDigits {
  std::uint32_t step[8];
  __device__ StepDigits(const std::uint32_t* x, int lane) {
    *reinterpret_cast<uint4*>(step) = *reinterpret_cast<const uint4*>(x + lane % 16 * 4);
    *reinterpret_cast<uint4*>(step + 4) = *reinterpret_cast<const uint4*>(x + 64 + lane % 16 * 4);
  }
};

/// What a warp knows of the weights it multiplies.
struct StepOperand {
  int scale_offset, zero_offset, step_shift;
  ChunkScale scale;
  float zero;  ///< of integers: the constant zero point
};

/// Scales and zero points of a chunk, of rows `row` + 8 i.
template <StepScales kScales>
struct StepBlocks {
  static constexpr int kBlock = steps_of(kScales);
  static constexpr bool kPacked = kScales == StepScales::kPacked32 || kScales == StepScales::kPacked16;
  static constexpr int kPairs = kPacked ? 4 / kBlock : 1;  ///< words with two scales each, of a row

  const StepOperand& w;
  const std::byte* chunk;
  int row;
  float whole[2];  ///< scales of 128 columns
  std::uint32_t pairs[2][kPairs];

  __device__ StepBlocks(const StepOperand& operand, const std::byte* its_chunk, int first_row)
      : w(operand), chunk(its_chunk), row(first_row) {
    const std::byte* stored = chunk + w.scale_offset;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = row + 8 * i;
      if constexpr (kScales == StepScales::kChunk) {
        whole[i] = reinterpret_cast<const float*>(stored)[at];
      } else if constexpr (kScales == StepScales::kPacked32) {
        const uint2 two = reinterpret_cast<const uint2*>(stored)[at];
        pairs[i][0] = two.x, pairs[i][1] = two.y;
      } else if constexpr (kScales == StepScales::kPacked16) {
        const uint4 four = reinterpret_cast<const uint4*>(stored)[at];
        pairs[i][0] = four.x, pairs[i][1] = four.y, pairs[i][2] = four.z, pairs[i][3] = four.w;
      }
    }
  }
  __device__ int index(int i, int block) const {
    if constexpr (kBlock == 8) return row + 8 * i;
    return ((row + 8 * i) * kChunkDepth + block * kBlock * 16) >> w.step_shift;
  }
  __device__ float zero(int i, int block) const {
    return static_cast<float>(reinterpret_cast<const std::uint8_t*>(chunk)[w.zero_offset + index(i, block)]);
  }
  __device__ float scale(int i, int block) const {
    if constexpr (kScales == StepScales::kChunk) return whole[i];
    if constexpr (kPacked) {
      const std::uint32_t pair = pairs[i][block / 2];
      return __uint_as_float(block % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    }
    const std::byte* stored = chunk + w.scale_offset;
    if (w.scale == ChunkScale::kFloat) return reinterpret_cast<const float*>(stored)[index(i, block)];
    return __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(stored)[index(i, block)]) << 16);
  }
};

/// A lane's words of 16 rows of a chunk: all, of 8 bits half of them, of 16 bits those of one step.
template <class D>
inline constexpr int kStepWords = D::kBits > 8 ? 4 : (D::kBits == 8 ? D::kBits : 2 * D::kBits);
/// part: which 16 rows; which: of the words that are not loaded at once.
template <class D>
__device__ inline void load_words(const std::byte* chunk, int part, int lane, int which, std::uint32_t (&words)[kStepWords<D>]) {
  constexpr int kWords = kStepWords<D>;
  const std::byte* from = chunk + part * (32 * 8 * D::kBits) + which * (D::kBits > 8 ? 512 : 32 * 4 * D::kBits);
#pragma unroll
  for (int unit = 0; unit < kWords / 4; ++unit)
    *reinterpret_cast<uint4*>(words + unit * 4) = *reinterpret_cast<const uint4*>(from + (unit * 32 + lane) * 16);
  if constexpr (kWords % 4 == 2)
    *reinterpret_cast<uint2*>(words + kWords - 2) = *reinterpret_cast<const uint2*>(from + kWords / 4 * 512 + lane * 8);
}

/// The sums of rows lane / 4 + 8 i, i = 0, 1, of a warp's 16: of high and of low, in lanes that are two apart.
template <class D, bool kBf16, StepScales kScales>
class StepSums {
 public:
  using Decode = StepFloats<D>;
  static constexpr int kBlock = steps_of(kScales);

  __device__ StepSums() { clear(); }

  /// Adds a chunk's products. part: which 16 rows; x: the chunk's words.
  __device__ __forceinline__ void add(const StepOperand& w, const std::byte* chunk, const std::uint32_t* x, int part, int lane) {
    uint4 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      b[i] = *reinterpret_cast<const uint4*>(x + i * (kStepChunk<kBf16> / 4) + (kBf16 ? 0 : lane / 16 * 16) + lane % 4 * 4);
    std::uint32_t words[kStepWords<D>];
    if constexpr (!kDense) load_words<D>(chunk, part, lane, 0, words);
    const StepBlocks<kScales> blocks(w, chunk, part * 16 + lane / 4);
    const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {
      constexpr bool kScaled = kScales != StepScales::kRow, kFirst = kScaled && kStep % kBlock == 0;
      constexpr int kChain = kBlock == 8 ? kStep % 2 : 0;
      if constexpr (kDense) load_words<D>(chunk, part, lane, kStep, words);
      if constexpr (kHalves && kStep == 4) load_words<D>(chunk, part, lane, 1, words);
      const std::uint32_t b0 = kStep % 2 == 0 ? b[kStep / 2].x : b[kStep / 2].z, b1 = kStep % 2 == 0 ? b[kStep / 2].y : b[kStep / 2].w;
      std::uint32_t a[4];
      if constexpr (kDense)
        a[0] = words[0], a[1] = words[1], a[2] = words[2], a[3] = words[3];
      else
        Decode::template decode_step<kBf16, kStep % 4>(words + (kHalves ? 0 : kStep / 4 * D::kBits), a);
      float(&d)[4] = products_[kChain];
      if constexpr (kFirst || (kScaled && kBlock == 8 && kStep == 1))
        mma_row<kBf16>(d, a, b0, b1);
      else
        mma_16x8<kBf16>(d, a, b0, b1);
      if constexpr (kScaled && kStep % kBlock == kBlock - 1) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float sum = products_[0][i * 2];
          if constexpr (kBlock == 8) sum += products_[1][i * 2];
          sums_[i] = __fmaf_rn(sum, blocks.scale(i, kStep / kBlock), sums_[i]);
        }
      }
    };
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) { (step(std::integral_constant<int, kStep>{}), ...); }
    (std::make_integer_sequence<int, 8>{});
  }

  /// The sums, in lanes of t < 2; then nothing is left.
  __device__ void take(float (&result)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      result[i] = sums_[i];
      if constexpr (kScales == StepScales::kRow) result[i] += products_[0][i * 2] + products_[1][i * 2];
      if constexpr (!kBf16) result[i] = __fmaf_rn(__shfl_xor_sync(0xFFFFFFFFu, result[i], 2), 1.0f / kStepLow, result[i]);
    }
    clear();
  }

 private:
  static constexpr bool kDense = D::kBits > 8, kHalves = D::kBits == 8;  ///< words are loaded by steps, or by halves of a chunk

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums_[i] = 0.0f;
      if constexpr (kScales == StepScales::kRow)
#pragma unroll
        for (int chain = 0; chain < 2; ++chain) products_[chain][i * 2] = products_[chain][i * 2 + 1] = 0.0f;
    }
  }

  float sums_[2];
  float products_[2][4];  ///< in two chains
};

/// The same of integers times digits of x; kZeros: chunks have zero points. Lanes of even t have the sums of the lower two digits, the
/// others those of the higher two.
template <class D, StepScales kScales, bool kZeros>
class StepIntegerSums {
 public:
  using Bytes = StepBytes<D>;
  static constexpr int kBlock = steps_of(kScales);

  /// x: the chunk's digits; x_scale: of the lane's digits; x_sums: of x, per kBlock steps.
  __device__ __forceinline__ void add(const StepOperand& w, const std::byte* chunk, const std::uint32_t* x, float x_scale,
                                      const float* x_sums, int part, int lane) {
    const StepDigits digits(x, lane);
    std::uint32_t words[kStepWords<D>];
    load_words<D>(chunk, part, lane, 0, words);
    const StepBlocks<kScales> blocks(w, chunk, part * 16 + lane / 4);
    int d[4];
    const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {
      constexpr int kPart = D::kBits == 8 ? kStep % 4 : kStep;
      if constexpr (D::kBits == 8 && kStep == 4) load_words<D>(chunk, part, lane, 1, words);
      if constexpr (kStep % kBlock == 0) d[0] = d[1] = d[2] = d[3] = 0;
      const std::uint32_t* from = words + kPart / 4 * D::kBits;
      if constexpr (kBlock == 1) {
        std::uint32_t a[2];
        Bytes::template decode_step<kPart % 4>(from, a[0], a[1]);
        mma_bytes(d, a, digits.step[kStep]);
      } else if constexpr (kStep % 2 == 0) {
        std::uint32_t a[4];
        Bytes::template decode_step<kPart % 4>(from, a[0], a[1]);
        Bytes::template decode_step<kPart % 4 + 1>(from, a[2], a[3]);
        mma_bytes(d, a, digits.step[kStep], digits.step[kStep + 1]);
      }
      if constexpr (kStep % kBlock == kBlock - 1) {
        constexpr int kWhich = kStep / kBlock;
        if constexpr (Bytes::kMixed) d[2] -= d[0], d[3] -= d[1];
        const float sum_of_x = lane % 2 == 0 ? -x_sums[kWhich] : 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float start = sum_of_x * (kZeros ? blocks.zero(i, kWhich) : w.zero) * (i == 1 ? Bytes::kOddFactor : 1.0f);
          const float sum = __fmaf_rn(__int2float_rn(d[i * 2] + d[i * 2 + 1] * 256), x_scale, start);
          sums_[i] = kScales == StepScales::kRow ? sums_[i] + sum : __fmaf_rn(sum, blocks.scale(i, kWhich), sums_[i]);
        }
      }
    };
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) { (step(std::integral_constant<int, kStep>{}), ...); }
    (std::make_integer_sequence<int, 8>{});
  }

  /// The sums; then nothing is left.
  __device__ void take(float (&result)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      result[i] = (sums_[i] + __shfl_xor_sync(0xFFFFFFFFu, sums_[i], 1)) * (i % 2 == 0 ? 1.0f : 1.0f / Bytes::kOddFactor);
      sums_[i] = 0.0f;
    }
  }

 private:
  float sums_[2] = {0.0f, 0.0f};
};

}  // namespace narrow::cuda::sm90
