/// MSFP matrices from canonical codes to the layout of products, and back.
/// Mapping:  a thread per box of 16.     Bound: memory.     Meaning: msfp_product.h; the inverse is exact.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/msfp_product.h"

namespace narrow::cuda {
namespace {

constexpr int kThreads = 256;

/// Where a box of a matrix lies.
struct BoxPlace {
  std::int64_t row;
  int box;
};
__device__ BoxPlace box_here(std::int64_t boxes) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / boxes;
  return {row, static_cast<int>(index - row * boxes)};
}
__device__ std::uint8_t* exponent_at(const MsfpView& v, const BoxPlace& at) {
  return reinterpret_cast<std::uint8_t*>(const_cast<std::uint32_t*>(v.exponents) + at.box / 4 * v.exponent_rows() + at.row) + at.box % 4;
}
__device__ std::int64_t row_bytes(const MsfpCanonical& c) { return (c.cols * c.bits + 7) / 8; }
__device__ std::int64_t boxes_of(const MsfpCanonical& c) { return (c.cols + kMsfpBox - 1) / kMsfpBox; }

__global__ void __launch_bounds__(kThreads) prepare(const MsfpCanonical from, const MsfpView to, bool copies_codes) {
  const BoxPlace at = box_here(to.depth / kMsfpBox);
  if (at.row >= to.exponent_rows()) return;
  const bool real = at.row < from.rows && at.box < boxes_of(from);
  *exponent_at(to, at) = real ? from.exponents[at.row * boxes_of(from) + at.box] : std::uint8_t{0};
  if (!copies_codes || at.row >= from.rows) return;
  const int count = real ? static_cast<int>(min(std::int64_t{kMsfpBox}, from.cols - std::int64_t{at.box} * kMsfpBox)) : 0;
  const std::uint8_t* source = from.codes + at.row * row_bytes(from) + std::int64_t{at.box} * 2 * from.bits;
  std::uint8_t* target = const_cast<std::uint8_t*>(to.codes) + at.row * to.pitch() + std::int64_t{at.box} * 2 * to.bits;
  const int magnitude_bits = from.bits - 1, shift = to.bits - from.bits;
  std::uint32_t window = 0, byte = 0;
  int held = 0;
  for (int i = 0; i < kMsfpBox; ++i) {
    std::uint32_t stored = 0;
    if (i < count) {
      if (held < from.bits) window |= static_cast<std::uint32_t>(*source++) << held, held += 8;
      const std::uint32_t code = window & ((1u << from.bits) - 1u);
      window >>= from.bits;
      held -= from.bits;
      stored = (code >> magnitude_bits) << (to.bits - 1) | (code & ((1u << magnitude_bits) - 1u)) << shift;
    }
    if (to.bits == 8)
      target[i] = static_cast<std::uint8_t>(stored);
    else if (i % 2 == 0)
      byte = stored;
    else
      target[i / 2] = static_cast<std::uint8_t>(byte | stored << 4);
  }
}

__global__ void __launch_bounds__(kThreads) unprepare(const MsfpView from, const MsfpCanonical to) {
  const BoxPlace at = box_here(boxes_of(to));
  if (at.row >= to.rows) return;
  to.exponents[at.row * boxes_of(to) + at.box] = *exponent_at(from, at);
  const int count = static_cast<int>(min(std::int64_t{kMsfpBox}, to.cols - std::int64_t{at.box} * kMsfpBox));
  const std::uint8_t* source = from.codes + at.row * from.pitch() + std::int64_t{at.box} * 2 * from.bits;
  std::uint8_t* target = to.codes + at.row * row_bytes(to) + std::int64_t{at.box} * 2 * to.bits;
  const int magnitude_bits = to.bits - 1, shift = from.bits - to.bits;
  std::uint32_t window = 0;
  int held = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t stored = from.bits == 8 ? source[i] : (source[i / 2] >> (i % 2 * 4)) & 15u;
    const std::uint32_t magnitude = (stored & ((1u << (from.bits - 1)) - 1u)) >> shift;
    window |= ((stored >> (from.bits - 1)) << magnitude_bits | magnitude) << held;
    for (held += to.bits; held >= 8; held -= 8, window >>= 8) *target++ = static_cast<std::uint8_t>(window);
  }
  if (held > 0) *target = static_cast<std::uint8_t>(window);
}

std::int64_t blocks_for(std::int64_t boxes) { return (boxes + kThreads - 1) / kThreads; }

}  // namespace

int launch_prepare_msfp(const MsfpCanonical& from, const MsfpView& to, Stream stream) {
  return launch_kernel(prepare, blocks_for(to.exponent_rows() * (to.depth / kMsfpBox)), kThreads, stream, from, to, to.codes != from.codes);
}

int launch_unprepare_msfp(const MsfpView& from, const MsfpCanonical& to, Stream stream) {
  return launch_kernel(unprepare, blocks_for(to.rows * ((to.cols + kMsfpBox - 1) / kMsfpBox)), kThreads, stream, from, to);
}

}  // namespace narrow::cuda
