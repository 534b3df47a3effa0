/// MSFP products on Hopper: B decoded to bf16 by one kernel, multiplied by the next.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/msfp_product.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kDecodeThreads = 256;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// A thread per box: 16 codes, in the order of msfp_decode.cuh. Neighbouring threads take neighbouring boxes of a row.
template <int kBits>
__global__ void __launch_bounds__(kDecodeThreads) decode_boxes(const MsfpView b, uint4* __restrict__ decoded) {
  wait_for_previous_kernel();
  const std::int64_t boxes = b.depth / kMsfpBox, index = std::int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x, row = index / boxes;
  if (row >= b.rows) return;
  const int box = static_cast<int>(index - row * boxes);
  const std::uint8_t* from = b.codes + row * b.pitch() + box * (kMsfpBox * kBits / 8);
  const MsfpFactors factors = msfp_factors<kBits>((__ldg(b.exponents + box / 4 * b.exponent_rows() + row) >> (box % 4 * 8)) & 255u, 0);
  std::uint32_t codes[4];
  if constexpr (kBits == 8) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
    codes[0] = words.x, codes[1] = words.y, codes[2] = words.z, codes[3] = words.w;
  } else {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
    codes[0] = words.x, codes[1] = words.x >> 16, codes[2] = words.y, codes[3] = words.y >> 16;
  }
  MsfpPairs pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = msfp_pairs<kBits>(codes[i], factors);
  decoded[index * 2] = {pairs[0].first, pairs[1].first, pairs[2].first, pairs[3].first};
  decoded[index * 2 + 1] = {pairs[0].second, pairs[1].second, pairs[2].second, pairs[3].second};
}

template <class T>
int launch(const MsfpProblem& problem, const void* decoded, Stream stream) {
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
  params.band = std::max(1, 2048 / (T::kTileM * T::kCluster));
  params.boxed = aligned && e.bias == nullptr && e.residual == nullptr && e.activation == Activation::kNone;
  params.exponents = problem.a.exponents;
  params.exponent_rows = problem.a.exponent_rows();
  params.epilogue = e;
  params.d = problem.d;
  params.pitch = problem.d_pitch;
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
  const std::int64_t blocks = (problem.b.rows * (problem.b.depth / kMsfpBox) + kDecodeThreads - 1) / kDecodeThreads;
  const auto decode = problem.b.bits == 8 ? decode_boxes<8> : decode_boxes<4>;
  if (const int error = launch_overlapped(decode, blocks, kDecodeThreads, stream, problem.b, static_cast<uint4*>(decoded))) return error;
  return problem.a.bits == 8 ? launch<MsfpTile<8>>(problem, decoded, stream) : launch<MsfpTile<4>>(problem, decoded, stream);
}

}  // namespace narrow::cuda
