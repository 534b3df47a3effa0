/// Range and histogram observers, and casts between fp32, fp16 and bf16.
/// Mapping:  grid-stride over 16-byte chunks where the pointer allows it, element by element otherwise and at the end.
/// Bound:    memory; each value read once.     Meaning: load_value and store_value of kernels/storage.h.

#include "kernels/cuda/elementwise.h"

#include <algorithm>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/storage.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSharedBins = 8192;

/// Calls visit(value) for this thread's share of x.
template <DType kType, typename Visit>
__device__ inline void for_each_value(const void* x, std::int64_t count, bool aligned, const Visit& visit) {
  constexpr int kPer = is_16_bit(kType) ? 8 : 4;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x, thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t chunks = aligned ? count / kPer : 0;
  for (std::int64_t i = thread; i < chunks; i += stride) {
    const Chunk<kType, kPer> chunk = load_chunk<kType, kPer>(x, i * kPer);
#pragma unroll
    for (int j = 0; j < kPer; ++j) visit(value_of(chunk, j));
  }
  for (std::int64_t i = chunks * kPer + thread; i < count; i += stride) visit(load_value(x, kType, i));
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) observe_range(const void* x, std::int64_t count, bool aligned, std::uint32_t* range) {
  std::uint32_t negative = 0, positive = 0, flags = 0;  // magnitudes as bits: integers order them
  for_each_value<kType>(x, count, aligned, [&](float value) {
    const std::uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u)
      flags |= magnitude > 0x7F800000u ? 1u : 2u;
    else if (bits >> 31)
      negative = max(negative, magnitude);
    else
      positive = max(positive, magnitude);
  });
  negative = __reduce_max_sync(0xFFFFFFFFu, negative);
  positive = __reduce_max_sync(0xFFFFFFFFu, positive);
  flags = __reduce_or_sync(0xFFFFFFFFu, flags);
  if (threadIdx.x % 32 == 0) {
    if (negative != 0) atomicMax(range, negative);
    if (positive != 0) atomicMax(range + 1, positive);
    if (flags != 0) atomicOr(range + 3, flags);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    observe_histogram(const void* x, std::int64_t count, bool aligned, unsigned long long* counts, int bins, float limit) {
  extern __shared__ std::uint32_t local[];
  const bool shared = bins <= kSharedBins;
  for (int i = static_cast<int>(threadIdx.x); shared && i < bins; i += kThreads) local[i] = 0;
  __syncthreads();
  for_each_value<kType>(x, count, aligned, [&](float value) {
    if (!is_finite(value)) return;
    const float place = __fmul_rn(__fdiv_rn(fabsf(value), limit), static_cast<float>(bins));
    const int bin = place < static_cast<float>(bins) ? static_cast<int>(place) : bins - 1;
    if (shared)
      atomicAdd(local + bin, 1u);
    else
      atomicAdd(counts + bin, 1ull);
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); shared && i < bins; i += kThreads)
    if (local[i] != 0) atomicAdd(counts + i, static_cast<unsigned long long>(local[i]));
}

/// Two values in a 16-bit type; those that are not finite, or overflow where that gives infinity, by the definition.
template <DType kType>
__device__ inline std::uint32_t convert_pair(float a, float b, Overflow overflow) {
  constexpr Format kOut = kType == DType::kBf16 ? kBf16 : kFp16;
  constexpr float kLargest = static_cast<float>(kOut.largest());
  if (fabsf(a) <= kLargest && fabsf(b) <= kLargest) return round_pair<kType>(a, b);
  return encode(kOut, a, Rounding::kNearestEven, overflow) | (encode(kOut, b, Rounding::kNearestEven, overflow) << 16);
}

/// 8 values per thread and step: 16 bytes of the 16-bit side, 32 of an fp32 side.
template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kThreads) convert_values(const void* x, void* y, std::int64_t count, bool aligned, Overflow overflow) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads, thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t chunks = aligned ? count / 8 : 0;
  constexpr int kWords = is_16_bit(kTo) ? 4 : 8;
  for (std::int64_t i = thread; i < chunks; i += stride) {
    const Chunk<kFrom, 8> chunk = load_chunk<kFrom, 8>(x, i * 8);
    std::uint32_t words[kWords];
    if constexpr (is_16_bit(kTo)) {
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = convert_pair<kTo>(exact_value_of(chunk, 2 * j), exact_value_of(chunk, 2 * j + 1), overflow);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        words[j] = __float_as_uint(exact_value_of(chunk, j));
      }
    }
    uint4* out = static_cast<uint4*>(y) + i * (kWords / 4);
#pragma unroll
    for (int j = 0; j < kWords / 4; ++j) __stcs(out + j, make_uint4(words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]));
  }
  for (std::int64_t i = chunks * 8 + thread; i < count; i += stride) store_value(y, kTo, i, load_value(x, kFrom, i), overflow);
}

std::int64_t grid_for(std::int64_t count) {
  return std::min<std::int64_t>((count + kThreads * 8 - 1) / (kThreads * 8), std::int64_t{multiprocessors()} * 16);
}

template <DType kFrom, DType kTo>
int launch_cast(const void* x, void* y, std::int64_t count, Overflow overflow, Stream stream) {
  const bool aligned = is_aligned(x, 16) && is_aligned(y, 16);
  return launch_kernel(convert_values<kFrom, kTo>, (count + kThreads * 8 - 1) / (kThreads * 8), kThreads, stream, x, y, count, aligned,
                       overflow);
}

/// Calls run.template operator()<kType>() for the type.
template <typename Run>
int with_type(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kF32: return run.template operator()<DType::kF32>();
    case DType::kF16: return run.template operator()<DType::kF16>();
    default: return run.template operator()<DType::kBf16>();
  }
}

}  // namespace

int launch_observe_range(const void* x, DType dtype, std::int64_t count, std::uint32_t* range, Stream stream) {
  return with_type(dtype, [&]<DType kType>() {
    return launch_kernel(observe_range<kType>, grid_for(count), kThreads, stream, x, count, is_aligned(x, 16), range);
  });
}

int launch_observe_histogram(const void* x, DType dtype, std::int64_t count, unsigned long long* counts, int bins, float limit,
                             Stream stream) {
  return with_type(dtype, [&]<DType kType>() -> int {
    if (count == 0) return cudaSuccess;
    const std::size_t shared = bins <= kSharedBins ? static_cast<std::size_t>(bins) * 4 : 0;
    const std::int64_t blocks = std::min<std::int64_t>(grid_for(count), std::int64_t{multiprocessors()} * 4);
    observe_histogram<kType><<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(x, count, is_aligned(x, 16), counts, bins, limit);
    return cudaGetLastError();
  });
}

int launch_convert(const void* x, DType from, void* y, DType to, std::int64_t count, Overflow overflow, Stream stream) {
  const auto is = [&](DType a, DType b) { return from == a && to == b; };
  if (is(DType::kF32, DType::kF16)) return launch_cast<DType::kF32, DType::kF16>(x, y, count, overflow, stream);
  if (is(DType::kF32, DType::kBf16)) return launch_cast<DType::kF32, DType::kBf16>(x, y, count, overflow, stream);
  if (is(DType::kF16, DType::kF32)) return launch_cast<DType::kF16, DType::kF32>(x, y, count, overflow, stream);
  if (is(DType::kBf16, DType::kF32)) return launch_cast<DType::kBf16, DType::kF32>(x, y, count, overflow, stream);
  if (is(DType::kF16, DType::kBf16)) return launch_cast<DType::kF16, DType::kBf16>(x, y, count, overflow, stream);
  if (is(DType::kBf16, DType::kF16)) return launch_cast<DType::kBf16, DType::kF16>(x, y, count, overflow, stream);
  return cudaMemcpyAsync(y, x, static_cast<std::size_t>(count) * (from == DType::kF32 ? 4 : 2), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace narrow::cuda
