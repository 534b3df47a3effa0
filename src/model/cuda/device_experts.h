#pragma once
/// A layer's mixture of experts on a CUDA device: a router in fp32, and all experts as the groups of two fp8 products.

#include "model/weights.h"
#include "narrow/cuda_matmul.h"

namespace narrow::model {

/// The memory of a pass of up to so many rows.
struct ExpertsScratch {
  Buffer logits, chosen, shares, offsets, row_of, place_of;
  Buffer codes, scales;                ///< of the rows
  Buffer expert_codes, expert_scales;  ///< of their choices, by expert
  Buffer gate_up, y;
  static ExpertsScratch allocate(const ModelConfig& config, std::int64_t rows, Device device);
};

class DeviceExperts {
 public:
  /// Copies the experts of the CPU's executor, bit for bit. Throws Unsupported where they are not in fp8_e4m3 with inputs of the same.
  DeviceExperts(const LayerWeights& layer, const ExpertsConfig& config, Device device, cuda::Stream stream);
  /// Weights that are there already: router fp32 [experts, hidden], gate_up [experts, 2 * intermediate, hidden], down [experts, hidden,
  /// intermediate].
  DeviceExperts(Tensor router, const cuda::DeviceQuantized& gate_up, const cuda::DeviceQuantized& down,
                const std::optional<ActivationScheme>& activation, const ExpertsConfig& config, cuda::Stream stream);

  /// Bytes of one expert; of the router.
  std::uint64_t expert_bytes() const;
  std::uint64_t router_bytes() const { return router_.byte_size(); }

  /// stream [rows, hidden] += what the experts make of x [rows, hidden], fp32. Products give fp16 for many rows, fp32 for few.
  void run(const Tensor& x, const ExpertsScratch& scratch, bool many, const Tensor& stream, cuda::Stream cuda_stream) const;

 private:
  void set_weights(const cuda::DeviceQuantized& gate_up, const cuda::DeviceQuantized& down,
                   const std::optional<ActivationScheme>& activation, cuda::Stream stream);

  ExpertsConfig config_;
  std::int64_t hidden_ = 0;
  Tensor router_;
  Scheme rounding_;
  cuda::Fp8Matrix gate_up_, down_;
};

}  // namespace narrow::model
