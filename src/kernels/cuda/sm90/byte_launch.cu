/// From a problem and a plan to a launch: tensor maps, the schedule, the instance.

#include <algorithm>
#include <array>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/byte_kernels.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kTileK = 128;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

BytePair pair_of(const ByteProblem& problem) {
  if (problem.a_is_e5m2) return BytePair::kE5m2E4m3;
  return problem.b_is_e5m2 ? BytePair::kE4m3E5m2 : BytePair::kE4m3E4m3;
}

const ByteInstance* find_instance(const ByteProblem& problem, int config) {
  for (const auto& list : {fp8_tile_scaled(), fp8_other()})
    for (const ByteInstance& instance : list)
      if (instance.config == config && instance.scaling == problem.scaling && instance.pair == pair_of(problem)) return &instance;
  return nullptr;
}

/// cuTensorMapEncodeTiled, from the driver that is there: the library does not link it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found) != cudaSuccess)
      return PFN_cuTensorMapEncodeTiled_v12000{};
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
  }();
  return function;
}

enum class Element : std::uint8_t { kByte, k16Bit, kFloat };

/// A matrix of `rows` rows of `columns` elements, `pitch` bytes apart, copied in boxes; rows of 128 bytes are swizzled.
bool encode_map(CUtensorMap& map, const void* data, Element element, std::int64_t columns, std::int64_t rows, std::int64_t pitch,
                int box_columns, int box_rows) {
  constexpr CUtensorMapDataType kTypes[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   strides[1] = {static_cast<cuuint64_t>(pitch)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  return encoder()(&map, kTypes[static_cast<int>(element)], 2, const_cast<void*>(data), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, element == Element::kFloat ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

std::int64_t rows_of_a(const ByteProblem& p) { return p.grouping == ByteGrouping::kRowCounts ? std::int64_t{p.groups} * p.m : p.m; }
std::int64_t rows_of_d(const ByteProblem& p) {
  return p.grouping == ByteGrouping::kRowCounts || p.grouping == ByteGrouping::kDepth ? std::int64_t{p.groups} * p.m : p.m;
}
std::int64_t rows_of_b(const ByteProblem& p) {
  return p.grouping == ByteGrouping::kRowCounts || p.grouping == ByteGrouping::kRowOffsets ? std::int64_t{p.groups} * p.n : p.n;
}

}  // namespace

bool has_byte_config(const ByteProblem& problem, int config) {
  return find_instance(problem, config) != nullptr &&
         (!byte_configs()[static_cast<std::size_t>(config)].swapped || problem.grouping == ByteGrouping::kNone);
}

ByteDevice byte_device() {
  return {device_attribute(cudaDevAttrComputeCapabilityMajor, 0) == 9 && device_attribute(cudaDevAttrComputeCapabilityMinor, -1) == 0,
          multiprocessors()};
}

int launch_byte_product(const ByteProblem& problem, const BytePlan& plan, Stream stream) {
  const ByteConfig& c = byte_configs()[static_cast<std::size_t>(plan.config)];
  const ByteInstance* instance = find_instance(problem, plan.config);
  if (instance == nullptr || encoder() == nullptr) return cudaErrorNotSupported;
  const int k_blocks = ceil_div(problem.k, kTileK), cluster = c.cluster_m * c.cluster_n;
  CUtensorMap a{}, b{}, sa{}, sb{}, sa4{}, d{};  // of the left and the right operand, their scales, four scales of the left, the output
  const int rows_a = c.swapped ? c.tile_n : c.tile_m / c.cluster_n, rows_b = c.swapped ? c.tile_m : c.tile_n / c.cluster_m;
  bool encoded = encode_map(c.swapped ? b : a, problem.a, Element::kByte, problem.k, rows_of_a(problem), problem.a_pitch, kTileK, rows_a) &&
                 encode_map(c.swapped ? a : b, problem.b, Element::kByte, problem.k, rows_of_b(problem), problem.b_pitch, kTileK, rows_b);
  if (problem.scaling != ByteScaling::kOuter)
    encoded = encoded && encode_map(c.swapped ? sb : sa, problem.a_scales, Element::kFloat, problem.a_scale_rows, k_blocks,
                                    problem.a_scale_rows * 4, c.swapped ? c.tile_n : c.tile_m, 1);
  if (problem.scaling != ByteScaling::kOuter && problem.grouping == ByteGrouping::kRowOffsets)
    encoded = encoded && encode_map(sa4, problem.a_scales, Element::kFloat, problem.a_scale_rows, k_blocks, problem.a_scale_rows * 4, 4, 1);
  if (problem.scaling == ByteScaling::kBlockBlock)
    encoded = encoded && encode_map(c.swapped ? sa : sb, problem.b_scales, Element::kFloat, problem.b_scale_rows, k_blocks,
                                    problem.b_scale_rows * 4, c.swapped ? c.tile_m : c.tile_n, 1);
  const ByteEpilogue& e = problem.epilogue;
  const bool is_16_bit = e.out == DType::kBf16 || e.out == DType::kF16;
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 && problem.d_pitch % 8 == 0 && problem.n % 8 == 0;
  const bool plain = e.bias == nullptr && e.activation == Activation::kNone && e.residual == nullptr && !e.accumulate;
  const bool vector_stores = is_16_bit && aligned && plain;
  if (vector_stores)
    encoded = encoded && encode_map(d, problem.d, Element::k16Bit, problem.n, rows_of_d(problem), problem.d_pitch * 2, 64, 16);
  if (!encoded) return cudaErrorInvalidValue;

  const bool known = problem.grouping == ByteGrouping::kNone || problem.grouping == ByteGrouping::kDepth;
  if (known && plan.tiles == 0) return cudaSuccess;
  const int workers = known ? std::min(plan.workers, plan.tiles * plan.parts) : plan.workers;
  ByteParams params{};
  const int left = c.swapped ? problem.n : problem.m, right = c.swapped ? problem.m : problem.n;
  params.schedule = {.tiles_m = ceil_div(left, c.tile_m * c.cluster_m),
                     .tiles_n = ceil_div(right, c.tile_n * c.cluster_n),
                     .k_blocks = k_blocks,
                     .workers = workers,
                     .tiles = plan.tiles,
                     .parts = plan.parts,
                     .band = std::max(1, 2048 / (c.tile_m * c.cluster_m)),
                     .tile_m = c.tile_m * c.cluster_m,
                     .rows = problem.m,
                     .groups = problem.groups,
                     .grouping = problem.grouping,
                     .offsets = problem.offsets};
  params.out = {.epilogue = e,
                .a_scales = c.swapped ? problem.b_scales : problem.a_scales,
                .b_scales = c.swapped ? problem.a_scales : problem.b_scales,
                .a_scale_step = c.swapped ? problem.b_scale_step : problem.a_scale_step,
                .b_scale_step = c.swapped ? problem.a_scale_step : problem.b_scale_step,
                .d = problem.d,
                .pitch = problem.d_pitch,
                .residual_pitch = problem.n,
                .n = right,
                .rows_end_with_d = problem.grouping == ByteGrouping::kNone,
                .vector_stores = vector_stores};
  params.b_scales = problem.b_scales;
  params.m = left;
  params.n = right;
  params.k_blocks = k_blocks;
  params.d_group_rows = problem.m;

  if (const cudaError_t error = cudaFuncSetAttribute(instance->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->shared_bytes))
    return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster * plan.parts), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(workers * cluster));
  launch.blockDim = dim3(static_cast<unsigned>(instance->threads));
  launch.dynamicSmemBytes = static_cast<std::size_t>(instance->shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = cluster * plan.parts > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&launch, instance->kernel, params, a, b, sa, sb, sa4, d);
}

}  // namespace narrow::cuda
