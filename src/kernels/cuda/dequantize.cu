/// Dequantizes canonical bytes: value = decode(code) * scale, rounded once to fp32 and once more to a 16-bit type.
/// Mapping:  a lane holds one chunk (8 codes; 4 of 8 bits for fp32 output), 5- and 6-bit rows come through
///           shared memory, so that reads are 16 bytes wide.
/// Requires: scales of 1xB blocks, rows or the tensor; aligned whole chunks.
/// Bound:    memory; bits/8 B + a scale per block read, 2 or 4 B written per element.
/// Meaning:  kernels/reference/dequantize.cc, bit for bit.

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefetch.cuh"

namespace narrow::cuda {
namespace {

/// Threads of a block, and chunks in flight per thread: stores are most of the traffic, and few of them at a time go best.
NARROW_HOST_DEVICE constexpr int threads_of(Element element) { return is_staged(element) ? 256 : (bits_of(element) == 8 ? 192 : 128); }
NARROW_HOST_DEVICE constexpr int unroll_of(Element element) { return is_staged(element) ? 3 : 2; }
/// A thread block prefetches the codes of the one that comes so many later: reads are the smaller part, and wait behind the stores.
NARROW_HOST_DEVICE constexpr unsigned distance_of(Element element) { return is_staged(element) ? 1000 : 2112; }

/// How scales are stored.
enum class Storage : std::uint8_t { kNone, kFp32, kFp16, kBf16, kE8m0, kE4m3 };

struct Args {
  const std::uint8_t* codes;
  const void* scales;
  const float* outer_scale;
  void* y;
  std::uint32_t chunks;
  std::uint32_t chunks_per_cell;
  int shift;  // log2 of chunks_per_cell, -1 where it is no power of two
  Storage storage;
};

__device__ inline float read_scale(const Args& args, std::uint32_t cell, float outer) {
  switch (args.storage) {
    case Storage::kNone: return 1.0f;
    case Storage::kFp32: return __ldg(static_cast<const float*>(args.scales) + cell);
    case Storage::kFp16: {
      const unsigned short bits = __ldg(static_cast<const unsigned short*>(args.scales) + cell);
      if ((bits & 0x7FFFu) > 0x7C00u) return __uint_as_float(((bits & 0x8000u) << 16) | 0x7FC00000u);
      return __half2float(__ushort_as_half(bits));
    }
    case Storage::kBf16:
      return __uint_as_float(static_cast<std::uint32_t>(__ldg(static_cast<const unsigned short*>(args.scales) + cell)) << 16);
    case Storage::kE8m0: {
      const std::uint32_t code = __ldg(static_cast<const std::uint8_t*>(args.scales) + cell);
      return __uint_as_float(code == 0 ? 0x400000u : (code == 255 ? 0x7FC00000u : code << 23));
    }
    case Storage::kE4m3: {  // fp16 holds the e4m3 bits with its own bias: a factor of 2^8; the NaN code is not a scale that quantize makes
      const std::uint32_t code = __ldg(static_cast<const std::uint8_t*>(args.scales) + cell);
      if ((code & 0x7Fu) == 0x7Fu) return __uint_as_float(((code & 0x80u) << 24) | 0x7FC00000u);
      const float value =
          __half2float(__ushort_as_half(static_cast<unsigned short>(((code & 0x7Fu) << 7) | ((code & 0x80u) << 8)))) * 256.0f;
      return __fmul_rn(value, outer);
    }
  }
  return 1.0f;
}

template <Element kElement, int kPer>
__device__ inline Codes load_direct(const std::uint8_t* codes, std::uint32_t chunk) {
  if constexpr (bits_of(kElement) == 8 && kPer == 8) {
    const uint2 v = __ldcs(reinterpret_cast<const uint2*>(codes) + chunk);
    return {v.x, v.y};
  } else {
    return {__ldcs(reinterpret_cast<const std::uint32_t*>(codes) + chunk), 0};
  }
}

/// One lane's 5 or 6 bytes out of the warp's stage: they lie in two neighbouring words.
template <Element kElement>
__device__ inline Codes load_staged(const Stage<kElement>& stage) {
  constexpr unsigned kBytes = bits_of(kElement);
  const unsigned begin = threadIdx.x % 32 * kBytes, shift = begin % 4 * 8;
  const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(stage.bytes) + begin / 4;
  const std::uint32_t low = words[0], high = words[1];
  return {__funnelshift_r(low, high, shift), (high >> shift) & ((1u << (8 * (kBytes - 4))) - 1u)};
}

template <Element kElement, DType kType>
__device__ inline void store_values(const Args& args, std::uint32_t chunk, Codes codes, float scale) {
  constexpr int kPer = elements_per_lane(kElement, kType);
  constexpr int kWords = is_16_bit(kType) ? kPer / 2 : kPer;
  std::uint32_t words[kWords];
  const float factored = scale * decode_factor(kElement);
  if (has_nan_code<kElement>(codes) || !(fabsf(scale) <= 0x1p100f)) {
    const std::uint64_t packed = codes.low | (static_cast<std::uint64_t>(codes.high) << 32);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const std::uint32_t code = static_cast<std::uint32_t>(packed >> (i * bits_of(kElement))) & ((1u << bits_of(kElement)) - 1u);
      const std::uint32_t value = decode_by_definition<kElement, kType>(code, scale);
      if constexpr (!is_16_bit(kType))
        words[i] = value;
      else
        words[i / 2] = i % 2 == 0 ? value : words[i / 2] | (value << 16);
    }
  } else {
    float values[kPer];
    decode_chunk<kElement, kPer>(codes, values);
#pragma unroll
    for (int i = 0; i < kPer; ++i) values[i] = __fmul_rn(values[i], factored);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (is_16_bit(kType))
        words[i] = round_pair<kType>(values[2 * i], values[2 * i + 1]);
      else
        words[i] = __float_as_uint(values[i]);
    }
  }
  uint4* out = static_cast<uint4*>(args.y) + std::int64_t{chunk} * (kWords / 4);
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) __stcs(out + i, make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]));
}

template <Element kElement, DType kType>
__global__ void __launch_bounds__(threads_of(kElement)) dequantize_flat(const Args args) {
  constexpr int kPer = elements_per_lane(kElement, kType), kThreads = threads_of(kElement), kUnroll = unroll_of(kElement);
  __shared__ Stage<kElement> stages[is_staged(kElement) ? kThreads / 32 : 1][is_staged(kElement) ? kUnroll : 1];
  if (threadIdx.x == 0 && blockIdx.x + distance_of(kElement) + 1 < gridDim.x && kElement != Element::kMsfp12 &&
      args.storage != Storage::kE4m3) {  // of MSFP and NVFP4 it costs 1 to 4%
    constexpr std::uint32_t kBytes = kThreads * kUnroll * kPer * bits_of(kElement) / 8;
    static_assert(kBytes % 16 == 0);
    prefetch_bulk(args.codes + std::int64_t{blockIdx.x + distance_of(kElement)} * kBytes, kBytes);
  }
  wait_for_previous_kernel();
  const std::uint32_t first = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  Codes codes[kUnroll];
  if constexpr (is_staged(kElement)) {
    constexpr std::uint32_t kBytes = bits_of(kElement);
    uint4 parts[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t byte = std::int64_t{first - lane + u * kThreads} * kBytes + lane * 16;
      parts[u] = make_uint4(0, 0, 0, 0);
      if (lane < 2 * kBytes && byte < std::int64_t{args.chunks} * kBytes) parts[u] = load_words(args.codes + byte);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (lane < 2 * kBytes) *reinterpret_cast<uint4*>(stages[warp][u].bytes + lane * 16) = parts[u];
    __syncwarp();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) codes[u] = load_staged(stages[warp][u]);
  } else {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint32_t chunk = first + u * kThreads;
      codes[u] = chunk < args.chunks ? load_direct<kElement, kPer>(args.codes, chunk) : Codes{0, 0};
    }
  }
  const float outer = args.outer_scale != nullptr ? __ldg(args.outer_scale) : 1.0f;
  float scales[kUnroll];  // all of them before the first store
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::uint32_t chunk = min(first + u * kThreads, args.chunks - 1);
    scales[u] = read_scale(args, args.shift >= 0 ? chunk >> args.shift : chunk / args.chunks_per_cell, outer);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::uint32_t chunk = first + u * kThreads;
    if (chunk < args.chunks) store_values<kElement, kType>(args, chunk, codes[u], scales[u]);
  }
}

Storage storage_of(const Scheme& scheme) {
  if (!scheme.has_scales()) return Storage::kNone;
  if (scheme.scale == kFp32) return Storage::kFp32;
  if (scheme.scale == kFp16) return Storage::kFp16;
  if (scheme.scale == kBf16) return Storage::kBf16;
  return scheme.scale == kE8m0 ? Storage::kE8m0 : Storage::kE4m3;
}

template <Element kElement, DType kType>
int launch(const DequantizeProblem& problem, Stream stream) {
  constexpr int kPer = elements_per_lane(kElement, kType), kThreads = threads_of(kElement), kUnroll = unroll_of(kElement);
  Args args{};
  args.codes = problem.codes;
  args.scales = problem.scales;
  args.outer_scale = problem.scheme.has_outer_scale ? problem.outer_scale : nullptr;
  args.y = problem.y;
  args.chunks = static_cast<std::uint32_t>(problem.rows * problem.cols / kPer);
  args.chunks_per_cell =
      problem.grid.whole_tensor
          ? args.chunks
          : static_cast<std::uint32_t>(problem.grid.tile_cols < problem.cols ? problem.grid.tile_cols / kPer : problem.cols / kPer);
  args.shift = (args.chunks_per_cell & (args.chunks_per_cell - 1)) == 0 ? __builtin_ctz(args.chunks_per_cell) : -1;
  if (problem.grid.whole_tensor) args.shift = 31 < 32 && args.chunks <= 0x80000000u ? 31 : -1;
  args.storage = storage_of(problem.scheme);
  const std::int64_t blocks = (std::int64_t{args.chunks} + kThreads * kUnroll - 1) / (kThreads * kUnroll);
  return launch_overlapped(dequantize_flat<kElement, kType>, blocks, kThreads, stream, args);
}

using Launch = int (*)(const DequantizeProblem&, Stream);
struct Entry {
  Element element;
  Launch by_type[3];
};

template <Element kElement>
constexpr Entry entry() {
  return {kElement, {launch<kElement, DType::kF32>, launch<kElement, DType::kF16>, launch<kElement, DType::kBf16>}};
}

constexpr Entry kEntries[] = {entry<Element::kE4m3>(), entry<Element::kE5m2>(), entry<Element::kInt8>(),
                              entry<Element::kInt4>(), entry<Element::kE3m2>(), entry<Element::kE2m3>(),
                              entry<Element::kE2m2>(), entry<Element::kE2m1>(), entry<Element::kMsfp12>()};

const Entry* find_entry(const DequantizeProblem& problem) {
  for (const Entry& entry : kEntries)
    if (format_of(entry.element) == problem.scheme.element) return &entry;
  return nullptr;
}

bool accepts(const DequantizeProblem& problem) {
  const Entry* entry = find_entry(problem);
  if (entry == nullptr || problem.scheme.asymmetric || problem.rows == 0 || problem.cols == 0) return false;
  const int per = elements_per_lane(entry->element, problem.dtype);
  const bool staged = is_staged(entry->element);
  const ScaleGrid& grid = problem.grid;
  if (problem.cols % (staged ? 128 : 8) != 0 || problem.rows * problem.cols / per > 0x7FFFFFFF) return false;
  if (!grid.whole_tensor) {
    if (grid.tile_rows != 1) return false;
    if (grid.tile_cols < problem.cols && (grid.tile_cols % per != 0 || problem.cols % grid.tile_cols != 0)) return false;
  }
  return is_aligned(problem.y, 16) && is_aligned(problem.codes, staged ? 16 : static_cast<std::size_t>(per * bits_of(entry->element) / 8));
}

int run(const DequantizeProblem& problem, Stream stream) {
  return find_entry(problem)->by_type[type_index(problem.dtype)](problem, stream);
}

}  // namespace

const DequantizeKernel kDequantizeFlat{"cuda_dequantize_flat", accepts, run};

}  // namespace narrow::cuda
