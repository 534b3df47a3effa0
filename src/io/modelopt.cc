#include "io/modelopt.h"

#include <fmt/format.h>

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

InteropTensor unpack_fp8(const ModuleReader& module) {
  const Tensor codes = module.read(".weight", DType::kF8E4m3, 2), scales = module.read_any_rank(".weight_scale", DType::kF32);
  const std::int64_t rows = codes.shape()[0];
  if (scales.size() != 1 && scales.size() != rows) module.reject(fmt::format("weight_scale has {} numbers for {} rows", scales.size(), rows));
  const Scheme scheme{.element = kFp8E4m3, .granularity = scales.size() == 1 && rows != 1 ? Granularity::tensor() : Granularity::row(), .scale = kFp32};
  return {assemble(scheme, codes.shape(), buffer_of(codes), buffer_of(scales), Buffer::allocate(0), 1.0f)};
}

InteropTensor unpack(const ModuleReader& module) {
  if (module.has(".pre_quant_scale"))
    throw Unsupported(fmt::format("module {} multiplies its inputs by a scale of their own (AWQ), which narrow does not carry", module.module()));
  if (module.has(".weight_scale_2")) return unpack_nvfp4(module);
  if (module.dtype(".weight") == DType::kF8E4m3) return unpack_fp8(module);
  throw Unsupported(fmt::format("module {} is neither FP8 nor NVFP4, the two of ModelOpt's forms that narrow reads", module.module()));
}

}  // namespace

InteropFormat modelopt_format() {
  return read_only_format(Ecosystem::kModelOpt, "modelopt", "modelopt", ".weight_scale", kSuffixes, unpack);
}

}  // namespace narrow::io
