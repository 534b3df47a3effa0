#include "io/compressed_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "io/bounded_regex.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kSuffixes[] = {
    ".weight",       ".weight_packed",       ".weight_scale", ".weight_shape",     ".weight_zero_point",
    ".weight_g_idx", ".weight_global_scale", ".input_scale",  ".input_zero_point", ".input_global_scale"};
constexpr std::string_view kVersion = "0.17.0";  // the first with dense words

enum class Form : std::uint8_t { kNone, kInteger, kFloat, kPacked, kNvfp4, kMxfp4, kMxfp8 };

constexpr std::string_view name_of(Form form) {
  switch (form) {
    case Form::kInteger: return "int-quantized";
    case Form::kFloat: return "float-quantized";
    case Form::kPacked: return "pack-quantized";
    case Form::kNvfp4: return "nvfp4-pack-quantized";
    case Form::kMxfp4: return "mxfp4-pack-quantized";
    case Form::kMxfp8: return "mxfp8-quantized";
    case Form::kNone: break;
  }
  return "";
}

bool is_tensor(const Scheme& scheme) { return scheme.granularity.kind == Granularity::Kind::kTensor; }
bool is_row(const Scheme& scheme) { return scheme.granularity == Granularity::row(); }
bool is_tile(const Scheme& scheme) {
  return scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows > 1 && scheme.granularity.cols > 1;
}

/// Integers of 8 bits by row or tensor are stored as they are, all other integers in words.
Form form_of(const Scheme& scheme) {
  if (scheme == Scheme::parse("nvfp4")) return Form::kNvfp4;
  if (scheme == Scheme::parse("mxfp4")) return Form::kMxfp4;
  if (scheme == Scheme::parse("mxfp8_e4m3")) return Form::kMxfp8;
  const bool has_plain_scales = scheme.rule == ScaleRule::kLargest && !scheme.has_outer_scale &&
                                (scheme.scale == kFp32 || scheme.scale == kFp16 || scheme.scale == kBf16);
  if (!has_plain_scales) return Form::kNone;
  if (scheme.element == kFp8E4m3 && (is_tensor(scheme) || is_row(scheme) || is_tile(scheme))) return Form::kFloat;
  if ((scheme.element == kInt8 || scheme.element == kUint8) && (is_tensor(scheme) || is_row(scheme))) return Form::kInteger;
  return is_grouped_integer(scheme) ? Form::kPacked : Form::kNone;
}

std::string refusal(const Scheme& scheme, const Shape& shape, bool is_ordered) {
  if (shape.size() != 2) return "it holds matrices alone";
  const Form form = form_of(scheme);
  if (form == Form::kNone)
    return "it holds integers of 2, 3, 4 or 8 bits by row or block of columns, int8 by tensor, fp8_e4m3 by tensor, row or tile, nvfp4, "
           "mxfp4 and mxfp8_e4m3";
  if (is_ordered && (form != Form::kPacked || is_row(scheme))) return "it orders the groups of packed integers alone";
  const std::int64_t cols = shape[1], group = group_size(scheme, shape);
  if (scheme.granularity.kind == Granularity::Kind::kRectangle && !is_tile(scheme) && cols > group && cols % group != 0)
    return fmt::format("its columns are whole groups, and {} are not of {}", cols, group);
  const bool in_pairs = form == Form::kNvfp4 || form == Form::kMxfp4;
  if (in_pairs && cols % group != 0) return fmt::format("its columns are whole blocks, and {} are not of {}", cols, group);
  return {};
}

std::vector<StoredBytes> parts(const std::string& module, const Scheme& scheme, const Shape& shape, bool is_ordered) {
  const Form form = form_of(scheme);
  const ScaleGrid grid = scale_grid(scheme, shape);
  const Shape cells = is_tensor(scheme) ? Shape{1} : Shape{grid.rows, grid.cols};
  const std::int64_t n = shape[0], k = shape[1];
  const int bits = scheme.element.bits;
  switch (form) {
    case Form::kPacked: {
      std::vector<StoredBytes> stored{{module + ".weight_packed", DType::kI32, {n, words_of(k, bits)}},
                                      {module + ".weight_scale", dtype_of_scales(scheme.scale), cells},
                                      {module + ".weight_shape", DType::kI64, {2}}};
      if (scheme.asymmetric) stored.push_back({module + ".weight_zero_point", DType::kI32, {words_of(n, bits), grid.cols}});
      if (is_ordered) stored.push_back({module + ".weight_g_idx", DType::kI32, {k}});
      return stored;
    }
    case Form::kNvfp4:
      return {{module + ".weight_packed", DType::kU8, {n, k / 2}},
              {module + ".weight_scale", DType::kF8E4m3, cells},
              {module + ".weight_global_scale", DType::kF32, {1}}};
    case Form::kMxfp4: return {{module + ".weight_packed", DType::kU8, {n, k / 2}}, {module + ".weight_scale", DType::kU8, cells}};
    case Form::kMxfp8: return {{module + ".weight", DType::kF8E4m3, shape}, {module + ".weight_scale", DType::kU8, cells}};
    case Form::kFloat:
      return {{module + ".weight", DType::kF8E4m3, shape}, {module + ".weight_scale", dtype_of_scales(scheme.scale), cells}};
    default: break;
  }
  std::vector<StoredBytes> stored{{module + ".weight", DType::kI8, shape},
                                  {module + ".weight_scale", dtype_of_scales(scheme.scale), cells}};
  if (scheme.asymmetric) stored.push_back({module + ".weight_zero_point", DType::kI8, cells});
  return stored;
}

/// Unsigned bytes as signed ones with an offset of 128, and back.
Buffer turned_over(const Buffer& bytes) {
  Buffer result = Buffer::allocate(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) result.data()[i] = bytes.data()[i] ^ std::byte{0x80};
  return result;
}

template <typename T>
Buffer buffer_with(std::initializer_list<T> values) {
  Buffer buffer = Buffer::allocate(values.size() * sizeof(T));
  std::memcpy(buffer.data(), values.begin(), buffer.size());
  return buffer;
}

void pack(const InteropTensor& tensor, const Json&, std::span<StoredBytes> stored) {
  const QuantizedTensor& q = tensor.q;
  const Form form = form_of(q.scheme);
  stored[0].bytes = form == Form::kPacked                           ? bytes_of(pack_along_columns(unsigned_codes(q), q.scheme.element.bits))
                    : form == Form::kInteger && q.scheme.asymmetric ? turned_over(q.codes)
                                                                    : q.codes;
  stored[1].bytes = q.scales;
  if (form == Form::kNvfp4) stored[2].bytes = buffer_with({1.0f / q.outer_scale});
  if (form == Form::kInteger && q.scheme.asymmetric) stored[2].bytes = turned_over(q.zero_points);
  if (form != Form::kPacked) return;
  stored[2].bytes = buffer_with({q.shape[0], q.shape[1]});
  std::size_t next = 3;
  if (q.scheme.asymmetric) stored[next++].bytes = bytes_of(pack_along_rows(zero_points_of(q), q.scheme.element.bits));
  if (!tensor.order.empty())
    stored[next].bytes = bytes_of({reinterpret_cast<const std::uint32_t*>(tensor.order.data()), tensor.order.size()});
}

// ---- reading ----

bool names_module(const std::string& target, const ModuleReader& module) {
  if (target == "Linear" || target == module.module()) return true;
  return target.starts_with("re:") && BoundedRegex(target.substr(3)).matches(module.module());
}

/// The group that names the module; of several the one that names it most exactly.
Json group_of(const ModuleReader& module) {
  Json found;
  for (const auto& [name, group] : module.config().at("config_groups").items()) {
    if (!group.at("targets").is_array()) module.reject(fmt::format("the targets of {} are no list", in_quotes(name)));
    for (const Json& target : group.at("targets"))
      if (names_module(target.get<std::string>(), module) && (found.is_null() || target != "Linear")) found = group;
  }
  if (!found.is_object()) module.reject("no group of quantization_config names it");
  return found;
}

std::string strategy_of(const Json& arguments) {
  const auto strategy = arguments.find("strategy");
  if (strategy != arguments.end() && strategy->is_string()) return strategy->get<std::string>();
  const auto size = arguments.find("group_size");
  if (size == arguments.end() || size->is_null()) return "tensor";
  return whole_number(arguments, "group_size") > 0 ? "group" : "channel";
}

Granularity granularity_of(const Json& arguments) {
  const std::string strategy = strategy_of(arguments);
  if (strategy == "tensor") return Granularity::tensor();
  if (strategy == "channel") return Granularity::row();
  if (strategy == "block") {
    const Json& block = arguments.at("block_structure");
    if (block.is_string()) {  // "128x128"
      const std::string text = block.get<std::string>();
      std::int64_t rows = 0, cols = 0;
      const char* const end = text.data() + text.size();
      const auto [cross, wrong] = std::from_chars(text.data(), end, rows);
      if (wrong != std::errc{} || cross == end || *cross != 'x' || std::from_chars(cross + 1, end, cols).ptr != end)
        throw InvalidArgument(fmt::format("the block_structure {} is not of the form 128x128", in_quotes(text)));
      return Granularity::block(block_edge(rows), block_edge(cols));
    }
    return Granularity::block(block_edge(whole_number(block, std::size_t{0})), block_edge(whole_number(block, 1)));
  }
  if (strategy != "group" && strategy != "tensor_group")
    throw Unsupported(fmt::format("compressed-tensors' strategy {} is not read for weights", in_quotes(strategy)));
  return Granularity::block(block_edge(whole_number(arguments, "group_size")));
}

/// Before 0.17 words held whole codes; the number of words says which it is, and the version where it does not.
WordPacking packing_of(const ModuleReader& module, std::int64_t words, std::int64_t k, int bits) {
  const bool dense = words == words_of(k, bits), whole = words == words_of(k, bits, WordPacking::kWholeCodes);
  if (!dense && !whole)
    module.reject(fmt::format("weight_packed has {} words in a row, which {} codes of {} bits do not take", words, k, bits));
  if (dense != whole) return dense ? WordPacking::kDense : WordPacking::kWholeCodes;
  const std::string version = module.config().value("version", std::string(kVersion));
  const bool is_old = version.starts_with("0.") && std::atoi(version.c_str() + 2) < 17;
  return is_old ? WordPacking::kWholeCodes : WordPacking::kDense;
}

void check_cells(const ModuleReader& module, const Scheme& scheme, const Shape& shape, const Tensor& scales) {
  const ScaleGrid grid = scale_grid(scheme, shape);
  if (scales.size() != grid.count() || (scales.rank() == 2 && scales.shape() != Shape{grid.rows, grid.cols}))
    module.reject(fmt::format("weight_scale has the shape {}, not [{}, {}]", to_string(scales.shape()), grid.rows, grid.cols));
}

Tensor read_scales(const ModuleReader& module, const Scheme& scheme) {
  return module.read_floats(".weight_scale", is_tensor(scheme) ? 1 : 2);
}

InteropTensor unpack_words(const ModuleReader& module, const Json& arguments) {
  const std::int64_t given_bits = whole_number(arguments, "num_bits");
  if (given_bits < 2 || given_bits > 8) module.reject(fmt::format("num_bits is {}; words hold 2, 3, 4 or 8", given_bits));
  const int bits = static_cast<int>(given_bits);
  const Tensor words = module.read(".weight_packed", DType::kI32, 2), declared = module.read(".weight_shape", DType::kI64, 1);
  if (declared.size() != 2) module.reject("weight_shape has not two entries");
  const Shape shape{declared.as<std::int64_t>()[0], declared.as<std::int64_t>()[1]};
  if (shape[0] != words.shape()[0] || shape[1] < 1 || shape[1] > words.shape()[1] * 32)
    module.reject(fmt::format("weight_shape {} does not fit weight_packed {}", to_string(shape), to_string(words.shape())));
  const WordPacking packing = packing_of(module, words.shape()[1], shape[1], bits);  // first: a row's bits now fit 64
  const Granularity granularity = granularity_of(arguments);
  const bool asymmetric = module.has(".weight_zero_point");
  const Tensor scales = module.read_floats(".weight_scale", 2);
  const Scheme scheme = integer_scheme(bits, asymmetric, granularity.cols, format_of_scales(scales.dtype()));
  check_cells(module, scheme, shape, scales);
  Buffer zero_points = Buffer::allocate(0);
  if (asymmetric) {
    const Tensor packed = module.read(".weight_zero_point", DType::kI32, 2);
    if (packed.shape() != Shape{words_of(shape[0], bits, packing), scales.shape()[1]})
      module.reject(fmt::format("weight_zero_point has the shape {}", to_string(packed.shape())));
    const CodeMatrix zeros = unpack_along_rows(words_in(packed), shape[0], scales.shape()[1], bits, packing);
    zero_points = Buffer::allocate(zeros.codes.size());
    std::memcpy(zero_points.data(), zeros.codes.data(), zeros.codes.size());
  }
  const CodeMatrix codes = unpack_along_columns(words_in(words), shape[0], shape[1], bits, packing);
  InteropTensor tensor{assemble(scheme, shape, packed_codes(scheme, codes), buffer_of(scales), zero_points, 1.0f)};
  if (module.has(".weight_g_idx")) {
    const Tensor index = module.read(".weight_g_idx", DType::kI32, 1);
    if (index.size() != shape[1]) module.reject(fmt::format("weight_g_idx has {} entries for {} columns", index.size(), shape[1]));
    tensor.order.assign(index.as<std::int32_t>(), index.as<std::int32_t>() + index.size());
    for (const std::int32_t group : tensor.order)
      if (group < 0 || group >= scales.shape()[1]) module.reject(fmt::format("weight_g_idx has group {} of {}", group, scales.shape()[1]));
  }
  return tensor;
}

InteropTensor unpack_pairs(const ModuleReader& module) {
  const bool is_nvfp4 = module.has(".weight_global_scale");
  const Scheme scheme = Scheme::parse(is_nvfp4 ? "nvfp4" : "mxfp4");
  const Tensor codes = module.read(".weight_packed", DType::kU8, 2),
               scales = module.read(".weight_scale", is_nvfp4 ? DType::kF8E4m3 : DType::kU8, 2);
  const Shape shape{codes.shape()[0], codes.shape()[1] * 2};
  check_cells(module, scheme, shape, scales);
  float outer_scale = 1.0f;
  if (is_nvfp4) {
    const Tensor global = module.read(".weight_global_scale", DType::kF32, 1);
    if (global.size() == 1) outer_scale = 1.0f / *global.as<float>();
    if (global.size() != 1 || !(outer_scale > 0.0f) || !std::isfinite(outer_scale))
      module.reject("weight_global_scale is not one positive number with a finite inverse");
  }
  return {assemble(scheme, shape, buffer_of(codes), buffer_of(scales), Buffer::allocate(0), outer_scale)};
}

InteropTensor unpack(const ModuleReader& module) {
  const Json arguments = group_of(module).at("weights");
  if (!arguments.is_object()) module.reject("its group of quantization_config has no weights");
  if (module.has(".weight_packed"))
    return module.dtype(".weight_packed") == DType::kI32 ? unpack_words(module, arguments) : unpack_pairs(module);
  if (module.dtype(".weight") == DType::kF8E4m3) {
    const Tensor codes = module.read(".weight", DType::kF8E4m3, 2);
    Scheme scheme = Scheme::parse("mxfp8_e4m3");
    const bool is_mx = module.dtype(".weight_scale") == DType::kU8;
    if (!is_mx)
      scheme = {.element = kFp8E4m3, .granularity = granularity_of(arguments), .scale = format_of_scales(module.dtype(".weight_scale"))};
    const Tensor scales = is_mx ? module.read(".weight_scale", DType::kU8, 2) : read_scales(module, scheme);
    check_cells(module, scheme, codes.shape(), scales);
    return {assemble(scheme, codes.shape(), buffer_of(codes), buffer_of(scales), Buffer::allocate(0), 1.0f)};
  }
  if (arguments.at("num_bits") != 8)
    throw Unsupported(fmt::format("module {} stores {} bits in bytes; narrow reads 8 bits there", in_quotes(module.module()),
                                  arguments.at("num_bits").dump()));
  const Tensor codes = module.read(".weight", DType::kI8, 2);
  const bool asymmetric = module.has(".weight_zero_point");
  Scheme scheme{.element = asymmetric ? kUint8 : kInt8,
                .granularity = granularity_of(arguments),
                .scale = format_of_scales(module.dtype(".weight_scale"))};
  scheme.asymmetric = asymmetric;
  const Tensor scales = read_scales(module, scheme);
  check_cells(module, scheme, codes.shape(), scales);
  Buffer zero_points = Buffer::allocate(0);
  if (asymmetric) {
    const Tensor zeros = module.read(".weight_zero_point", DType::kI8, scales.rank());
    if (zeros.shape() != scales.shape()) module.reject("weight_zero_point has not the shape of weight_scale");
    zero_points = turned_over(buffer_of(zeros));
  }
  return {
      assemble(scheme, codes.shape(), asymmetric ? turned_over(buffer_of(codes)) : buffer_of(codes), buffer_of(scales), zero_points, 1.0f)};
}

// ---- config.json ----

/// QuantArgs; its reader allows no other keys.
Json quantization_arguments(int bits, const char* type, bool symmetric, const char* strategy) {
  return {{"num_bits", bits},     {"type", type},          {"symmetric", symmetric},
          {"strategy", strategy}, {"group_size", nullptr}, {"block_structure", nullptr},
          {"dynamic", false},     {"actorder", nullptr},   {"scale_dtype", nullptr},
          {"zp_dtype", nullptr},  {"observer", nullptr},   {"observer_kwargs", Json::object()}};
}

Json weight_arguments(const Scheme& scheme, bool is_ordered) {
  const Form form = form_of(scheme);
  const char* strategy = is_tensor(scheme)      ? "tensor"
                         : is_row(scheme)       ? "channel"
                         : is_tile(scheme)      ? "block"
                         : form == Form::kNvfp4 ? "tensor_group"
                                                : "group";
  Json json = quantization_arguments(scheme.element.bits, scheme.element.is_float() ? "float" : "int", !scheme.asymmetric, strategy);
  if (is_tile(scheme)) json["block_structure"] = {scheme.granularity.rows, scheme.granularity.cols};
  if (std::string_view(strategy).ends_with("group")) json["group_size"] = scheme.granularity.cols;
  if (is_ordered) json["actorder"] = "group";
  if (scheme.asymmetric) json["zp_dtype"] = "torch.int8";
  if (form == Form::kNvfp4) json["scale_dtype"] = "torch.float8_e4m3fn";
  if (form == Form::kMxfp4 || form == Form::kMxfp8) json["scale_dtype"] = "torch.uint8";
  return json;
}

// ---- inputs ----

/// Beside weights alone, where a reader's kernels take no inputs that are not rounded: each token as it comes, or groups beside tiles.
std::optional<ActivationScheme> announced_inputs(const Scheme& weight) {
  const Form form = form_of(weight);
  if (form != Form::kInteger && form != Form::kFloat) return std::nullopt;
  const Granularity granularity = is_tile(weight) ? Granularity::block(weight.granularity.cols) : Granularity::row();
  return ActivationScheme{{.element = form == Form::kInteger ? kInt8 : kFp8E4m3, .granularity = granularity}};
}

bool has_e8m0_groups(const Scheme& scheme) { return scheme == Scheme::parse("mxfp4") || scheme == Scheme::parse("mxfp8_e4m3"); }

std::string input_refusal(const Scheme&, const ActivationScheme& inputs) {
  const Scheme& scheme = inputs.scheme;
  const bool is_plain = scheme.rule == ScaleRule::kLargest && !scheme.has_outer_scale && scheme.scale == kFp32 && scheme.has_scales() &&
                        (scheme.element == kInt8 || scheme.element == kUint8 || scheme.element == kInt4 || scheme.element == kFp8E4m3);
  if (is_plain || scheme == Scheme::parse("nvfp4") || (has_e8m0_groups(scheme) && !inputs.is_static)) return {};
  return "it rounds inputs to int8, int4 or fp8_e4m3 with fp32 scales, nvfp4, mxfp4 and mxfp8_e4m3";
}

Json input_arguments(const std::optional<ActivationScheme>& inputs) {
  if (!inputs) return nullptr;
  const Scheme& scheme = inputs->scheme;
  const bool is_nvfp4 = scheme.has_outer_scale, is_group = scheme.granularity.cols > 0;
  Json json = quantization_arguments(scheme.element.bits, scheme.element.is_float() ? "float" : "int", !scheme.asymmetric,
                                     is_nvfp4            ? "tensor_group"
                                     : is_tensor(scheme) ? "tensor"
                                     : is_group          ? "group"
                                                         : "token");
  if (is_group) json["group_size"] = scheme.granularity.cols;
  json["dynamic"] = is_nvfp4 ? Json("local") : Json(!inputs->is_static);
  if (scheme.asymmetric) json["zp_dtype"] = "torch.int8";
  if (is_nvfp4) json["scale_dtype"] = "torch.float8_e4m3fn";
  if (has_e8m0_groups(scheme)) json["scale_dtype"] = "torch.uint8";
  return json;
}

std::vector<StoredBytes> input_parts(const std::string& module, const ActivationScheme& inputs, const StaticScale& scale) {
  if (inputs.scheme.has_outer_scale) return {single_number(module + ".input_global_scale", {1}, 1.0f / scale.scale)};
  std::vector<StoredBytes> parts{single_number(module + ".input_scale", {1}, scale.scale)};
  if (inputs.scheme.asymmetric)
    parts.push_back({module + ".input_zero_point", DType::kI8, {1}, buffer_with({static_cast<std::uint8_t>(scale.zero_point ^ 0x80)})});
  return parts;
}

float single_scale(const ModuleReader& module, const char* suffix) {
  const Tensor stored = convert(module.read_floats(suffix, 1), DType::kF32);
  if (stored.size() != 1 || !(*stored.as<float>() > 0.0f) || !std::isfinite(*stored.as<float>()))
    module.reject(fmt::format("{} is not one positive number", suffix));
  return *stored.as<float>();
}

Scheme input_scheme(const ModuleReader& module, const Json& arguments) {
  const std::string strategy = strategy_of(arguments);
  const std::int64_t bits = whole_number(arguments, "num_bits");
  const bool is_float = arguments.value("type", "int") == "float", symmetric = arguments.value("symmetric", true);
  if (strategy == "tensor_group" && is_float && bits == 4) return Scheme::parse("nvfp4");
  if (strategy == "group" && is_float && arguments.value("scale_dtype", Json()) == "torch.uint8")
    return Scheme::parse(bits == 4 ? "mxfp4" : "mxfp8_e4m3");
  Scheme scheme{.element = is_float ? kFp8E4m3 : symmetric ? (bits == 4 ? kInt4 : kInt8) : kUint8, .granularity = {}};
  scheme.asymmetric = !symmetric;
  if (scheme.element.bits != bits || (is_float && !symmetric) || (strategy != "tensor" && strategy != "token" && strategy != "group"))
    throw Unsupported(fmt::format("module {}: narrow rounds no inputs to {} bits by {}", in_quotes(module.module()), bits, strategy));
  scheme.granularity = strategy == "tensor"  ? Granularity::tensor()
                       : strategy == "token" ? Granularity::row()
                                             : Granularity::block(block_edge(whole_number(arguments, "group_size")));
  return scheme;
}

std::optional<ModuleInputs> inputs_of(const ModuleReader& module) {
  if (says_weights_alone(module.config())) return std::nullopt;
  const Json arguments = group_of(module).value("input_activations", Json());
  if (arguments.is_null()) return std::nullopt;
  ModuleInputs inputs{{input_scheme(module, arguments), arguments.value("dynamic", Json(false)) != Json(true)}};
  if (inputs.scheme.is_static && inputs.scheme.scheme.has_outer_scale)
    inputs.scale = StaticScale{1.0f / single_scale(module, ".input_global_scale")};
  else if (inputs.scheme.is_static)
    inputs.scale = StaticScale{single_scale(module, ".input_scale")};
  if (inputs.scheme.is_static && inputs.scheme.scheme.asymmetric) {
    const Tensor zero = module.read(".input_zero_point", DType::kI8, 1);
    if (zero.size() != 1) module.reject("input_zero_point is not one number");
    inputs.scale->zero_point = static_cast<std::uint8_t>(*zero.as<std::uint8_t>() ^ 0x80);
  }
  inputs.scheme = ActivationScheme::parse(inputs.scheme.to_string());  // throws where narrow has no such inputs
  return inputs;
}

/// One group per scheme, order and inputs; the prevailing one targets Linear, the others their modules by name.
Json config(const std::vector<ModuleScheme>& modules) {
  const std::optional<Scheme> first = prevailing_scheme(modules);
  struct Group {
    Scheme scheme;
    bool is_ordered;
    std::optional<ActivationScheme> inputs;
    std::vector<std::string> targets;
  };
  const bool weights_alone = are_weights_alone(modules);
  bool announces = false;
  std::vector<Group> groups;
  for (const ModuleScheme& module : modules) {
    if (!module.scheme) continue;
    const std::optional<ActivationScheme> inputs = weights_alone ? announced_inputs(*module.scheme) : module.inputs;
    announces = announces || (weights_alone && inputs);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.scheme == *module.scheme && group.is_ordered == module.is_ordered && group.inputs == inputs;
    });
    if (same != groups.end()) {
      same->targets.push_back(module.module);
    } else {
      groups.push_back({*module.scheme, module.is_ordered, inputs, {module.module}});
    }
  }
  std::stable_partition(groups.begin(), groups.end(), [&](const Group& group) { return group.scheme == *first; });
  Json json = Json::object();
  std::string format;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string own(name_of(form_of(groups[i].scheme)));
    format = format.empty() || format == own ? own : "mixed-precision";
    json["group_" + std::to_string(i)] = {{"targets", i == 0 ? std::vector<std::string>{"Linear"} : groups[i].targets},
                                          {"format", own},
                                          {"weights", weight_arguments(groups[i].scheme, groups[i].is_ordered)},
                                          {"input_activations", input_arguments(groups[i].inputs)},
                                          {"output_activations", nullptr}};
  }
  Json object{{"quant_method", "compressed-tensors"},
              {"version", kVersion},
              {"format", format.empty() ? "dense" : format},
              {"quantization_status", "compressed"},
              {"global_compression_ratio", nullptr},
              {"ignore", plain_modules(modules)},
              {"kv_cache_scheme", nullptr},
              {"sparsity_config", Json::object()},
              {"transform_config", Json::object()},
              {"config_groups", json}};
  if (announces) object[kWeightsAlone] = true;
  return object;
}

}  // namespace

InteropFormat compressed_tensors_format() {
  return {Ecosystem::kCompressedTensors,
          "ct",
          "compressed-tensors",
          ".weight_scale",
          kSuffixes,
          refusal,
          [](const Scheme& scheme) { return scheme; },
          parts,
          pack,
          unpack,
          config,
          input_refusal,
          input_parts,
          inputs_of};
}

}  // namespace narrow::io
