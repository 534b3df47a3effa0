#pragma once
/// Quantize, dequantize, requantize, fake-quantize; the error that it makes.

#include <cstdint>
#include <optional>

#include "narrow/codec.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// A tensor in narrow form. The canonical bytes, the same on every device and in files:
/// codes packed along the last dimension, element 0 in the lowest bits, each row starting on a byte.
struct QuantizedTensor {
  Scheme scheme;
  Shape shape;         ///< of the values
  Buffer codes;        ///< rows * row_bytes
  Buffer scales;       ///< one per grid cell, row-major, in scheme.scale's storage (1, 2 or 4 bytes)
  Buffer zero_points;  ///< one byte per grid cell, of asymmetric schemes
  float outer_scale = 1.0f;

  Device device() const { return codes.device(); }
  ScaleGrid grid() const;
  std::size_t row_bytes() const;
  /// Bytes of codes, scales, zero points and outer scale.
  std::size_t byte_size() const;
};

/// Bytes of one packed row; the scale grid over a shape; bytes that a shape takes in a scheme.
std::size_t packed_row_bytes(const Scheme& scheme, std::int64_t cols);
ScaleGrid scale_grid(const Scheme& scheme, const Shape& shape);
std::size_t quantized_bytes(const Scheme& scheme, const Shape& shape);

/// What quantize does with a NaN that the format cannot hold, and with an infinity.
enum class NonFinite : std::uint8_t {
  kError,     ///< InvalidArgument, naming the first such element
  kSaturate,  ///< the zero code for NaN, the largest value for infinities; scales come from the finite values
};

struct QuantizeOptions {
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  NonFinite nonfinite = NonFinite::kError;
  std::uint64_t seed = 0;  ///< of stochastic rounding
  /// Static quantization: one scale (and zero point) per grid cell, known beforehand. fp32, contiguous.
  std::optional<Tensor> scales{};
  std::optional<Tensor> zero_points{};  ///< u8
  std::optional<float> outer_scale{};   ///< of a scheme that has one: the whole tensor's, where x is a part of it
};

/// The codes and scales of x (fp32, fp16 or bf16, any strides).
QuantizedTensor quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options = {});
/// The values, rounded once to fp32 by the scale and once more to a 16-bit type.
Tensor dequantize(const QuantizedTensor& q, DType dtype = DType::kF32);
/// The same into memory that is there already: q as made by allocate_quantized (or an earlier quantize) of x's shape;
/// y contiguous, of q's shape and any of the three types. Saves the operating system's zeroing of fresh pages.
void quantize_into(const Tensor& x, QuantizedTensor& q, const QuantizeOptions& options = {});
void dequantize_into(const QuantizedTensor& q, Tensor& y);
/// Uninitialised codes, scales and zero points for a shape in a scheme.
QuantizedTensor allocate_quantized(const Scheme& scheme, Shape shape);
/// The same tensor in another scheme, through its exact fp32 values.
QuantizedTensor requantize(const QuantizedTensor& q, const Scheme& scheme, const QuantizeOptions& options = {});
/// dequantize(quantize(x)) in x's own type: what training with quantization sees.
Tensor fake_quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options = {});

/// The bytes of a quantized tensor from its parts, checked: sizes must fit scheme and shape.
QuantizedTensor assemble(const Scheme& scheme, Shape shape, Buffer codes, Buffer scales, Buffer zero_points, float outer_scale);

/// How far y is from x. Sums are taken in fp64 in a fixed order: the same bits for any number of threads.
struct ErrorMetrics {
  double max_absolute = 0.0;
  double mean_absolute = 0.0;
  double rms = 0.0;
  double sqnr_db = 0.0;  ///< 10 log10(sum x^2 / sum (x-y)^2); +inf where y equals x
  double cosine = 1.0;
  std::int64_t count = 0;
};
ErrorMetrics compare(const Tensor& x, const Tensor& y);

/// The share of x's elements that lie beyond the range of their scale's largest code.
double clipped_share(const Tensor& x, const QuantizedTensor& q);

/// fp32, fp16 and bf16 values as another of the three, contiguous; nearest even.
Tensor convert(const Tensor& x, DType dtype, Overflow overflow = Overflow::kSaturate);

}  // namespace narrow
