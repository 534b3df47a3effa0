#pragma once
/// One row of x times chunks of packed weights: from shared memory to sums of 16 rows per warp.
///
/// A chunk's 128 columns are eight steps of mma.m16n8k16, and the B operand has eight columns: column s holds x of step s. Its registers
/// serve all steps, of whose products lanes with t = lane % 4 take the columns 2 t and 2 t + 1, the others being of no meaning: a lane adds
/// up steps 2 t and 2 t + 1, 32 columns of the chunk, with their scales and zero points. Word 64 chunk + 8 step + 2 t + r of x holds the
/// columns 16 step + 8 r + 2 t + {0, 1}.
///
/// Integers are laid into the mantissa of a subnormal fp16, code * 2^-24, which is exact and needs no further step; rows of odd pairs may
/// lie kBits higher. The zero point is taken off the sums: sum (code - zero) x = sum code x - zero sum x.

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
  static constexpr int kWords = D::kBits <= 8 ? 2 * D::kBits : 4;  ///< that a lane loads at a time: of a chunk, or of a step

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

/// How scales change along k: not at all, every 32 columns or more, every 16.
enum class StepScales : std::uint8_t { kRow, kBlocks, kSixteen };
/// The last are compiled for formats of up to 4 bits.
constexpr bool has_sixteen(int bits) { return bits <= 4; }

/// d = a * b, or d += a * b.
template <bool kBf16, bool kFirst>
__device__ inline void mma_row(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (!kFirst) {
    mma_16x8<kBf16>(d, a, b0, b1);
  } else if constexpr (kBf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }
}

/// What a warp knows of the weights it multiplies.
struct StepOperand {
  int scale_offset, zero_offset, step_shift;
  ChunkScale scale;
  float offset;  ///< of integers: -2^-24 * the constant zero point
};

/// The sums of rows lane / 4 and lane / 4 + 8 of a warp's 16.
template <class D, bool kBf16, StepScales kScales>
class StepSums {
 public:
  using Decode = StepDecoder<D>;

  __device__ StepSums() { clear(); }

  /// Adds a chunk's products. x: its words; x_sums: of x, per 32 columns, or 16.
  __device__ __forceinline__ void add(const StepOperand& w, const std::byte* chunk, const std::uint32_t* x, const float* x_sums, int warp,
                                      int lane) {
    const int t = lane % 4;
    std::uint32_t words[Decode::kWords];
    const std::byte* mine = chunk + warp * (32 * 8 * D::kBits);
    if constexpr (D::kBits <= 8) {
#pragma unroll
      for (int unit = 0; unit < Decode::kWords / 4; ++unit)
        *reinterpret_cast<uint4*>(words + unit * 4) = *reinterpret_cast<const uint4*>(mine + (unit * 32 + lane) * 16);
      if constexpr (Decode::kWords % 4 == 2)
        *reinterpret_cast<uint2*>(words + Decode::kWords - 2) = *reinterpret_cast<const uint2*>(mine + Decode::kWords / 4 * 512 + lane * 8);
    }
    const uint2 b = *reinterpret_cast<const uint2*>(x + lane * 2);
    float scales[2][kLaneBlocks];
    load_scales(w, chunk, x_sums, warp, lane, scales);
    const auto step = [&]<int kStep>(std::integral_constant<int, kStep>) {
      if constexpr (D::kBits > 8) *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(mine + (kStep * 32 + lane) * 16);
      std::uint32_t a[4];
      if constexpr (D::kBits > 8)
        a[0] = words[0], a[1] = words[1], a[2] = words[2], a[3] = words[3];
      else
        Decode::template decode_step<kBf16, kStep % 4>(words + kStep / 4 * D::kBits, DecodeState{}, a);
      if constexpr (kScales == StepScales::kRow) {
        mma_row<kBf16, false>(products_[kStep], a, b.x, b.y);
      } else {
        float product[4];
        mma_row<kBf16, true>(product, a, b.x, b.y);
        if (t == kStep / 2) {
          sums_[0] = __fmaf_rn(product[kStep % 2], scales[0][kStep % kLaneBlocks], sums_[0]);
          sums_[1] = __fmaf_rn(product[2 + kStep % 2], scales[1][kStep % kLaneBlocks], sums_[1]);
        }
      }
    };
    [&]<int... kStep>(std::integer_sequence<int, kStep...>) { (step(std::integral_constant<int, kStep>{}), ...); }
    (std::make_integer_sequence<int, 8>{});
  }

  /// The sums of all lanes, in lanes with lane % 4 == 0; then nothing is left.
  __device__ void take(int lane, float (&result)[2]) {
    if constexpr (kScales == StepScales::kRow) {
#pragma unroll
      for (int step = 0; step < 8; ++step)
        if (lane % 4 == step / 2) sums_[0] += products_[step][step % 2], sums_[1] += products_[step][2 + step % 2];
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = sums_[row];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      result[row] = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    }
    if constexpr (Decode::kIsInteger) result[0] *= 0x1p24f, result[1] *= 0x1p24f / Decode::kOddFactor;
    clear();
  }

 private:
  static constexpr int kLaneBlocks = kScales == StepScales::kSixteen ? 2 : 1;  ///< of scales, among a lane's 32 columns

  __device__ void clear() {
    sums_[0] = sums_[1] = 0.0f;
    if constexpr (kScales == StepScales::kRow) {
#pragma unroll
      for (auto& four : products_)
#pragma unroll
        for (float& product : four) product = 0.0f;
    }
  }

  /// The scales of the lane's columns, and what zero points take off.
  __device__ void load_scales(const StepOperand& w, const std::byte* chunk, const float* x_sums, int warp, int lane,
                              float (&scales)[2][kLaneBlocks]) {
    const int first = ((warp * 16 + lane / 4) * kChunkDepth + lane % 4 * 32) >> w.step_shift, down = 8 * kChunkDepth >> w.step_shift;
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int i = 0; i < kLaneBlocks; ++i) {
        const int at = first + row * down + i;
        float& scale = scales[row][i];
        scale = 1.0f;
        if constexpr (kScales != StepScales::kRow) {
          const std::byte* stored = chunk + w.scale_offset;
          if (w.scale == ChunkScale::kFloat)
            scale = reinterpret_cast<const float*>(stored)[at];
          else
            scale = __uint_as_float(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(stored)[at]) << 16);
        }
        if constexpr (Decode::kIsInteger) {
          float zero = w.offset;
          if (w.zero_offset != 0) zero = -0x1p-24f * static_cast<float>(reinterpret_cast<const std::uint8_t*>(chunk)[w.zero_offset + at]);
          sums_[row] = __fmaf_rn(zero * (row == 1 ? Decode::kOddFactor : 1.0f) * x_sums[lane % 4 * kLaneBlocks + i], scale, sums_[row]);
        }
      }
  }

  float sums_[2];
  float products_[kScales == StepScales::kRow ? 8 : 1][4];
};

}  // namespace narrow::cuda::sm90
