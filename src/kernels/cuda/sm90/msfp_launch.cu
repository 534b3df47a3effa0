/// MSFP products on Hopper: B decoded to bf16 by one kernel, multiplied by the next.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/msfp_product.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kDecodeThreads = 256, kBand = 32, kLead = 2;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// The first `rows` rows of B, a thread per box, neighbouring threads on neighbouring boxes of a row; and the counters of panels to zero.
__global__ void __launch_bounds__(kDecodeThreads) decode_first(const MsfpView b, std::int64_t rows, uint4* decoded, std::uint32_t* done, int panels) {
  wait_for_previous_kernel();
  const std::int64_t index = std::int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x;
  if (index <= panels) done[index] = 0;  // and the counter of chunks behind them
  if (index < rows * (b.depth / kMsfpBox)) decode_box(b, index, decoded);
}

template <class T>
int launch(const MsfpProblem& problem, uint4* decoded, Stream stream) {
  const ByteEpilogue& e = problem.epilogue;
  const int element_bytes = e.out == DType::kF32 ? 4 : 2;
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 && problem.d_pitch * element_bytes % 16 == 0;
  MsfpParams params{};
  params.m = problem.m;
  params.n = problem.n;
  params.blocks = static_cast<int>(problem.a.depth / T::kDepth);
  params.tiles_m = ceil_div(problem.m, T::kTileM * T::kCluster);
  params.tiles_n = ceil_div(problem.n, T::kTileN);
  params.tiles = params.tiles_m * params.tiles_n;
  params.workers = std::min(multiprocessors() / T::kCluster, params.tiles);
  params.band = std::min(params.tiles_m, kBand);  // tall, so that the first tiles need few panels of B
  params.lead = kLead;
  params.boxed = aligned && e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
  params.exponents = problem.a.exponents;
  params.exponent_rows = problem.a.exponent_rows();
  params.epilogue = e;
  params.d = problem.d;
  params.pitch = problem.d_pitch;
  params.b = problem.b;
  params.decoded = decoded;
  params.first_panel = std::min(params.tiles_n, ceil_div(params.workers, params.band) + 1);
  params.done = reinterpret_cast<std::uint32_t*>(decoded + problem.b.rows * problem.b.depth / 8);
  params.next_chunk = params.done + params.tiles_n;
  const std::int64_t rows = std::min<std::int64_t>(problem.n, std::int64_t{params.first_panel} * T::kTileN), boxes = rows * (problem.b.depth / kMsfpBox);
  if (const int error = launch_overlapped(decode_first, ceil_div(std::max<std::int64_t>(boxes, params.tiles_n + 1), kDecodeThreads), kDecodeThreads, stream,
                                          problem.b, rows, decoded, params.done, params.tiles_n))
    return error;
  CUtensorMap a{}, b{}, d{};
  if (!encode_matrix_map(a, {problem.a.codes, 1, problem.a.pitch(), problem.m, problem.a.pitch(), T::kRowBytesA, T::kTileM}) ||
      !encode_matrix_map(b, {decoded, 2, problem.b.depth, problem.n, problem.b.depth * 2, 128, T::kTileN / T::kCluster}) ||
      (params.boxed && !encode_matrix_map(d, {problem.d, element_bytes, problem.n, problem.m, problem.d_pitch * element_bytes, 128, 16})))
    return cudaErrorInvalidValue;
  if (const cudaError_t error = cudaFuncSetAttribute(msfp_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared)) return error;
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

}  // namespace

int launch_msfp_product(const MsfpProblem& problem, void* decoded, Stream stream) {
  auto* to = static_cast<uint4*>(decoded);
  return problem.a.bits == 8 ? launch<MsfpTile<8>>(problem, to, stream) : launch<MsfpTile<4>>(problem, to, stream);
}

}  // namespace narrow::cuda
