#pragma once
/// The listed instantiations of the Hopper product with prepared weights.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <array>

#include "kernels/cuda/sm90/weight_main.cuh"

namespace narrow::cuda::sm90 {

using WeightKernel = void (*)(WeightParams, CUtensorMap, CUtensorMap);

/// One compiled kernel.
struct WeightInstance {
  int config;  ///< its number in weight_configs()
  WeightKind kind;
  int bits;
  bool any, bf16;  ///< any: floats whose mantissa is known at run time
  WeightKernel kernel;
  int threads, token_bytes, store_bytes, partial_bytes;
  int (*shared_bytes)(int weight_slots, int token_slots, int chunk_bytes, int parts);
};

template <int kConfig, class T>
constexpr WeightInstance instance() {
  return {kConfig,          T::Decode::kKind, T::kBits,       T::Decode::kAny, T::kBf16,        weight_product<T>,
          T::kThreads,      T::kTokenBytes,   T::kStoreBytes, T::kPartialBytes, T::shared_bytes};
}

/// All configurations of a decoder.
template <class D, bool kBf16>
constexpr std::array<WeightInstance, 6> all_tiles() {
  return {instance<0, WeightTile<D, kBf16, 8, 1, 4>>(),   instance<1, WeightTile<D, kBf16, 16, 2, 2>>(),
          instance<2, WeightTile<D, kBf16, 32, 2, 2>>(),  instance<3, WeightTile<D, kBf16, 64, 2, 1>>(),
          instance<4, WeightTile<D, kBf16, 128, 2, 1>>(), instance<5, WeightTile<D, kBf16, 256, 2, 1>>()};
}
/// Some of them, for formats that are less used: compile time.
template <class D, bool kBf16>
constexpr std::array<WeightInstance, 3> some_tiles() {
  return {instance<0, WeightTile<D, kBf16, 8, 1, 4>>(), instance<2, WeightTile<D, kBf16, 32, 2, 2>>(),
          instance<4, WeightTile<D, kBf16, 128, 2, 1>>()};
}

template <std::size_t... kSizes>
constexpr auto join(const std::array<WeightInstance, kSizes>&... lists) {
  std::array<WeightInstance, (kSizes + ...)> all{};
  std::size_t at = 0;
  const auto add = [&](const auto& list) {
    for (const WeightInstance& one : list) all[at++] = one;
  };
  (add(lists), ...);
  return all;
}

template <int kBits>
using Integers = Decoder<WeightKind::kInteger, kBits>;
template <int kBits>
using Floats = Decoder<WeightKind::kFloat, kBits>;
template <int kBits>
using AnyFloats = Decoder<WeightKind::kFloat, kBits, true>;
using Dense = Decoder<WeightKind::kDense, 16>;

// One list per file of weight_instances/.
std::span<const WeightInstance> weight_int2();
std::span<const WeightInstance> weight_int3();
std::span<const WeightInstance> weight_int4();
std::span<const WeightInstance> weight_int8();
std::span<const WeightInstance> weight_fp3();
std::span<const WeightInstance> weight_fp4();
std::span<const WeightInstance> weight_fp5();
std::span<const WeightInstance> weight_fp6();
std::span<const WeightInstance> weight_fp8();
std::span<const WeightInstance> weight_any_fp4();
std::span<const WeightInstance> weight_any_fp5();
std::span<const WeightInstance> weight_any_fp6();
std::span<const WeightInstance> weight_any_fp8();
std::span<const WeightInstance> weight_dense();

}  // namespace narrow::cuda::sm90
