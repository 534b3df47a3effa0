/// 2-D convolutions of +-1 by the tensor cores' and + popcount.
/// Mapping:  a thread block per 128 output positions x 64 outputs of a group. Windows are gathered into shared memory, 64 words of a row at
/// a
///           time, beside the weights; eight warps multiply 32 x 32 each by mma.sync (256 bits a step). A lane reads four neighbouring
///           words, which are the operands of two steps: sums do not care for the order of bits.
/// Requires: compute capability 8.0.
/// Bound:    memory, or the latency of the gathered loads.     Meaning: ops/binary.cc, bit for bit.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/bit_conv.h"
#include "kernels/cuda/launch.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256, kPositions = 128, kChunk = 64, kPitch = kChunk + 4;
constexpr int kMostMasks = kConvMostTaps / 32, kSharedTaps = 25;

/// `count` (at most 32) bits of a row from bit `begin` on.
__device__ std::uint32_t bits_at(const std::uint8_t* row, std::int64_t begin, int count) {
  const std::uint8_t* first = row + begin / 8;
  const int shift = static_cast<int>(begin % 8), bytes = (shift + count + 7) / 8;
  std::uint64_t window = 0;
  for (int i = 0; i < bytes; ++i) window |= static_cast<std::uint64_t>(first[i]) << (8 * i);
  const auto value = static_cast<std::uint32_t>(window >> shift);
  return count < 32 ? value & ((1u << count) - 1u) : value;
}

__global__ void __launch_bounds__(kThreads)
    spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, BitConvShape s, std::uint32_t* to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, pixel = index / (s.groups * s.tap_words());
  if (pixel >= pixels) return;
  const int word = static_cast<int>(index % (s.groups * s.tap_words())), group = word / s.tap_words(), part = word % s.tap_words() * 32;
  to[index] = bits_at(from + pixel * row_bytes, std::int64_t{group} * s.channels + part, min(32, s.channels - part));
}

/// A thread per word of the padded weights.
__global__ void __launch_bounds__(kThreads)
    spread_weights(const std::uint8_t* from, std::int64_t row_bytes, BitConvShape s, std::uint32_t* to) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / s.words();
  if (row >= std::int64_t{s.groups} * s.padded_outputs()) return;
  const int word = static_cast<int>(index % s.words()), tap = word / s.tap_words(), part = word % s.tap_words() * 32;
  const std::int64_t group = row / s.padded_outputs(), output = row % s.padded_outputs();
  const bool real = output < s.outputs && tap < s.taps();
  to[index] =
      real ? bits_at(from + (group * s.outputs + output) * row_bytes, std::int64_t{tap} * s.channels + part, min(32, s.channels - part))
           : 0u;
}

/// A thread per output.
__global__ void __launch_bounds__(kThreads) conv_terms(const std::uint32_t* w, const float* scales, int scale_step, BitConvShape s,
                                                       std::int32_t* offsets, std::int32_t* tap_sums, float* w_scales) {
  const std::int64_t output = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (output >= std::int64_t{s.groups} * s.outputs) return;
  const std::uint32_t* row = w + (output / s.outputs * s.padded_outputs() + output % s.outputs) * s.words();
  int total = 0;
  for (int tap = 0; tap < s.taps(); ++tap) {
    int ones = 0;
    for (int i = 0; i < s.tap_words(); ++i) ones += __popc(row[tap * s.tap_words() + i]);
    tap_sums[output * s.taps() + tap] = s.channels - 2 * ones;
    total += s.channels - 2 * ones;
  }
  offsets[output] = total;
  w_scales[output] = scales[output * scale_step];
}

__device__ void multiply(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Words1 {
  std::uint32_t v[1];
};
template <int kWords>
using Words = std::conditional_t<kWords == 4, uint4, std::conditional_t<kWords == 2, uint2, Words1>>;

template <class Vector>
__device__ int ones_of(const Vector& vector) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(&vector);
  int ones = 0;
#pragma unroll
  for (unsigned i = 0; i < sizeof(Vector) / 4; ++i) ones += __popc(words[i]);
  return ones;
}

/// Where a unit of words of a window comes from: the place of its tap, and its word in a pixel. Beyond the last tap the row is outside of
/// any image.
struct alignas(16) UnitPlace {
  int row, column, word, unused;
};
constexpr int kNoRow = -(1 << 30);

/// What the epilogue needs of an output.
struct OutputTerms {
  int offset;
  float scale;
  int threshold, sign;
};

struct Shared {
  std::uint32_t x[kPositions][kPitch], w[kConvOutputs][kPitch];
  int ones[2][kPositions];
  std::uint32_t outside[kPositions][kMostMasks];  ///< a bit per tap
  bool border[kPositions];                        ///< whether any bit is set
  OutputTerms terms[kConvOutputs];
  int tap_sums[kSharedTaps][kConvOutputs];  ///< of kernels with at most so many taps
  UnitPlace units[kChunk];
};

/// Results of two neighbouring outputs of a position; `second` says whether the second one exists.
__device__ void store_two(const BitConvProblem& p, int sum0, int sum1, std::int64_t at, float scale0, float scale1, bool second) {
  const float v0 = __fmul_rn(__int2float_rn(sum0), scale0), v1 = __fmul_rn(__int2float_rn(sum1), scale1);
  const auto put = [&](auto* y, auto a, auto b) {
    y[at] = a;
    if (second) y[at + 1] = b;
  };
  switch (p.out) {
    case DType::kI32:
      put(static_cast<int*>(p.y), sum0, sum1);
      break;
    case DType::kF32:
      put(static_cast<float*>(p.y), v0, v1);
      break;
    case DType::kF16: {
      const auto half = [](float v) { return __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f)); };
      if (second && at % 2 == 0)
        *reinterpret_cast<__half2*>(static_cast<__half*>(p.y) + at) = __halves2half2(half(v0), half(v1));
      else
        put(static_cast<__half*>(p.y), half(v0), half(v1));
      break;
    }
    default:
      put(static_cast<__nv_bfloat16*>(p.y), __float2bfloat16_rn(v0), __float2bfloat16_rn(v1));
  }
}

/// kUnit words of a tap are copied at a time.
template <int kUnit>
__global__ void __launch_bounds__(kThreads) convolve(const BitConvProblem p) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const BitConvShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int output_tiles = s.padded_outputs() / kConvOutputs;
  const int tile = static_cast<int>(blockIdx.x) % (output_tiles * s.groups), group = tile / output_tiles,
            first_output = tile % output_tiles * kConvOutputs;
  const std::int64_t first = std::int64_t{blockIdx.x} / (output_tiles * s.groups) * kPositions, positions = s.positions();

  // This thread's position of the gathering.
  const int mine = thread % kPositions, half = thread / kPositions;
  const std::int64_t position = first + mine;
  const bool exists = position < positions;
  const int image_number = static_cast<int>(position) / (s.out_height * s.out_width),
            in_image = static_cast<int>(position) - image_number * s.out_height * s.out_width;
  const int out_row = in_image / s.out_width, top = out_row * s.stride_h - s.pad_h,
            left = (in_image - out_row * s.out_width) * s.stride_w - s.pad_w;
  const int tap_words = s.tap_words(), pixel_words = s.groups * tap_words, taps = s.taps();
  const std::uint32_t* image = p.x + (std::int64_t{image_number} * s.height * s.width * pixel_words + std::int64_t{group} * tap_words);
  const auto inside = [&](int row, int column) { return exists && row >= 0 && row < s.height && column >= 0 && column < s.width; };
  if (half == 0) {
    const bool whole = exists && top >= 0 && left >= 0 && top + s.kernel_h <= s.height && left + s.kernel_w <= s.width;
    shared.border[mine] = !whole;
    std::uint32_t mask = 0;
    for (int tap = 0, row = top, column = left; !whole && tap < taps; ++tap, ++column) {
      if (column == left + s.kernel_w) column = left, ++row;
      if (!inside(row, column)) mask |= 1u << (tap % 32);
      if (tap % 32 == 31 || tap == taps - 1) shared.outside[mine][tap / 32] = mask, mask = 0;
    }
  }

  const int real_outputs = min(kConvOutputs, s.outputs - first_output);
  const std::int64_t first_index = std::int64_t{group} * s.outputs + first_output;
  if (thread < real_outputs) {
    const std::int64_t index = first_index + thread;
    const bool one_bit = p.bits != nullptr, scaled = !one_bit && p.out != DType::kI32;
    shared.terms[thread] = {p.offsets[index], scaled ? __fmul_rn(*p.x_scale, p.w_scales[index]) : 1.0f, one_bit ? p.thresholds[index] : 0,
                            one_bit ? p.signs[index] : 0};
  }
  if (taps <= kSharedTaps)
    for (int i = thread; i < real_outputs * taps; i += kThreads) shared.tap_sums[i % taps][i / taps] = p.tap_sums[first_index * taps + i];

  int ones = 0;
  int sums[2][4][4] = {};
  const int warp_row = warp % 4 * 32, warp_column = warp / 4 * 32, units_of_tap = tap_words / kUnit;
  const std::uint32_t* weights = p.w + (std::int64_t{group} * s.padded_outputs() + first_output) * s.words();
  for (int begin = 0; begin < s.words(); begin += kChunk) {
    const int count = min(kChunk, s.words() - begin);
    __syncthreads();
    if (thread < count / kUnit) {
      const int at = begin / kUnit + thread, tap = at / units_of_tap;
      shared.units[thread] = {tap < taps ? tap / s.kernel_w : kNoRow, tap % s.kernel_w, (at - tap * units_of_tap) * kUnit, 0};
    }
    __syncthreads();
    constexpr int kBatch = kUnit == 4 ? 8 : 16;  // loads of a thread in flight
    for (int batch = half; batch < count / kUnit; batch += 2 * kBatch) {
      Words<kUnit> words[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        words[i] = {};
        if (batch + 2 * i >= count / kUnit) continue;
        const UnitPlace unit = shared.units[batch + 2 * i];
        const int row = top + unit.row, column = left + unit.column;
        if (inside(row, column))
          words[i] = *reinterpret_cast<const Words<kUnit>*>(image + (std::int64_t{row} * s.width + column) * pixel_words + unit.word);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (batch + 2 * i >= count / kUnit) continue;
        ones += ones_of(words[i]);
        *reinterpret_cast<Words<kUnit>*>(&shared.x[mine][(batch + 2 * i) * kUnit]) = words[i];
      }
    }
    for (int i = thread; i < kConvOutputs * count / 4; i += kThreads) {
      const int row = i / (count / 4), word = i % (count / 4) * 4;
      *reinterpret_cast<uint4*>(&shared.w[row][word]) =
          __ldg(reinterpret_cast<const uint4*>(weights + std::int64_t{row} * s.words() + begin + word));
    }
    __syncthreads();
#pragma unroll 1
    for (int word = 0; word < count; word += kConvWords) {
      uint4 a[2][2], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i / 2][i % 2] = *reinterpret_cast<const uint4*>(&shared.x[warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4][word + lane % 4 * 4]);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const uint4*>(&shared.w[warp_column + i * 8 + lane / 4][word + lane % 4 * 4]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t low[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y}, high[4] = {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply(sums[i][j], low, b[j].x, b[j].y);
          multiply(sums[i][j], high, b[j].z, b[j].w);
        }
      }
    }
  }
  shared.ones[half][mine] = ones;
  __syncthreads();

  const int all_outputs = s.groups * s.outputs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (first + row >= positions) continue;  // the same for the four lanes of a row
    const int of_row = -2 * (shared.ones[0][row] + shared.ones[1][row]);
    int of_tap[8] = {};  // of outside taps
    if (shared.border[row])
      for (int first_tap = 0; first_tap < taps; first_tap += 32)
        for (std::uint32_t mask = shared.outside[row][first_tap / 32]; mask != 0; mask &= mask - 1) {
          const int tap = first_tap + __ffs(static_cast<int>(mask)) - 1;
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const int column = min(warp_column + j / 2 * 8 + lane % 4 * 2 + j % 2, real_outputs - 1);
            of_tap[j] += taps <= kSharedTaps ? shared.tap_sums[tap][column] : __ldg(p.tap_sums + (first_index + column) * taps + tap);
          }
        }
    std::uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = warp_column + j * 8 + lane % 4 * 2;
      int pair[2] = {};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (column + c >= real_outputs) continue;
        const OutputTerms& terms = shared.terms[column + c];
        pair[c] = 4 * sums[i / 2][j][i % 2 * 2 + c] + of_row + terms.offset - of_tap[j * 2 + c];
        if (p.bits != nullptr && terms.sign * pair[c] >= terms.threshold) codes |= 1u << (j * 8 + lane % 4 * 2 + c);
      }
      if (p.bits == nullptr && column < real_outputs) {
        const bool second = column + 1 < real_outputs;
        store_two(p, pair[0], pair[1], (first + row) * all_outputs + first_index + column, shared.terms[column].scale,
                  second ? shared.terms[column + 1].scale : 1.0f, second);
      }
    }
    if (p.bits != nullptr) {  // the 32 outputs of the warp are four bytes of the position's row
      const unsigned quad = 0xFu << (lane / 4 * 4);
      codes |= __shfl_xor_sync(quad, codes, 1);
      codes |= __shfl_xor_sync(quad, codes, 2);
      const int byte = lane % 4, column = warp_column + byte * 8;
      if (column < real_outputs)
        p.bits[(first + row) * p.bit_pitch + (first_index + column) / 8] = static_cast<std::uint8_t>(codes >> (8 * byte));
    }
  }
}

}  // namespace

int launch_bit_conv(const BitConvProblem& problem, Stream stream) {
  const BitConvShape& s = problem.shape;
  const auto kernel = s.tap_words() % 4 == 0 ? convolve<4> : (s.tap_words() % 2 == 0 ? convolve<2> : convolve<1>);
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared))) return error;
  const std::int64_t blocks = (s.positions() + kPositions - 1) / kPositions * s.groups * (s.padded_outputs() / kConvOutputs);
  if (blocks <= 0) return cudaSuccess;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidConfiguration;
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(Shared), stream>>>(problem);
  return cudaGetLastError();
}

int launch_spread_pixels(const std::uint8_t* from, std::int64_t pixels, std::int64_t row_bytes, const BitConvShape& shape,
                         std::uint32_t* to, Stream stream) {
  const std::int64_t words = pixels * shape.groups * shape.tap_words();
  return launch_kernel(spread_pixels, (words + kThreads - 1) / kThreads, kThreads, stream, from, pixels, row_bytes, shape, to);
}

int launch_spread_conv_weights(const std::uint8_t* from, std::int64_t row_bytes, const float* scales, int scale_step,
                               const BitConvShape& shape, std::uint32_t* w, std::int32_t* offsets, std::int32_t* tap_sums, float* w_scales,
                               Stream stream) {
  const std::int64_t words = std::int64_t{shape.groups} * shape.padded_outputs() * shape.words();
  if (const int error = launch_kernel(spread_weights, (words + kThreads - 1) / kThreads, kThreads, stream, from, row_bytes, shape, w))
    return error;
  return launch_kernel(conv_terms, (std::int64_t{shape.groups} * shape.outputs + kThreads - 1) / kThreads, kThreads, stream, w, scales,
                       scale_step, shape, offsets, tap_sums, w_scales);
}

}  // namespace narrow::cuda
