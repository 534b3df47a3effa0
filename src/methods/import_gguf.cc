/// import_gguf, verify_gguf: the tensors of a GGUF file as a Hugging Face directory, code by code where narrow has the codes.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/gguf_codes.h"
#include "io/gguf_file.h"
#include "io/hash.h"
#include "io/interop.h"
#include "io/manifest.h"
#include "io/quantized_layout.h"
#include "io/safetensors_writer.h"
#include "io/text.h"
#include "methods/gguf_llama.h"
#include "methods/interop_values.h"
#include "methods/preflight.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensorFile = "model.safetensors";

/// What a Linear weight in these blocks becomes: its own codes, or int8, which adds little to the error that is there; nothing for plain
/// values.
std::optional<Scheme> scheme_for(const io::GgmlTypeInfo& type) {
  if (type.values == 1) return std::nullopt;
  const std::optional<Scheme> exact = io::scheme_of_blocks(type);
  return exact ? exact : Scheme::parse("int8:block32");
}

/// The type that holds the block type's values as they are.
DType plain_dtype(const io::GgmlTypeInfo& type) {
  return type.type == io::GgmlType::kF16 ? DType::kF16 : type.type == io::GgmlType::kBf16 ? DType::kBf16 : DType::kF32;
}

std::vector<std::uint8_t> read_blocks(const io::FileReader& file, const io::GgufTensor& tensor) {
  std::vector<std::uint8_t> blocks(static_cast<std::size_t>(tensor.bytes));
  file.read(tensor.begin, std::as_writable_bytes(std::span(blocks)));
  return blocks;
}

/// The values of a tensor's blocks. Throws CorruptFile for one that is not finite.
Tensor decoded(const io::FileReader& file, const io::GgufTensor& tensor, std::span<const std::uint8_t> blocks) {
  const Tensor x = Tensor::empty(DType::kF32, tensor.shape);
  io::decode_blocks(*tensor.type, blocks, {x.as<float>(), static_cast<std::size_t>(x.size())});
  const float* end = x.as<float>() + x.size();
  const float* wrong = std::find_if(x.as<float>(), x.as<float>() + x.size(), [](float value) { return !std::isfinite(value); });
  if (wrong != end)
    throw CorruptFile(
        fmt::format("{}: element {} of tensor {} is not finite", file.path().string(), wrong - x.as<float>(), io::in_quotes(tensor.name)));
  return x;
}

/// One tensor on its way.
struct Item {
  std::string name;
  const io::GgufTensor* tensor = nullptr;
  std::optional<Scheme> scheme{};  ///< nothing: plain values
  DType dtype = DType::kF32;       ///< of plain values, or of what the codes stand for
};

class Import {
 public:
  explicit Import(const fs::path& input) : file_(input), header_(io::read_gguf(file_)), model_(config_of(header_, input)) {
    const auto embedding =
        std::find_if(header_.tensors.begin(), header_.tensors.end(), [](const io::GgufTensor& t) { return t.name == "token_embd.weight"; });
    if (embedding == header_.tensors.end()) throw CorruptFile(fmt::format("{}: it has no tensor token_embd.weight", input.string()));
    model_dtype_ = plain_dtype(*embedding->type);
    for (const io::GgufTensor& tensor : header_.tensors) {
      Item item{.name = huggingface_name(tensor.name), .tensor = &tensor};
      if (item.name.empty())
        throw Unsupported(fmt::format("{}: narrow does not know a Llama model's tensor {}", input.string(), io::in_quotes(tensor.name)));
      if (tensor.bytes == 0) throw CorruptFile(fmt::format("{}: tensor {} has no elements", input.string(), io::in_quotes(tensor.name)));
      if (const std::int64_t heads = model_.heads.of(tensor.name); heads > 0 && tensor.shape.front() != heads * model_.heads.dimension)
        throw CorruptFile(fmt::format("{}: tensor {} has {} rows, not {} heads of {}", input.string(), io::in_quotes(tensor.name),
                                      tensor.shape.front(), heads, model_.heads.dimension));
      if (is_linear_weight(item.name, tensor.shape)) item.scheme = scheme_for(*tensor.type);
      item.dtype = item.scheme ? model_dtype_ : plain_dtype_of(tensor);
      report_.bytes_before += tensor.bytes;
      items_.push_back(std::move(item));
    }
    is_quantized_ = std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.scheme.has_value(); });
    std::vector<TensorInfo> infos;
    for (const Item& item : items_) {
      if (!item.scheme) {
        infos.push_back({.name = item.name, .dtype = item.dtype, .shape = item.tensor->shape});
        continue;
      }
      for (const io::StoredPart& part : io::stored_parts(item.name, *item.scheme, item.tensor->shape))
        infos.push_back({.name = part.name, .dtype = part.dtype, .shape = part.shape});
    }
    layout_ = io::layout_safetensors(std::move(infos), {{"format", "pt"}});
    for (const TensorInfo& info : layout_.tensors) report_.bytes_after += info.byte_size();
  }

  std::uint64_t bytes_needed() const { return layout_.file_bytes + header_.text.size() + (std::uint64_t{16} << 20); }

  InteropReport execute(const fs::path& output, const ProgressCallback& progress) {
    const auto begin = std::chrono::steady_clock::now();
    io::AtomicDirectory directory(output);
    write(directory.place(), progress);
    write_beside(directory.place());
    read_back(directory.place(), progress);
    directory.commit();
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(report_);
  }

 private:
  /// Norms are fp32 in every file; they take the model's type back where it holds them.
  DType plain_dtype_of(const io::GgufTensor& tensor) const {
    if (tensor.shape.size() != 1 || tensor.type->type != io::GgmlType::kF32 || model_dtype_ == DType::kF32)
      return plain_dtype(*tensor.type);
    const Tensor x = decoded(file_, tensor, read_blocks(file_, tensor)), back = convert(convert(x, model_dtype_), DType::kF32);
    return std::memcmp(x.data(), back.data(), x.byte_size()) == 0 ? model_dtype_ : DType::kF32;
  }

  /// Rows of q and k in Hugging Face's order.
  Buffer restored(const Item& item, const Buffer& rows) const {
    if (model_.heads.of(item.tensor->name) == 0) return rows;
    Buffer result = Buffer::allocate(rows.size());
    const std::int64_t count = item.tensor->shape.front();
    const std::size_t bytes = rows.size() / static_cast<std::size_t>(count);
    for (std::int64_t row = 0; row < count; ++row)
      std::memcpy(result.data() + static_cast<std::size_t>(huggingface_row(row, model_.heads.dimension)) * bytes,
                  rows.data() + static_cast<std::size_t>(row) * bytes, bytes);
    return result;
  }

  Tensor values(const Item& item) const {
    const Tensor x = decoded(file_, *item.tensor, read_blocks(file_, *item.tensor));
    return Tensor::over(restored(item, io::buffer_of(x)), DType::kF32, x.shape());
  }

  QuantizedTensor quantized(const Item& item) const {
    if (!io::scheme_of_blocks(*item.tensor->type)) return quantize(values(item), *item.scheme);
    try {
      QuantizedTensor q = io::quantized_of_blocks(*item.tensor->type, read_blocks(file_, *item.tensor), item.tensor->shape);
      q.codes = restored(item, q.codes);
      q.scales = restored(item, q.scales);
      return q;
    } catch (const InvalidArgument& wrong) {
      throw CorruptFile(fmt::format("{}: tensor {}: {}", file_.path().string(), io::in_quotes(item.tensor->name), wrong.what()));
    }
  }

  void write(const fs::path& place, const ProgressCallback& progress) {
    io::SafetensorsWriter writer(place / kTensorFile, layout_);
    for (const Item& item : items_) {
      io::Manifest::LogicalTensor& entry = manifest_.tensors[item.name];
      entry = {item.scheme, item.tensor->shape, item.dtype, "", {}};
      const auto store = [&](const std::string& name, std::span<const std::byte> bytes) {
        writer.append(name, bytes);
        entry.stored[name] = {kTensorFile, writer.hash(name)};
      };
      if (item.scheme) {
        const QuantizedTensor q = quantized(item);
        for (const io::StoredPart& part : io::stored_parts(item.name, q.scheme, q.shape))
          store(part.name, part.part == io::Part::kCodes    ? q.codes.bytes()
                           : part.part == io::Part::kScales ? q.scales.bytes()
                                                            : q.zero_points.bytes());
        const Tensor source = convert(values(item), item.dtype);
        entry.source_hash = io::hash_of(std::span<const std::byte>(source.data(), source.byte_size()));
      } else {
        const Tensor x = convert(values(item), item.dtype);
        store(item.name, {x.data(), x.byte_size()});
        entry.source_hash = entry.stored[item.name].hash;
      }
      tell(item, Stage::kWritten, {}, progress);
    }
    writer.commit(io::Names::kLeftToDirectory);
    manifest_.files[kTensorFile] = {layout_.file_bytes, layout_.header.size(), io::hash_of(layout_.header)};
  }

  void write_beside(const fs::path& place) {
    const auto side_file = [&](std::string_view name, const std::string& text) {
      io::write_text(place / name, text, io::Names::kLeftToDirectory);
      manifest_.side_files[std::string(name)] = {text.size(), io::hash_of(text)};
    };
    io::OrderedJson config = model_.config;
    config["dtype"] = model_dtype_ == DType::kF16 ? "float16" : model_dtype_ == DType::kBf16 ? "bfloat16" : "float32";
    if (is_quantized_) config["quantization_config"] = {{"quant_method", "narrow"}, {"version", io::kManifestVersion}};
    side_file(io::kConfigFile, config.dump(2) + "\n");
    if (!model_.tokenizer.is_null()) side_file("tokenizer.json", model_.tokenizer.dump(2) + "\n");
    manifest_.narrow_version = io::library_version();
    if (is_quantized_) io::write_text(place / io::kManifestFile, io::print_manifest(manifest_), io::Names::kLeftToDirectory);
  }

  void read_back(const fs::path& place, const ProgressCallback& progress) {
    const Checkpoint written = open_checkpoint(place);
    for (const Item& item : items_) {
      const Tensor x = values(item);
      ErrorMetrics error;
      if (item.scheme) {
        const io::InteropTensor tensor{written.quantized(item.name)};
        if (!holds_the_same({quantized(item)}, tensor)) changed(item);
        error = compare(x, dequantize(tensor.q));
        report_.tensors.push_back({item.name, *item.scheme, io::scheme_of_blocks(*item.tensor->type).has_value(), error});
      } else {
        const Tensor y = written.tensor(item.name);
        error = compare(x, convert(y, DType::kF32));
        if (error.max_absolute != 0.0) changed(item);
        ++report_.copied;
      }
      tell(item, Stage::kVerified, error, progress);
    }
    std::sort(report_.tensors.begin(), report_.tensors.end(), [](const TensorProof& a, const TensorProof& b) { return a.name < b.name; });
  }

  [[noreturn]] void changed(const Item& item) const {
    throw CorruptFile(fmt::format("{}: tensor {} reads back different from what was written", kTensorFile, io::in_quotes(item.name)));
  }

  void tell(const Item& item, Stage stage, const ErrorMetrics& error, const ProgressCallback& progress) {
    done_ += item.tensor->bytes;
    if (progress) progress({item.name, stage, item.scheme.has_value(), done_, 2 * report_.bytes_before, error});
  }

  io::FileReader file_;
  io::GgufHeader header_;
  LlamaConfig model_;
  DType model_dtype_ = DType::kF32;
  std::vector<Item> items_;
  bool is_quantized_ = false;
  io::SafetensorsLayout layout_;
  io::Manifest manifest_;
  InteropReport report_;
  std::uint64_t done_ = 0;
};

}  // namespace

InteropReport import_gguf(const fs::path& input, const fs::path& output, const ProgressCallback& progress) {
  Import run(input);
  check_output_place(input, output, run.bytes_needed());
  return run.execute(output, progress);
}

bool is_gguf(const fs::path& path) {
  char magic[4] = {};
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && std::ifstream(path, std::ios::binary).read(magic, sizeof magic) &&
         std::string_view(magic, sizeof magic) == "GGUF";
}

VerifyReport verify_gguf(const fs::path& path) {
  const io::FileReader file(path);
  const io::GgufHeader header = io::read_gguf(file);
  VerifyReport report;
  for (const io::GgufTensor& tensor : header.tensors) {
    ++report.tensors;
    report.bytes += static_cast<std::int64_t>(tensor.bytes);
    try {
      decoded(file, tensor, read_blocks(file, tensor));
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  }
  return report;
}

}  // namespace narrow
