#pragma once
/// Keys and values of one sequence in a device's memory.

#include "kernels/cuda/decoder/decoder.h"
#include "narrow/model.h"

namespace narrow::model {

class DeviceCache {
 public:
  /// Throws Unsupported for schemes other than fp32, fp16, bf16, fp8_e4m3:row and int8:row.
  DeviceCache(const ModelConfig& config, const Scheme& scheme, Device device);

  Device device() const { return device_; }
  cuda::CacheKind kind() const { return kind_; }
  cuda::CacheView view() const { return {codes_.data(), scales_.as<float>(), capacity_}; }
  std::size_t byte_size() const { return codes_.size() + scales_.size(); }
  /// Room for so many positions; what the first `size` hold stays. Waits for the stream where it moves them.
  void reserve(std::int64_t positions, std::int64_t size, cuda::Stream stream);

 private:
  Device device_;
  cuda::CacheKind kind_;
  std::int64_t rows_per_position_;  ///< layers * 2 * kv heads
  std::int64_t row_bytes_;
  std::int64_t capacity_ = 0;
  Buffer codes_, scales_;
};

}  // namespace narrow::model
