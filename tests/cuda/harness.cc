#include "harness.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "device/cuda/runtime.h"
#include "kernels/storage.h"

namespace narrow::cuda::testing {
namespace {

constexpr int kPoison = 0xA5;

std::size_t cells_of(const Scheme& scheme, const Shape& shape) { return static_cast<std::size_t>(scale_grid(scheme, shape).count()); }

std::size_t span_of(const Tensor& x, std::int64_t gap) {
  const MatrixShape matrix = as_matrices(x.shape());
  return static_cast<std::size_t>(matrix.total_rows() * (matrix.cols + gap)) * static_cast<std::size_t>(bits_of(x.dtype())) / 8;
}

}  // namespace

Guarded::Guarded(std::size_t size, std::size_t byte_offset, Stream stream)
    : size_(size), offset_(kBand + byte_offset), memory_(Buffer::allocate(size + 2 * kBand + byte_offset, kDevice)) {
  set_bytes(memory_.data(), kPoison, memory_.size(), stream);
}

Buffer Guarded::buffer() const { return Buffer::borrow(data(), size_, kDevice); }
std::byte* Guarded::data() const { return memory_.data() + offset_; }

void Guarded::check(Stream stream, const std::string& what) const {
  std::vector<unsigned char> bytes(memory_.size());
  copy_bytes(bytes.data(), memory_.data(), memory_.size(), stream);
  synchronize(stream);
  for (std::size_t i = 0; i < offset_; ++i)
    ASSERT_EQ(bytes[i], kPoison) << what << ": byte " << offset_ - i << " before the buffer was written";
  for (std::size_t i = offset_ + size_; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], kPoison) << what << ": byte " << i - offset_ - size_ << " after the buffer was written";
}

Tensor random_values(DType dtype, const Shape& shape, Values values, unsigned seed) {
  Tensor x = Tensor::empty(dtype, shape);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  const std::int64_t cols = std::max<std::int64_t>(as_matrices(shape).cols, 1);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    float value = normal(generator);
    const unsigned choice = generator() % 64;
    if (values == Values::kWide) value = std::ldexp(value, static_cast<int>(generator() % 200) - 100);
    if (values == Values::kTies) value = static_cast<float>(static_cast<int>(generator() % 513) - 256) / 32.0f;
    if (choice == 0) value = 0.0f;
    if (choice == 1) value = -0.0f;
    if (choice == 2 && values != Values::kTies) value = std::ldexp(value, -140);
    if (values == Values::kNonFinite && choice == 3) value = std::numeric_limits<float>::quiet_NaN();
    if (values == Values::kNonFinite && choice == 4) value = -std::numeric_limits<float>::quiet_NaN();
    if (values == Values::kNonFinite && choice == 5) value = std::numeric_limits<float>::infinity();
    if (values == Values::kNonFinite && choice == 6) value = -std::numeric_limits<float>::infinity();
    if (i / cols % 13 == 5) value = 0.0f;  // all-zero rows
    if (values == Values::kNonFinite && i / cols % 13 == 7) value = std::numeric_limits<float>::quiet_NaN();
    store_value(x.data(), dtype, i, value, values == Values::kNonFinite ? Overflow::kIeee : Overflow::kSaturate);
  }
  return x;
}

void expect_equal(const Tensor& expected, const Tensor& actual, const std::string& what) {
  ASSERT_EQ(expected.byte_size(), actual.byte_size()) << what;
  if (std::memcmp(expected.data(), actual.data(), expected.byte_size()) == 0) return;
  const std::size_t size = static_cast<std::size_t>(bits_of(expected.dtype())) / 8;
  for (std::size_t i = 0; i < expected.byte_size() / size; ++i) {
    std::uint32_t a = 0, b = 0;
    std::memcpy(&a, expected.data() + i * size, size);
    std::memcpy(&b, actual.data() + i * size, size);
    ASSERT_EQ(a, b) << what << ": element " << i << " of " << to_string(expected.shape());
  }
}

void expect_equal(const QuantizedTensor& expected, const DeviceQuantized& actual_on_device, Stream stream, const std::string& what) {
  const QuantizedTensor actual = to_host(actual_on_device, stream);
  const auto same = [&](const char* part, const Buffer& a, const Buffer& b) {
    ASSERT_EQ(a.size(), b.size()) << what << ": " << part;
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(static_cast<int>(a.data()[i]), static_cast<int>(b.data()[i]))
          << what << ": " << part << ", byte " << i << " of " << a.size();
  };
  same("scales", expected.scales, actual.scales);
  same("zero points", expected.zero_points, actual.zero_points);
  EXPECT_EQ(expected.outer_scale, actual.outer_scale) << what;
  same("codes", expected.codes, actual.codes);
}

GuardedQuantized::GuardedQuantized(const Scheme& scheme, const Shape& shape, std::size_t byte_offset, Stream stream)
    : codes(static_cast<std::size_t>(as_matrices(shape).total_rows()) * packed_row_bytes(scheme, as_matrices(shape).cols), byte_offset,
            stream),
      scales(cells_of(scheme, shape) * (scheme.scale.bits / 8u), 0, stream),
      zero_points(scheme.asymmetric ? cells_of(scheme, shape) : 0, 0, stream),
      outer_scale(scheme.has_outer_scale ? 4 : 0, 0, stream),
      q{scheme, shape, codes.buffer(), scales.buffer(), zero_points.buffer(), outer_scale.buffer()} {}

void GuardedQuantized::check(Stream stream, const std::string& what) const {
  codes.check(stream, what + ": codes");
  scales.check(stream, what + ": scales");
  zero_points.check(stream, what + ": zero points");
  outer_scale.check(stream, what + ": outer scale");
}

GuardedValues::GuardedValues(const Tensor& host, std::int64_t element_offset, std::int64_t row_gap, Stream stream)
    : memory(span_of(host, row_gap), static_cast<std::size_t>(element_offset) * static_cast<std::size_t>(bits_of(host.dtype())) / 8,
             stream) {
  const MatrixShape matrix = as_matrices(host.shape());
  const std::size_t element = static_cast<std::size_t>(bits_of(host.dtype())) / 8;
  Shape strides(host.shape().size(), 1);
  for (std::size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = i + 1 == strides.size() ? matrix.cols + row_gap : strides[i] * host.shape()[i];
  for (std::int64_t row = 0; row < matrix.total_rows(); ++row)
    copy_bytes(memory.data() + static_cast<std::size_t>(row * (matrix.cols + row_gap)) * element,
               host.data() + static_cast<std::size_t>(row * matrix.cols) * element, static_cast<std::size_t>(matrix.cols) * element,
               stream);
  x = Tensor::borrow(memory.data(), host.dtype(), host.shape(), strides, kDevice);
}

}  // namespace narrow::cuda::testing
