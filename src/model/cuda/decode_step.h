#pragma once
/// A step of decoding as one kernel (kernels/cuda/decoder/step.h), for one sequence and the models that it takes.

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/decoder/step.h"
#include "model/cuda/device_decoder.h"

namespace narrow::model {

class DecodeStep {
 public:
  /// Why steps of so many sequences with such a cache are left to one kernel per operation; nothing where one kernel takes them.
  static std::optional<std::string> obstacle(const DeviceDecoder& decoder, std::int64_t sequences, cuda::CacheKind cache);

  /// Of rows without an obstacle; logits: fp32 [1, vocabulary].
  DecodeStep(const DeviceDecoder& decoder, const DeviceRows& rows, const Tensor& logits);
  /// Enqueues a step: from the token in device memory to its logits; its key and value are in the cache then.
  void enqueue(cuda::Stream stream) const;

 private:
  cuda::StepParams params_;
  int blocks_ = 0;
  Buffer layers_, scratch_, arrivals_;
};

}  // namespace narrow::model
