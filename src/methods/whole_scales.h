#pragma once
/// Scales that depend on a whole tensor, found by reading it once in runs of rows: a large tensor is then quantized run
/// by run with the same codes and scales as in one piece.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "methods/row_chunks.h"

namespace narrow {

/// Whether such a first pass gives everything: one scale or one per column, or an outer scale. Not int1's means, whose
/// sums have an order, and not stochastic rounding, which counts elements.
bool has_whole_scales(const Scheme& scheme, const QuantizeOptions& options);

/// How a tensor is read for quantizing: its runs, and whether once before for its whole scales.
struct Reading {
  bool twice = false;
  std::vector<RowChunk> chunks;
};
Reading plan_reading(const Scheme& scheme, const QuantizeOptions& options, const Shape& shape, DType dtype,
                     std::uint64_t chunk_bytes = kChunkBytes);

class WholeScales {
 public:
  /// read(chunk) gives the rows of a run.
  WholeScales(const Scheme& scheme, const Shape& shape, const std::vector<RowChunk>& chunks,
              const std::function<Tensor(const RowChunk&)>& read);
  /// The options that quantize one run as a part of the whole.
  QuantizeOptions options_for(const RowChunk& chunk, const QuantizeOptions& options) const;

 private:
  Scheme scheme_;
  std::int64_t grid_cols_ = 0;
  std::optional<float> outer_scale_;
  std::vector<float> scales_;
  std::vector<std::uint8_t> zero_points_;
};

}  // namespace narrow
