/// The listed Hopper kernels of products of bits: from a problem to a launch.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/bit_product.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

using BitKernel = void (*)(BitParams, CUtensorMap, CUtensorMap, CUtensorMap);

struct BitInstance {
  BitKernel kernel;
  int shared_bytes, threads, stages;
};
template <class T>
constexpr BitInstance instance() {
  return {bit_product<T>, T::kShared, T::kThreads, T::kStages};
}
/// In the order of bit_configs().
const BitInstance kInstances[] = {instance<BitTile<256, 4, 1>>(), instance<BitTile<256, 4, 2>>(), instance<BitTile<128, 5, 1>>(),
                                  instance<BitTile<64, 7, 1>>()};

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

int launch_bit_product(const BitProblem& problem, int config, Stream stream) {
  if (problem.m == 0 || problem.n == 0) return cudaSuccess;
  const BitConfig& c = bit_configs()[static_cast<std::size_t>(config)];
  const BitInstance& instance = kInstances[config];
  if (tensor_map_encoder() == nullptr) return cudaErrorNotSupported;
  const ByteEpilogue& e = problem.epilogue;
  const int element_bytes = e.out == DType::kF32 || e.out == DType::kI32 ? 4 : 2, k_bytes = ceil_div(problem.k, 8);
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 && problem.d_pitch * element_bytes % 16 == 0;
  const bool boxed = aligned && e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
  CUtensorMap a{}, b{}, d{};
  if (!encode_matrix_map(a, {problem.a, 1, k_bytes, problem.m, problem.a_pitch, 128, c.tile_m}) ||
      !encode_matrix_map(b, {problem.b, 1, k_bytes, problem.n, problem.b_pitch, 128, c.tile_n / c.cluster}) ||
      (boxed && !encode_matrix_map(d, {problem.d, element_bytes, problem.n, problem.m, problem.d_pitch * element_bytes, 128, 16})))
    return cudaErrorInvalidValue;

  BitParams params{};
  params.m = problem.m;
  params.n = problem.n;
  params.k = problem.k;
  params.blocks = ceil_div(problem.k, 1024);
  params.tiles_m = ceil_div(problem.m, c.tile_m * c.cluster);
  params.tiles_n = ceil_div(problem.n, c.tile_n);
  params.tiles = params.tiles_m * params.tiles_n;
  params.workers = std::min(multiprocessors() / c.cluster, params.tiles);
  params.band = 4096 / (c.tile_m * c.cluster);
  params.chunk = instance.stages;
  params.boxed = boxed;
  params.a_terms = problem.a_terms;
  params.b_terms = problem.b_terms;
  params.epilogue = e;
  params.d = problem.d;
  params.pitch = problem.d_pitch;

  if (const cudaError_t error = cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance.shared_bytes))
    return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(c.cluster), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(params.workers * c.cluster));
  launch.blockDim = dim3(static_cast<unsigned>(instance.threads));
  launch.dynamicSmemBytes = static_cast<std::size_t>(instance.shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = c.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&launch, instance.kernel, params, a, b, d);
}

}  // namespace narrow::cuda
