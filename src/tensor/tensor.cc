#include "narrow/tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/memory.h"
#include "narrow/error.h"

namespace narrow {
namespace {

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * (shape[i] > 0 ? shape[i] : 1);
  return strides;
}

std::size_t bytes_for(DType dtype, std::int64_t count) {
  return (static_cast<std::size_t>(count) * static_cast<std::size_t>(bits_of(dtype)) + 7) / 8;
}

}  // namespace

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  bool has_zero = false;
  for (const std::int64_t size : shape) {
    if (size < 0) throw InvalidArgument(fmt::format("shape {} has a negative dimension", to_string(shape)));
    has_zero = has_zero || size == 0;
    if (!has_zero && __builtin_mul_overflow(count, size, &count))
      throw InvalidArgument(fmt::format("shape {} has more elements than 64 bits can count", to_string(shape)));
  }
  return has_zero ? 0 : count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Buffer Buffer::allocate(std::size_t size, Device device) {
  Buffer buffer;
  buffer.owner_ = allocate_memory(size, device);
  buffer.data_ = static_cast<std::byte*>(buffer.owner_.get());
  buffer.size_ = size;
  buffer.device_ = device;
  return buffer;
}

Buffer Buffer::borrow(void* data, std::size_t size, Device device) { return adopt(nullptr, data, size, device); }

Buffer Buffer::adopt(std::shared_ptr<void> owner, void* data, std::size_t size, Device device) {
  Buffer buffer;
  buffer.owner_ = std::move(owner);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = size;
  buffer.device_ = device;
  return buffer;
}

Tensor Tensor::empty(DType dtype, Shape shape, Device device) {
  const std::size_t size = bytes_for(dtype, element_count(shape));
  return over(Buffer::allocate(size, device), dtype, std::move(shape));
}

Tensor Tensor::borrow(void* data, DType dtype, Shape shape, Shape strides, Device device) {
  if (!strides.empty() && strides.size() != shape.size())
    throw InvalidArgument(fmt::format("tensor: {} strides do not fit the shape {}", strides.size(), to_string(shape)));
  const std::int64_t count = element_count(shape);
  Tensor tensor = over(Buffer::borrow(data, bytes_for(dtype, count), device), dtype, std::move(shape));
  if (!strides.empty()) tensor.strides_ = std::move(strides);
  return tensor;
}

Tensor Tensor::borrow(const void* data, DType dtype, Shape shape, Shape strides, Device device) {
  return borrow(const_cast<void*>(data), dtype, std::move(shape), std::move(strides), device);
}

Tensor Tensor::over(Buffer buffer, DType dtype, Shape shape) {
  Tensor tensor;
  tensor.size_ = element_count(shape);
  if (bytes_for(dtype, tensor.size_) > buffer.size())
    throw InvalidArgument(fmt::format("tensor: {} of {} needs {} bytes, the buffer has {}", to_string(shape), name_of(dtype),
                                      bytes_for(dtype, tensor.size_), buffer.size()));
  tensor.dtype_ = dtype;
  tensor.strides_ = contiguous_strides(shape);
  tensor.shape_ = std::move(shape);
  tensor.data_ = buffer.data();
  tensor.buffer_ = std::move(buffer);
  return tensor;
}

Tensor Tensor::of(std::initializer_list<float> values, Shape shape) {
  Tensor tensor = empty(DType::kF32, std::move(shape));
  if (tensor.size() != static_cast<std::int64_t>(values.size()))
    throw InvalidArgument(fmt::format("tensor: {} values do not fill the shape {}", values.size(), to_string(tensor.shape())));
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

std::size_t Tensor::byte_size() const { return bytes_for(dtype_, size_); }

bool Tensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    if (shape_[i] != 1 && size_ > 0 && strides_[i] != expected) return false;
    expected *= shape_[i];
  }
  return true;
}

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  if (!device().is_cpu())
    throw Unsupported("tensor: a strided tensor on a CUDA device has no contiguous copy on the host side; make it contiguous first");
  if (bits_of(dtype_) < 8) throw Unsupported("tensor: packed 4- and 6-bit types have no strides; pass a contiguous tensor");
  Tensor copy = empty(dtype_, shape_);
  const std::size_t element = static_cast<std::size_t>(bits_of(dtype_)) / 8;
  const std::size_t last = shape_.size() - 1;
  Shape index(shape_.size(), 0);
  for (std::byte* out = copy.data(); out != copy.data() + copy.byte_size();) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < shape_.size(); ++i) offset += index[i] * strides_[i];
    const std::byte* in = data_ + offset * static_cast<std::int64_t>(element);
    for (std::int64_t i = 0; i < shape_[last]; ++i, out += element)
      std::memcpy(out, in + i * strides_[last] * static_cast<std::int64_t>(element), element);
    for (std::size_t i = last; i-- > 0;) {  // the next row
      if (++index[i] < shape_[i]) break;
      index[i] = 0;
    }
  }
  return copy;
}

Tensor Tensor::reshape(Shape shape) const {
  if (!is_contiguous() || element_count(shape) != size_)
    throw InvalidArgument(fmt::format("tensor: {} cannot become {} without a copy", to_string(shape_), to_string(shape)));
  Tensor result = *this;
  result.strides_ = contiguous_strides(shape);
  result.shape_ = std::move(shape);
  return result;
}

void Tensor::check_element_size(std::size_t size) const {
  if (size * 8 != static_cast<std::size_t>(bits_of(dtype_)))
    throw InvalidArgument(fmt::format("tensor: {} elements are not {} bytes wide", name_of(dtype_), size));
}

MatrixShape as_matrices(const Shape& shape) {
  MatrixShape result;
  if (shape.empty()) return result;
  result.cols = shape.back();
  if (shape.size() >= 2) result.rows = shape[shape.size() - 2];
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) result.matrices *= shape[i];
  return result;
}

}  // namespace narrow
