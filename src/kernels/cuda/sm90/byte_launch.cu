/// From a problem and a plan to a launch: tensor maps, the schedule, the instance.

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/byte_kernels.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace narrow::cuda {
namespace {

using namespace sm90;

constexpr int kTileK = 128, kMostRoundsOverlapping = 6;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

BytePair pair_of(const ByteProblem& problem) {
  if (problem.is_int8) return BytePair::kS8S8;
  if (problem.a_is_e5m2) return BytePair::kE5m2E4m3;
  return problem.b_is_e5m2 ? BytePair::kE4m3E5m2 : BytePair::kE4m3E4m3;
}

const ByteInstance* find_instance(const ByteProblem& problem, int config) {
  const std::string_view name = byte_configs()[static_cast<std::size_t>(config)].name;
  const auto find = [&](ByteScaling scaling) -> const ByteInstance* {
    for (const auto& list : {fp8_tile_scaled(), fp8_tile_scaled_small(), fp8_other(), int8_instances()})
      for (const ByteInstance& instance : list)
        if (instance.config == name && instance.scaling == scaling && instance.pair == pair_of(problem)) return &instance;
    return nullptr;
  };
  const ByteInstance* found = find(problem.scaling);
  return found == nullptr && problem.scaling == ByteScaling::kOuterFast ? find(ByteScaling::kOuter) : found;  // promoting is never wrong
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
  const ByteConfig& c = byte_configs()[static_cast<std::size_t>(config)];
  if (c.use == TileUse::kFewRows) return takes_few_rows(problem);
  return find_instance(problem, config) != nullptr && (!c.swapped() || problem.grouping == ByteGrouping::kNone) &&
         c.is_col32() == problem.a_is_col32 && !(c.swapped() && problem.d_is_col32);
}

ByteDevice byte_device() {
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor, 0), minor = device_attribute(cudaDevAttrComputeCapabilityMinor, -1);
  return {major == 9 && minor == 0, major >= 8, multiprocessors()};
}

int launch_byte_product(const ByteProblem& problem, const BytePlan& plan, Stream stream) {
  const ByteConfig& c = byte_configs()[static_cast<std::size_t>(plan.config)];
  if (c.use == TileUse::kFewRows) return launch_few_rows(problem, stream);
  const ByteInstance* instance = find_instance(problem, plan.config);
  if (instance == nullptr || tensor_map_encoder() == nullptr) return cudaErrorNotSupported;
  const int k_blocks = ceil_div(problem.k, kTileK), cluster = c.cluster_m * c.cluster_n;
  CUtensorMap a{}, b{}, sa{}, sb{}, sa4{}, d{};  // of the left and the right operand, their scales, four scales of the left, the output
  const bool few_rows_of_a = problem.is_int8 && !problem.a_is_col32;  // ByteTile::kFewRowsOfA, kSwapped
  const int rows_a = c.swapped()     ? std::min(c.tile_n, problem.m)
                     : few_rows_of_a ? std::min(c.tile_m, problem.m)
                                     : c.tile_m / c.cluster_n,
            rows_b = c.swapped() ? c.tile_m : c.tile_n / c.cluster_m;
  // Where memory is the bound, fetching ahead is 1 to 2 % slower; of 17 to 64 rows of A it is not.
  const bool memory_bound =
      c.swapped() || (!problem.is_int8 && problem.grouping == ByteGrouping::kNone && problem.m > 64 && problem.m <= 128);
  const auto codes = [&](const void* data, std::int64_t rows, std::int64_t pitch, int box_rows) {
    MatrixMap map{data, 1, problem.k, rows, pitch, kTileK, box_rows};
    map.fetches_ahead = !memory_bound;
    return map;
  };
  const auto scales = [&](const float* data, std::int64_t rows, int box) {
    return MatrixMap{data, 4, rows, k_blocks, rows * 4, box * 4, 1, false};
  };
  MatrixMap map_a = codes(problem.a, rows_of_a(problem), problem.a_pitch, rows_a);
  // Four rows of a stripe, which lie side by side, are copied as one line of 128 bytes: copies take as long for either. What the 128-byte
  // swizzle exchanges inside of a row is what the 32-byte one would, and rows (FragmentRows).
  const int line_rows = problem.a_is_col32 && problem.m % 4 == 0 ? 4 : 1;
  if (problem.a_is_col32) {
    map_a = {problem.a, 1, 32 * line_rows, problem.m / line_rows, 32 * line_rows, 32 * line_rows, c.tile_m / line_rows};
    map_a.stripes = {.pitch = std::int64_t{problem.m} * 32, .count = ceil_div(problem.k, 32), .box = kTileK / 32};
  }
  bool encoded = encode_matrix_map(c.swapped() ? b : a, map_a) &&
                 encode_matrix_map(c.swapped() ? a : b, codes(problem.b, rows_of_b(problem), problem.b_pitch, rows_b));
  if (!is_outer(problem.scaling))
    encoded = encoded &&
              encode_matrix_map(c.swapped() ? sb : sa, scales(problem.a_scales, problem.a_scale_rows, c.swapped() ? c.tile_n : c.tile_m));
  if (!is_outer(problem.scaling) && problem.grouping == ByteGrouping::kRowOffsets)
    encoded = encoded && encode_matrix_map(sa4, scales(problem.a_scales, problem.a_scale_rows, 4));
  if (problem.scaling == ByteScaling::kBlockBlock)
    encoded = encoded &&
              encode_matrix_map(c.swapped() ? sa : sb, scales(problem.b_scales, problem.b_scale_rows, c.swapped() ? c.tile_m : c.tile_n));
  const ByteEpilogue& e = problem.epilogue;
  const int element_bytes = e.out == DType::kF32 || e.out == DType::kI32 ? 4 : (e.out == DType::kF16 || e.out == DType::kBf16 ? 2 : 1);
  const bool aligned = reinterpret_cast<std::uintptr_t>(problem.d) % 16 == 0 &&
                       (problem.d_is_col32 || (problem.d_pitch * element_bytes % 16 == 0 && problem.n * element_bytes % 16 == 0));
  const bool simple = (e.activation == Activation::kNone || e.activation == Activation::kRelu) && e.residual == nullptr && !e.accumulate;
  // Boxes of bytes have 128 columns; divisions of a plain range.
  const bool bytes_fit = element_bytes > 1 || (instance->byte_boxes && e.out_scale >= 0x1p-40f && e.out_scale <= 0x1p40f);
  const bool boxed = aligned && simple && bytes_fit;
  // Tiles may overlap where a result is not what another is made of. Stripes of D are stored in chunks, each of which must lie in one. In
  // large products zeros save power: there it is 1 % slower.
  const bool overlapping = problem.is_int8 && problem.grouping == ByteGrouping::kNone && e.residual == nullptr && !e.accumulate &&
                           (!problem.d_is_col32 || problem.n % 32 == 0) && plan.tiles <= kMostRoundsOverlapping * plan.workers;
  const bool plain =
      boxed && e.bias == nullptr && e.activation == Activation::kNone && problem.a_zeros == nullptr && problem.b_zeros == nullptr;
  const bool shifted = boxed && !plain && problem.is_int8 && e.activation == Activation::kNone && problem.b_zeros == nullptr;
  ByteKernel kernel = nullptr;
  if (plain)
    kernel = element_bytes == 2 ? instance->plain : e.out == DType::kI8 ? instance->bytes : e.out == DType::kI32 ? instance->sums : nullptr;
  if (shifted && element_bytes == 2) kernel = instance->shifted;
  // Kernels of integers that store straight from registers (DirectOf): whole blocks of columns, and D in stripes where A is.
  const int span = span_of(element_bytes, c.tile_n), rest = c.tile_n % (8 * span);
  const bool staged = plain && element_bytes == 2 && !instance->plain_is_direct;
  const bool direct = kernel != nullptr && !staged && problem.n % (8 * span) == 0 && problem.d_is_col32 == problem.a_is_col32;
  if (direct) {
    MatrixMap map_b = codes(problem.b, rows_of_b(problem), problem.b_pitch, c.tile_n - rest);
    map_b.span = span;
    encoded = encoded && encode_matrix_map(b, map_b);
    map_b.box_rows = rest;
    map_b.span = span / 2;
    if (rest > 0) encoded = encoded && encode_matrix_map(sb, map_b);
  }
  if (kernel == nullptr || (!staged && !direct)) kernel = instance->kernel;
  if (boxed && !direct && !problem.d_is_col32)
    encoded = encoded &&
              encode_matrix_map(d, {problem.d, element_bytes, problem.n, rows_of_d(problem), problem.d_pitch * element_bytes, 128, 16});
  if (!encoded) return cudaErrorInvalidValue;

  const bool known = problem.grouping == ByteGrouping::kNone || problem.grouping == ByteGrouping::kDepth;
  if (known && plan.tiles == 0) return cudaSuccess;
  const int workers = known ? std::min(plan.workers, plan.tiles * plan.parts) : plan.workers;
  ByteParams params{};
  const int left = c.swapped() ? problem.n : problem.m, right = c.swapped() ? problem.m : problem.n;
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
                     .offsets = problem.offsets,
                     .overlapping = overlapping};
  ByteOuter outer = outer_of(problem);
  if (c.swapped())
    outer = {outer.b_scales, outer.a_scales, outer.b_step, outer.a_step, outer.b_zeros, outer.a_zeros, outer.b_sums, outer.a_sums, outer.k};
  const float inverse = 1.0f / e.out_scale, inverse_rest = std::fma(-e.out_scale, inverse, 1.0f) / e.out_scale;
  params.out = {.epilogue = e,
                .inverse = inverse,
                .inverse_rest = inverse_rest,
                .outer = outer,
                .d = problem.d,
                .pitch = problem.d_pitch,
                .residual_pitch = problem.n,
                .n = right,
                .rows_end_with_d = problem.grouping == ByteGrouping::kNone,
                .boxed = boxed,
                .plain = plain,
                .shifted = shifted,
                .storer = boxed && (!known || plan.tiles > workers),
                .col32 = problem.d_is_col32,
                .exchanged = line_rows == 4,
                .d_rows = problem.m};
  params.b_scales = problem.b_scales;
  params.m = left;
  params.n = right;
  params.k_blocks = k_blocks;
  params.d_group_rows = problem.m;
  params.a_line_shift = line_rows == 4 ? 2 : 0;

  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->shared_bytes))
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
  return cudaLaunchKernelEx(&launch, kernel, params, a, b, sa, sb, sa4, d);
}

}  // namespace narrow::cuda
