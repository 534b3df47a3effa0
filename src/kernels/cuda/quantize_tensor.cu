/// Quantizes with one scale for everything: static, dynamic (a pass for amax before), or none (a cast).
/// Mapping:  a lane holds chunks of 16 bytes; two in flight per thread. The encoding pass of a dynamic scale runs backwards over
///           the tensor: what the amax pass read last is still in the second-level cache.
/// Requires: whole 16-byte chunks; nearest even, saturating; fp8 or int8.
/// Bound:    memory; 2 or 4 B read (twice where dynamic), 1 B written per element.
/// Meaning:  kernels/reference/quantize.cc, bit for bit.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefetch.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/cuda/tensor_amax.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;
constexpr int kAmaxUnroll = 4, kAmaxSteps = 2;  // chunks in flight, and rounds of them that a thread block has at least

struct Args {
  ChunkedMatrix x;
  std::uint8_t* codes;
  float* scale;           // stored
  const float* given;     // static
  const float* partials;  // dynamic
  int partial_count;
  std::uint32_t* flags;
};

template <Element kElement, DType kType>
__global__ void __launch_bounds__(kThreads) quantize_tensor(const Args args) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  constexpr float kLargest = static_cast<float>(format_of(kElement).largest());
  __shared__ Stage<kElement> stage;
  if (blockIdx.x < kEarlyBlocks && args.partials == nullptr && args.x.contiguous) {
    const std::int64_t begin = std::int64_t{blockIdx.x} * (kThreads * kUnroll),
                       count = min(args.x.chunks - begin, std::int64_t{kThreads * kUnroll});
    prefetch_lines(static_cast<const char*>(args.x.data) + begin * 16, static_cast<std::uint32_t>(count) * 16, threadIdx.x, kThreads);
  }
  wait_for_previous_kernel();
  const std::int64_t first = args.x.block_of_grid(args.partials != nullptr) * (kThreads * kUnroll) + threadIdx.x;
  Chunk<kType, kPer> chunks[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t index = first + u * kThreads;
    chunks[u] =
        index < args.x.chunks ? load_chunk<kType, kPer>(args.x.data, args.x.template offset<kPer>(index)) : zero_chunk<kType, kPer>();
  }

  float scale = 1.0f;
  if (args.given != nullptr) {
    scale = __ldg(args.given);
  } else if (args.partials != nullptr) {
    const float amax = fold_partials(args.partials, args.partial_count);
    scale = amax == 0.0f ? 1.0f : __fdiv_rn(amax, kLargest);
    if (scale == 0.0f) scale = __uint_as_float(1u);
  }
  if (args.scale != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *args.scale = scale;
  const Divisor divisor = make_divisor(scale);
  const float limit = is_plain_divisor(scale) ? scale * 0x1p14f : -1.0f;  // beyond it, and for Inf and NaN, the definition itself

#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t index = first + u * kThreads;
    Codes codes;
    if (is_at_most<kType>(chunk_magnitude(chunks[u]), limit)) {
      codes = encode_chunk<kElement, kType, kPer, true>(chunks[u], divisor);
    } else {
      finite_magnitude(chunks[u], args.flags);
      codes = encode_chunk_slowly<kElement>(chunks[u], scale);
    }
    store_codes<kElement, kPer>(args.codes, index, args.x.chunks, codes, stage);
  }
}

/// A thread block has `share` neighbouring chunks, which it reads from the front.
template <DType kType>
__global__ void __launch_bounds__(kThreads) tensor_amax(const ChunkedMatrix x, std::int64_t share, float* partials, std::uint32_t* flags) {
  constexpr int kPer = is_16_bit(kType) ? 8 : 4;
  __shared__ float warps[kThreads / 32];
  wait_for_previous_kernel();
  const std::int64_t first = blockIdx.x * share + threadIdx.x, end = min(x.chunks, (blockIdx.x + 1) * share);
  std::uint32_t magnitude = 0;
  std::int64_t index = first;
  for (; index + (kAmaxUnroll - 1) * kThreads < end; index += kAmaxUnroll * kThreads) {
    Chunk<kType, kPer> chunks[kAmaxUnroll];
#pragma unroll
    for (int u = 0; u < kAmaxUnroll; ++u) chunks[u] = load_chunk<kType, kPer>(x.data, x.template offset<kPer>(index + u * kThreads));
#pragma unroll
    for (int u = 0; u < kAmaxUnroll; ++u) magnitude = max_magnitude<kType>(magnitude, chunk_magnitude(chunks[u]));
  }
  for (; index < end; index += kThreads)
    magnitude = max_magnitude<kType>(magnitude, chunk_magnitude(load_chunk<kType, kPer>(x.data, x.template offset<kPer>(index))));

  float amax = magnitude_value<kType>(magnitude);
  if (!is_finite(amax)) {  // rare: this thread looks again, without what is not finite
    amax = 0.0f;
    for (index = first; index < end; index += kThreads)
      amax = fmaxf(amax, finite_magnitude(load_chunk<kType, kPer>(x.data, x.template offset<kPer>(index)), flags));
  }
  amax = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax)));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) amax = fmaxf(amax, warps[i]);
    partials[blockIdx.x] = amax;
  }
}

/// One thread block folds all partial results into the first: the next kernel's many thread blocks would each wait for all of them.
__global__ void __launch_bounds__(kThreads) fold(float* partials, int count) {
  wait_for_previous_kernel();
  const float amax = fold_partials(partials, count);
  if (threadIdx.x == 0) partials[0] = amax;
}

template <Element kElement, DType kType>
int launch(const QuantizeProblem& problem, Stream stream) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  Args args{};
  args.x = ChunkedMatrix::of(problem, kPer);
  args.codes = problem.codes;
  args.flags = problem.flags;
  if (problem.scheme.has_scales()) {
    args.scale = static_cast<float*>(problem.scales);
    args.given = problem.given_scales;
    if (args.given == nullptr)
      if (const int error = launch_tensor_amax(problem, args.partials, args.partial_count, stream); error != 0) return error;
  }
  const std::int64_t blocks = (args.x.chunks + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  return launch_overlapped(quantize_tensor<kElement, kType>, blocks, kThreads, stream, args);
}

template <Element kElement>
int launch_any(const QuantizeProblem& problem, Stream stream) {
  switch (problem.dtype) {
    case DType::kF32: return launch<kElement, DType::kF32>(problem, stream);
    case DType::kF16: return launch<kElement, DType::kF16>(problem, stream);
    default: return launch<kElement, DType::kBf16>(problem, stream);
  }
}

bool accepts(const QuantizeProblem& problem) {
  const Scheme& scheme = problem.scheme;
  if (!is_plain_request(problem) || scheme.asymmetric || scheme.scale != kFp32 || scheme.rule != ScaleRule::kLargest ||
      !problem.grid.whole_tensor)
    return false;
  if (scheme.element != kFp8E4m3 && scheme.element != kFp8E5m2 && scheme.element != kInt8) return false;
  const int per = problem.dtype == DType::kF32 ? 4 : 8;
  return has_aligned_chunks(problem, per, per);
}

std::size_t workspace(const QuantizeProblem& problem) {
  return problem.scheme.has_scales() && problem.given_scales == nullptr ? tensor_amax_workspace() : 0;
}

int run(const QuantizeProblem& problem, Stream stream) {
  if (problem.scheme.element == kFp8E4m3) return launch_any<Element::kE4m3>(problem, stream);
  if (problem.scheme.element == kFp8E5m2) return launch_any<Element::kE5m2>(problem, stream);
  return launch_any<Element::kInt8>(problem, stream);
}

}  // namespace

int launch_tensor_amax(const QuantizeProblem& problem, const float*& partials, int& count, Stream stream) {
  const ChunkedMatrix x = ChunkedMatrix::of(problem, problem.dtype == DType::kF32 ? 4 : 8);
  float* out = static_cast<float*>(problem.workspace);
  constexpr std::int64_t kStep = kThreads * kAmaxUnroll;
  const std::int64_t share = std::max(std::int64_t{kAmaxSteps}, (x.chunks + kMostPartials * kStep - 1) / (kMostPartials * kStep)) * kStep;
  const int blocks = static_cast<int>((x.chunks + share - 1) / share);
  const auto kernel = problem.dtype == DType::kF32 ? tensor_amax<DType::kF32>
                                                   : (problem.dtype == DType::kF16 ? tensor_amax<DType::kF16> : tensor_amax<DType::kBf16>);
  partials = out;
  count = std::min(blocks, 1);
  if (const int error = launch_overlapped(kernel, blocks, kThreads, stream, x, share, out, problem.flags); error != 0 || blocks <= 1)
    return error;
  return launch_overlapped(fold, 1, kThreads, stream, out, blocks);
}

const QuantizeKernel kQuantizeTensor{"cuda_quantize_tensor", accepts, workspace, run};

}  // namespace narrow::cuda
