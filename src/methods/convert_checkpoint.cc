/// export_checkpoint, convert_checkpoint, verify_as: tensor by tensor into the files of another ecosystem, then read back by its own
/// reader.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/checkpoint_directory.h"
#include "io/compressed_tensors.h"
#include "io/hash.h"
#include "io/interop.h"
#include "io/manifest.h"
#include "io/modelopt.h"
#include "io/quantized_layout.h"
#include "io/text.h"
#include "methods/activation_recipe.h"
#include "methods/ecosystem_scales.h"
#include "methods/interop_values.h"
#include "methods/output_directory.h"
#include "methods/preflight.h"
#include "methods/recipe_match.h"
#include "methods/special_values.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

// Settings that other tools leave beside config.json; they would contradict it.
constexpr std::string_view kOtherSettings[] = {"quantize_config.json", "quant_config.json", "hf_quant_config.json"};

/// One tensor of the model on its way.
struct Item {
  std::string name, file;
  std::optional<Scheme> scheme{};  ///< as written; nothing: copied
  bool is_ordered = false;
  Shape shape{};
  DType dtype = DType::kF32;  ///< of the source, or of the copy
  std::uint64_t bytes = 0;    ///< of the source
  std::optional<ActivationScheme> inputs{};
  std::optional<StaticScale> input_scale{};  ///< of static ones
};

std::string module_of(std::string_view name) { return std::string(name.substr(0, name.size() - io::kWeightSuffix.size())); }

/// The tensors of an item in the target's files, without bytes but those of its inputs' scale.
std::vector<io::StoredBytes> parts_of(Ecosystem target, const Item& item) {
  if (!item.scheme) return {{item.name, item.dtype, item.shape}};
  if (target != Ecosystem::kNarrow) {
    std::vector<io::StoredBytes> parts = io::interop_format(target).parts(module_of(item.name), *item.scheme, item.shape, item.is_ordered);
    if (item.input_scale)
      for (io::StoredBytes& part : io::interop_format(target).input_parts(module_of(item.name), *item.inputs, *item.input_scale))
        parts.push_back(std::move(part));
    return parts;
  }
  std::vector<io::StoredBytes> parts;
  for (const io::StoredPart& part : io::stored_parts(item.name, *item.scheme, item.shape))
    parts.push_back({part.name, part.dtype, part.shape});
  return parts;
}

void pack_for_narrow(const Item& item, const io::InteropTensor& tensor, std::vector<io::StoredBytes>& parts) {
  const std::vector<io::StoredPart> kinds = io::stored_parts(item.name, *item.scheme, item.shape);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    switch (kinds[i].part) {
      case io::Part::kCodes: parts[i].bytes = tensor.q.codes; break;
      case io::Part::kScales: parts[i].bytes = tensor.q.scales; break;
      case io::Part::kZeroPoints: parts[i].bytes = tensor.q.zero_points; break;
      case io::Part::kOuterScale:
        parts[i].bytes = Buffer::allocate(sizeof(float));
        *parts[i].bytes.as<float>() = tensor.q.outer_scale;
        break;
    }
  }
}

/// Where quantized weights come from: a plain checkpoint and a recipe, or a quantized one.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::vector<Item> items() = 0;
  /// The weight as it will be written.
  virtual io::InteropTensor read(const Item& item) = 0;
  /// The values that it stands for, fp32, and whether `written` is them, code by code.
  virtual Tensor values(const Item& item) = 0;
  virtual bool is_exact(const Item& item, const io::InteropTensor& written) = 0;
  /// How inputs are rounded.
  virtual const std::optional<ActivationRecipe>& activations() const = 0;
};

/// Outer scales that survive their reciprocal, as compressed-tensors stores them: the two forms of NVFP4 then hold the same.
bool keeps_reciprocals(Ecosystem target) { return target == Ecosystem::kCompressedTensors || target == Ecosystem::kModelOpt; }

/// What becomes of the inputs of a quantized module. What the target has no place for is refused: it would be lost.
void set_inputs(Item& item, const std::optional<ActivationRecipe>& activations, Ecosystem target) {
  if (!activations || target == Ecosystem::kNarrow) return;  // narrow's own form has them all in config.json
  const std::string module = module_of(item.name);
  item.inputs = activations->scheme_of(module);
  if (!item.inputs) return;
  const io::InteropFormat& format = io::interop_format(target);
  const std::string why = format.input_refusal == nullptr ? "it holds weights alone" : format.input_refusal(*item.scheme, *item.inputs);
  if (!why.empty())
    throw InvalidArgument(fmt::format("{}: the scheme {} of the activations of {} has no place there: {}", name_of(target),
                                      item.inputs->to_string(), io::in_quotes(module), why));
  if (!item.inputs->is_static) return;
  const auto scale = activations->scales.find(module);
  if (scale == activations->scales.end())
    throw InvalidArgument(fmt::format("{}: the activations of {} have no static scale; calibrate first, then give its statistics",
                                      name_of(target), io::in_quotes(module)));
  item.input_scale = scale->second;
  if (keeps_reciprocals(target) && item.inputs->scheme.has_outer_scale) item.input_scale->scale = io::reciprocal_twice(scale->second.scale);
}

/// The end of the sentence is the target's own.
[[noreturn]] void refuse(Ecosystem target, const std::string& name, const Scheme& scheme, const std::string& why) {
  throw InvalidArgument(fmt::format("{}: {} of {} has no place there: {}", name_of(target), scheme.to_string(), io::in_quotes(name), why));
}

/// Before anything is read: a form without a writer.
void check_writable(Ecosystem target) {
  if (target != Ecosystem::kNarrow && !io::interop_format(target).is_writable())
    throw InvalidArgument(fmt::format("{}: narrow reads this form and does not write it", name_of(target)));
}

std::string refusal(Ecosystem target, const Item& item, const Scheme& scheme, bool is_ordered) {
  if (target == Ecosystem::kNarrow) return is_ordered ? "its groups lie in the order of the columns" : "";
  if (!item.name.ends_with(io::kWeightSuffix)) return "its quantized tensors are the weights of modules";
  return io::interop_format(target).refusal(scheme, item.shape, is_ordered);
}

class PlainSource : public Source {
 public:
  PlainSource(const Checkpoint& input, const Recipe& recipe, Ecosystem target, ScaleRules rules)
      : input_(input), recipe_(recipe), target_(target), rules_(rules) {
    check_not_quantized(input);
  }

  std::vector<Item> items() override {
    const RecipeMatcher matcher(recipe_, input_);
    std::vector<Item> items;
    for (const TensorInfo& info : input_.stored()) {
      Item item{.name = info.name, .file = info.file, .shape = info.shape, .dtype = info.dtype, .bytes = info.byte_size()};
      const RecipeMatcher::Decision decision = matcher.decide(info.name, info.dtype, info.shape);
      const std::optional<SpecialValues> special =
          decision.fate == Fate::kQuantize ? reason_to_keep(input_, info, decision.scheme, recipe_) : std::nullopt;
      if (special) kept_.push_back({info.name, *special});
      if (decision.fate == Fate::kQuantize && !special) {
        item.scheme = target_ == Ecosystem::kNarrow ? decision.scheme : io::interop_format(target_).adapted(decision.scheme);
        if (const std::string why = refusal(target_, item, *item.scheme, false); !why.empty())
          refuse(target_, item.name, decision.scheme, why);
        set_inputs(item, recipe_.activations, target_);
      }
      items.push_back(std::move(item));
    }
    return items;
  }

  io::InteropTensor read(const Item& item) override {
    const Tensor x = input_.tensor(item.name);
    try {
      if (rules_ == ScaleRules::kEcosystem && !item.scheme->has_outer_scale)
        return {quantize_as(target_, x, *item.scheme, options_of(recipe_))};
      QuantizedTensor q = quantize(x, *item.scheme, options_of(recipe_));
      if (!keeps_reciprocals(target_) || !item.scheme->has_outer_scale || q.outer_scale == io::reciprocal_twice(q.outer_scale))
        return {std::move(q)};
      QuantizeOptions options = options_of(recipe_);
      options.outer_scale = io::reciprocal_twice(q.outer_scale);
      return {quantize(x, *item.scheme, options)};
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("tensor {}: {}", io::in_quotes(item.name), error.what()));
    }
  }

  Tensor values(const Item& item) override { return convert(input_.tensor(item.name), DType::kF32); }
  bool is_exact(const Item&, const io::InteropTensor&) override { return false; }
  const std::optional<ActivationRecipe>& activations() const override { return recipe_.activations; }
  const std::vector<KeptTensor>& kept() const { return kept_; }

 private:
  const Checkpoint& input_;
  const Recipe& recipe_;
  Ecosystem target_;
  ScaleRules rules_;
  std::vector<KeptTensor> kept_;
};

class QuantizedSource : public Source {
 public:
  QuantizedSource(const Checkpoint& input, Ecosystem target) : input_(input), reader_(io::InteropReader::open(input)), target_(target) {
    const std::optional<Ecosystem> found = ecosystem_of(input);
    if (!found)
      throw InvalidArgument(fmt::format("{} is not quantized; quantize it with --export {}", input.directory().string(), name_of(target)));
    activations_ = read_activations(input);
  }

  std::vector<Item> items() override {
    std::vector<Item> items;
    for (const std::string& name : reader_ ? reader_->names() : input_.names()) {
      const bool is_quantized = reader_ ? reader_->is_quantized(name) : input_.quantized_info(name).has_value();
      if (!is_quantized) {
        const TensorInfo& info = input_.stored(name);
        items.push_back({.name = name, .file = info.file, .shape = info.shape, .dtype = info.dtype, .bytes = info.byte_size()});
        continue;
      }
      const io::InteropTensor tensor = original(name);
      Item item{.name = name,
                .file = reader_ ? reader_->file_of(name) : input_.stored(name + ".codes").file,
                .is_ordered = !tensor.order.empty(),
                .shape = tensor.q.shape};
      item.dtype = reader_ ? model_dtype() : input_.dtype(name);
      item.bytes = tensor.q.byte_size() + tensor.order.size() * sizeof(std::int32_t);
      decide(item, tensor);
      set_inputs(item, activations_, target_);
      items.push_back(std::move(item));
    }
    return items;
  }

  io::InteropTensor read(const Item& item) override {
    io::InteropTensor tensor = original(item.name);
    const bool keeps_outer = !keeps_reciprocals(target_) || !item.scheme->has_outer_scale;
    if (item.is_ordered == !tensor.order.empty())
      if (std::optional<io::InteropTensor> same = with_scale_format(tensor, item.scheme->scale)) {
        if (!keeps_outer) same->q.outer_scale = io::reciprocal_twice(same->q.outer_scale);
        return std::move(*same);
      }
    if (item.is_ordered)
      throw InvalidArgument(
          fmt::format("{}: the scales of {} do not fit {} and its columns have an order of their own; dequantize it first",
                      name_of(target_), io::in_quotes(item.name), name_of(item.scheme->scale)));
    return {quantize(values_of(tensor), *item.scheme)};
  }

  Tensor values(const Item& item) override { return values_of(original(item.name)); }
  bool is_exact(const Item& item, const io::InteropTensor& written) override { return holds_the_same(original(item.name), written); }
  const std::optional<ActivationRecipe>& activations() const override { return activations_; }

 private:
  io::InteropTensor original(const std::string& name) const {
    return reader_ ? reader_->read(name) : io::InteropTensor{input_.quantized(name)};
  }

  /// As it is; else with the target's scales; else without its order.
  void decide(Item& item, const io::InteropTensor& tensor) const {
    const Scheme scheme = target_ == Ecosystem::kNarrow ? tensor.q.scheme : io::interop_format(target_).adapted(tensor.q.scheme);
    item.scheme = refusal(target_, item, tensor.q.scheme, item.is_ordered).empty() ? tensor.q.scheme : scheme;
    std::string why = refusal(target_, item, *item.scheme, item.is_ordered);
    if (!why.empty() && item.is_ordered && refusal(target_, item, scheme, false).empty()) {
      item.is_ordered = false;
      why.clear();
    }
    if (!why.empty()) refuse(target_, item.name, tensor.q.scheme, why);
  }

  /// What the weights were before, as config.json says it; bf16 where it does not.
  DType model_dtype() const {
    const io::Json config = io::parse_json(input_.config(), input_.directory() / io::kConfigFile);
    if (!config.is_object()) return DType::kBf16;
    const io::Json type = config.contains("dtype") ? config.at("dtype") : config.value("torch_dtype", io::Json());
    return type == "float32" ? DType::kF32 : type == "float16" ? DType::kF16 : DType::kBf16;
  }

  const Checkpoint& input_;
  std::optional<io::InteropReader> reader_;
  std::optional<ActivationRecipe> activations_;
  Ecosystem target_;
};

/// One run: files, side files, reading back.
class Run {
 public:
  Run(const Checkpoint& input, const fs::path& input_path, const fs::path& output, Source& source, Ecosystem target,
      const ProgressCallback& progress)
      : input_(input), source_(source), target_(target), progress_(progress), items_(source.items()) {
    std::map<std::string, std::vector<TensorInfo>> by_file;
    for (const std::string& file : input.tensor_files()) by_file[file];
    for (const Item& item : items_) {
      report_.bytes_before += item.bytes;
      for (const io::StoredBytes& part : parts_of(target, item))
        by_file[item.file].push_back({.name = part.name, .dtype = part.dtype, .shape = part.shape});
    }
    std::uint64_t needed = side_file_bytes(input) + (std::uint64_t{1} << 20) + 1024 * items_.size();
    for (auto& [file, infos] : by_file) {
      files_.push_back({file, {}, io::layout_safetensors(std::move(infos), output_metadata(input, file))});
      needed += files_.back().layout.file_bytes;
      for (const TensorInfo& info : files_.back().layout.tensors) report_.bytes_after += info.byte_size();
    }
    quantization_ = quantization_object();
    if (!input.config().empty()) config_ = io::parse_ordered_json(input.config(), input.directory() / io::kConfigFile);
    if (!config_.is_object()) throw CorruptFile(fmt::format("{}: it is not a JSON object", (input.directory() / io::kConfigFile).string()));
    check_output_place(input_path, output, needed);
  }

  InteropReport execute(const fs::path& output) {
    const auto begin = std::chrono::steady_clock::now();
    io::AtomicDirectory directory(output);
    for (const OutputFile& file : files_) write(file, directory.place());
    write_beside(directory.place());
    read_back(directory.place());
    directory.commit();
    report_.target = target_;
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  io::Json quantization_object() const {
    if (target_ == Ecosystem::kNarrow) {
      io::Json object{{"quant_method", "narrow"}, {"version", io::kManifestVersion}};
      if (source_.activations()) object["activations"] = io::Json(activations_json(*source_.activations()));
      return object;
    }
    std::vector<io::ModuleScheme> modules;
    for (const Item& item : items_)
      if (item.scheme || is_linear_weight(item.name, item.shape))
        modules.push_back({module_of(item.name), item.scheme, item.is_ordered, item.inputs});
    return io::interop_format(target_).config(modules);
  }

  void write(const OutputFile& file, const fs::path& place) {
    io::SafetensorsWriter writer(place / file.name, file.layout);
    for (const Item& item : items_) {
      if (item.file != file.name) continue;
      io::Manifest::LogicalTensor& entry = manifest_.tensors[item.name];
      entry = {item.scheme, item.shape, item.dtype, "", {}};
      if (item.scheme) {
        const io::InteropTensor tensor = source_.read(item);
        std::vector<io::StoredBytes> parts = parts_of(target_, item);
        if (target_ == Ecosystem::kNarrow) {
          pack_for_narrow(item, tensor, parts);
        } else {
          io::interop_format(target_).pack(tensor, quantization_, parts);
        }
        for (const io::StoredBytes& part : parts) {
          writer.append(part.name, part.bytes.bytes());
          entry.stored[part.name] = {file.name, writer.hash(part.name)};
        }
        if (target_ == Ecosystem::kNarrow) entry.source_hash = hash_of_values(item);
      } else {
        entry.source_hash =
            stream_tensor(input_, input_.stored(item.name), [&](std::span<const std::byte> bytes) { writer.append(item.name, bytes); });
        entry.stored[item.name] = {file.name, entry.source_hash};
      }
      tell(item, Stage::kWritten, {});
    }
    writer.commit(io::Names::kLeftToDirectory);
    manifest_.files[file.name] = {file.layout.file_bytes, file.layout.header.size(), io::hash_of(file.layout.header)};
  }

  /// A converted weight has no other source than its own values.
  std::string hash_of_values(const Item& item) {
    const Tensor values = convert(source_.values(item), item.dtype);
    return io::hash_of(std::span<const std::byte>(values.data(), values.byte_size()));
  }

  void write_beside(const fs::path& place) {
    config_["quantization_config"] = io::OrderedJson(quantization_);
    manifest_.side_files = write_side_files(input_, place, config_.dump(2) + "\n", files_);
    for (const std::string_view name : kOtherSettings)
      if (manifest_.side_files.erase(std::string(name)) > 0) fs::remove(place / name);
    if (target_ == Ecosystem::kGptq) io::write_text(place / kOtherSettings[0], quantization_.dump(2) + "\n", io::Names::kLeftToDirectory);
    if (target_ == Ecosystem::kModelOpt)
      io::write_text(place / kOtherSettings[2], io::modelopt_settings(quantization_).dump(2) + "\n", io::Names::kLeftToDirectory);
    manifest_.narrow_version = io::library_version();
    if (target_ == Ecosystem::kNarrow)
      io::write_text(place / io::kManifestFile, io::print_manifest(manifest_), io::Names::kLeftToDirectory);
  }

  /// By the reader that anyone would use; the files have no names of their own yet.
  void read_back(const fs::path& place) {
    const Checkpoint written = open_checkpoint(place);
    const std::optional<io::InteropReader> reader = io::InteropReader::open(written);
    for (const Item& item : items_) {
      if (!item.scheme) {
        if (stream_tensor(written, written.stored(item.name), [](std::span<const std::byte>) {}) !=
            manifest_.tensors.at(item.name).source_hash)
          changed(item);
        ++report_.copied;
        tell(item, Stage::kVerified, {});
        continue;
      }
      const io::InteropTensor tensor = reader ? reader->read(item.name) : io::InteropTensor{written.quantized(item.name)};
      if (!holds_the_same(source_.read(item), tensor)) changed(item);
      const Tensor x = source_.values(item), y = values_of(tensor);
      SpecialValueCounter special;
      special.add(x);
      if (!special.values().all_finite()) leave_out_nonfinite(x, y);
      const ErrorMetrics error = compare(x, y);
      report_.tensors.push_back({item.name, tensor.q.scheme, source_.is_exact(item, tensor), error, special.values()});
      tell(item, Stage::kVerified, error);
    }
  }

  [[noreturn]] void changed(const Item& item) const {
    throw CorruptFile(fmt::format("{}: tensor {} reads back different from what was written", item.file, io::in_quotes(item.name)));
  }

  void tell(const Item& item, Stage stage, const ErrorMetrics& error) {
    done_ += item.bytes;
    if (progress_) progress_({item.name, stage, item.scheme.has_value(), done_, 2 * report_.bytes_before, error});
  }

  const Checkpoint& input_;
  Source& source_;
  Ecosystem target_;
  const ProgressCallback& progress_;
  std::vector<Item> items_;
  std::vector<OutputFile> files_;
  io::Json quantization_;
  io::OrderedJson config_ = io::OrderedJson::object();  ///< of the input
  io::Manifest manifest_;
  InteropReport report_;
  std::uint64_t done_ = 0;
};

/// Through narrow's own form in a directory beside the output, which is gone again in the end.
InteropReport convert_gguf(const fs::path& input, const fs::path& output, Ecosystem target, const ProgressCallback& progress) {
  if (target == Ecosystem::kNarrow) return import_gguf(input, output, progress);
  check_output_place(input, output, 0);
  const io::AtomicDirectory between(output.string() + ".from-gguf");
  const fs::path own = between.place() / "own";
  const InteropReport imported = import_gguf(input, own);
  InteropReport report = convert_checkpoint(own, output, target, progress);
  for (TensorProof& tensor : report.tensors) {
    const auto from =
        std::find_if(imported.tensors.begin(), imported.tensors.end(), [&](const TensorProof& proof) { return proof.name == tensor.name; });
    tensor.is_exact = tensor.is_exact && from != imported.tensors.end() && from->is_exact;
  }
  report.bytes_before = imported.bytes_before;
  return report;
}

}  // namespace

InteropReport export_checkpoint(const fs::path& input, const fs::path& output, const Recipe& recipe, Ecosystem target,
                                const ProgressCallback& progress, ScaleRules rules) {
  check_writable(target);
  const Checkpoint checkpoint = open_checkpoint(input);
  PlainSource source(checkpoint, recipe, target, rules);
  InteropReport report = Run(checkpoint, input, output, source, target, progress).execute(output);
  report.kept = source.kept();
  return report;
}

InteropReport convert_checkpoint(const fs::path& input, const fs::path& output, Ecosystem target, const ProgressCallback& progress) {
  check_writable(target);
  if (is_gguf(input)) return convert_gguf(input, output, target, progress);
  const Checkpoint checkpoint = open_checkpoint(input);
  QuantizedSource source(checkpoint, target);
  return Run(checkpoint, input, output, source, target, progress).execute(output);
}

VerifyReport verify_as(const fs::path& path, Ecosystem ecosystem) {
  VerifyReport report;
  if (ecosystem == Ecosystem::kNarrow) {
    report = verify_checkpoint(path);
    if (report.problems.empty() && !open_checkpoint(path).is_quantized())
      report.problems.push_back(fmt::format("{}: it is not quantized by narrow", path.string()));
    return report;
  }
  const Checkpoint checkpoint = open_checkpoint(path);
  const std::optional<io::InteropReader> reader = io::InteropReader::open(checkpoint);
  if (!reader || reader->format().ecosystem != ecosystem) {
    report.problems.push_back(fmt::format("{}: its config.json does not say quant_method {}", checkpoint.directory().string(),
                                          io::in_quotes(io::interop_format(ecosystem).quant_method)));
    return report;
  }
  for (const TensorInfo& info : checkpoint.stored()) report.bytes += static_cast<std::int64_t>(info.byte_size());
  for (const std::string& name : reader->names()) {
    ++report.tensors;
    try {
      if (reader->is_quantized(name)) {
        reader->read(name);
      } else {
        stream_tensor(checkpoint, checkpoint.stored(name), [](std::span<const std::byte>) {});
      }
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  }
  return report;
}

}  // namespace narrow
