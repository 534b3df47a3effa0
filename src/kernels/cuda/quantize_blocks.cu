/// Quantizes blocks of 8 to 256 neighbours of a row: fp32 scales, MX and MSFP exponents, NVFP4.
///   s = amax / largest   or   2^(floor(log2 amax) - floor(log2 largest))   or   e4m3(amax / 6 / outer) * outer;   code = encode(x / s)
/// Mapping:  a lane holds one chunk (16 bytes of x), 2..32 neighbouring lanes a block, whose amax is a butterfly of shuffles;
///           a thread has kUnroll chunks in flight.
/// Requires: rows of whole blocks, 16-byte aligned; nearest even, saturating.
/// Bound:    memory; 2 or 4 B read, bits/8 B + a scale per block written per element; about 12 instructions per element.
/// Meaning:  kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/cuda/tensor_amax.cuh"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;

struct Args {
  ChunkedMatrix x;
  std::uint8_t* codes;
  void* scales;
  int lanes;       // per block
  int lanes_log2;
  std::uint32_t* flags;
  OuterScale outer;
};

/// Reciprocals of every e4m3 scale times the outer scale, made once per thread block. NVFP4 alone.
struct TwoLevelTable {
  float outer;
  Divisor divisors[128];
};

struct BlockScale {
  std::uint32_t code;
  float scale;         // as the definition divides
  Divisor divisor;     // of scale * prescale
  float reciprocal;    // of scale * prescale, of powers of two
  bool plain;          // the fast ways may be taken
};

template <Element kElement, ScaleKind kScale>
__device__ inline BlockScale make_block_scale(float amax, bool finite, const TwoLevelTable& table) {
  constexpr Format kFormat = format_of(kElement);
  constexpr float kLargest = static_cast<float>(kFormat.largest());
  BlockScale result{};
  if constexpr (kScale == ScaleKind::kLargest) {
    float scale = amax == 0.0f ? 1.0f : __fdiv_rn(amax, kLargest);
    if (scale == 0.0f) scale = __uint_as_float(1u);
    result.code = __float_as_uint(scale);
    result.scale = scale;
    result.plain = finite && is_plain_divisor(scale);
    result.divisor = make_divisor(scale * prescale_of(kElement));
  } else if constexpr (kScale == ScaleKind::kSharedExponent) {
    constexpr int kLargestExponent = largest_exponent(kFormat);
    constexpr bool kIsMsfp = kElement == Element::kMsfp12;
    const std::uint32_t bits = __float_as_uint(amax);
    const int log2 = bits >= 0x800000u ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(static_cast<int>(bits)) - 149;
    int exponent = max(log2 - kLargestExponent, kIsMsfp ? -126 : -127);
    if (bits == 0) exponent = kIsMsfp ? -127 : 0;
    result.code = static_cast<std::uint32_t>(exponent + 127);
    result.scale = __uint_as_float(exponent > -127 ? result.code << 23 : 0x400000u);
    result.plain = finite && exponent > -90 && exponent < 90;
    result.reciprocal = __uint_as_float(static_cast<std::uint32_t>(127 - (result.plain ? exponent : 0)) << 23) * (1.0f / prescale_of(kElement));
  } else {
    constexpr float kOne = 1.0f;
    const float scale = amax == 0.0f ? kOne : __fdiv_rn(__fdiv_rn(amax, kLargest), table.outer);
    result.code = max(convert_four<true>(scale, 0.0f, 0.0f, 0.0f) & 0xFFu, 1u);  // positive: never rounds to zero
    result.divisor = table.divisors[result.code];
    result.scale = result.divisor.scale;
    result.plain = finite && is_plain_divisor(result.scale);
  }
  return result;
}

template <Element kElement, DType kType, ScaleKind kScale>
__device__ inline Codes encode_block(const Chunk<kType, elements_per_lane(kElement, kType)>& chunk, const BlockScale& scale) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  if (!scale.plain) return encode_chunk_slowly<kElement>(chunk, scale.scale);
  if constexpr (kScale == ScaleKind::kSharedExponent) return encode_chunk_shifted<kElement>(chunk, scale.reciprocal);
  else return encode_chunk<kElement, kType, kPer, kScale != ScaleKind::kLargest>(chunk, scale.divisor);
}

template <Element kElement, DType kType, ScaleKind kScale>
__global__ void __launch_bounds__(kThreads) quantize_blocks(const Args args) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  __shared__ Stage<kElement> stages[kThreads / 32];
  __shared__ TwoLevelTable table;
  const std::int64_t first = args.x.block_of_grid(kScale == ScaleKind::kTwoLevel) * (kThreads * kUnroll) + threadIdx.x;

  Chunk<kType, kPer> chunks[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t index = first + u * kThreads;
    chunks[u] = index < args.x.chunks ? load_chunk<kType, kPer>(args.x.data, args.x.template offset<kPer>(index)) : zero_chunk<kType, kPer>();
  }
  if constexpr (kScale == ScaleKind::kTwoLevel) {
    const float outer = args.outer.read(format_of(kElement));
    if (threadIdx.x < 128) {
      constexpr Format kScaleFormat = kFp8E4m3;
      const float scale = decode(kScaleFormat, threadIdx.x) * outer;
      Divisor divisor = make_divisor(scale);
      divisor.scale = scale;
      table.divisors[threadIdx.x] = divisor;
      if (threadIdx.x == 0) table.outer = outer;
    }
    __syncthreads();
  }

#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t index = first + u * kThreads;
    const bool valid = index < args.x.chunks;
    std::uint32_t magnitude = chunk_magnitude(chunks[u]);
    for (int offset = args.lanes / 2; offset > 0; offset /= 2) magnitude = max_magnitude<kType>(magnitude, __shfl_xor_sync(0xFFFFFFFFu, magnitude, offset));
    float amax = magnitude_value<kType>(magnitude);
    const bool finite = is_finite(amax);
    if (__any_sync(0xFFFFFFFFu, !finite)) {
      amax = finite_magnitude(chunks[u], args.flags);
      for (int offset = args.lanes / 2; offset > 0; offset /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
    }
    const BlockScale scale = make_block_scale<kElement, kScale>(amax, finite, table);
    if (valid && (threadIdx.x & static_cast<unsigned>(args.lanes - 1)) == 0) {
      const std::int64_t cell = index >> args.lanes_log2;
      if constexpr (kScale == ScaleKind::kLargest) static_cast<std::uint32_t*>(args.scales)[cell] = scale.code;
      else static_cast<std::uint8_t*>(args.scales)[cell] = static_cast<std::uint8_t>(scale.code);
    }
    const Codes codes = encode_block<kElement, kType, kScale>(chunks[u], scale);
    store_codes<kElement, kPer>(args.codes, index, valid, codes, stages[threadIdx.x / 32]);
  }
}

using Launch = int (*)(const QuantizeProblem&, Stream);

template <Element kElement, DType kType, ScaleKind kScale>
int launch(const QuantizeProblem& problem, Stream stream) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  Args args{};
  args.x = ChunkedMatrix::of(problem, kPer);
  args.codes = problem.codes;
  args.scales = problem.scales;
  args.lanes = static_cast<int>(problem.grid.tile_cols) / kPer;
  args.lanes_log2 = __builtin_ctz(static_cast<unsigned>(args.lanes));
  args.flags = problem.flags;
  if constexpr (kScale == ScaleKind::kTwoLevel) {
    args.outer = {problem.given_outer_scale, problem.outer_scale, nullptr, 0};
    if (problem.given_outer_scale == nullptr)
      if (const int error = launch_tensor_amax(problem, args.outer.partials, args.outer.count, stream); error != 0) return error;
  }
  const std::int64_t blocks = (args.x.chunks + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  return launch_kernel(quantize_blocks<kElement, kType, kScale>, blocks, kThreads, stream, args);
}

struct Entry {
  Element element;
  ScaleKind scale;
  Launch by_type[3];  // fp32, fp16, bf16
};

template <Element kElement, ScaleKind kScale>
constexpr Entry entry() {
  return {kElement, kScale, {launch<kElement, DType::kF32, kScale>, launch<kElement, DType::kF16, kScale>, launch<kElement, DType::kBf16, kScale>}};
}

constexpr Entry kEntries[] = {
    entry<Element::kE4m3, ScaleKind::kLargest>(),        entry<Element::kInt8, ScaleKind::kLargest>(),
    entry<Element::kInt4, ScaleKind::kLargest>(),        entry<Element::kE2m1, ScaleKind::kLargest>(),
    entry<Element::kE2m1, ScaleKind::kSharedExponent>(), entry<Element::kE4m3, ScaleKind::kSharedExponent>(),
    entry<Element::kE3m2, ScaleKind::kSharedExponent>(), entry<Element::kE2m3, ScaleKind::kSharedExponent>(),
    entry<Element::kMsfp12, ScaleKind::kSharedExponent>(), entry<Element::kE2m1, ScaleKind::kTwoLevel>(),
};

const Entry* find_entry(const QuantizeProblem& problem) {
  const Scheme& scheme = problem.scheme;
  ScaleKind kind = ScaleKind::kLargest;
  if (scheme.rule == ScaleRule::kSharedExponent) kind = ScaleKind::kSharedExponent;
  else if (scheme.has_outer_scale && scheme.scale == kFp8E4m3) kind = ScaleKind::kTwoLevel;
  else if (scheme.scale != kFp32 || scheme.rule != ScaleRule::kLargest) return nullptr;
  for (const Entry& entry : kEntries)
    if (format_of(entry.element) == scheme.element && entry.scale == kind) return &entry;
  return nullptr;
}

bool accepts(const QuantizeProblem& problem) {
  const ScaleGrid& grid = problem.grid;
  const std::int64_t block = grid.tile_cols;
  if (!is_plain_request(problem) || problem.scheme.asymmetric || problem.given_scales != nullptr || grid.whole_tensor || grid.tile_rows != 1) return false;
  const Entry* entry = find_entry(problem);
  if (entry == nullptr) return false;
  const int per = elements_per_lane(entry->element, problem.dtype);
  if ((block & (block - 1)) != 0 || block < per || block > 32 * per || problem.cols % block != 0) return false;
  if (is_staged(entry->element) && problem.cols % 128 != 0) return false;
  return has_aligned_chunks(problem, per, is_staged(entry->element) ? 16 : per * bits_of(entry->element) / 8);
}

std::size_t workspace(const QuantizeProblem& problem) {
  return problem.scheme.has_outer_scale && problem.given_outer_scale == nullptr ? tensor_amax_workspace() : 0;
}

int run(const QuantizeProblem& problem, Stream stream) { return find_entry(problem)->by_type[type_index(problem.dtype)](problem, stream); }

}  // namespace

const QuantizeKernel kQuantizeBlocks{"cuda_quantize_blocks", accepts, workspace, run};

}  // namespace narrow::cuda
