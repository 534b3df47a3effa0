#include "intervals.h"

#include <bit>

#include "harness.h"

namespace narrow::cuda::testing {
namespace {

struct Found {
  unsigned long long count;
  std::uint32_t example;
};

__global__ void fill_bits(std::uint32_t* x, std::uint32_t first, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] = first + static_cast<std::uint32_t>(i);
}

/// Code i of packed ones, the low bits first.
__device__ std::uint32_t code_at(const std::uint8_t* codes, int bits, std::int64_t i) {
  const std::int64_t bit = i * bits;
  const int shift = static_cast<int>(bit % 8);
  std::uint32_t window = 0;
  for (int byte = 0; 8 * byte < shift + bits; ++byte) window |= std::uint32_t{codes[bit / 8 + byte]} << (8 * byte);
  return (window >> shift) & ((1u << bits) - 1u);
}

__global__ void compare(const std::uint8_t* codes, int bits, const std::uint32_t* lower, std::uint32_t codes_per_sign, std::uint32_t nan,
                        std::uint32_t negative_nan, std::uint32_t first, std::int64_t count, Found* found) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const std::uint32_t input = first + static_cast<std::uint32_t>(i), magnitude = input & 0x7FFFFFFFu, sign = input >> 31;
    const std::uint32_t code = code_at(codes, bits, i), number = code & ((1u << (bits - 1)) - 1u);
    const bool same = magnitude > 0x7F800000u ? code == (sign ? negative_nan : nan)
                                              : code >> (bits - 1) == sign && number < codes_per_sign && lower[number] <= magnitude &&
                                                    (number + 1 == codes_per_sign || magnitude < lower[number + 1]);
    if (!same) {
      atomicAdd(&found->count, 1ull);
      found->example = input;
    }
  }
}

}  // namespace

Intervals intervals_of(const Format& format) {
  Intervals result{
      format.bits, {0u}, {encode(format, std::bit_cast<float>(0x7FC00000u)), encode(format, std::bit_cast<float>(0xFFC00000u))}};
  for (std::uint32_t code = 1; code <= format.max_code(); ++code) {
    // The middle of two neighbours has at most 12 significant bits: exact. It belongs to the even code.
    const float middle = static_cast<float>((double{decode(format, code - 1)} + double{decode(format, code)}) / 2);
    result.lower.push_back(std::bit_cast<std::uint32_t>(middle) + (code % 2 == 0 ? 0u : 1u));
  }
  return result;
}

void fill_with_bits(const Tensor& x, std::uint32_t first, Stream stream) {
  fill_bits<<<2048, 256, 0, stream>>>(reinterpret_cast<std::uint32_t*>(x.data()), first, x.size());
}

std::int64_t count_differences(const Intervals& intervals, const void* codes, std::uint32_t first, std::int64_t count,
                               std::uint32_t& example, Stream stream) {
  const Tensor host = Tensor::empty(DType::kU8, {static_cast<std::int64_t>(intervals.lower.size() * 4)});
  std::copy(intervals.lower.begin(), intervals.lower.end(), reinterpret_cast<std::uint32_t*>(host.data()));
  const Tensor lower = to_device(host, kDevice, stream);
  const Tensor nothing = Tensor::empty(DType::kU8, {sizeof(Found)});
  std::fill_n(nothing.data(), sizeof(Found), std::byte{0});
  const Tensor found = to_device(nothing, kDevice, stream);
  compare<<<2048, 256, 0, stream>>>(static_cast<const std::uint8_t*>(codes), intervals.bits,
                                    reinterpret_cast<const std::uint32_t*>(lower.data()),
                                    static_cast<std::uint32_t>(intervals.lower.size()), intervals.nan[0], intervals.nan[1], first, count,
                                    reinterpret_cast<Found*>(found.data()));
  const Tensor back = to_host(found, stream);
  const Found& result = *reinterpret_cast<const Found*>(back.data());
  example = result.example;
  return static_cast<std::int64_t>(result.count);
}

}  // namespace narrow::cuda::testing
