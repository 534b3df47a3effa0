#pragma once
/// Tensors: a typed, strided view of memory on a device, owned or borrowed.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/format.h"

namespace narrow {

/// The element types of tensors and files (safetensors' list, in its own order).
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kF8E4m3Fnuz,
  kF8E5m2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// Bits of one element; 4 and 6 for the packed types.
int bits_of(DType dtype);
/// The name in safetensors files: "F32", "BF16", ...
std::string_view name_of(DType dtype);
/// Throws InvalidArgument for a name that is none of them.
DType parse_dtype(std::string_view name);
/// fp32, fp16, bf16: the types that quantize reads and dequantize writes.
constexpr bool is_floating(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16; }

struct Device {  ///< where memory lies: the CPU, or a CUDA device by its index
  enum class Kind : std::uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {Kind::kCuda, index}; }
  constexpr bool is_cpu() const { return kind == Kind::kCpu; }
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

using Shape = std::vector<std::int64_t>;  ///< sizes of the dimensions, the fastest last

/// The number of elements; throws InvalidArgument where a dimension is negative or the product overflows.
std::int64_t element_count(const Shape& shape);
/// "[2, 3]".
std::string to_string(const Shape& shape);

/// Bytes on a device, shared by the tensors that view them; freed with the last one.
class Buffer {
 public:
  Buffer() = default;
  /// Uninitialised memory, aligned to 64 bytes on the CPU.
  static Buffer allocate(std::size_t size, Device device = Device::cpu());
  /// Memory that the caller keeps alive.
  static Buffer borrow(void* data, std::size_t size, Device device = Device::cpu());
  /// Memory kept alive by an owner of another kind (a DLPack capsule, a mapped file).
  static Buffer adopt(std::shared_ptr<void> owner, void* data, std::size_t size, Device device);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  Device device() const { return device_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
};

/// A strided array. Strides count elements. Copying a Tensor shares its memory.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised, contiguous.
  static Tensor empty(DType dtype, Shape shape, Device device = Device::cpu());
  /// A view of memory that the caller keeps alive; no strides means contiguous.
  static Tensor borrow(void* data, DType dtype, Shape shape, Shape strides = {}, Device device = Device::cpu());
  static Tensor borrow(const void* data, DType dtype, Shape shape, Shape strides = {}, Device device = Device::cpu());
  /// A contiguous view of a buffer, which it keeps alive.
  static Tensor over(Buffer buffer, DType dtype, Shape shape);
  /// A copy of the values as an fp32 tensor.
  static Tensor of(std::initializer_list<float> values, Shape shape);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  Device device() const { return buffer_.device(); }
  int rank() const { return static_cast<int>(shape_.size()); }
  std::int64_t size() const { return size_; }
  /// Bytes of the elements, packed; for a strided view, of its contiguous copy.
  std::size_t byte_size() const;
  bool is_contiguous() const;

  std::byte* data() const { return data_; }
  /// The elements as T; throws InvalidArgument where sizeof(T) does not fit the dtype.
  template <typename T>
  T* as() const {
    check_element_size(sizeof(T));
    return reinterpret_cast<T*>(data_);
  }

  /// This tensor, or a contiguous copy of it.
  Tensor contiguous() const;
  /// The same memory with other dimensions; throws unless contiguous and of equal size.
  Tensor reshape(Shape shape) const;

 private:
  void check_element_size(std::size_t size) const;

  Buffer buffer_;
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  Shape strides_;
  std::int64_t size_ = 0;
};

/// A tensor seen as `matrices` matrices [rows, cols] one after the other: rank 1 is one row, rank 3 and 4 are batches.
struct MatrixShape {
  std::int64_t matrices = 1;
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t total_rows() const { return matrices * rows; }
};
MatrixShape as_matrices(const Shape& shape);

}  // namespace narrow
