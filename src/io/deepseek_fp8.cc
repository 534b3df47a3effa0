#include "io/deepseek_fp8.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kSuffixes[] = {".weight", ".weight_scale_inv"};

Scheme scheme_of(std::int64_t rows, std::int64_t cols) {
  return {.element = kFp8E4m3, .granularity = Granularity::block(rows, cols), .scale = kFp32};
}

std::string refusal(const Scheme& scheme, const Shape& shape, bool is_ordered) {
  if (shape.size() != 2) return "it holds matrices alone";
  if (is_ordered || scheme.granularity.rows <= 1 || scheme.granularity.cols <= 1 ||
      scheme != scheme_of(scheme.granularity.rows, scheme.granularity.cols))
    return "it holds fp8_e4m3 in square blocks with fp32 scales, such as fp8_e4m3:128x128";
  return {};
}

std::vector<StoredBytes> parts(const std::string& module, const Scheme& scheme, const Shape& shape, bool) {
  const ScaleGrid grid = scale_grid(scheme, shape);
  return {{module + ".weight", DType::kF8E4m3, shape}, {module + ".weight_scale_inv", DType::kF32, {grid.rows, grid.cols}}};
}

void pack(const InteropTensor& tensor, const Json&, std::span<StoredBytes> stored) {
  stored[0].bytes = tensor.q.codes;
  stored[1].bytes = tensor.q.scales;
}

InteropTensor unpack(const ModuleReader& module) {
  const Json& block = module.config().at("weight_block_size");
  const Tensor codes = module.read(".weight", DType::kF8E4m3, 2), scales = module.read(".weight_scale_inv", DType::kF32, 2);
  const Scheme scheme = scheme_of(block_edge(whole_number(block, std::size_t{0})), block_edge(whole_number(block, 1)));
  const ScaleGrid grid = scale_grid(scheme, codes.shape());
  if (scales.shape() != Shape{grid.rows, grid.cols})
    module.reject(fmt::format("weight_scale_inv has the shape {}, not [{}, {}]", to_string(scales.shape()), grid.rows, grid.cols));
  return {assemble(scheme, codes.shape(), buffer_of(codes), buffer_of(scales), Buffer::allocate(0), 1.0f)};
}

Json config(const std::vector<ModuleScheme>& modules) {
  const std::optional<Scheme> scheme = prevailing_scheme(modules);
  for (const ModuleScheme& module : modules)
    if (module.scheme && *module.scheme != *scheme)
      throw InvalidArgument(
          fmt::format("fp8-block: one block size serves the whole model, not {} and {}", scheme->to_string(), module.scheme->to_string()));
  const Granularity block = scheme ? scheme->granularity : Granularity::block(128, 128);
  Json object{{"quant_method", "fp8"},
              {"activation_scheme", "dynamic"},
              {"fmt", "e4m3"},
              {"weight_block_size", {block.rows, block.cols}},
              {"modules_to_not_convert", plain_modules(modules)}};
  if (scheme && are_weights_alone(modules)) object[kWeightsAlone] = true;
  return object;
}

/// The form has all inputs rounded, each token in groups as wide as a block.
ActivationScheme inputs_beside(const Scheme& weight) { return {scheme_of(1, weight.granularity.cols)}; }

std::string input_refusal(const Scheme& weight, const ActivationScheme& inputs) {
  return inputs == inputs_beside(weight) ? "" : fmt::format("it rounds inputs to {} alone", inputs_beside(weight).to_string());
}

std::optional<ModuleInputs> inputs_of(const ModuleReader& module) {
  if (says_weights_alone(module.config()) || module.config().value("activation_scheme", Json()) != "dynamic") return std::nullopt;
  return ModuleInputs{inputs_beside(scheme_of(1, block_edge(whole_number(module.config().at("weight_block_size"), 1))))};
}

}  // namespace

InteropFormat deepseek_fp8_format() {
  return {Ecosystem::kFp8Block,
          "fp8-block",
          "fp8",
          ".weight_scale_inv",
          kSuffixes,
          refusal,
          [](const Scheme& scheme) { return scheme; },
          parts,
          pack,
          unpack,
          config,
          input_refusal,
          nullptr,
          inputs_of};
}

}  // namespace narrow::io
