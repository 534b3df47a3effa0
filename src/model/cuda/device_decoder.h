#pragma once
/// A decoder on a CUDA device: weights, and the passes over them. The stream is fp32; products take fp16, bf16 or codes; attention and
/// everything else compute in fp32, prompts of more than 64 rows with fp16 queries, keys and values. With Compute::kFp32 products take two
/// fp16 values for one of fp32, and passes of any number of rows are computed as those of few.

#include <memory>
#include <mutex>
#include <vector>

#include "model/cuda/device_cache.h"
#include "model/cuda/device_experts.h"
#include "model/cuda/device_linear.h"
#include "model/weights.h"

namespace narrow::model {

/// Up to so many rows everything between products is fp32; more rows move fp16, which rounds as their products do.
constexpr std::int64_t kFewRows = 64;

struct DeviceLayer {
  Tensor attention_norm, mlp_norm;           ///< fp32 [hidden]
  std::optional<Tensor> q_norm{}, k_norm{};  ///< fp32 [head_dim]
  DeviceLinear qkv, o, gate_up, down;
  std::optional<DeviceExperts> experts{};  ///< in place of gate_up and down
  std::vector<std::string> names;          ///< of q, k, v, o, gate, up, down
};

struct DeviceWeights {
  ModelConfig config;
  Device device;
  bool keeps_fp32 = false;  ///< Compute::kFp32
  Tensor embedding;         ///< [vocabulary, hidden]
  std::vector<DeviceLayer> layers;
  Tensor final_norm;
  DeviceLinear head;

  /// Bytes that one step of decoding reads: every weight once, but of the embedding nothing to speak of.
  /// Of experts those that `rows` tokens meet, if all are as likely: count * (1 - (1 - per_token / count)^rows) of them.
  std::uint64_t bytes_per_step(std::int64_t rows) const;
  /// Whether so many rows move fp16 between products.
  bool is_many(std::int64_t rows) const { return rows > kFewRows && !keeps_fp32; }
};

/// Throws Unsupported where a device is no Hopper.
void require_hopper(Device device);
/// Copies the weights of the CPU's executor, of one layer or of all.
DeviceLayer to_device(const LayerWeights& layer, const ModelConfig& config, Device device, cuda::Stream stream, bool keeps_fp32 = false);
DeviceWeights to_device(const Model::State& state, Device device, cuda::Stream stream);
/// Random weights in a recipe's schemes, made on the device; embedding and head stay in fp16 (with bf16 weights: bf16, unless fp32 is
/// kept).
DeviceWeights random_weights(const ModelConfig& config, const Recipe& recipe, Device device, cuda::Stream stream, bool keeps_fp32);

/// Rows of tokens in device memory: what a pass reads.
struct DeviceRows {
  std::int64_t rows = 0, sequences = 0;
  std::int32_t* tokens = nullptr;
  std::int32_t* positions = nullptr;
  std::int32_t* table_rows = nullptr;
  std::int32_t* sequence_of_row = nullptr;
  std::int32_t* last = nullptr;  ///< of each sequence: its last row
  cuda::CacheView* caches = nullptr;
  cuda::CacheKind kind = cuda::CacheKind::kFp16;
  cuda::AttendTile* tiles = nullptr;
  int tile_count = 0;  ///< 0: every row on its own
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

/// The memory of a pass of up to `rows` rows, `logit_rows` of which get logits.
struct PassScratch {
  std::int64_t rows = 0, logit_rows = 0;
  Tensor stream, logits;
  Buffer qkv, q, mixed, gate_up, delta, picked;
  InputScratch input;
  ExpertsScratch experts;
  static PassScratch allocate(const DeviceWeights& weights, std::int64_t rows, std::int64_t logit_rows);
};

class DeviceDecoder {
 public:
  explicit DeviceDecoder(DeviceWeights weights);

  const DeviceWeights& weights() const { return weights_; }
  DeviceWeights& weights() { return weights_; }  ///< for those that replace some between passes
  const ModelConfig& config() const { return weights_.config; }
  cuda::Stream stream() const { return stream_; }
  /// Cosines and sines of the positions up to `positions`, on the device.
  std::pair<const float*, const float*> rope_tables(std::int64_t positions) const;

  /// Model::forward.
  Tensor forward(std::span<const Sequence> sequences, Logits logits, const InputObserver& observer) const;
  /// The same; the logits stay on the device, valid until the next pass.
  Tensor forward_on_device(std::span<const Sequence> sequences, Logits logits, const InputObserver& observer) const;
  /// Model::forward of all tokens; the logits are copied into `kept` on the device, which grows where it must. Waits.
  Tensor forward_kept(std::span<const Sequence> sequences, Buffer& kept) const;

  /// The rows of some sequences in device memory, `upload`, which grows where it must. Waits.
  DeviceRows place_rows(std::span<const Sequence> sequences, Buffer& upload) const;
  /// Enqueues a layer's attention, from scratch.qkv in fp32 or fp16 to scratch.mixed.
  void attend(const DeviceRows& rows, const PassScratch& scratch, std::size_t layer, DType type) const;
  /// Enqueues the layers over the rows; the stream is in scratch.stream, what is still to be added to it is the result.
  std::optional<Tensor> run_layers(const DeviceRows& rows, const PassScratch& scratch, const InputObserver& observer) const;
  /// Enqueues norm and head over all rows of the stream, or those that `picked` names; the logits are in scratch.logits.
  void run_head(const PassScratch& scratch, const std::optional<Tensor>& delta, std::int64_t rows, const std::int32_t* picked) const;

 private:
  void observe(const DeviceSource& source, const PassScratch& scratch, std::span<const std::string> modules,
               const InputObserver& observer) const;

  DeviceWeights weights_;
  cuda::OwnedStream stream_;
  mutable std::mutex mutex_;
  mutable PassScratch scratch_;
  mutable Buffer upload_;  ///< of the last pass: rows, caches, tiles
  mutable Buffer table_;   ///< cosines, then sines
  mutable std::int64_t table_size_ = 0;
};

}  // namespace narrow::model
