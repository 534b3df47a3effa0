#include "io/bitsandbytes.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kState = ".weight.quant_state.bitsandbytes__nf4";
constexpr std::string_view kSuffixes[] = {".weight",           ".weight.absmax",           ".weight.nested_absmax",
                                          ".weight.quant_map", ".weight.nested_quant_map", kState};
constexpr std::int64_t kMostBlock = 4096;

std::int64_t whole(const ModuleReader& module, const Json& state, const char* key, std::int64_t most) {
  if (!state.contains(key) || !state.at(key).is_number_integer()) module.reject(fmt::format("its state has no whole number {}", key));
  const std::int64_t number = state.at(key).get<std::int64_t>();
  if (number < 1 || number > most) module.reject(fmt::format("its state's {} is {}", key, number));
  return number;
}

Json state_of(const ModuleReader& module) {
  const Tensor bytes = module.read(kState, DType::kU8, 1);
  const std::string name = in_quotes(module.module() + std::string(kState));
  const Json state = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.byte_size()}, name);
  if (!state.is_object()) module.reject("its state is no JSON object");
  return state;
}

/// The largest magnitude of every block.
Buffer block_scales(const ModuleReader& module, const Json& state, std::int64_t blocks) {
  Buffer scales = Buffer::allocate(static_cast<std::size_t>(blocks) * sizeof(float));
  if (!module.has(".weight.nested_absmax")) {
    const Tensor absmax = module.read(".weight.absmax", DType::kF32, 1);
    if (absmax.size() != blocks) module.reject(fmt::format("it has {} scales for {} blocks", absmax.size(), blocks));
    std::copy_n(absmax.as<float>(), blocks, scales.as<float>());
  } else {
    const Tensor codes = module.read(".weight.absmax", DType::kU8, 1), outer = module.read(".weight.nested_absmax", DType::kF32, 1),
                 map = module.read(".weight.nested_quant_map", DType::kF32, 1);
    const std::int64_t size = whole(module, state, "nested_blocksize", std::int64_t{1} << 20);
    if (!state.contains("nested_offset") || !state.at("nested_offset").is_number()) module.reject("its state has no number nested_offset");
    const float offset = state.at("nested_offset").get<float>();
    if (codes.size() != blocks || map.size() != 256 || outer.size() != (blocks + size - 1) / size)
      module.reject(
          fmt::format("{} scales, {} scales of scales and {} values do not fit {} blocks", codes.size(), outer.size(), map.size(), blocks));
    for (std::int64_t i = 0; i < blocks; ++i)
      scales.as<float>()[i] = map.as<float>()[codes.as<std::uint8_t>()[i]] * outer.as<float>()[i / size] + offset;
  }
  if (!std::all_of(scales.as<float>(), scales.as<float>() + blocks, [](float scale) { return std::isfinite(scale); }))
    module.reject("a scale is not finite");
  return scales;
}

InteropTensor unpack(const ModuleReader& module) {
  const Json state = state_of(module);
  const std::int64_t block = whole(module, state, "blocksize", kMostBlock);
  const Json& sizes = state.contains("shape") ? state.at("shape") : Json();
  if (!sizes.is_array() || sizes.size() != 2 || !sizes[0].is_number_unsigned() || !sizes[1].is_number_unsigned())
    module.reject("its state has no shape [n, k]");
  const Shape shape{sizes[0].get<std::int64_t>(), sizes[1].get<std::int64_t>()};
  const Tensor codes = module.read(".weight", DType::kU8, 2), map = module.read(".weight.quant_map", DType::kF32, 1);
  if (shape[0] < 1 || shape[1] < 1 || shape[0] > (std::int64_t{1} << 40) / shape[1] || (shape[0] * shape[1] + 1) / 2 != codes.size())
    module.reject(fmt::format("{} bytes hold no weight {}", codes.size(), to_string(shape)));
  if (map.size() != 16 || !std::equal(kNf4Values.begin(), kNf4Values.end(), map.as<float>())) module.reject("its quant_map is not NF4's");
  if (shape[1] % block != 0)
    throw Unsupported(fmt::format("module {}: blocks of {} cross its rows of {}, which narrow does not carry", in_quotes(module.module()),
                                  block, shape[1]));
  Buffer packed = Buffer::allocate(codes.byte_size());  // rows are whole blocks, so whole bytes
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const std::uint8_t pair = codes.as<std::uint8_t>()[i];
    packed.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(pair << 4 | pair >> 4);
  }
  const Scheme scheme{.element = kNf4, .granularity = Granularity::block(block), .scale = kFp32};
  return {assemble(scheme, shape, std::move(packed), block_scales(module, state, shape[0] * shape[1] / block), Buffer::allocate(0), 1.0f)};
}

}  // namespace

InteropFormat bitsandbytes_format() {
  return read_only_format(Ecosystem::kBitsAndBytes, "bnb", "bitsandbytes", ".weight.absmax", kSuffixes, unpack);
}

}  // namespace narrow::io
