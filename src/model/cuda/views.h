#pragma once
/// Scratch memory as what a pass makes of it; the buffer stays its owner.

#include <utility>

#include "narrow/tensor.h"

namespace narrow::model {

inline Tensor view(const Buffer& buffer, DType type, Shape shape) {
  return Tensor::borrow(buffer.data(), type, std::move(shape), {}, buffer.device());
}
/// The first bytes.
inline Buffer part_of(const Buffer& buffer, std::size_t bytes) { return Buffer::borrow(buffer.data(), bytes, buffer.device()); }

}  // namespace narrow::model
