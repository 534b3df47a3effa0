/// 2-D convolutions of +-1 by the tensor cores' and + popcount.
/// Mapping:  a warp per 16 * kRows output positions x 8 * kColumns outputs of a group, by mma.sync (256 bits a step). Nothing is staged: a
///           lane reads its units of the windows where they lie in the image, neighbouring windows find them in the first-level cache, and
///           the weights, which all warps read, too. One more column of ones counts the ones of the windows.
/// Requires: compute capability 8.0.
/// Bound:    memory with many images, latency with one.     Meaning: ops/binary.cc, bit for bit.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/bit_conv.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kWarps = 4;

struct Words1 {
  std::uint32_t v;
};
template <int kWords>
using Words = std::conditional_t<kWords == 4, uint4, std::conditional_t<kWords == 2, uint2, Words1>>;

template <int kWords>
__device__ void load(std::uint32_t* to, const std::uint32_t* from) {
  *reinterpret_cast<Words<kWords>*>(to) = *reinterpret_cast<const Words<kWords>*>(from);
}

__device__ void multiply(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                         std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// A window: its first row and column, which padding may put outside of the image, and the words from x's first on.
struct Window {
  int top, left;
  std::int64_t origin;
};
constexpr int kNoRow = -(1 << 30);  ///< of windows beyond the last one: no tap is inside of the image

__device__ bool is_inside(const BitConvShape& s, int row, int column) {
  return static_cast<unsigned>(row) < static_cast<unsigned>(s.height) && static_cast<unsigned>(column) < static_cast<unsigned>(s.width);
}

/// A lane's operands of a step: of 2 * kRows windows and kColumns columns of weights.
template <int kUnit, int kRows, int kColumns>
struct Step {
  static constexpr int kWords = kUnit == 4 ? 4 : 2, kUnits = kWords / kUnit;
  alignas(16) std::uint32_t x[2 * kRows][kWords], w[kColumns][kWords];
  unsigned outside;  ///< bit unit * 2 * kRows + window: the tap lies outside of the image

  __device__ void read(const BitConvProblem& p, const Window (&windows)[2 * kRows], const std::int32_t* places,
                       const std::uint32_t* weights) {
    const BitConvShape& s = p.shape;
    const int pixel_words = s.groups * s.tap_words();
    outside = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int place = __ldg(places + unit * 4), row = place & 255, column = place >> 8 & 255;
      const std::int64_t offset = std::int64_t{row} * (s.width * pixel_words) + column * pixel_words + (place >> 16);
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
        for (int word = 0; word < kUnit; ++word) x[i][unit * kUnit + word] = 0;
        if (place < 0) continue;
        if (is_inside(s, windows[i].top + row, windows[i].left + column))
          load<kUnit>(&x[i][unit * kUnit], p.x + windows[i].origin + offset);
        else
          outside |= 1u << (unit * 2 * kRows + i);
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) load<kWords>(w[j], weights + j * 32 * kWords);
  }

  /// sums += popcount(x & w), ones += popcount(x). At the border: sums += 2 popcount(x & w) + popcount(w of the taps outside).
  __device__ void multiply_into(int (&sums)[kRows][kColumns][4], int (&ones)[kRows][4], bool at_border) const {
    const bool any_outside = at_border && __any_sync(~0u, outside != 0);
#pragma unroll
    for (int part = 0; part < kWords; part += 2)
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const auto times_x = [&](int(&d)[4], std::uint32_t low, std::uint32_t high) {
          multiply(d, x[2 * i][part], x[2 * i + 1][part], x[2 * i][part + 1], x[2 * i + 1][part + 1], low, high);
        };
        times_x(ones[i], ~0u, ~0u);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) times_x(sums[i][j], w[j][part], w[j][part + 1]);
        if (at_border) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) times_x(sums[i][j], w[j][part], w[j][part + 1]);
        }
        if (any_outside) {
          const auto mask = [&](int word, int window) { return 0u - (outside >> (word / kUnit * 2 * kRows + window) & 1u); };
          const std::uint32_t m0 = mask(part, 2 * i), m1 = mask(part, 2 * i + 1), m2 = mask(part + 1, 2 * i),
                              m3 = mask(part + 1, 2 * i + 1);
#pragma unroll
          for (int j = 0; j < kColumns; ++j) multiply(sums[i][j], m0, m1, m2, m3, w[j][part], w[j][part + 1]);
        }
      }
  }
};

/// float(sum) exactly: fewer than 2^22 added to the bits of 1.5 * 2^23 give the float that is that much larger.
__device__ float to_float(int sum) { return __fadd_rn(__int_as_float(0x4B400000 + sum), -12582912.0f); }

template <class T>
struct Result {  ///< of one value: fp32, or the int32 sum
  static constexpr int kPerWord = 1;
  __device__ static std::uint32_t word(const int* sums, const float* scales) {
    return std::is_same_v<T, int> ? static_cast<std::uint32_t>(*sums) : __float_as_uint(__fmul_rn(to_float(*sums), *scales));
  }
};
template <>
struct Result<__half> {
  static constexpr int kPerWord = 2;
  __device__ static std::uint32_t word(const int* sums, const float* scales) {
    const auto value = [&](int i) { return fminf(fmaxf(__fmul_rn(to_float(sums[i]), scales[i]), -65504.0f), 65504.0f); };
    const __half2 two = __floats2half2_rn(value(0), value(1));
    return reinterpret_cast<const std::uint32_t&>(two);
  }
};
template <>
struct Result<__nv_bfloat16> {
  static constexpr int kPerWord = 2;
  __device__ static std::uint32_t word(const int* sums, const float* scales) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(__fmul_rn(to_float(sums[0]), scales[0]), __fmul_rn(to_float(sums[1]), scales[1]));
    return reinterpret_cast<const std::uint32_t&>(two);
  }
};

constexpr int kFinished = 8;  ///< results that are finished together: a byte of one-bit ones

template <class T>
__device__ void load_eight(T (&to)[kFinished], const T* from) {
  const int4 low = __ldg(reinterpret_cast<const int4*>(from)), high = __ldg(reinterpret_cast<const int4*>(from) + 1);
  const int bits[kFinished] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kFinished; ++i) to[i] = reinterpret_cast<const T&>(bits[i]);
}

/// What makes results of the sums of eight neighbouring outputs, which lack the outputs' offsets.
struct Finish {
  int group, output, real;  ///< the first output, and how many there are from it on
  int terms[kFinished];     ///< added to the sums; of one-bit results what sign * sum must reach
  union {
    float scales[kFinished];
    int signs[kFinished];
  };

  __device__ Finish(const BitConvProblem& p, int of_group, int first_output, int outputs_left)
      : group(of_group), output(first_output), real(outputs_left) {
    const std::int64_t padded = std::int64_t{group} * p.shape.padded_outputs() + output;
    const std::int64_t index = std::int64_t{group} * p.shape.outputs + output;
    const bool one_bit = p.bits != nullptr;
    const float x_scale = *p.x_scale;
    load_eight(terms, p.w.offsets + padded);
    if (!one_bit) load_eight(scales, p.w.scales + padded);
#pragma unroll
    for (int i = 0; i < kFinished; ++i) {
      if (!one_bit) {
        scales[i] = __fmul_rn(x_scale, scales[i]);
      } else if (i < real) {
        signs[i] = __ldg(p.signs + index + i);
        terms[i] = __ldg(p.thresholds + index + i) - signs[i] * terms[i];
      }
    }
  }

  __device__ void store(const BitConvProblem& p, int (&sums)[kFinished], int position) const {
    const BitConvShape& s = p.shape;
    const std::int64_t index = std::int64_t{group} * s.outputs + output;
    if (p.bits != nullptr) {
      std::uint32_t codes = 0;
#pragma unroll
      for (int i = 0; i < kFinished; ++i)
        if (i < real && signs[i] * sums[i] >= terms[i]) codes |= 1u << i;
      p.bits[std::int64_t{position} * p.bit_pitch + index / 8] = static_cast<std::uint8_t>(codes);
      return;
    }
#pragma unroll
    for (int i = 0; i < kFinished; ++i) sums[i] += terms[i];
    const std::int64_t at = std::int64_t{position} * (s.groups * s.outputs) + index;
    switch (p.out) {
      case DType::kI32: return put(static_cast<int*>(p.y) + at, sums);
      case DType::kF32: return put(static_cast<float*>(p.y) + at, sums);
      case DType::kF16: return put(static_cast<__half*>(p.y) + at, sums);
      default: return put(static_cast<__nv_bfloat16*>(p.y) + at, sums);
    }
  }

 private:
  template <class T>
  __device__ void put(T* y, const int (&sums)[kFinished]) const {
    constexpr int kPerWord = Result<T>::kPerWord, kWords = kFinished / kPerWord;
    alignas(16) std::uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = Result<T>::word(sums + i * kPerWord, scales + i * kPerWord);
    if (real >= kFinished && reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) reinterpret_cast<uint4*>(y)[i] = reinterpret_cast<const uint4*>(words)[i];
    } else {
#pragma unroll
      for (int i = 0; i < kFinished; ++i)
        if (i < real) y[i] = reinterpret_cast<const T*>(words)[i];
    }
  }
};

/// kDepth - 1 steps are read ahead; kBlocks thread blocks share a multiprocessor.
template <int kUnit, int kRows, int kColumns, int kDepth, int kBlocks>
__global__ void __launch_bounds__(32 * kWarps, kBlocks) convolve(const BitConvProblem p) {
  wait_for_previous_kernel();
  using Operands = Step<kUnit, kRows, kColumns>;
  constexpr int kWindows = 2 * kRows, kParts = kConvColumns / kColumns;
  const BitConvShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane / 4, in_quad = lane % 4, block = static_cast<int>(blockIdx.x);
  const int of_outputs = s.groups * s.output_tiles() * kParts, of_positions = block / of_outputs, piece = block - of_positions * of_outputs,
            part = piece % kParts, tile = piece / kParts % s.output_tiles(), group = piece / kParts / s.output_tiles();
  const int positions = static_cast<int>(s.positions()),
            first = (of_positions * kWarps + static_cast<int>(threadIdx.x) / 32) * (16 * kRows) + quad;

  Window windows[kWindows];
  int terms[kWindows];  // of taps outside; the rest follows
  bool at_border = false;
  {
    const int per_image = s.out_height * s.out_width;
    int image = first / per_image, row = (first - image * per_image) / s.out_width, column = first - image * per_image - row * s.out_width;
#pragma unroll
    for (int i = 0; i < kWindows; ++i) {
      const int top = row * s.stride_h - s.pad_h, left = column * s.stride_w - s.pad_w;
      const int inside = max(0, min(top + s.kernel_h, s.height) - max(top, 0)) * max(0, min(left + s.kernel_w, s.width) - max(left, 0));
      const bool exists = first + 8 * i < positions;
      windows[i] = {exists ? top : kNoRow, left,
                    ((std::int64_t{image} * s.height + top) * s.width + left) * (s.groups * s.tap_words()) + group * s.tap_words()};
      terms[i] = s.channels * (inside - s.taps());
      at_border |= exists && inside != s.taps();
      for (column += 8; column >= s.out_width; column -= s.out_width)
        if (++row == s.out_height) row = 0, ++image;
    }
    at_border = __any_sync(~0u, at_border);
  }

  int sums[kRows][kColumns][4] = {}, ones[kRows][4] = {};
  const int steps = s.steps();
  const std::uint32_t* weights =
      p.w.codes +
      ((((std::int64_t{group} * s.output_tiles() + tile) * steps) * kConvColumns + part * kColumns) * 32 + lane) * Operands::kWords;
  Operands operands[kDepth];
  const auto read = [&](Operands& to, int step) {
    to.read(p, windows, p.w.places + step * 4 * Operands::kUnits + in_quad,
            weights + std::int64_t{step} * (kConvColumns * 32 * Operands::kWords));
  };
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i)
    if (i < steps) read(operands[i], i);
  for (int begin = 0; begin < steps; begin += kDepth)
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (begin + i >= steps) break;
      if (begin + i + kDepth - 1 < steps) read(operands[(i + kDepth - 1) % kDepth], begin + i + kDepth - 1);
      operands[i].multiply_into(sums, ones, at_border);
    }

  const int factor = at_border ? 2 : 4;
#pragma unroll
  for (int i = 0; i < kWindows; ++i) terms[i] -= 2 * ones[i / 2][i % 2 * 2];
#pragma unroll
  for (int column = 0; column < kColumns; column += 4) {  // eight outputs of the lane, which are neighbours
    const int output = tile * kConvOutputs + conv_output(part * kColumns + column, 2 * in_quad), real = s.outputs - output;
    if (real <= 0) break;
    const Finish finish(p, group, output, real);
#pragma unroll
    for (int i = 0; i < kWindows; ++i) {
      if (first + 8 * i >= positions) break;
      int of_window[kFinished];
#pragma unroll
      for (int r = 0; r < kFinished; ++r) of_window[r] = factor * sums[i / 2][column + r / 2][i % 2 * 2 + r % 2] + terms[i];
      finish.store(p, of_window, first + 8 * i);
    }
  }
}

template <int kUnit, int kRows, int kColumns, int kDepth, int kBlocks>
int launch(const BitConvProblem& problem, Stream stream) {
  const BitConvShape& s = problem.shape;
  constexpr int kPositions = 16 * kRows * kWarps;
  const std::int64_t blocks = (s.positions() + kPositions - 1) / kPositions * s.groups * s.output_tiles() * (kConvColumns / kColumns);
  return launch_overlapped(convolve<kUnit, kRows, kColumns, kDepth, kBlocks>, blocks, 32 * kWarps, stream, problem);
}

/// Large pieces where there are enough of them for every multiprocessor, else small ones that look further ahead.
template <int kUnit>
int launch_for(const BitConvProblem& problem, Stream stream) {
  const BitConvShape& s = problem.shape;
  const std::int64_t large = (s.positions() + 32 * kWarps - 1) / (32 * kWarps) * s.groups * s.output_tiles();
  if (large < 2 * multiprocessors()) return launch<kUnit, 1, 4, (kUnit == 4 ? 3 : 4), 4>(problem, stream);
  return launch<kUnit, (kUnit == 4 ? 2 : 1), 8, 1, (kUnit == 4 ? 3 : 5)>(problem, stream);
}

}  // namespace

int launch_bit_conv(const BitConvProblem& problem, Stream stream) {
  const int unit = problem.shape.unit_words();
  return unit == 4 ? launch_for<4>(problem, stream) : (unit == 2 ? launch_for<2>(problem, stream) : launch_for<1>(problem, stream));
}

}  // namespace narrow::cuda
