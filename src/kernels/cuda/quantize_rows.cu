/// Quantizes rows with one fp32 scale each (per token, per output channel), reading x once: the row waits in registers while its
/// largest magnitude is found.
/// Mapping:  one thread block per row, 2 or 4 chunks per thread (of packed codes from 16 bits in neighbouring pairs), one barrier.
/// Requires: 16-byte aligned rows of whole chunks, at most 32768 (fp32 to 8 bits: 16384) columns; nearest even, saturating.
/// Bound:    memory; 2 or 4 B read, bits/8 B written per element.
/// Meaning:  kernels/reference/quantize.cc, bit for bit.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefetch.cuh"
#include "kernels/cuda/store.cuh"

namespace narrow::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostChunks = 4;  // per thread; two for codes of 8 bits where that takes at most half of the threads
constexpr int kShortRow = 512;  // chunks: below it more registers are better than more threads

struct Args {
  const void* x;
  std::int64_t row_stride;
  int chunks;  // per row
  std::uint8_t* codes;
  std::size_t row_bytes;
  float* scales;
  std::uint32_t* flags;
};

/// The largest of a value over the thread block.
__device__ inline std::uint32_t block_max(std::uint32_t value, std::uint32_t* warps) {
  value = __reduce_max_sync(0xFFFFFFFFu, value);
  if (blockDim.x == 32) return value;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? warps[lane] : 0u);
}

/// kParts: neighbouring chunks in a thread.
template <Element kElement, DType kType, int kChunks, int kParts, int kRegisters>
__global__ void __maxnreg__(kRegisters) quantize_rows(const Args args) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  constexpr float kLargest = static_cast<float>(format_of(kElement).largest());
  __shared__ Stage<kElement, kParts> stages[is_staged(kElement) ? kMostThreads / 32 : 1];
  __shared__ std::uint32_t warps[2][32];
  constexpr int kSize = is_16_bit(kType) ? 2 : 4;
  const std::int64_t row = blockIdx.x, start = row * args.row_stride;
  if (blockIdx.x < kEarlyBlocks)
    prefetch_lines(static_cast<const char*>(args.x) + start * kSize, static_cast<std::uint32_t>(args.chunks * kPer * kSize), threadIdx.x,
                   blockDim.x);
  wait_for_previous_kernel();

  Chunk<kType, kPer> chunks[kChunks];
#pragma unroll
  for (int u = 0; u < kChunks; ++u) {
    const int index = (u / kParts * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kParts + u % kParts;
    chunks[u] = index < args.chunks ? load_chunk<kType, kPer>(args.x, start + std::int64_t{index} * kPer) : zero_chunk<kType, kPer>();
  }
  std::uint32_t magnitude = chunk_magnitude(chunks[0]);
#pragma unroll
  for (int u = 1; u < kChunks; ++u) magnitude = max_magnitude<kType>(magnitude, chunk_magnitude(chunks[u]));
  float amax = __uint_as_float(block_max(__float_as_uint(magnitude_value<kType>(magnitude)), warps[0]));
  const bool finite = is_finite(amax);
  if (!finite) {  // the whole block takes this way together
    float mine = 0.0f;
#pragma unroll
    for (int u = 0; u < kChunks; ++u) mine = fmaxf(mine, finite_magnitude(chunks[u], args.flags));
    amax = __uint_as_float(block_max(__float_as_uint(mine), warps[1]));
  }
  float scale = amax == 0.0f ? 1.0f : __fdiv_rn(amax, kLargest);
  if (scale == 0.0f) scale = __uint_as_float(1u);
  if (threadIdx.x == 0) args.scales[row] = scale;

  const bool plain = finite && is_plain_divisor(scale), product = kElement == Element::kE2m1 && is_product_divisor<kType>(scale);
  const Divisor divisor = make_divisor(scale * prescale_of(kElement));
  std::uint8_t* codes = args.codes + static_cast<std::size_t>(row) * args.row_bytes;
#pragma unroll
  for (int u = 0; u < kChunks; u += kParts) {
    const int index = u / kParts * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    Codes packed[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (!plain) {
        packed[i] = encode_chunk_slowly<kElement>(chunks[u + i], scale);
      } else if (product) {
        if constexpr (kElement == Element::kE2m1) packed[i] = encode_e2m1<false>(chunks[u + i], divisor.nearest);
      } else {
        packed[i] = encode_chunk<kElement, kType, kPer, false>(chunks[u + i], divisor);
      }
    }
    Stage<kElement, kParts>& stage = stages[is_staged(kElement) ? threadIdx.x / 32 : 0];
    if constexpr (kParts == 1)
      store_codes<kElement, kPer>(codes, index, args.chunks, packed[0], stage);
    else
      store_span<kElement, kParts>(codes, index, args.chunks / kParts, packed, stage);
  }
}

using Launch = int (*)(const QuantizeProblem&, Stream);

template <Element kElement, DType kType>
int launch(const QuantizeProblem& problem, Stream stream) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  Args args{problem.x,     problem.row_stride, static_cast<int>(problem.cols / kPer),
            problem.codes, problem.row_bytes,  static_cast<float*>(problem.scales),
            problem.flags};
  const auto launch_with = [&]<int kChunks, int kParts, int kRegisters>() {
    const int threads = (args.chunks + 32 * kChunks - 1) / (32 * kChunks) * 32;
    return launch_overlapped(quantize_rows<kElement, kType, kChunks, kParts, kRegisters>, problem.rows, threads, stream, args);
  };
  if constexpr (bits_of(kElement) == 8)
    if (args.chunks <= kMostThreads) return launch_with.template operator()<2, 1, 32>();
  if constexpr (bits_of(kElement) < 8 && is_16_bit(kType))
    if (args.chunks % 2 == 0 && is_aligned(problem.codes, 8)) {
      if (args.chunks <= kShortRow) return launch_with.template operator()<kMostChunks, 2, 48>();
      return launch_with.template operator()<kMostChunks, 2, 40>();
    }
  return launch_with.template operator() < kMostChunks, 1, kPer == 8 && kType == DType::kF32 ? 64 : 40 > ();
}

struct Entry {
  Element element;
  Launch by_type[3];
};

template <Element kElement>
constexpr Entry entry() {
  return {kElement, {launch<kElement, DType::kF32>, launch<kElement, DType::kF16>, launch<kElement, DType::kBf16>}};
}

constexpr Entry kEntries[] = {entry<Element::kE4m3>(), entry<Element::kE5m2>(), entry<Element::kInt8>(), entry<Element::kE3m2>(),
                              entry<Element::kE2m3>(), entry<Element::kE2m2>(), entry<Element::kE2m1>(), entry<Element::kInt4>()};

const Entry* find_entry(const QuantizeProblem& problem) {
  for (const Entry& entry : kEntries)
    if (format_of(entry.element) == problem.scheme.element) return &entry;
  return nullptr;
}

bool accepts(const QuantizeProblem& problem) {
  const Scheme& scheme = problem.scheme;
  if (!is_plain_request(problem) || scheme.asymmetric || scheme.scale != kFp32 || scheme.rule != ScaleRule::kLargest ||
      problem.given_scales != nullptr)
    return false;
  if (problem.grid.whole_tensor || problem.grid.tile_rows != 1 || problem.grid.cols != 1) return false;
  const Entry* entry = find_entry(problem);
  if (entry == nullptr) return false;
  const int per = elements_per_lane(entry->element, problem.dtype);
  const bool staged = is_staged(entry->element);
  if (problem.cols % (staged ? 128 : per) != 0 || problem.cols > std::int64_t{per} * kMostChunks * kMostThreads) return false;
  const std::int64_t per_16_bytes = problem.dtype == DType::kF32 ? 4 : 8;
  if (problem.rows > 1 && problem.row_stride % per_16_bytes != 0) return false;
  return is_aligned(problem.x, 16) && is_aligned(problem.codes, staged ? 16 : static_cast<std::size_t>(per * bits_of(entry->element) / 8));
}

std::size_t workspace(const QuantizeProblem&) { return 0; }

int run(const QuantizeProblem& problem, Stream stream) { return find_entry(problem)->by_type[type_index(problem.dtype)](problem, stream); }

}  // namespace

const QuantizeKernel kQuantizeRows{"cuda_quantize_rows", accepts, workspace, run};

}  // namespace narrow::cuda
