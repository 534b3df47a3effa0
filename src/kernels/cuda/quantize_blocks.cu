/// Quantizes blocks of 16 (of fp32: 8) to 512 neighbours of a row: fp32 scales, MX and MSFP exponents, NVFP4.
///   s = amax / largest   or   2^(floor(log2 amax) - floor(log2 largest))   or   e4m3(amax / 6 / outer) * outer;   code = encode(x / s)
/// Mapping:  a lane holds a span of 32 bytes of x, 1..32 neighbouring lanes a block, whose amax is a butterfly of shuffles; a thread
///           has one or two spans in flight. Scales are made in a few instructions; a warp that meets Inf, NaN or an extreme scale
///           goes the long way as a whole.
/// Requires: rows of whole blocks, 16-byte aligned; nearest even, saturating.
/// Bound:    memory; 2 or 4 B read, bits/8 B + a scale per block written per element; 6 to 11 instructions per element.
/// Meaning:  kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefetch.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/cuda/tensor_amax.cuh"

namespace narrow::cuda {
namespace {

/// Threads of a block: fewer where a thread has more to do.
NARROW_HOST_DEVICE constexpr int threads_of(ScaleKind scale) { return scale == ScaleKind::kTwoLevel ? 128 : 256; }
/// Spans of a thread. A byte per code asks for few instructions: one span, and all the threads that a multiprocessor holds.
NARROW_HOST_DEVICE constexpr int groups_of(Element element, ScaleKind scale) {
  return scale == ScaleKind::kLargest && bits_of(element) == 8 ? 1 : 2;
}

/// A lane's chunks of 8 elements: 32 bytes of x.
constexpr int parts_of(DType dtype) { return is_16_bit(dtype) ? 2 : 1; }

/// The block size of schemes that have but one; 0 for the others.
constexpr int fixed_block(Element element, ScaleKind scale) {
  if (scale == ScaleKind::kLargest) return 0;
  return scale == ScaleKind::kTwoLevel || element == Element::kMsfp12 ? 16 : 32;
}

struct Args {
  ChunkedMatrix x;  // in spans
  std::uint8_t* codes;
  void* scales;
  int lanes;  // per block
  int lanes_log2;
  std::uint32_t* flags;
  OuterScale outer;
};

/// NVFP4's outer scale and what divides by it.
struct Outer {
  float value;
  Divisor divisor;
};

struct BlockScale {
  std::uint32_t code;
  float value;       // scale * prescale
  float reciprocal;  // of that, of powers of two
};

/// The scale of a block as long as nothing is extreme; false where exact_scale has to be asked.
template <Element kElement, ScaleKind kScale>
__device__ inline bool quick_scale(float amax, const Outer& outer, BlockScale& result) {
  constexpr float kLargest = static_cast<float>(format_of(kElement).largest());
  constexpr std::uint32_t kLow = (127u - 60u) << 23, kHigh = (127u + 60u) << 23;
  const bool zero = amax == 0.0f;
  const float nonzero = zero ? kLargest : amax;  // a block of zeros has the scale 1
  const std::uint32_t bits = __float_as_uint(nonzero);
  bool plain = bits - kLow <= kHigh - kLow;
  if constexpr (kScale == ScaleKind::kLargest) {
    const float scale = divide_by_constant(nonzero, kLargest, 1.0f / kLargest);
    result.code = __float_as_uint(scale);
    result.value = scale * prescale_of(kElement);
  } else if constexpr (kScale == ScaleKind::kSharedExponent) {
    constexpr bool kIsMsfp = kElement == Element::kMsfp12;
    const std::uint32_t code = (bits >> 23) - largest_exponent(format_of(kElement));
    result.reciprocal = __uint_as_float((254u - code) << 23) * (1.0f / prescale_of(kElement));
    result.code = kIsMsfp && zero ? 0u : code;
  } else {
    float scale = divide<DType::kF32>(divide_by_constant(nonzero, kLargest, 1.0f / kLargest), outer.divisor);
    if (zero) scale = 1.0f;
    plain = plain && scale <= 460.0f;                                            // beyond it the stored scale is too small for amax
    result.code = max(convert_four<true>(scale, 0.0f, 0.0f, 0.0f) & 0xFFu, 1u);  // positive: never rounds to zero
    const float stored = __half2float(__ushort_as_half(static_cast<unsigned short>(result.code << 7))) * 256.0f;
    result.value = __fmul_rn(stored, outer.value);
  }
  return plain;
}

/// The scale of any block: the code, and the divisor as the definition has it.
template <Element kElement, ScaleKind kScale>
__device__ inline float exact_scale(float amax, float outer, std::uint32_t& code) {
  constexpr Format kElementFormat = format_of(kElement), kFloat = kFp32, kExponent = kE8m0,
                   kSmall = kFp8E4m3;  // device code cannot refer to namespace-scope objects
  Scheme scheme;
  scheme.element = kElementFormat;
  scheme.scale = kFloat;
  if constexpr (kScale == ScaleKind::kSharedExponent) {
    scheme.scale = kExponent;
    scheme.rule = ScaleRule::kSharedExponent;
    scheme.is_msfp = kElement == Element::kMsfp12;
  } else if constexpr (kScale == ScaleKind::kTwoLevel) {
    scheme.scale = kSmall;
    scheme.has_outer_scale = true;
  }
  const ScaleCode result = scale_from_amax(scheme, amax, outer);
  code = result.code;
  return result.effective;
}

/// A group the long way: the definition for every element.
template <Element kElement, DType kType, ScaleKind kScale>
__device__ inline std::uint32_t encode_exactly(const Chunk<kType, 8> (&chunks)[parts_of(kType)], Codes (&codes)[parts_of(kType)], int lanes,
                                               float outer, std::uint32_t* flags) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < parts_of(kType); ++i) amax = fmaxf(amax, finite_magnitude(chunks[i], flags));
  for (int offset = lanes / 2; offset > 0; offset /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
  std::uint32_t code = 0;
  const float scale = exact_scale<kElement, kScale>(amax, outer, code);
#pragma unroll
  for (int i = 0; i < parts_of(kType); ++i) codes[i] = encode_chunk_slowly<kElement>(chunks[i], scale);
  return code;
}

template <Element kElement, DType kType, ScaleKind kScale>
__global__ void __launch_bounds__(threads_of(kScale)) quantize_blocks(const Args args) {
  constexpr int kThreads = threads_of(kScale), kGroups = groups_of(kElement, kScale), kParts = parts_of(kType), kSpan = 8 * kParts,
                kFixedLanes = fixed_block(kElement, kScale) / kSpan;
  __shared__ Stage<kElement, kParts> stages[is_staged(kElement) ? kThreads / 32 : 1];
  const int lanes = kFixedLanes > 0 ? kFixedLanes : args.lanes;
  if (is_16_bit(kType) && blockIdx.x < kEarlyBlocks * (256 / kThreads) && args.x.contiguous) {  // of fp32 it costs 1%
    const std::int64_t begin = std::int64_t{blockIdx.x} * (kThreads * kGroups);
    const std::uint32_t bytes = static_cast<std::uint32_t>(min(args.x.chunks - begin, std::int64_t{kThreads * kGroups})) * 32;
    prefetch_lines(static_cast<const char*>(args.x.data) + begin * 32, bytes, threadIdx.x, kThreads);
  }
  wait_for_previous_kernel();
  const std::int64_t first =
      args.x.block_of_grid(kScale == ScaleKind::kTwoLevel && args.outer.given == nullptr) * (kThreads * kGroups) + threadIdx.x;

  Chunk<kType, 8> chunks[kGroups][kParts];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t index = first + g * kThreads;
    const std::int64_t offset = index < args.x.chunks ? args.x.template offset<kSpan>(index) : -1;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      chunks[g][i] = offset >= 0 ? load_chunk<kType, 8>(args.x.data, offset + 8 * i) : zero_chunk<kType, 8>();
  }
  Outer outer{.value = 1.0f, .divisor = {}};
  bool plain_outer = true;
  if constexpr (kScale == ScaleKind::kTwoLevel) {
    outer.value = args.outer.read(format_of(kElement));
    outer.divisor = make_divisor(outer.value);
    plain_outer = outer.value >= 0x1p-60f && outer.value <= 0x1p60f;
  }

  std::uint32_t magnitudes[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    magnitudes[g] = chunk_magnitude(chunks[g][0]);
    if constexpr (kParts == 2) magnitudes[g] = max_magnitude<kType>(magnitudes[g], chunk_magnitude(chunks[g][1]));
  }
#pragma unroll(kFixedLanes > 0 ? 5 : 1)
  for (int offset = lanes / 2; offset > 0; offset /= 2)
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      magnitudes[g] = max_magnitude<kType>(magnitudes[g], __shfl_xor_sync(0xFFFFFFFFu, magnitudes[g], offset));

#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t index = first + g * kThreads;
    BlockScale scale{};
    Codes codes[kParts];
    const bool plain = quick_scale<kElement, kScale>(magnitude_value<kType>(magnitudes[g]), outer, scale) && plain_outer;
    constexpr bool kByProduct = kElement == Element::kE2m1 && kScale != ScaleKind::kSharedExponent;
    if (kByProduct && __all_sync(0xFFFFFFFFu, plain && is_product_divisor<kType>(scale.value))) {
      if constexpr (kByProduct) {
        const float reciprocal = make_divisor(scale.value).nearest;
#pragma unroll
        for (int i = 0; i < kParts; ++i) codes[i] = encode_e2m1<false>(chunks[g][i], reciprocal);
      }
    } else if (__all_sync(0xFFFFFFFFu, plain)) {
      [[maybe_unused]] const Divisor divisor = make_divisor(scale.value);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        if constexpr (kScale == ScaleKind::kSharedExponent)
          codes[i] = encode_chunk_shifted<kElement>(chunks[g][i], scale.reciprocal);
        else
          codes[i] = encode_chunk<kElement, kType, 8, false>(chunks[g][i], divisor);
      }
    } else {
      scale.code = encode_exactly<kElement, kType, kScale>(chunks[g], codes, lanes, outer.value, args.flags);
    }
    if (index < args.x.chunks && (threadIdx.x & static_cast<unsigned>(lanes - 1)) == 0) {
      const std::int64_t cell = kFixedLanes > 0 ? index / max(kFixedLanes, 1) : index >> args.lanes_log2;
      if constexpr (kScale == ScaleKind::kLargest)
        static_cast<std::uint32_t*>(args.scales)[cell] = scale.code;
      else
        static_cast<std::uint8_t*>(args.scales)[cell] = static_cast<std::uint8_t>(scale.code);
    }
    store_span<kElement, kParts>(args.codes, index, args.x.chunks, codes, stages[is_staged(kElement) ? threadIdx.x / 32 : 0]);
  }
}

using Launch = int (*)(const QuantizeProblem&, Stream);

template <Element kElement, DType kType, ScaleKind kScale>
int launch(const QuantizeProblem& problem, Stream stream) {
  constexpr int kSpan = 8 * parts_of(kType), kThreads = threads_of(kScale), kGroups = groups_of(kElement, kScale);
  Args args{};
  args.x = ChunkedMatrix::of(problem, kSpan);
  args.codes = problem.codes;
  args.scales = problem.scales;
  args.lanes = static_cast<int>(problem.grid.tile_cols) / kSpan;
  args.lanes_log2 = __builtin_ctz(static_cast<unsigned>(args.lanes));
  args.flags = problem.flags;
  if constexpr (kScale == ScaleKind::kTwoLevel) {
    args.outer = {problem.given_outer_scale, problem.outer_scale, nullptr, 0};
    if (problem.given_outer_scale == nullptr)
      if (const int error = launch_tensor_amax(problem, args.outer.partials, args.outer.count, stream); error != 0) return error;
  }
  const std::int64_t blocks = (args.x.chunks + kThreads * kGroups - 1) / (kThreads * kGroups);
  return launch_overlapped(quantize_blocks<kElement, kType, kScale>, blocks, kThreads, stream, args);
}

struct Entry {
  Element element;
  ScaleKind scale;
  Launch by_type[3];  // fp32, fp16, bf16
};

template <Element kElement, ScaleKind kScale>
constexpr Entry entry() {
  return {kElement,
          kScale,
          {launch<kElement, DType::kF32, kScale>, launch<kElement, DType::kF16, kScale>, launch<kElement, DType::kBf16, kScale>}};
}

constexpr Entry kEntries[] = {
    entry<Element::kE4m3, ScaleKind::kLargest>(),          entry<Element::kInt8, ScaleKind::kLargest>(),
    entry<Element::kInt4, ScaleKind::kLargest>(),          entry<Element::kE2m1, ScaleKind::kLargest>(),
    entry<Element::kE2m1, ScaleKind::kSharedExponent>(),   entry<Element::kE4m3, ScaleKind::kSharedExponent>(),
    entry<Element::kE3m2, ScaleKind::kSharedExponent>(),   entry<Element::kE2m3, ScaleKind::kSharedExponent>(),
    entry<Element::kMsfp12, ScaleKind::kSharedExponent>(), entry<Element::kE2m1, ScaleKind::kTwoLevel>(),
};

const Entry* find_entry(const QuantizeProblem& problem) {
  const Scheme& scheme = problem.scheme;
  ScaleKind kind = ScaleKind::kLargest;
  if (scheme.rule == ScaleRule::kSharedExponent)
    kind = ScaleKind::kSharedExponent;
  else if (scheme.has_outer_scale && scheme.scale == kFp8E4m3)
    kind = ScaleKind::kTwoLevel;
  else if (scheme.scale != kFp32 || scheme.rule != ScaleRule::kLargest)
    return nullptr;
  for (const Entry& entry : kEntries)
    if (format_of(entry.element) == scheme.element && entry.scale == kind) return &entry;
  return nullptr;
}

bool accepts(const QuantizeProblem& problem) {
  const ScaleGrid& grid = problem.grid;
  const std::int64_t block = grid.tile_cols;
  if (!is_plain_request(problem) || problem.scheme.asymmetric || problem.given_scales != nullptr || grid.whole_tensor ||
      grid.tile_rows != 1)
    return false;
  const Entry* entry = find_entry(problem);
  if (entry == nullptr) return false;
  const int span = 8 * parts_of(problem.dtype), fixed = fixed_block(entry->element, entry->scale);
  if ((block & (block - 1)) != 0 || block < span || block > 32 * span || problem.cols % block != 0 || (fixed != 0 && block != fixed))
    return false;
  if (is_staged(entry->element) && problem.cols % 128 != 0) return false;
  return has_aligned_chunks(problem, span, is_staged(entry->element) ? 16 : span * bits_of(entry->element) / 8);
}

std::size_t workspace(const QuantizeProblem& problem) {
  return problem.scheme.has_outer_scale && problem.given_outer_scale == nullptr ? tensor_amax_workspace() : 0;
}

int run(const QuantizeProblem& problem, Stream stream) { return find_entry(problem)->by_type[type_index(problem.dtype)](problem, stream); }

}  // namespace

const QuantizeKernel kQuantizeBlocks{"cuda_quantize_blocks", accepts, workspace, run};

}  // namespace narrow::cuda
