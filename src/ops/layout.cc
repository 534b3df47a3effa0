/// transform: matrices from one memory layout into another, by the index maps.

#include "narrow/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/layout.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// Element is an unsigned integer of the element's size. Rows go to threads; runs of columns move as a whole.
template <typename Element>
void transform_matrix(const Element* in, Element* out, std::int64_t rows, std::int64_t cols, Layout from, Layout to) {
  const std::int64_t size = map_size(to, rows, cols);
  const std::int64_t run = std::max<std::int64_t>(1, std::min(map_run(from, cols), map_run(to, cols)));
  if (size != rows * cols) std::fill(out, out + size, Element{0});
#pragma omp parallel for schedule(static) if (size > 65536)
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; col += run)
      std::copy_n(in + map_offset(from, row, col, rows, cols), std::min(run, cols - col), out + map_offset(to, row, col, rows, cols));
}

template <typename Element>
void transform_all(const Tensor& data, const Tensor& result, const MatrixShape& shape, Layout from, Layout to) {
  for (std::int64_t i = 0; i < shape.matrices; ++i)
    transform_matrix(data.as<Element>() + i * map_size(from, shape.rows, shape.cols),
                     result.as<Element>() + i * map_size(to, shape.rows, shape.cols), shape.rows, shape.cols, from, to);
}

}  // namespace

Tensor transform(const Tensor& data, const Shape& shape, Layout from, Layout to) {
  element_count(shape);
  const MatrixShape matrix = as_matrices(shape);
  const std::int64_t needed = matrix.matrices * map_size(from, matrix.rows, matrix.cols);
  if (!data.device().is_cpu()) throw Unsupported("transform: the tensor must be on the CPU; copy it there first");
  if (!data.is_contiguous() || data.size() != needed)
    throw InvalidArgument(fmt::format("transform: {} in layout {} takes {} contiguous elements, the tensor has {}", to_string(shape),
                                      name_of(from), needed, data.size()));
  const Tensor result =
      Tensor::empty(data.dtype(), to == Layout::kRow ? shape : Shape{matrix.matrices * map_size(to, matrix.rows, matrix.cols)});
  switch (bits_of(data.dtype())) {
    case 8: transform_all<std::uint8_t>(data, result, matrix, from, to); break;
    case 16: transform_all<std::uint16_t>(data, result, matrix, from, to); break;
    case 32: transform_all<std::uint32_t>(data, result, matrix, from, to); break;
    case 64: transform_all<std::uint64_t>(data, result, matrix, from, to); break;
    default: throw Unsupported(fmt::format("transform: {} elements are packed; layouts move whole bytes", name_of(data.dtype())));
  }
  return result;
}

}  // namespace narrow
