#include "io/interop.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "format/packing.h"
#include "io/awq.h"
#include "io/bitsandbytes.h"
#include "io/checkpoint_directory.h"
#include "io/compressed_tensors.h"
#include "io/deepseek_fp8.h"
#include "io/gptq.h"
#include "io/modelopt.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

/// Rows of packed canonical codes, decoded one after the other.
template <typename Take>
void each_code(const QuantizedTensor& q, const Take& take) {
  const MatrixShape matrix = as_matrices(q.shape);
  const std::size_t row_bytes = q.row_bytes();
  for (std::int64_t row = 0; row < matrix.total_rows(); ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col)
      take(row, col, read_code(q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * row_bytes, col, q.scheme.element.bits));
}

std::uint32_t offset_of(const Format& element) { return element.is_signed ? 1u << (element.bits - 1) : 0u; }

/// A scale that is no number would make one of no weight of its group. Zero and negative ones are the file's own, and carried over.
void check_scales(const ModuleReader& module, const QuantizedTensor& q) {
  const std::size_t bytes = q.scheme.scale.bits / 8u, count = q.scales.size() / bytes;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t code = 0;
    std::memcpy(&code, q.scales.data() + i * bytes, bytes);
    const float scale = decode(q.scheme.scale, code);
    if (!std::isfinite(scale)) module.reject(fmt::format("scale {} of {} is {}", i, count, scale));
  }
}

}  // namespace

Json quantization_config(const Checkpoint& checkpoint) {
  const std::string text = checkpoint.config();
  if (text.empty()) return nullptr;
  const std::filesystem::path path = checkpoint.directory() / kConfigFile;
  Json config = parse_json(text, path);
  if (!config.is_object()) throw CorruptFile(fmt::format("{}: it is not a JSON object", path.string()));
  const auto found = config.find("quantization_config");
  return found != config.end() ? std::move(*found) : Json(nullptr);
}

std::span<const InteropFormat> interop_formats() {
  static const InteropFormat formats[] = {compressed_tensors_format(), gptq_format(),     awq_format(),
                                          deepseek_fp8_format(),       modelopt_format(), bitsandbytes_format()};
  return formats;
}

const InteropFormat& interop_format(Ecosystem ecosystem) {
  for (const InteropFormat& format : interop_formats())
    if (format.ecosystem == ecosystem) return format;
  throw InvalidArgument(fmt::format("{} is narrow's own form and no other ecosystem's", name_of(ecosystem)));
}

InteropFormat read_only_format(Ecosystem ecosystem, std::string_view name, std::string_view quant_method, std::string_view mark,
                               std::span<const std::string_view> suffixes, InteropTensor (*unpack)(const ModuleReader& module)) {
  return {ecosystem,
          name,
          quant_method,
          mark,
          suffixes,
          [](const Scheme&, const Shape&, bool) { return std::string("narrow reads this form and does not write it"); },
          [](const Scheme& scheme) { return scheme; },
          nullptr,
          nullptr,
          unpack,
          nullptr};
}

// ---- one module ----

bool ModuleReader::has(std::string_view suffix) const { return checkpoint_.contains(module_ + std::string(suffix)); }

void ModuleReader::reject(std::string_view why) const {
  throw CorruptFile(fmt::format("{}: module {}: {}", checkpoint_.directory().string(), in_quotes(module_), why));
}

DType ModuleReader::dtype(std::string_view suffix) const {
  if (!has(suffix)) reject(fmt::format("it has no tensor {}", suffix));
  return checkpoint_.dtype(module_ + std::string(suffix));
}

Tensor ModuleReader::read_any_rank(std::string_view suffix, DType dtype) const {
  if (this->dtype(suffix) != dtype) reject(fmt::format("{} is {}, not {}", suffix, name_of(this->dtype(suffix)), name_of(dtype)));
  const std::string name = module_ + std::string(suffix);
  if (element_count(checkpoint_.shape(name)) == 0)
    reject(fmt::format("{} has the shape {}, without elements", suffix, to_string(checkpoint_.shape(name))));
  return checkpoint_.read_stored(name);
}

Tensor ModuleReader::read(std::string_view suffix, DType dtype, int rank) const {
  const Tensor tensor = read_any_rank(suffix, dtype);
  if (tensor.rank() != rank) reject(fmt::format("{} has the shape {}, not {} dimensions", suffix, to_string(tensor.shape()), rank));
  return tensor;
}

Tensor ModuleReader::read_floats(std::string_view suffix, int rank) const {
  if (!is_floating(dtype(suffix))) reject(fmt::format("{} is {}, not F32, F16 or BF16", suffix, name_of(dtype(suffix))));
  return read(suffix, dtype(suffix), rank);
}

// ---- a whole checkpoint ----

std::optional<InteropReader> InteropReader::open(const Checkpoint& checkpoint) { return open(checkpoint, quantization_config(checkpoint)); }

std::optional<InteropReader> InteropReader::open(const Checkpoint& checkpoint, Json config) {
  if (!config.is_object()) return std::nullopt;
  const std::string method =
      config.contains("quant_method") && config.at("quant_method").is_string() ? config.at("quant_method").get<std::string>() : "";
  for (const InteropFormat& format : interop_formats())
    if (format.quant_method == method) return InteropReader(checkpoint, format, std::move(config));
  return std::nullopt;
}

InteropReader::InteropReader(const Checkpoint& checkpoint, const InteropFormat& format, Json config)
    : checkpoint_(checkpoint), format_(&format), config_(std::move(config)) {
  for (const TensorInfo& info : checkpoint.stored())
    if (info.name.ends_with(format.mark)) quantized_.push_back(info.name.substr(0, info.name.size() - format.mark.size()));
  std::vector<std::string> parts;
  for (const std::string& module : quantized_) {
    for (const std::string_view suffix : format.suffixes) parts.push_back(module + std::string(suffix));
    names_.push_back(module + std::string(kWeightSuffix));
  }
  std::sort(parts.begin(), parts.end());
  for (const TensorInfo& info : checkpoint.stored())
    if (!std::binary_search(parts.begin(), parts.end(), info.name)) names_.push_back(info.name);
  std::sort(names_.begin(), names_.end());
  std::sort(quantized_.begin(), quantized_.end());
  const auto twin = std::adjacent_find(names_.begin(), names_.end());
  if (twin != names_.end())
    throw CorruptFile(fmt::format("{}: {} is there both quantized and plain", checkpoint.directory().string(), in_quotes(*twin)));
}

bool InteropReader::is_quantized(std::string_view name) const {
  if (!name.ends_with(kWeightSuffix)) return false;
  return std::binary_search(quantized_.begin(), quantized_.end(), std::string(name.substr(0, name.size() - kWeightSuffix.size())));
}

template <typename Take>
auto InteropReader::of_module(const std::string& name, const Take& take) const {
  const ModuleReader module(checkpoint_, name, config_);
  try {
    return take(module);
  } catch (const InvalidArgument& wrong) {
    module.reject(wrong.what());
  } catch (const nlohmann::json::exception&) {
    module.reject("the quantization_config lacks a field that it needs, or one has another type");
  }
}

InteropTensor InteropReader::read(std::string_view name) const {
  return of_module(std::string(name.substr(0, name.size() - kWeightSuffix.size())), [&](const ModuleReader& module) {
    InteropTensor tensor = format_->unpack(module);
    check_scales(module, tensor.q);
    Scheme::parse(tensor.q.scheme.to_string());  // throws where no scheme has such blocks
    return tensor;
  });
}

std::optional<ActivationRecipe> InteropReader::activations() const {
  if (format_->inputs == nullptr) return std::nullopt;
  std::map<std::string, std::optional<ActivationScheme>> schemes;
  std::map<std::string, int> counts;
  ActivationRecipe recipe;
  for (const std::string& name : quantized_) {
    const std::optional<ModuleInputs> inputs = of_module(name, format_->inputs);
    schemes[name] = inputs ? std::optional(inputs->scheme) : std::nullopt;
    if (!inputs) continue;
    ++counts[inputs->scheme.to_string()];
    if (inputs->scale) recipe.scales[name] = *inputs->scale;
  }
  if (counts.empty()) return std::nullopt;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  recipe.scheme = ActivationScheme::parse(std::max_element(counts.begin(), counts.end(), fewer)->first);
  for (const auto& [name, scheme] : schemes)
    if (scheme != recipe.scheme) recipe.rules.emplace_back(name, scheme);
  return recipe;
}

const std::string& InteropReader::file_of(std::string_view name) const {
  if (!is_quantized(name)) return checkpoint_.stored(name).file;
  return checkpoint_.stored(std::string(name.substr(0, name.size() - kWeightSuffix.size())) + std::string(format_->mark)).file;
}

// ---- what the rows share ----

CodeMatrix unsigned_codes(const QuantizedTensor& q) {
  const MatrixShape matrix = as_matrices(q.shape);
  CodeMatrix codes = make_codes(matrix.total_rows(), matrix.cols);
  const std::uint32_t offset = offset_of(q.scheme.element);  // two's complement plus 2^(b-1) is the top bit turned over
  each_code(q,
            [&](std::int64_t row, std::int64_t col, std::uint32_t code) { codes.at(row, col) = static_cast<std::uint8_t>(code ^ offset); });
  return codes;
}

Buffer packed_codes(const Scheme& scheme, const CodeMatrix& codes) {
  const std::size_t row_bytes = packed_row_bytes(scheme, codes.cols);
  Buffer buffer = Buffer::allocate(row_bytes * static_cast<std::size_t>(codes.rows));
  std::memset(buffer.data(), 0, buffer.size());
  const std::uint32_t offset = offset_of(scheme.element);
  for (std::int64_t row = 0; row < codes.rows; ++row)
    for (std::int64_t col = 0; col < codes.cols; ++col)
      write_code(buffer.as<std::uint8_t>() + static_cast<std::size_t>(row) * row_bytes, col, scheme.element.bits,
                 codes.at(row, col) ^ offset);
  return buffer;
}

Buffer buffer_of(const Tensor& tensor) {
  return Buffer::adopt(std::make_shared<Tensor>(tensor), tensor.data(), tensor.byte_size(), tensor.device());
}

bool are_weights_alone(const std::vector<ModuleScheme>& modules) {
  return std::none_of(modules.begin(), modules.end(), [](const ModuleScheme& module) { return module.inputs.has_value(); });
}

bool says_weights_alone(const Json& config) { return config.contains(kWeightsAlone) && config.at(kWeightsAlone) == true; }

StoredBytes single_number(std::string name, Shape shape, float value) {
  StoredBytes stored{std::move(name), DType::kF32, std::move(shape), Buffer::allocate(sizeof(float))};
  *stored.bytes.as<float>() = value;
  return stored;
}

std::vector<std::string> plain_modules(const std::vector<ModuleScheme>& modules) {
  std::vector<std::string> plain;
  for (const ModuleScheme& module : modules)
    if (!module.scheme) plain.push_back(module.module);
  return plain;
}

std::optional<Scheme> prevailing_scheme(const std::vector<ModuleScheme>& modules) {
  std::optional<Scheme> best;
  std::int64_t most = 0;
  for (const ModuleScheme& module : modules) {
    if (!module.scheme) continue;
    const std::int64_t count =
        std::count_if(modules.begin(), modules.end(), [&](const ModuleScheme& other) { return other.scheme == module.scheme; });
    if (count > most) {
      most = count;
      best = module.scheme;
    }
  }
  return best;
}

Buffer bytes_of(std::span<const std::uint32_t> words) {
  Buffer buffer = Buffer::allocate(words.size_bytes());
  std::memcpy(buffer.data(), words.data(), words.size_bytes());
  return buffer;
}

std::vector<std::uint32_t> words_in(const Tensor& tensor) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tensor.size()));
  std::memcpy(words.data(), tensor.data(), words.size() * sizeof(std::uint32_t));
  return words;
}

CodeMatrix zero_points_of(const QuantizedTensor& q) {
  const ScaleGrid grid = q.grid();
  CodeMatrix zeros = make_codes(grid.rows, grid.cols);
  for (std::size_t i = 0; i < zeros.codes.size(); ++i)
    zeros.codes[i] =
        q.scheme.asymmetric ? q.zero_points.as<std::uint8_t>()[i] : static_cast<std::uint8_t>(1u << (q.scheme.element.bits - 1));
  return zeros;
}

std::int64_t block_edge(std::int64_t edge) {
  if (edge < 1 || edge > kLargestBlock)
    throw InvalidArgument(fmt::format("a block or group has 1 to {} rows or columns, not {}", kLargestBlock, edge));
  return edge;
}

std::int64_t group_size(const Scheme& scheme, const Shape& shape) {
  return scheme.granularity.cols > 0 ? scheme.granularity.cols : as_matrices(shape).cols;
}

Scheme integer_scheme(int bits, bool asymmetric, std::int64_t group, const Format& scale) {
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    throw InvalidArgument(fmt::format("narrow has integer schemes of 2, 3, 4 and 8 bits, not of {}", bits));
  Scheme scheme{.element = asymmetric ? uint_format(bits) : int_format(bits),
                .granularity = group > 0 ? Granularity::block(group) : Granularity::row(),
                .scale = scale};
  scheme.asymmetric = asymmetric;
  return scheme;
}

bool is_grouped_integer(const Scheme& scheme) {
  return scheme.element.is_integer() && scheme.element.fraction_bits == 0 && scheme.rule == ScaleRule::kLargest &&
         !scheme.has_outer_scale && scheme.granularity.kind == Granularity::Kind::kRectangle && scheme.granularity.rows == 1;
}

Scheme with_half_scales(const Scheme& scheme) {
  Scheme result = scheme;
  if (is_grouped_integer(scheme)) result.scale = kFp16;
  return result;
}

Format format_of_scales(DType dtype) { return dtype == DType::kF16 ? kFp16 : dtype == DType::kBf16 ? kBf16 : kFp32; }
DType dtype_of_scales(const Format& scale) { return scale == kFp16 ? DType::kF16 : scale == kBf16 ? DType::kBf16 : DType::kF32; }

Buffer transposed(const Buffer& elements, std::int64_t rows, std::int64_t cols, std::size_t element_bytes) {
  Buffer result = Buffer::allocate(elements.size());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      std::memcpy(result.data() + static_cast<std::size_t>(col * rows + row) * element_bytes,
                  elements.data() + static_cast<std::size_t>(row * cols + col) * element_bytes, element_bytes);
  return result;
}

}  // namespace narrow::io

namespace narrow {
namespace {

constexpr Ecosystem kEcosystems[] = {Ecosystem::kNarrow,   Ecosystem::kCompressedTensors, Ecosystem::kGptq,        Ecosystem::kAwq,
                                     Ecosystem::kFp8Block, Ecosystem::kModelOpt,          Ecosystem::kBitsAndBytes};

}  // namespace

std::span<const Ecosystem> all_ecosystems() { return kEcosystems; }

std::string_view name_of(Ecosystem ecosystem) {
  switch (ecosystem) {
    case Ecosystem::kNarrow: return "narrow";
    case Ecosystem::kCompressedTensors: return "ct";
    case Ecosystem::kGptq: return "gptq";
    case Ecosystem::kAwq: return "awq";
    case Ecosystem::kFp8Block: return "fp8-block";
    case Ecosystem::kModelOpt: return "modelopt";
    case Ecosystem::kBitsAndBytes: return "bnb";
  }
  return "";
}

Ecosystem parse_ecosystem(std::string_view name) {
  std::string names;
  for (const Ecosystem ecosystem : kEcosystems) {
    if (name_of(ecosystem) == name) return ecosystem;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(ecosystem));
  }
  throw InvalidArgument(fmt::format("{} is no form that narrow knows; there are {} and gguf", io::in_quotes(name), names));
}

std::optional<Ecosystem> ecosystem_of(const Checkpoint& checkpoint) {
  if (checkpoint.is_quantized()) return Ecosystem::kNarrow;
  if (const std::optional<io::InteropReader> reader = io::InteropReader::open(checkpoint)) return reader->format().ecosystem;
  const io::Json config = io::quantization_config(checkpoint);
  if (config.is_object())
    throw Unsupported(fmt::format("{} is quantized by {}, which narrow does not read", checkpoint.directory().string(),
                                  config.contains("quant_method") ? io::in_quotes(config.at("quant_method").dump()) : "an unnamed method"));
  return std::nullopt;
}

}  // namespace narrow
