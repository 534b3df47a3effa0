#pragma once
/// Keys and values of one sequence: rows of head_dim, [position][kv head], in fp32 or in a scheme with a scale per row.

#include <cstdint>
#include <memory>
#include <vector>

#include "narrow/model.h"

namespace narrow {

namespace model {
class DeviceCache;
}

struct KvCache::State {
  /// Rows that grow: either fp32 values, or codes and scales.
  struct Rows {
    Buffer codes, scales, zero_points;
    std::int64_t capacity = 0;  ///< in positions
  };
  struct Layer {
    Rows keys, values;
  };

  Scheme scheme;
  std::int64_t layer_count = 0, kv_heads = 0, head_dim = 0;
  std::int64_t size = 0;                          ///< positions of every layer
  std::vector<Layer> layers;                      ///< on the CPU
  std::shared_ptr<model::DeviceCache> on_device;  ///< of a model on a CUDA device: all layers

  std::int64_t width() const { return kv_heads * head_dim; }
  bool is_fp32() const { return scheme.element.bits == 32; }

  /// Writes `count` positions from `position` on; values are fp32 [count][width].
  void write(Rows& rows, std::int64_t position, std::int64_t count, const float* values) const;
  /// The first `count` positions as fp32 [count][width]: the rows themselves, or decoded into `scratch`.
  const float* read(const Rows& rows, std::int64_t count, Buffer& scratch) const;

 private:
  void reserve(Rows& rows, std::int64_t positions) const;
  QuantizedTensor part(const Rows& rows, std::int64_t position, std::int64_t count) const;
};

}  // namespace narrow
