#pragma once
/// One token after the other for several sequences: a step, from the tokens to the next ones, is one captured graph. Tokens and positions
/// stay on the device, so that steps follow one another without the host.

#include <memory>
#include <vector>

#include "device/cuda/runtime.h"
#include "model/cuda/decode_step.h"
#include "narrow/generate.h"

namespace narrow::model {

class DecodeLoop {
 public:
  /// For sequences whose prompts are in the caches and whose last logits are `logits` [sequences, vocabulary] on the device: enqueues the
  /// choice of their first tokens. At most `tokens` in all for each.
  DecodeLoop(const DeviceDecoder& decoder, std::span<KvCache* const> caches, const Tensor& logits, const SampleOptions& sampling,
             std::int64_t tokens);

  /// Enqueues one step for every sequence.
  void step();
  /// The tokens made so far by the steps that were enqueued, [steps + 1][sequences], from `first` on; waits for them.
  std::vector<std::int32_t> tokens(std::int64_t first, std::int64_t count) const;
  /// [sequences, vocabulary] on the device: of the last step that was enqueued.
  const Tensor& logits() const { return scratch_.logits; }

 private:
  void sample(const Tensor& logits) const;

  const DeviceDecoder& decoder_;
  std::vector<KvCache*> caches_;
  SampleOptions sampling_;
  std::int64_t tokens_;
  PassScratch scratch_;
  Buffer memory_;  ///< of rows_, draws_ and history_
  DeviceRows rows_;
  std::int32_t* draws_ = nullptr;
  std::int32_t* history_ = nullptr;
  std::optional<DecodeStep> one_kernel_;  ///< where the model's steps run so
  bool has_run_ = false;
  std::unique_ptr<cuda::Graph> graph_;
};

/// generate() of narrow/generate.h on the device.
Generation generate_on_device(const DeviceDecoder& decoder, const Model& model, std::span<const std::int32_t> prompt,
                              const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token);

}  // namespace narrow::model
