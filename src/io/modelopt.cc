#include "io/modelopt.h"

#include <cstring>
#include <set>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kSuffixes[] = {".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale"};

/// A scalar or a vector of one, positive.
float single(const ModuleReader& module, std::string_view suffix) {
  const Tensor number = module.read_any_rank(suffix, DType::kF32);
  if (number.size() != 1 || !(*number.as<float>() > 0.0f)) module.reject(fmt::format("{} is not one positive number", suffix));
  return *number.as<float>();
}

InteropTensor unpack_nvfp4(const ModuleReader& module) {
  const Scheme scheme = Scheme::parse("nvfp4");
  const Tensor codes = module.read(".weight", DType::kU8, 2), scales = module.read(".weight_scale", DType::kF8E4m3, 2);
  const Shape shape{codes.shape()[0], codes.shape()[1] * 2};
  const ScaleGrid grid = scale_grid(scheme, shape);
  if (scales.shape() != Shape{grid.rows, grid.cols})
    module.reject(fmt::format("weight_scale has the shape {}, not [{}, {}]", to_string(scales.shape()), grid.rows, grid.cols));
  return {assemble(scheme, shape, buffer_of(codes), buffer_of(scales), Buffer::allocate(0), single(module, ".weight_scale_2"))};
}

Scheme fp8_by(const Granularity& granularity) { return {.element = kFp8E4m3, .granularity = granularity, .scale = kFp32}; }

InteropTensor unpack_fp8(const ModuleReader& module) {
  const Tensor codes = module.read(".weight", DType::kF8E4m3, 2), scales = module.read_any_rank(".weight_scale", DType::kF32);
  const std::int64_t rows = codes.shape()[0];
  if (scales.size() != 1 && scales.size() != rows)
    module.reject(fmt::format("weight_scale has {} numbers for {} rows", scales.size(), rows));
  const Scheme scheme = fp8_by(scales.size() == 1 && (scales.rank() == 0 || rows != 1) ? Granularity::tensor() : Granularity::row());
  return {assemble(scheme, codes.shape(), buffer_of(codes), buffer_of(scales), Buffer::allocate(0), 1.0f)};
}

InteropTensor unpack(const ModuleReader& module) {
  if (module.has(".pre_quant_scale"))
    throw Unsupported(fmt::format("module {} multiplies its inputs by a scale of their own (AWQ), which narrow does not carry",
                                  in_quotes(module.module())));
  if (module.has(".weight_scale_2")) return unpack_nvfp4(module);
  if (module.dtype(".weight") == DType::kF8E4m3) return unpack_fp8(module);
  throw Unsupported(
      fmt::format("module {} is neither FP8 nor NVFP4, the two of ModelOpt's forms that narrow reads", in_quotes(module.module())));
}

// ---- writing ----

/// quant_algo; empty for a scheme that has none.
std::string_view algorithm_of(const Scheme& scheme) {
  if (scheme == Scheme::parse("nvfp4")) return "NVFP4";
  if (scheme == fp8_by(Granularity::tensor())) return "FP8";
  return scheme == fp8_by(Granularity::row()) ? "FP8_PER_CHANNEL_PER_TOKEN" : "";
}

std::string refusal(const Scheme& scheme, const Shape& shape, bool is_ordered) {
  if (shape.size() != 2) return "it holds matrices alone";
  if (is_ordered || algorithm_of(scheme).empty()) return "it holds nvfp4, and fp8_e4m3 by tensor or row with fp32 scales";
  if (scheme.has_outer_scale && shape[1] % scheme.granularity.cols != 0)
    return fmt::format("its columns are whole blocks, and {} are not of {}", shape[1], scheme.granularity.cols);
  return {};
}

std::vector<StoredBytes> parts(const std::string& module, const Scheme& scheme, const Shape& shape, bool) {
  const ScaleGrid grid = scale_grid(scheme, shape);
  if (scheme.has_outer_scale)
    return {{module + ".weight", DType::kU8, {shape[0], shape[1] / 2}},
            {module + ".weight_scale", DType::kF8E4m3, {grid.rows, grid.cols}},
            {module + ".weight_scale_2", DType::kF32, {}}};
  return {{module + ".weight", DType::kF8E4m3, shape},
          {module + ".weight_scale", DType::kF32, scheme.granularity == Granularity::row() ? Shape{shape[0]} : Shape{}}};
}

void pack(const InteropTensor& tensor, const Json&, std::span<StoredBytes> stored) {
  stored[0].bytes = tensor.q.codes;
  stored[1].bytes = tensor.q.scales;
  if (!tensor.q.scheme.has_outer_scale) return;
  stored[2].bytes = Buffer::allocate(sizeof(float));
  std::memcpy(stored[2].bytes.data(), &tensor.q.outer_scale, sizeof(float));
}

/// One static scale for a module's inputs: of nvfp4 the outer one, of fp8_e4m3:tensor the only one; beside rows each token has its own.
std::string input_refusal(const Scheme& weight, const ActivationScheme& inputs) {
  if (inputs.scheme == weight && inputs.is_static == (weight.granularity != Granularity::row())) return {};
  return "it rounds inputs as it does weights: nvfp4 and fp8_e4m3:tensor with static scales, fp8_e4m3:row";
}

std::vector<StoredBytes> input_parts(const std::string& module, const ActivationScheme&, const StaticScale& scale) {
  return {single_number(module + ".input_scale", {}, scale.scale)};
}

std::optional<ModuleInputs> inputs_of(const ModuleReader& module) {
  if (says_weights_alone(module.config())) return std::nullopt;
  const bool is_nvfp4 = module.has(".weight_scale_2");
  if (!is_nvfp4 && module.read_any_rank(".weight_scale", DType::kF32).size() > 1) return ModuleInputs{{fp8_by(Granularity::row())}};
  if (!module.has(".input_scale")) return std::nullopt;
  return ModuleInputs{{is_nvfp4 ? Scheme::parse("nvfp4") : fp8_by(Granularity::tensor()), true},
                      StaticScale{single(module, ".input_scale")}};
}

Json group_of(const Scheme& scheme, std::vector<std::string> targets) {
  Json arguments{{"dynamic", false}, {"num_bits", scheme.element.bits}, {"type", "float"}};
  if (scheme.has_outer_scale) arguments["group_size"] = scheme.granularity.cols;
  Json inputs = arguments;
  if (scheme.granularity == Granularity::row()) {
    arguments["strategy"] = "channel";
    inputs["strategy"] = "token";
    inputs["dynamic"] = true;
  }
  return {{"weights", arguments}, {"input_activations", inputs}, {"targets", std::move(targets)}};
}

/// One group per scheme; the prevailing one targets Linear, the others their modules by name.
Json config(const std::vector<ModuleScheme>& modules) {
  const std::optional<Scheme> first = prevailing_scheme(modules);
  Json groups = Json::object(), layers = Json::object();
  std::set<std::string_view> algorithms;
  if (first) groups["group_0"] = group_of(*first, {"Linear"});
  for (const ModuleScheme& module : modules) {
    if (!module.scheme) continue;
    algorithms.insert(algorithm_of(*module.scheme));
    layers[module.module] = {{"quant_algo", algorithm_of(*module.scheme)}};
    if (module.scheme->has_outer_scale) layers[module.module]["group_size"] = module.scheme->granularity.cols;
    if (*module.scheme == *first) continue;
    Json& group = groups["group_" + std::string(algorithm_of(*module.scheme))];
    if (group.is_null()) group = group_of(*module.scheme, {});
    group["targets"].push_back(module.module);
  }
  const bool is_mixed = algorithms.size() > 1;
  Json object{{"quant_method", "modelopt"},
              {"quant_algo", is_mixed             ? "MIXED_PRECISION"
                             : algorithms.empty() ? ""
                                                  : *algorithms.begin()},
              {"config_groups", groups},
              {"ignore", plain_modules(modules)},
              {"producer", {{"name", "modelopt"}, {"version", "0.47.0"}}}};  // the form's name and age: readers ask for them
  if (is_mixed) object["quantized_layers"] = layers;
  const bool has_rows = algorithms.contains(algorithm_of(fp8_by(Granularity::row())));
  if (has_rows && are_weights_alone(modules)) object[kWeightsAlone] = true;
  return object;
}

}  // namespace

Json modelopt_settings(const Json& quantization) {
  Json inner{
      {"quant_algo", quantization.at("quant_algo")}, {"kv_cache_quant_algo", nullptr}, {"exclude_modules", quantization.at("ignore")}};
  const Json& weights = quantization.at("config_groups").value("group_0", Json::object()).value("weights", Json::object());
  if (weights.contains("group_size")) inner["group_size"] = weights.at("group_size");
  if (quantization.contains("quantized_layers")) inner["quantized_layers"] = quantization.at("quantized_layers");
  return {{"producer", quantization.at("producer")}, {"quantization", inner}};
}

InteropFormat modelopt_format() {
  return {Ecosystem::kModelOpt,
          "modelopt",
          "modelopt",
          ".weight_scale",
          kSuffixes,
          refusal,
          [](const Scheme& scheme) {
            Scheme adapted = scheme;
            if (scheme.element == kFp8E4m3 && scheme.rule == ScaleRule::kLargest) adapted.scale = kFp32;
            return adapted;
          },
          parts,
          pack,
          unpack,
          config,
          input_refusal,
          input_parts,
          inputs_of};
}

}  // namespace narrow::io
