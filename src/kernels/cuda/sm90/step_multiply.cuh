#pragma once
/// One row of x times chunks of packed weights: from shared memory to sums of 32 rows per warp.
///
/// A chunk's 128 columns are eight steps of mma.m16n8k16, of which a warp makes two each, of 16 rows. All eight columns of the B operand
/// are the same 16 values of x, so that every lane of a row has its sum. Four 16-byte loads bring x of a chunk, and serve 32 rows: word
/// 64 chunk + 16 (step / 2) + 4 t + 2 (step % 2) + r of x holds the columns 16 step + 8 r + 2 t + {0, 1}, t = lane % 4.
///
/// Integers are laid into the mantissa of a subnormal fp16, code * 2^-24, which is exact and needs no further step; rows of odd pairs may
/// lie kBits higher. The zero point is taken off the sums: sum (code - zero) x = sum code x - zero sum x; -zero sum x is what the products
/// of a block start from.

#include "kernels/cuda/decoder/step.h"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/weight_decode.cuh"

namespace narrow::cuda::sm90 {

template <class D>
struct StepDecoder {
  static constexpr bool kIsInteger = D::kKind == WeightKind::kInteger;
  static constexpr bool kEven = has_even_fields(D::kKind, D::kBits);
  /// How much larger the decoded codes of rows t / 4 + 8 are than those of rows t / 4.
  static constexpr float kOddFactor = kEven && D::kBits <= 4 ? static_cast<float>(1 << D::kBits) : 1.0f;

  template <bool kBf16, int kPair>
  __device__ static std::uint32_t pair(const std::uint32_t* words, const DecodeState& state) {
    if constexpr (!kIsInteger) {
      return D::template pair<kBf16, kPair>(words, state);
    } else if constexpr (!kEven) {
      return gather_bits<D::kKind, D::kBits, 0, kPair>(words, 0);
    } else {
      constexpr int kPerWord = 16 / D::kBits, kField = kPair % kPerWord * D::kBits;
      const std::uint32_t word = words[kPair / kPerWord];
      if constexpr (D::kBits == 8) return kField == 0 ? word & 0x00FF00FFu : __byte_perm(word, 0, 0x4341);
      constexpr int kPlace = kPair % 2 * D::kBits;
      constexpr std::uint32_t kMask = ((1u << D::kBits) - 1u) * 0x00010001u << kPlace;
      return (word >> (kField - kPlace)) & kMask;
    }
  }
  template <bool kBf16, int kStep>
  __device__ static void decode_step(const std::uint32_t* words, const DecodeState& state, std::uint32_t* a) {
    a[0] = pair<kBf16, kStep * 4>(words, state);
    a[1] = pair<kBf16, kStep * 4 + 1>(words, state);
    a[2] = pair<kBf16, kStep * 4 + 2>(words, state);
    a[3] = pair<kBf16, kStep * 4 + 3>(words, state);
  }
};

/// How scales change along k: not at all; every 128 columns, in fp32; every 32, or 16, in bf16; every 32 or a multiple, or 16, in either.
enum class StepScales : std::uint8_t { kRow, kChunk, kPacked32, kPacked16, kBlocks, kSixteen };
/// Those of 16 columns are compiled for formats of up to 4 bits.
constexpr bool has_sixteen(int bits) { return bits <= 4; }
NARROW_HOST_DEVICE constexpr StepScales scales_of(const StepEncoding& e) {
  if (e.scale == ChunkScale::kNone) return StepScales::kRow;
  if (e.scale == ChunkScale::kFloat && e.step_shift == 7) return StepScales::kChunk;
  const bool packed = e.scale == ChunkScale::kBf16 && e.zero_offset == 0;
  if (e.step_shift == 4) return packed ? StepScales::kPacked16 : StepScales::kSixteen;
  return packed && e.step_shift == 5 ? StepScales::kPacked32 : StepScales::kBlocks;
}
/// Steps of 16 columns that share a scale, at least.
NARROW_HOST_DEVICE constexpr int steps_of(StepScales scales) {
  if (scales == StepScales::kRow || scales == StepScales::kChunk) return 8;
  return scales == StepScales::kPacked32 || scales == StepScales::kBlocks ? 2 : 1;
}

/// d = a * b + c.
template <bool kBf16>
__device__ inline void mma_row(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, float c0, float c1) {
  if constexpr (kBf16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %11, %11};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %11, %11};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1));
}

/// What a warp knows of the weights it multiplies.
struct StepOperand {
  int scale_offset, zero_offset, step_shift;
  ChunkScale scale;
  float offset;  ///< of integers: -2^-24 * the constant zero point
};

/// The sums of rows lane / 4 + 8 i, i = 0 .. 3, of a warp's 32. kZeros: chunks have zero points.
template <class D, bool kBf16, StepScales kScales, bool kZeros>
class StepSums {
 public:
  using Decode = StepDecoder<D>;
  static constexpr int kBlock = steps_of(kScales);

  __device__ StepSums() { clear(); }

  /// Adds a chunk's products. half: which 32 rows; x: the chunk's words; x_sums: of x, per kBlock steps.
  __device__ __forceinline__ void add(const StepOperand& w, const std::byte* chunk, const std::uint32_t* x, const float* x_sums, int half,
                                      int lane) {
    uint4 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const uint4*>(x + i * 16 + lane % 4 * 4);
    std::uint32_t words[2][kWords];
    if constexpr (!kDense) load_words(chunk, half, lane, 0, words);
    Blocks blocks(w, chunk, half * 32 + lane / 4);
    if constexpr (kScales == StepScales::kRow && Decode::kIsInteger) {
      blocks.start(0, x_sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[i] += blocks.starts[i];
    }
    const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {
      constexpr bool kScaled = kScales != StepScales::kRow, kFirst = kScaled && kStep % kBlock == 0;
      constexpr int kChain = kBlock == 8 ? kStep % 2 : 0;
      if constexpr (kDense) load_words(chunk, half, lane, kStep, words);
      if constexpr (kHalves && kStep == 4) load_words(chunk, half, lane, 1, words);
      if constexpr (kFirst) blocks.start(kStep / kBlock, x_sums);
      const std::uint32_t b0 = kStep % 2 == 0 ? b[kStep / 2].x : b[kStep / 2].z, b1 = kStep % 2 == 0 ? b[kStep / 2].y : b[kStep / 2].w;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        std::uint32_t a[4];
        if constexpr (kDense)
          a[0] = words[block][0], a[1] = words[block][1], a[2] = words[block][2], a[3] = words[block][3];
        else
          Decode::template decode_step<kBf16, kStep % 4>(words[block] + (kHalves ? 0 : kStep / 4 * D::kBits), DecodeState{}, a);
        float(&d)[4] = products_[block][kChain];
        if constexpr (kFirst)
          mma_row<kBf16>(d, a, b0, b1, blocks.starts[block * 2], blocks.starts[block * 2 + 1]);
        else if constexpr (kScaled && kBlock == 8 && kStep == 1)
          mma_row<kBf16>(d, a, b0, b1, 0.0f, 0.0f);
        else
          mma_16x8<kBf16>(d, a, b0, b1);
        if constexpr (kScaled && kStep % kBlock == kBlock - 1) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float sum = products_[block][0][i * 2];
            if constexpr (kBlock == 8) sum += products_[block][1][i * 2];
            float& total = sums_[block * 2 + i];
            total = __fmaf_rn(sum, blocks.scale(block * 2 + i, kStep / kBlock), total);
          }
        }
      }
    };
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) { (step(std::integral_constant<int, kStep>{}), ...); }
    (std::make_integer_sequence<int, 8>{});
  }

  /// The sums; then nothing is left.
  __device__ void take(float (&result)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result[i] = sums_[i];
      if constexpr (kScales == StepScales::kRow) result[i] += products_[i / 2][0][i % 2 * 2] + products_[i / 2][1][i % 2 * 2];
      if constexpr (Decode::kIsInteger) result[i] *= i % 2 == 0 ? 0x1p24f : 0x1p24f / Decode::kOddFactor;
    }
    clear();
  }

 private:
  static constexpr bool kDense = D::kBits > 8, kHalves = D::kBits == 8;  ///< words are loaded by steps, or by halves of a chunk
  static constexpr int kWords = kDense ? 4 : (kHalves ? D::kBits : 2 * D::kBits);

  /// Scales and zero points of a chunk, of rows `row` + 8 i.
  struct Blocks {
    static constexpr bool kPacked = kScales == StepScales::kPacked32 || kScales == StepScales::kPacked16;
    static constexpr int kPairs = kPacked ? 4 / kBlock : 1;  ///< words with two scales each, of a row

    const StepOperand& w;
    const std::byte* chunk;
    int row;
    float starts[4] = {0.0f, 0.0f, 0.0f, 0.0f};  ///< of the block's sums: what zero points take off
    float whole[4];                              ///< scales of 128 columns
    std::uint32_t pairs[4][kPairs];

    __device__ Blocks(const StepOperand& operand, const std::byte* its_chunk, int first_row)
        : w(operand), chunk(its_chunk), row(first_row) {
      const std::byte* stored = chunk + w.scale_offset;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
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
    __device__ void start(int block, const float* x_sums) {
      if constexpr (Decode::kIsInteger) {
        const float sum = x_sums[block] * (kZeros ? -0x1p-24f : w.offset);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          starts[i] = sum * (i % 2 == 1 ? Decode::kOddFactor : 1.0f);
          if constexpr (kZeros)
            starts[i] *= static_cast<float>(reinterpret_cast<const std::uint8_t*>(chunk)[w.zero_offset + index(i, block)]);
        }
      }
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

  __device__ static void load_words(const std::byte* chunk, int half, int lane, int part, std::uint32_t (&words)[2][kWords]) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const std::byte* from = chunk + (half * 2 + block) * (32 * 8 * D::kBits) + part * (kDense ? 512 : 32 * 4 * D::kBits);
#pragma unroll
      for (int unit = 0; unit < kWords / 4; ++unit)
        *reinterpret_cast<uint4*>(words[block] + unit * 4) = *reinterpret_cast<const uint4*>(from + (unit * 32 + lane) * 16);
      if constexpr (kWords % 4 == 2)
        *reinterpret_cast<uint2*>(words[block] + kWords - 2) = *reinterpret_cast<const uint2*>(from + kWords / 4 * 512 + lane * 8);
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums_[i] = 0.0f;
      if constexpr (kScales == StepScales::kRow)
#pragma unroll
        for (int chain = 0; chain < 2; ++chain) products_[i / 2][chain][i % 2 * 2] = products_[i / 2][chain][i % 2 * 2 + 1] = 0.0f;
    }
  }

  float sums_[4];
  float products_[2][2][4];  ///< of 16 rows each, in two chains
};

}  // namespace narrow::cuda::sm90
