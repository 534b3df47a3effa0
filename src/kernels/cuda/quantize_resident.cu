/// Quantizes with one dynamic scale for the whole tensor in one cooperative kernel: amax, a barrier of the grid, codes.
/// Mapping:  one thread block per multiprocessor; a warp copies tiles of 16 KB into shared memory, the others read them. The first tiles
///           stay there; the rest go through a ring, which pass 1 leaves full of the last ones. Pass 2 starts on those and goes
///           backwards, so that what the second-level cache still has comes next; the tiles that stayed come last.
/// Requires: compute capability 9.0; contiguous whole 16-byte chunks; nearest even, saturating; fp8 or int8.
/// Bound:    memory; x read once, then again less what shared memory (30 MB on an H200) and the cache keep; 1 B written per element.
/// Meaning:  kernels/reference/quantize.cc, bit for bit.

#include <algorithm>

#include <cooperative_groups.h>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/store.cuh"
#include "kernels/cuda/tensor_amax.cuh"

namespace narrow::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kTileBytes = 16384;
constexpr int kHeld = 8, kRing = 6, kSlots = kHeld + kRing;
constexpr int kChunksPerThread = kTileBytes / 16 / kConsumers;

struct Shared {
  alignas(128) std::uint8_t tiles[kSlots][kTileBytes];
  Barrier full[kSlots], empty[kRing];
};

struct Args {
  const std::uint8_t* x;
  std::int64_t bytes;
  std::uint8_t* codes;
  float* scale;
  float* partials;
  std::uint32_t* flags;
};

/// The tiles of this thread block: the i-th one is i * gridDim + blockIdx of the tensor. Only the tensor's last one may be short.
struct Tiles {
  int count, last_size;

  __device__ explicit Tiles(std::int64_t bytes) {
    const unsigned all = static_cast<unsigned>((bytes + kTileBytes - 1) / kTileBytes);
    count = static_cast<int>((all - blockIdx.x + gridDim.x - 1) / gridDim.x);
    last_size = static_cast<int>(min(std::int64_t{kTileBytes}, bytes - begin(count - 1)));
  }
  __device__ static std::int64_t begin(int i) { return (std::int64_t{i} * gridDim.x + blockIdx.x) * kTileBytes; }
  __device__ int size(int i) const { return i == count - 1 ? last_size : kTileBytes; }

  // A place of the ring that is filled u times in pass 1 has tile i, in pass 2, as its filling number 2 (u - 1) - filling(i), counted
  // from 0; of that a barrier takes the parity alone, and it is filling(i)'s as in pass 1.
  __device__ static bool is_held(int i) { return i < kHeld; }
  __device__ static int place(int i) { return (i - kHeld) % kRing; }
  __device__ static int slot(int i) { return is_held(i) ? i : kHeld + place(i); }
  __device__ static unsigned filling(int i) { return is_held(i) ? 0u : static_cast<unsigned>((i - kHeld) / kRing); }
};

/// Tiles that stay in shared memory need no room in the cache.
__device__ inline void copy_tile(const Args& args, const Tiles& tiles, Shared& shared, int i) {
  Barrier& full = shared.full[tiles.slot(i)];
  const std::uint32_t bytes = static_cast<std::uint32_t>(tiles.size(i));
  full.arrive_expecting(bytes);
  if (tiles.is_held(i))
    copy_bulk_once(shared.tiles[tiles.slot(i)], args.x + tiles.begin(i), bytes, full);
  else
    copy_bulk(shared.tiles[tiles.slot(i)], args.x + tiles.begin(i), bytes, full);
}

/// Pass 1, by one thread.
__device__ inline void produce_amax(const Args& args, const Tiles& tiles, Shared& shared) {
#pragma unroll 1
  for (int i = 0; i < tiles.count; ++i) {
    if (i >= kSlots) shared.empty[tiles.place(i)].wait(tiles.filling(i) - 1);
    copy_tile(args, tiles, shared, i);
  }
}

/// Pass 2: the tiles that are no longer in shared memory, backwards.
__device__ inline void produce_codes(const Args& args, const Tiles& tiles, Shared& shared) {
#pragma unroll 1
  for (int i = tiles.count - kRing - 1; i >= kHeld; --i) {
    shared.empty[tiles.place(i)].wait(tiles.filling(i) + 1);
    copy_tile(args, tiles, shared, i);
  }
}

/// This thread's chunks of a tile.
template <DType kType, int kPer>
__device__ inline void read_tile(const std::uint8_t* tile, int size, Chunk<kType, kPer> (&chunks)[kChunksPerThread]) {
#pragma unroll
  for (int u = 0; u < kChunksPerThread; ++u) {
    const int at = static_cast<int>(threadIdx.x + u * kConsumers) * 16;
    const uint4 v = at < size ? *reinterpret_cast<const uint4*>(tile + at) : make_uint4(0, 0, 0, 0);
    chunks[u] = {v.x, v.y, v.z, v.w};
  }
}

/// The largest finite magnitude of this thread's share, by reading it again; tells flags what was not finite.
template <DType kType, int kPer>
__device__ __noinline__ float finite_amax(const Args& args, const Tiles& tiles) {
  float result = 0.0f;
  for (int i = 0; i < tiles.count; ++i) {
    Chunk<kType, kPer> chunks[kChunksPerThread];
    read_tile(args.x + tiles.begin(i), tiles.size(i), chunks);
#pragma unroll
    for (int u = 0; u < kChunksPerThread; ++u) result = fmaxf(result, finite_magnitude(chunks[u], args.flags));
  }
  return result;
}

/// The largest finite magnitude of this thread's share. Bit 31 of the result: something was not finite.
template <DType kType, int kPer>
__device__ inline std::uint32_t consume_amax(const Args& args, const Tiles& tiles, Shared& shared) {
  std::uint32_t magnitude = 0;
#pragma unroll 1
  for (int i = 0; i < tiles.count; ++i) {
    shared.full[tiles.slot(i)].wait(tiles.filling(i));
    Chunk<kType, kPer> chunks[kChunksPerThread];
    read_tile(shared.tiles[tiles.slot(i)], tiles.size(i), chunks);
#pragma unroll
    for (int u = 0; u < kChunksPerThread; ++u) magnitude = max_magnitude<kType>(magnitude, chunk_magnitude(chunks[u]));
    if (!tiles.is_held(i) && i + kRing < tiles.count) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.empty[tiles.place(i)].arrive();
    }
  }
  const float amax = magnitude_value<kType>(magnitude);
  return is_finite(amax) ? __float_as_uint(amax) : __float_as_uint(finite_amax<kType, kPer>(args, tiles)) | 0x80000000u;
}

/// The largest over the block's consumers and, after the barrier, over the grid; bit 31 is the or of all.
__device__ inline std::uint32_t reduce_grid(std::uint32_t value, const Args& args) {
  __shared__ std::uint32_t warps[kThreads / 32];
  const std::uint32_t magnitude =
      __reduce_max_sync(0xFFFFFFFFu, value & 0x7FFFFFFFu) | (__reduce_or_sync(0xFFFFFFFFu, value) & 0x80000000u);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = magnitude;
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t all = 0, bit = 0;
    for (int i = 0; i < kThreads / 32; ++i) {
      all = max(all, warps[i] & 0x7FFFFFFFu);
      bit |= warps[i] & 0x80000000u;
    }
    args.partials[blockIdx.x] = __uint_as_float(all | bit);
  }
  cooperative_groups::this_grid().sync();
  std::uint32_t partial = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) {
    const std::uint32_t other = __float_as_uint(__ldcg(args.partials + i));
    partial = max(partial & 0x7FFFFFFFu, other & 0x7FFFFFFFu) | ((partial | other) & 0x80000000u);
  }
  partial = __reduce_max_sync(0xFFFFFFFFu, partial & 0x7FFFFFFFu) | (__reduce_or_sync(0xFFFFFFFFu, partial) & 0x80000000u);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = partial;
  __syncthreads();
  std::uint32_t all = 0, bit = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) {
    all = max(all, warps[i] & 0x7FFFFFFFu);
    bit |= warps[i] & 0x80000000u;
  }
  return all | bit;
}

template <Element kElement, DType kType, int kPer, bool kPlain>
__device__ inline void consume_codes(const Args& args, const Tiles& tiles, Shared& shared, float scale) {
  constexpr int kSize = is_16_bit(kType) ? 2 : 4;
  const Divisor divisor = make_divisor(scale);
#pragma unroll 1
  for (int i = tiles.count - 1; i >= 0; --i) {
    shared.full[tiles.slot(i)].wait(tiles.filling(i));
    const int size = tiles.size(i);
    Chunk<kType, kPer> chunks[kChunksPerThread];
    read_tile(shared.tiles[tiles.slot(i)], size, chunks);
    if (i >= kSlots) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.empty[tiles.place(i)].arrive();
    }
    std::uint8_t* codes = args.codes + tiles.begin(i) / kSize;
#pragma unroll
    for (int u = 0; u < kChunksPerThread; ++u) {
      const int chunk = static_cast<int>(threadIdx.x + u * kConsumers);
      const Codes packed =
          kPlain ? encode_chunk<kElement, kType, kPer, false>(chunks[u], divisor) : encode_chunk_slowly<kElement>(chunks[u], scale);
      if (chunk * 16 >= size) continue;
      if constexpr (kPer == 8)
        reinterpret_cast<uint2*>(codes)[chunk] = make_uint2(packed.low, packed.high);
      else
        reinterpret_cast<std::uint32_t*>(codes)[chunk] = packed.low;
    }
  }
}

template <Element kElement, DType kType>
__global__ void __launch_bounds__(kThreads, 1) quantize_resident(const Args args) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPer = is_16_bit(kType) ? 8 : 4;
  constexpr float kLargest = static_cast<float>(format_of(kElement).largest());
  extern __shared__ __align__(128) std::uint8_t memory[];  // bulk copies to less aligned addresses are slow
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Tiles tiles(args.bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) shared.full[i].init(1);
    for (int i = 0; i < kRing; ++i) shared.empty[i].init(kConsumers / 32);
    fence_barriers();
  }
  wait_for_previous_kernel();
  __syncthreads();
  const bool consumer = threadIdx.x < kConsumers;
  std::uint32_t mine = 0;
  if (consumer)
    mine = consume_amax<kType, kPer>(args, tiles, shared);
  else if (threadIdx.x == kConsumers)
    produce_amax(args, tiles, shared);
  __syncwarp();
  const std::uint32_t all = reduce_grid(mine, args);
  const float amax = __uint_as_float(all & 0x7FFFFFFFu);
  float scale = amax == 0.0f ? 1.0f : __fdiv_rn(amax, kLargest);
  if (scale == 0.0f) scale = __uint_as_float(1u);
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.scale = scale;
  if (!consumer) {
    if (threadIdx.x == kConsumers) produce_codes(args, tiles, shared);
  } else if (all >> 31 == 0 && is_plain_divisor(scale)) {
    consume_codes<kElement, kType, kPer, true>(args, tiles, shared, scale);
  } else {
    consume_codes<kElement, kType, kPer, false>(args, tiles, shared, scale);
  }
#endif
}

template <Element kElement, DType kType>
int launch(const QuantizeProblem& problem, Stream stream) {
  const auto kernel = quantize_resident<kElement, kType>;
  Args args{static_cast<const std::uint8_t*>(problem.x),
            problem.rows * problem.cols * (is_16_bit(kType) ? 2 : 4),
            problem.codes,
            static_cast<float*>(problem.scales),
            static_cast<float*>(problem.workspace),
            problem.flags};
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
      error != cudaSuccess)
    return error;
  const std::int64_t tiles = (args.bytes + kTileBytes - 1) / kTileBytes;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min({tiles, std::int64_t{multiprocessors()}, std::int64_t{kMostPartials}})));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, args);
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
  if (!scheme.has_scales() || problem.given_scales != nullptr || (problem.row_stride != problem.cols && problem.rows != 1)) return false;
  const int per = problem.dtype == DType::kF32 ? 4 : 8;
  if (!has_aligned_chunks(problem, per, per)) return false;
  return device_attribute(cudaDevAttrComputeCapabilityMajor, 0) >= 9 &&
         device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) >= static_cast<int>(sizeof(Shared) + 256);
}

std::size_t workspace(const QuantizeProblem&) { return tensor_amax_workspace(); }

int run(const QuantizeProblem& problem, Stream stream) {
  if (problem.scheme.element == kFp8E4m3) return launch_any<Element::kE4m3>(problem, stream);
  if (problem.scheme.element == kFp8E5m2) return launch_any<Element::kE5m2>(problem, stream);
  return launch_any<Element::kInt8>(problem, stream);
}

}  // namespace

const QuantizeKernel kQuantizeResident{"cuda_quantize_resident", accepts, workspace, run};

}  // namespace narrow::cuda
