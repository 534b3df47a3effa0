#pragma once
/// narrow on CUDA devices. Every call takes a stream and returns before the device is done: nothing here waits, except
/// where a comment says so. Tensors are on one device; codes and scales are the CPU's, bit for bit. All calls on
/// existing memory can be captured into a graph. A build or machine without CUDA answers Unsupported.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "narrow/quantize.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace narrow::cuda {

using Stream = CUstream_st*;  ///< cudaStream_t

/// Devices that can be used; 0 without a driver. Never throws.
int device_count() noexcept;

/// Makes a device current in this scope, and the one before it current again afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  [[maybe_unused]] int previous_ = -1;  // a build without CUDA has none
};

/// A stream that is freed with its owner.
class OwnedStream {
 public:
  explicit OwnedStream(int device = 0);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  operator Stream() const { return stream_; }

 private:
  Stream stream_ = nullptr;
  [[maybe_unused]] int device_ = 0;
};

/// Waits for all work of a stream; throws CudaError where some of it failed.
void synchronize(Stream stream);

/// Scratch memory of one call: the caller's, or, where data is null, from the device's stream-ordered pool.
struct Workspace {
  void* data = nullptr;
  std::size_t size = 0;
};

/// A contiguous copy on a device. Host memory must stay alive until the stream has passed.
Tensor to_device(const Tensor& x, Device device, Stream stream);
/// A copy on the host; waits for the stream.
Tensor to_host(const Tensor& x, Stream stream);
/// Copies contiguous tensors of equal type and size, in any direction.
void copy(const Tensor& from, const Tensor& to, Stream stream);

/// A quantized tensor on a device: the canonical bytes of QuantizedTensor, the outer scale in device memory too.
struct DeviceQuantized {
  Scheme scheme;
  Shape shape;
  Buffer codes;
  Buffer scales;
  Buffer zero_points;
  Buffer outer_scale;  ///< one fp32, of schemes that have one

  Device device() const { return codes.device(); }
};

DeviceQuantized allocate_quantized(const Scheme& scheme, const Shape& shape, Device device);  ///< uninitialised
DeviceQuantized to_device(const QuantizedTensor& q, Device device, Stream stream);            ///< the same bytes
/// Waits for the stream.
QuantizedTensor to_host(const DeviceQuantized& q, Stream stream);

struct QuantizeOptions {
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  std::uint64_t seed = 0;  ///< of stochastic rounding
  /// Static quantization, fp32 on the device: one scale per grid cell, positive and finite (not checked).
  std::optional<Tensor> scales{};
  std::optional<Tensor> zero_points{};  ///< u8 on the device
  /// The outer scale, fp32 on the device, known beforehand: one pass over x instead of two.
  std::optional<Tensor> outer_scale{};
  /// One u32 on the device: bit 0 is set where a NaN was seen, bit 1 where an infinity was. Unlike the CPU's quantize
  /// the device cannot refuse: it writes the zero code and the largest value, as NonFinite::kSaturate does.
  std::optional<Tensor> flags{};
  std::string_view kernel{};  ///< a row of quantize_kernel_names() by name, for tests; the best one otherwise
};

/// Bytes that quantize needs as scratch memory; many calls need none.
std::size_t quantize_workspace(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options = {});
/// Codes and scales of x (fp32, fp16 or bf16, contiguous columns) into q.
void quantize(const Tensor& x, const DeviceQuantized& q, Stream stream, const QuantizeOptions& options = {}, Workspace workspace = {});
/// The values into y (fp32, fp16 or bf16, contiguous).
void dequantize(const DeviceQuantized& q, const Tensor& y, Stream stream, std::string_view kernel = {});
/// The same tensor in another scheme, through its exact fp32 values. Scratch: fp32 values + quantize's.
void requantize(const DeviceQuantized& from, const DeviceQuantized& to, Stream stream, const QuantizeOptions& options = {},
                Workspace workspace = {});
/// dequantize(quantize(x)) into y, of x's own type.
void fake_quantize(const Tensor& x, const Tensor& y, const Scheme& scheme, Stream stream, const QuantizeOptions& options = {},
                   Workspace workspace = {});

/// The rows of the tables, best first.
std::vector<std::string> quantize_kernel_names();
std::vector<std::string> dequantize_kernel_names();
/// The row that a call would take.
std::string explain_quantize(const Tensor& x, const Scheme& scheme, const QuantizeOptions& options = {});

/// Statistics for calibration, accumulated into device memory that starts as zeros.
struct Range {
  float amax = 0.0f;     ///< over the finite values
  float minimum = 0.0f;  ///< of the finite values and 0
  float maximum = 0.0f;
  std::uint32_t flags = 0;  ///< bit 0: NaN seen, bit 1: infinity seen
};
/// range: 4 words on the device (|most negative|, largest, unused, flags), updated by maximum; read with read_range.
void observe_range(const Tensor& x, const Tensor& range, Stream stream);
/// Waits for the stream.
Range read_range(const Tensor& range, Stream stream);
/// Adds |x| of the finite values to counts, u64 [bins] on the device: bin floor(|x| / limit * bins), the last one beyond.
void observe_histogram(const Tensor& x, const Tensor& counts, float limit, Stream stream);

/// fp32, fp16 and bf16 values as another of the three, nearest even; contiguous.
void convert(const Tensor& x, const Tensor& y, Stream stream, Overflow overflow = Overflow::kSaturate);

}  // namespace narrow::cuda
