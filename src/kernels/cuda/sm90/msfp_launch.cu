/// MSFP products on Hopper: the first panels decoded to bf16 by one kernel, all multiplied by the next.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/msfp_product.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;
using T = MsfpTile;

constexpr int kDecodeThreads = 256, kBand = 8;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Rows of the panels that the kernel in front decodes.
std::int64_t first_rows(const MsfpOperand& operand) {
  return std::min<std::int64_t>(operand.packed.rows, std::int64_t{operand.first_panel} * kMsfpPanel);
}

/// The first boxes of A and then of B, a thread each, neighbouring threads on neighbouring boxes of a row; and all counters to zero.
__global__ void __launch_bounds__(kDecodeThreads)
    decode_first(const MsfpOperand a, std::int64_t boxes_a, const MsfpOperand b, std::int64_t boxes_b, int counters) {
  wait_for_previous_kernel();
  const std::int64_t index = std::int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x;
  if (index < counters) a.done[index] = 0;
  if (index < boxes_a)
    decode_box(a.packed, index, a.decoded);
  else if (index < boxes_a + boxes_b)
    decode_box(b.packed, index - boxes_a, b.decoded);
}

}  // namespace

int launch_msfp_product(const MsfpProblem& problem, void* scratch, Stream stream) {
  const ByteEpilogue& e = problem.epilogue;
  const int element_bytes = e.out == DType::kF32 ? 4 : 2;
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 && problem.d_pitch * element_bytes % 16 == 0;
  const std::int64_t depth = problem.a.depth, boxes_of_row = depth / kMsfpBox;
  MsfpParams params{};
  params.m = problem.m;
  params.n = problem.n;
  params.blocks = static_cast<int>(depth / T::kDepth);
  params.tiles_m = ceil_div(problem.m, T::kTileM * T::kCluster);
  params.tiles_n = ceil_div(problem.n, T::kTileN);
  params.tiles = params.tiles_m * params.tiles_n;
  params.workers = std::min(multiprocessors() / T::kCluster, params.tiles);
  params.band = std::min(params.tiles_m, kBand);
  params.boxed = aligned && e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
  auto* decoded = static_cast<uint4*>(scratch);
  auto* counters = reinterpret_cast<std::uint32_t*>(decoded + (problem.a.rows + problem.b.rows) * depth / 8);
  params.a = {problem.a, decoded, params.tiles_m, params.band, counters};
  params.b = {problem.b, decoded + problem.a.rows * depth / 8, params.tiles_n,
              std::min(params.tiles_n, ceil_div(params.workers, params.band) + 1), counters + params.tiles_m};
  params.next_chunk = counters + params.tiles_m + params.tiles_n;
  params.epilogue = e;
  params.d = problem.d;
  params.pitch = problem.d_pitch;
  const std::int64_t boxes_a = first_rows(params.a) * boxes_of_row, boxes_b = first_rows(params.b) * boxes_of_row;
  const int counter_count = params.tiles_m + params.tiles_n + 1;
  if (const int error = launch_overlapped(decode_first, ceil_div(std::max<std::int64_t>(boxes_a + boxes_b, counter_count), kDecodeThreads),
                                          kDecodeThreads, stream, params.a, boxes_a, params.b, boxes_b, counter_count))
    return error;
  CUtensorMap a{}, b{}, d{};
  if (!encode_matrix_map(a, {params.a.decoded, 2, depth, problem.m, depth * 2, 128, T::kTileM}) ||
      !encode_matrix_map(b, {params.b.decoded, 2, depth, problem.n, depth * 2, 128, T::kTileN / T::kCluster}) ||
      (params.boxed && !encode_matrix_map(d, {problem.d, element_bytes, problem.n, problem.m, problem.d_pitch * element_bytes, 128, 16})))
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
  return cudaLaunchKernelEx(&launch, msfp_product<T>, params, a, b, d);
}

}  // namespace narrow::cuda
