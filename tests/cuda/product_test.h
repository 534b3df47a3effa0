#pragma once
/// What tests of products on the device share: a stream and random sizes; of codes that may be any bytes, also where they lie.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "device/cuda/runtime.h"
#include "harness.h"

namespace narrow::cuda::testing {

class ProductTest : public ::testing::Test {
 protected:
  explicit ProductTest(unsigned seed) : generator_(seed) {}
  void SetUp() override {
    NARROW_REQUIRE_DEVICE();
    stream_ = std::make_unique<OwnedStream>();
  }
  int pick(int below) { return static_cast<int>(generator_() % static_cast<unsigned>(below)); }
  /// A size: small, near a tile's edge, or anything.
  std::int64_t size(int most) {
    switch (pick(4)) {
      case 0: return 1 + pick(20);
      case 1: return std::max(1, std::min(most, 64 * (1 + pick(most / 64 + 1)) + pick(3) - 1));
      default: return 1 + pick(most);
    }
  }

  std::unique_ptr<OwnedStream> stream_;
  std::mt19937 generator_;
};

/// Codes and scales are pieces of two pools of random bytes and random scales of up to `binades` binades, at any place.
class CodesTest : public ProductTest {
 protected:
  CodesTest(unsigned seed, int binades) : ProductTest(seed), binades_(binades) {}
  void SetUp() override {
    ProductTest::SetUp();
    if (IsSkipped()) return;
    std::vector<std::uint8_t> bytes(kBytes);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator_() >> 7);
    std::vector<float> scales(kScales);
    for (float& scale : scales) scale = std::ldexp(0.5f + static_cast<float>(pick(1024)) / 1024.0f, pick(binades_) - 6);
    bytes_ = upload(bytes.data(), kBytes);
    scales_ = upload(scales.data(), kScales * sizeof(float));
  }
  Buffer upload(const void* data, std::size_t size) {
    const Buffer buffer = Buffer::allocate(size, kDevice);
    copy_bytes(buffer.data(), data, size, *stream_);
    synchronize(*stream_);
    return buffer;
  }
  /// So many bytes of a pool, at a multiple of the unit.
  Buffer piece(const Buffer& from, std::int64_t size, std::size_t unit) {
    const std::size_t bytes = static_cast<std::size_t>(size), places = (from.size() - bytes) / unit + 1;
    return Buffer::borrow(from.data() + generator_() % places * unit, bytes, kDevice);
  }
  Tensor floats(const Shape& shape) { return Tensor::over(piece(scales_, element_count(shape) * 4, 4), DType::kF32, shape); }

  Buffer bytes_, scales_;

 private:
  static constexpr std::size_t kBytes = std::size_t{8} << 20, kScales = std::size_t{1} << 20;
  int binades_;
};

}  // namespace narrow::cuda::testing
