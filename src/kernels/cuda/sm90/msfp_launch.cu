/// MSFP products on Hopper: counters cleared by one kernel, operands decoded and multiplied by the next.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/msfp_product.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;
using T = MsfpTile;

constexpr int kClearThreads = 256, kBand = 16;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// One thread block, so that the product's own can come at once.
__global__ void __launch_bounds__(kClearThreads) clear(std::uint32_t* counters, int count) {
  let_next_kernel_start();
  sm90::wait_for_earlier_kernels();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kClearThreads) counters[i] = 0;
}

}  // namespace

int launch_msfp_product(const MsfpProblem& problem, void* scratch, Stream stream) {
  const ByteEpilogue& e = problem.epilogue;
  const int element_bytes = e.out == DType::kF32 ? 4 : 2;
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 && problem.d_pitch * element_bytes % 16 == 0;
  const std::int64_t depth = problem.a.depth, b_rows = padded_msfp_b_rows(problem.b.rows);
  MsfpParams params{};
  params.m = problem.m;
  params.n = problem.n;
  params.blocks = static_cast<int>(depth / T::kDepth);
  params.tiles_m = ceil_div(problem.m, T::kTileM * T::kCluster);
  params.tiles_n = ceil_div(problem.n, T::kTileN);
  params.tiles = params.tiles_m * params.tiles_n;
  params.workers = std::min(multiprocessors() / T::kCluster, params.tiles);
  params.band = std::min(params.tiles_m, kBand);
  params.chunks = static_cast<int>(msfp_chunks(depth));
  params.direct = aligned && problem.n % 8 == 0 && e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
  auto* decoded = static_cast<uint4*>(scratch);
  auto* counters = reinterpret_cast<std::uint32_t*>(decoded + (b_rows + problem.a.rows) * depth / 8);
  params.a = {problem.a, decoded + b_rows * depth / 8, params.tiles_m, params.band, counters};
  params.b = {problem.b, decoded, params.tiles_n, std::min(params.tiles_n, ceil_div(params.workers, params.band)),
              counters + params.tiles_m * params.chunks};
  const int counter_count = (params.tiles_m + params.tiles_n) * params.chunks + 1;
  params.taken = counters + counter_count - 1;
  params.epilogue = e;
  params.d = problem.d;
  params.pitch = problem.d_pitch;
  if (const int error = launch_overlapped(clear, 1, kClearThreads, stream, counters, counter_count)) return error;
  CUtensorMap a{}, b{};
  if (!encode_matrix_map(a, {params.a.decoded, 2, depth, problem.m, depth * 2, 128, T::kTileM}) ||
      !encode_matrix_map(b, {params.b.decoded, 2, depth, b_rows, depth * 2, 128, T::kTileN / T::kCluster}))
    return cudaErrorInvalidValue;
  if (const cudaError_t error = cudaFuncSetAttribute(msfp_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared))
    return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {T::kCluster, 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(params.workers * T::kCluster));
  launch.blockDim = dim3(T::kThreads);
  launch.dynamicSmemBytes = T::kShared;
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = 2;
  return cudaLaunchKernelEx(&launch, msfp_product<T>, params, a, b);
}

}  // namespace narrow::cuda
