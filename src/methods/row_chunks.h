#pragma once
/// Cutting a tensor into runs of rows, so that a large one passes through little memory.

#include <cstdint>
#include <vector>

#include "narrow/quantize.h"

namespace narrow {

/// Bytes of input that one run should have; runs are longer only where rows or tiles are.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20;

/// Rows [first, first + count) counted over all matrices; `shape` is [count, cols], or [m, rows, cols] for whole matrices.
struct RowChunk {
  std::int64_t first = 0, count = 0;
  std::int64_t first_grid_row = 0, grid_rows = 0;  ///< their rows of the scale grid
  Shape shape;
};

/// Memory that one run after the other uses: fresh pages cost more than the work on them.
class ReusedBuffer {
 public:
  /// A view of `size` bytes; what an earlier one saw is overwritten.
  Buffer view(std::size_t size) {
    if (size > buffer_.size()) buffer_ = Buffer::allocate(size);
    return Buffer::borrow(buffer_.data(), size);
  }
  Tensor tensor(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * static_cast<std::size_t>(bits_of(dtype)) / 8;
    return Tensor::over(view(bytes), dtype, shape);
  }

 private:
  Buffer buffer_ = Buffer::allocate(0);
};

/// Whether the runs of a tensor can be quantized one by one and give the same codes and scales as the whole.
bool quantizes_by_rows(const Scheme& scheme, const QuantizeOptions& options);
/// Runs for quantizing: cut between tiles where quantizes_by_rows, else the whole tensor (or see whole_scales.h).
std::vector<RowChunk> quantize_chunks(const Scheme& scheme, const QuantizeOptions& options, const Shape& shape, DType dtype,
                                      std::uint64_t chunk_bytes = kChunkBytes);
/// Runs for dequantizing: any scheme can be cut.
std::vector<RowChunk> dequantize_chunks(const Scheme& scheme, const Shape& shape, DType dtype, std::uint64_t chunk_bytes = kChunkBytes);

}  // namespace narrow
