#pragma once
/// What the GPU tests share: guarded and poisoned device memory at any byte offset, random values with all the corners, comparison.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "narrow/cuda.h"
#include "narrow/error.h"

namespace narrow::cuda::testing {

/// Skips where there is no device, with one line.
#define NARROW_REQUIRE_DEVICE() \
  if (device_count() == 0) GTEST_SKIP() << "no CUDA device"

inline constexpr Device kDevice = Device::cuda(0);
inline constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

/// Device memory between two guard bands; everything starts as 0xA5. check() fails where a guard changed.
class Guarded {
 public:
  Guarded(std::size_t size, std::size_t byte_offset, Stream stream);
  Buffer buffer() const;
  std::byte* data() const;
  void check(Stream stream, const std::string& what) const;

 private:
  static constexpr std::size_t kBand = 512;
  std::size_t size_, offset_;
  Buffer memory_;
};

enum class Values { kNormal, kWide, kTies, kNonFinite };

/// Random values in a type; rows of zeros, signed zeros and subnormals among them.
Tensor random_values(DType dtype, const Shape& shape, Values values, unsigned seed);

/// The device's codes, scales, zero points and outer scale against the CPU's, bytewise.
void expect_equal(const QuantizedTensor& expected, const DeviceQuantized& actual, Stream stream, const std::string& what);
/// Tensors of equal bytes.
void expect_equal(const Tensor& expected, const Tensor& actual, const std::string& what);

/// Codes, scales, zero points and outer scale in guarded memory.
struct GuardedQuantized {
  GuardedQuantized(const Scheme& scheme, const Shape& shape, std::size_t byte_offset, Stream stream);
  void check(Stream stream, const std::string& what) const;
  Guarded codes, scales, zero_points, outer_scale;
  DeviceQuantized q;
};

/// x on the device in guarded memory: byte_offset elements off alignment, rows row_gap elements apart.
struct GuardedValues {
  GuardedValues(const Tensor& host, std::int64_t element_offset, std::int64_t row_gap, Stream stream);
  Guarded memory;
  Tensor x;
};

}  // namespace narrow::cuda::testing
