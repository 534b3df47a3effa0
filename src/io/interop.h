#pragma once
/// Quantized weights as other ecosystems store them: one explicit table, a row per ecosystem. A weight on its way is narrow's own
/// QuantizedTensor [n, k]; a row knows the tensors of a module M that hold it, their bytes, and the object that config.json needs.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/weight_suffix.h"
#include "io/word_packing.h"
#include "narrow/checkpoint.h"
#include "narrow/interop.h"

namespace narrow::io {

/// A quantized weight. With an order, column k has the scale (and zero point) of group order[k] instead of k / group size.
struct InteropTensor {
  QuantizedTensor q;
  std::vector<std::int32_t> order{};
};

/// A tensor of a file, and its bytes once they are made.
struct StoredBytes {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  Buffer bytes = {};
};

/// One module with a weight: what it is quantized to, or nothing; and its inputs likewise.
struct ModuleScheme {
  std::string module;
  std::optional<Scheme> scheme{};
  bool is_ordered = false;
  std::optional<ActivationScheme> inputs{};
};

/// How a file has a module's inputs rounded.
struct ModuleInputs {
  ActivationScheme scheme;
  std::optional<StaticScale> scale{};  ///< where the scheme is static
};

/// The tensors of one module of an open checkpoint. Every failure is a CorruptFile that names the tensor.
class ModuleReader {
 public:
  ModuleReader(const Checkpoint& checkpoint, std::string module, const Json& config)
      : checkpoint_(checkpoint), module_(std::move(module)), config_(config) {}

  const std::string& module() const { return module_; }
  const Json& config() const { return config_; }  ///< quantization_config
  bool has(std::string_view suffix) const;
  /// The tensor M + suffix, of this type and rank.
  Tensor read(std::string_view suffix, DType dtype, int rank) const;
  /// The same of any rank.
  Tensor read_any_rank(std::string_view suffix, DType dtype) const;
  /// The same of any fp32, fp16 or bf16 type.
  Tensor read_floats(std::string_view suffix, int rank) const;
  /// The dtype of M + suffix.
  DType dtype(std::string_view suffix) const;
  [[noreturn]] void reject(std::string_view why) const;

 private:
  const Checkpoint& checkpoint_;
  std::string module_;
  const Json& config_;
};

struct InteropFormat {
  Ecosystem ecosystem;
  std::string_view name;                       ///< of the command: "ct", "gptq", ...
  std::string_view quant_method;               ///< in config.json
  std::string_view mark;                       ///< a module M is quantized where a tensor M + mark is
  std::span<const std::string_view> suffixes;  ///< of every tensor that a quantized module may have

  /// Why a weight has no place in this format, as the end of a sentence; empty where it has one.
  std::string (*refusal)(const Scheme& scheme, const Shape& shape, bool is_ordered);
  /// The scheme with its scales in the type that this format stores.
  Scheme (*adapted)(const Scheme& scheme);
  /// The tensors of a module, without bytes; then their bytes, in the same order, as the quantization_config says.
  std::vector<StoredBytes> (*parts)(const std::string& module, const Scheme& scheme, const Shape& shape, bool is_ordered);
  void (*pack)(const InteropTensor& tensor, const Json& config, std::span<StoredBytes> parts);
  InteropTensor (*unpack)(const ModuleReader& module);
  Json (*config)(const std::vector<ModuleScheme>& modules);

  /// Inputs that are rounded, of forms that know them: why a scheme has no place beside a weight's, as the end of a sentence; the tensors
  /// of a static scale, with their bytes; what a file says of a module.
  std::string (*input_refusal)(const Scheme& weight, const ActivationScheme& inputs) = nullptr;
  std::vector<StoredBytes> (*input_parts)(const std::string& module, const ActivationScheme& inputs, const StaticScale& scale) = nullptr;
  std::optional<ModuleInputs> (*inputs)(const ModuleReader& module) = nullptr;

  bool is_writable() const { return pack != nullptr; }
};

/// A row that reads; every weight is refused.
InteropFormat read_only_format(Ecosystem ecosystem, std::string_view name, std::string_view quant_method, std::string_view mark,
                               std::span<const std::string_view> suffixes, InteropTensor (*unpack)(const ModuleReader& module));

/// compressed-tensors, GPTQ, AWQ, DeepSeek's fp8 blocks, ModelOpt, bitsandbytes; narrow's own form is not among them.
std::span<const InteropFormat> interop_formats();
const InteropFormat& interop_format(Ecosystem ecosystem);

/// quantization_config of the checkpoint's config.json; null where there is none.
Json quantization_config(const Checkpoint& checkpoint);

/// A checkpoint of one of the ecosystems, by its config.json; nothing where it is none.
class InteropReader {
 public:
  static std::optional<InteropReader> open(const Checkpoint& checkpoint);
  /// The same by a quantization_config that is given.
  static std::optional<InteropReader> open(const Checkpoint& checkpoint, Json config);

  const InteropFormat& format() const { return *format_; }
  /// Names of the original model, in order: weights of quantized modules, and all other tensors as they are stored.
  const std::vector<std::string>& names() const { return names_; }
  bool is_quantized(std::string_view name) const;
  InteropTensor read(std::string_view name) const;
  /// How the file has the inputs of its quantized modules rounded; nothing where it has none of them.
  std::optional<ActivationRecipe> activations() const;
  /// The file that holds the tensor's first part.
  const std::string& file_of(std::string_view name) const;

 private:
  InteropReader(const Checkpoint& checkpoint, const InteropFormat& format, Json config);
  /// What `take` makes of a module; its complaints become a CorruptFile that names it.
  template <typename Take>
  auto of_module(const std::string& module, const Take& take) const;
  Checkpoint checkpoint_;
  const InteropFormat* format_;
  Json config_;
  std::vector<std::string> names_, quantized_;
};

/// ---- what the rows share ----

/// Integer codes as unsigned numbers: signed ones with an offset of 2^(bits-1). And back.
CodeMatrix unsigned_codes(const QuantizedTensor& q);
Buffer packed_codes(const Scheme& scheme, const CodeMatrix& codes);
/// A contiguous tensor's bytes, shared.
Buffer buffer_of(const Tensor& tensor);
/// Words as bytes of a file, and back.
Buffer bytes_of(std::span<const std::uint32_t> words);
std::vector<std::uint32_t> words_in(const Tensor& tensor);
/// Zero points [grid rows, grid columns]; the middle code of symmetric schemes.
CodeMatrix zero_points_of(const QuantizedTensor& q);
/// The edge of a block or group that a file names: throws InvalidArgument unless it is one that a scheme can have.
std::int64_t block_edge(std::int64_t edge);
/// Columns that share a scale: of a row scheme all of them.
std::int64_t group_size(const Scheme& scheme, const Shape& shape);
/// int2, int3, int4 or int8 (uint where asymmetric) with one scale per row (group 0) or per group of columns.
Scheme integer_scheme(int bits, bool asymmetric, std::int64_t group, const Format& scale);
bool is_grouped_integer(const Scheme& scheme);
/// Such a scheme with fp16 scales; any other as it is.
Scheme with_half_scales(const Scheme& scheme);
Format format_of_scales(DType dtype);
DType dtype_of_scales(const Format& scale);
/// Some forms have no weights without rounded inputs. A file that was made from weights alone says so under this key, which their own
/// readers pass over; inputs are then announced and not meant.
inline constexpr const char* kWeightsAlone = "narrow_weights_alone";
/// No module has inputs of its own.
bool are_weights_alone(const std::vector<ModuleScheme>& modules);
bool says_weights_alone(const Json& config);
/// A tensor with a single number.
StoredBytes single_number(std::string name, Shape shape, float value);
/// The modules without a scheme.
std::vector<std::string> plain_modules(const std::vector<ModuleScheme>& modules);
/// The scheme that most modules have; the first of equals.
std::optional<Scheme> prevailing_scheme(const std::vector<ModuleScheme>& modules);
/// A buffer of 16-bit (or other) elements [rows, cols], transposed.
Buffer transposed(const Buffer& elements, std::int64_t rows, std::int64_t cols, std::size_t element_bytes);

}  // namespace narrow::io
