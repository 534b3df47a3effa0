#pragma once
/// The listed instantiations of the Hopper product with prepared weights.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <array>

#include "kernels/cuda/sm90/weight_main.cuh"
#include "kernels/cuda/sm90/weight_split.cuh"

namespace narrow::cuda::sm90 {

using WeightKernel = void (*)(WeightParams, CUtensorMap, CUtensorMap);

/// One compiled kernel.
struct WeightInstance {
  int config;  ///< its number in weight_configs()
  WeightKind kind;
  int bits, mantissa;
  bool any, bf16;  ///< any: floats whose mantissa is known at run time
  WeightKernel kernel;
  int threads, token_bytes;  ///< token_bytes: of a slot of tokens; 0: a stream
  int depth_groups;          ///< warpgroups of a row group, which take chunks in turn
  int (*shared_bytes)(int weight_slots, int token_slots, int chunk_bytes, int parts);
};

template <int kConfig, class T>
constexpr WeightInstance tile() {
  using D = typename T::Decode;
  return {kConfig,           D::kKind,    D::kBits,       D::kMantissa,    D::kAny,        T::kBf16,
          weight_product<T>, T::kThreads, T::kTokenBytes, T::kDepthGroups, T::shared_bytes};
}
template <int kConfig, class T>
constexpr WeightInstance stream() {
  using D = typename T::Decode;
  return {kConfig, D::kKind, D::kBits, D::kMantissa, D::kAny, T::kBf16, weight_stream<T>, T::kThreads, 0, 1, nullptr};
}
template <int kConfig, class D, bool kBf16, int kTokens>
constexpr WeightInstance split() {
  WeightKernel kernel = nullptr;
  if constexpr (kTokens < 32)
    kernel = weight_split<StreamTile<D, kBf16, kTokens, true>>;
  else
    kernel = weight_split_wide<WeightTile<D, kBf16, kTokens>>;
  return {kConfig, D::kKind, D::kBits, D::kMantissa, D::kAny, kBf16, kernel, kSplitThreads, 0, 1, nullptr};
}

/// All configurations of a decoder.
template <class D, bool kBf16>
constexpr std::array<WeightInstance, 14> all_tiles() {
  return {stream<0, StreamTile<D, kBf16, 8>>(),
          stream<1, StreamTile<D, kBf16, 16>>(),
          stream<2, StreamTile<D, kBf16, 32>>(),
          tile<3, WeightTile<D, kBf16, 32, 2, false, 2>>(),
          tile<4, WeightTile<D, kBf16, 64, 2, false, 2>>(),
          tile<5, WeightTile<D, kBf16, 128>>(),
          tile<6, WeightTile<D, kBf16, 256>>(),
          tile<7, WeightTile<D, kBf16, 128, 3>>(),
          tile<8, WeightTile<D, kBf16, 128, 2, true>>(),
          tile<9, WeightTile<D, kBf16, 32, 4>>(),
          tile<10, WeightTile<D, kBf16, 64, 4>>(),
          split<11, D, kBf16, 8>(),
          split<12, D, kBf16, 16>(),
          split<13, D, kBf16, 32>()};
}
/// Some of them, for formats that are less used: compile time.
template <class D, bool kBf16>
constexpr std::array<WeightInstance, 10> some_tiles() {
  return {stream<0, StreamTile<D, kBf16, 8>>(),
          stream<1, StreamTile<D, kBf16, 16>>(),
          stream<2, StreamTile<D, kBf16, 32>>(),
          tile<3, WeightTile<D, kBf16, 32, 2, false, 2>>(),
          tile<4, WeightTile<D, kBf16, 64, 2, false, 2>>(),
          tile<5, WeightTile<D, kBf16, 128>>(),
          tile<6, WeightTile<D, kBf16, 256>>(),
          tile<8, WeightTile<D, kBf16, 128, 2, true>>(),
          split<11, D, kBf16, 8>(),
          split<12, D, kBf16, 16>()};
}
/// Without scales and decoding: 64 tokens are bound by memory with two warpgroups.
template <class D, bool kBf16>
constexpr std::array<WeightInstance, 7> dense_tiles() {
  return {stream<0, StreamTile<D, kBf16, 8>>(),   stream<1, StreamTile<D, kBf16, 16>>(), stream<2, StreamTile<D, kBf16, 32>>(),
          tile<4, WeightTile<D, kBf16, 64>>(),    tile<5, WeightTile<D, kBf16, 128>>(),  tile<6, WeightTile<D, kBf16, 256>>(),
          tile<7, WeightTile<D, kBf16, 128, 3>>()};
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
template <int kBits, int kMantissa = stored_mantissa(kBits)>
using Floats = Decoder<WeightKind::kFloat, kBits, false, kMantissa>;
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
