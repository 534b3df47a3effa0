#include "model/cuda/device_experts.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/decoder/experts.h"
#include "model/cuda/device_linear.h"
#include "model/cuda/views.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

using cuda::check;
using cuda::Stream;

/// Matrices of one scheme and width, one below the other, as a batch of `groups`.
QuantizedTensor stacked(std::span<const QuantizedTensor> parts, std::int64_t groups) {
  const QuantizedTensor& first = parts.front();
  std::int64_t rows = 0;
  for (const QuantizedTensor& part : parts) rows += part.shape[0];
  QuantizedTensor all = allocate_quantized(first.scheme, {groups, rows / groups, first.shape[1]});
  std::size_t codes = 0, scales = 0;
  for (const QuantizedTensor& part : parts) {
    std::memcpy(all.codes.data() + codes, part.codes.data(), part.codes.size());
    std::memcpy(all.scales.data() + scales, part.scales.data(), part.scales.size());
    codes += part.codes.size();
    scales += part.scales.size();
  }
  return all;
}

std::int64_t scale_count(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  return scheme.granularity == Granularity::block(128) ? cuda::padded_scale_rows(rows) * ((cols + 127) / 128) : rows;
}

}  // namespace

ExpertsScratch ExpertsScratch::allocate(const ModelConfig& config, std::int64_t rows, Device device) {
  const ExpertsConfig& experts = *config.experts;
  const std::int64_t choices = rows * experts.per_token, widest = std::max(config.hidden, experts.intermediate);
  const auto buffer = [&](std::int64_t bytes) { return Buffer::allocate(static_cast<std::size_t>(bytes), device); };
  const auto scales = [&](std::int64_t of) { return buffer(4 * cuda::padded_scale_rows(of) * ((widest + 127) / 128)); };
  ExpertsScratch s;
  s.logits = buffer(4 * rows * experts.count);
  s.chosen = buffer(4 * choices);
  s.shares = buffer(4 * choices);
  s.offsets = buffer(4 * (experts.count + 1));
  s.row_of = buffer(4 * choices);
  s.place_of = buffer(4 * choices);
  s.codes = buffer(rows * config.hidden);
  s.scales = scales(rows);
  s.expert_codes = buffer(choices * widest);
  s.expert_scales = scales(choices);
  s.gate_up = buffer(4 * choices * 2 * experts.intermediate);
  s.y = buffer(4 * choices * config.hidden);
  return s;
}

DeviceExperts::DeviceExperts(const LayerWeights& layer, const ExpertsConfig& config, Device device, Stream stream) : config_(config) {
  router_ = cuda::to_device(convert(unprepare_dense(layer.router->weight), DType::kF32), device, stream);
  std::vector<QuantizedTensor> gate_up, down;
  const Linear& first = layer.mlps.front().gate;
  for (const GatedMlp& mlp : layer.mlps)
    for (const Linear* linear : {&mlp.gate, &mlp.up, &mlp.down}) {
      if (linear->weight.scheme != first.weight.scheme || linear->bias || !same_rounding(first, *linear))
        throw Unsupported(
            fmt::format("{} and {} differ in scheme or have a bias; the CUDA executor multiplies all experts of a layer at once",
                        first.module, linear->module));
      if (linear->weight.scheme.element != kFp8E4m3 || !linear->rounding)
        throw Unsupported("the CUDA executor has experts in fp8_e4m3 with inputs of the same (FP8_DYNAMIC, FP8_BLOCK)");
      (linear == &mlp.down ? down : gate_up).push_back(with_row_scales(unprepare(linear->weight)));
    }
  if (first.weight.scheme.granularity == Granularity::block(128, 128) && config.intermediate % 128 != 0)
    throw Unsupported(
        fmt::format("experts of {} columns; the CUDA executor joins gate and up where blocks of 128 rows end", config.intermediate));
  const cuda::DeviceQuantized both = cuda::to_device(stacked(gate_up, config.count), device, stream),
                              second = cuda::to_device(stacked(down, config.count), device, stream);
  set_weights(both, second, first.rounding->activation, stream);
  cuda::synchronize(stream);
}

DeviceExperts::DeviceExperts(Tensor router, const cuda::DeviceQuantized& gate_up, const cuda::DeviceQuantized& down,
                             const std::optional<ActivationScheme>& activation, const ExpertsConfig& config, Stream stream)
    : config_(config), router_(std::move(router)) {
  set_weights(gate_up, down, activation, stream);
}

void DeviceExperts::set_weights(const cuda::DeviceQuantized& gate_up, const cuda::DeviceQuantized& down,
                                const std::optional<ActivationScheme>& activation, Stream stream) {
  hidden_ = gate_up.shape[2];
  const auto multiplies = [&](const cuda::DeviceQuantized& w) {
    return w.scheme.element == kFp8E4m3 && activation && !activation->is_static &&
           multiplies_codes(w.scheme, *activation, w.shape[1], w.shape[2]);
  };
  if (!multiplies(gate_up) || !multiplies(down))
    throw Unsupported(
        "the CUDA executor has experts in fp8_e4m3 with dynamic inputs of the same (FP8_DYNAMIC, FP8_BLOCK), of a multiple of 16 columns");
  if (config_.count > cuda::kMostExperts)
    throw Unsupported(fmt::format("the CUDA executor has up to {} experts, the model has {}", cuda::kMostExperts, config_.count));
  rounding_ = activation->scheme;
  gate_up_ = cuda::prepare_fp8(gate_up, stream);
  down_ = cuda::prepare_fp8(down, stream);
  cuda::synchronize(stream);  // canonical bytes may go now
}

std::uint64_t DeviceExperts::expert_bytes() const {
  return (gate_up_.codes.size() + gate_up_.scales.size() + down_.codes.size() + down_.scales.size()) /
         static_cast<std::uint64_t>(config_.count);
}

void DeviceExperts::run(const Tensor& x, const ExpertsScratch& scratch, bool many, const Tensor& stream, Stream cuda_stream) const {
  const std::int64_t rows = x.shape()[0], choices = rows * config_.per_token;
  const DType type = many ? DType::kF16 : DType::kF32;
  const int experts = static_cast<int>(config_.count), per_token = static_cast<int>(config_.per_token);
  const bool blocks = rounding_.granularity == Granularity::block(128);
  check(cuda::launch_route({.x = x.as<float>(),
                            .w = router_.as<float>(),
                            .rows = rows,
                            .cols = hidden_,
                            .experts = experts,
                            .per_token = per_token,
                            .shares_sum_to_one = config_.shares_sum_to_one,
                            .logits = scratch.logits.as<float>(),
                            .chosen = scratch.chosen.as<std::int32_t>(),
                            .shares = scratch.shares.as<float>()},
                           cuda_stream),
        "route");
  check(cuda::launch_order_routes({.chosen = scratch.chosen.as<std::int32_t>(),
                                   .choices = choices,
                                   .experts = experts,
                                   .per_token = per_token,
                                   .offsets = scratch.offsets.as<std::int32_t>(),
                                   .row_of = scratch.row_of.as<std::int32_t>(),
                                   .place_of = scratch.place_of.as<std::int32_t>()},
                                  cuda_stream),
        "order_routes");

  const auto output = [&](const Buffer& codes, const Buffer& scales, std::int64_t of, std::int64_t cols) {
    return cuda::FusedOutput{rounding_,
                             {of, cols},
                             Layout::kRow,
                             blocks,
                             part_of(codes, static_cast<std::size_t>(of * cols)),
                             part_of(scales, static_cast<std::size_t>(scale_count(rounding_, of, cols)) * sizeof(float))};
  };
  const cuda::FusedOutput of_rows = output(scratch.codes, scratch.scales, rows, hidden_),
                          of_choices = output(scratch.expert_codes, scratch.expert_scales, choices, hidden_);
  cuda::fused_quantize({.x = x}, of_rows, cuda_stream);
  check(cuda::launch_gather_codes({.rows = choices,
                                   .cols = hidden_,
                                   .row_of = scratch.row_of.as<std::int32_t>(),
                                   .codes = of_rows.codes.data(),
                                   .scales = of_rows.scales.as<float>(),
                                   .scale_blocks = blocks ? static_cast<int>((hidden_ + 127) / 128) : 1,
                                   .scale_rows = cuda::padded_scale_rows(rows),
                                   .new_scale_rows = cuda::padded_scale_rows(choices),
                                   .new_codes = of_choices.codes.data(),
                                   .new_scales = of_choices.scales.as<float>()},
                                  cuda_stream),
        "gather_codes");

  cuda::Fp8MatmulOptions options;
  options.row_offsets = view(scratch.offsets, DType::kI32, {config_.count + 1});
  const Tensor gate_up = view(scratch.gate_up, type, {choices, 2 * config_.intermediate}), y = view(scratch.y, type, {choices, hidden_});
  cuda::matmul(cuda::prepare_fp8(of_choices, cuda_stream), gate_up_, gate_up, cuda_stream, options);
  const cuda::FusedOutput gated = output(scratch.expert_codes, scratch.expert_scales, choices, config_.intermediate);
  cuda::fused_quantize({.op = FusedOp::kSiluMul,
                        .x = columns(gate_up, 0, config_.intermediate),
                        .other = columns(gate_up, config_.intermediate, config_.intermediate)},
                       gated, cuda_stream);
  cuda::matmul(cuda::prepare_fp8(gated, cuda_stream), down_, y, cuda_stream, options);
  check(cuda::launch_combine_experts({.rows = rows,
                                      .cols = hidden_,
                                      .per_token = per_token,
                                      .y = y.data(),
                                      .y_type = type,
                                      .place_of = scratch.place_of.as<std::int32_t>(),
                                      .shares = scratch.shares.as<float>(),
                                      .stream = stream.as<float>()},
                                     cuda_stream),
        "combine_experts");
}

}  // namespace narrow::model
