/// Opening checkpoints, and reading from open ones.

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/file_reader.h"
#include "io/hash.h"
#include "io/manifest.h"
#include "io/quantized_layout.h"
#include "io/safetensors_header.h"
#include "io/text.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"

namespace narrow {

struct Checkpoint::State {
  struct OpenFile {
    std::unique_ptr<io::FileReader> reader;
    std::map<std::string, std::string> metadata;
  };
  io::CheckpointFiles files;
  std::map<std::string, OpenFile, std::less<>> open;
  std::vector<TensorInfo> stored;  // by name
  std::optional<io::Manifest> manifest;
  std::string config;

  const io::Manifest::LogicalTensor* quantized(std::string_view name) const {
    if (!manifest) return nullptr;
    const auto tensor = manifest->tensors.find(std::string(name));
    return tensor != manifest->tensors.end() && tensor->second.scheme ? &tensor->second : nullptr;
  }
};

namespace {

namespace fs = std::filesystem;

[[noreturn]] void reject(const fs::path& path, std::string_view why) { throw CorruptFile(fmt::format("{}: {}", path.string(), why)); }

const TensorInfo* find_stored(const std::vector<TensorInfo>& stored, std::string_view name) {
  const auto place = std::lower_bound(stored.begin(), stored.end(), name,
                                      [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return place != stored.end() && place->name == name ? &*place : nullptr;
}

void open_files(Checkpoint::State& state) {
  for (const std::string& file : state.files.tensor_files) {
    Checkpoint::State::OpenFile& open = state.open[file];
    open.reader = std::make_unique<io::FileReader>(state.files.directory / file);
    io::SafetensorsHeader header = io::read_safetensors_header(*open.reader);
    open.metadata = std::move(header.metadata);
    state.stored.insert(state.stored.end(), std::make_move_iterator(header.tensors.begin()), std::make_move_iterator(header.tensors.end()));
  }
  std::sort(state.stored.begin(), state.stored.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(state.stored.begin(), state.stored.end(),
                                       [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twin != state.stored.end())
    reject(state.files.directory / twin->file, fmt::format("tensor {} is also in {}", io::in_quotes(twin->name), std::next(twin)->file));
}

/// The index and the shards name the same tensors in the same files.
void check_index(const Checkpoint::State& state) {
  if (state.files.index_file.empty()) return;
  const fs::path path = state.files.directory / state.files.index_file;
  for (const auto& [name, file] : state.files.index.weight_map) {
    const TensorInfo* info = find_stored(state.stored, name);
    if (info == nullptr || info->file != file) reject(path, fmt::format("tensor {} is not in {}", io::in_quotes(name), file));
  }
  for (const TensorInfo& info : state.stored)
    if (!state.files.index.weight_map.contains(info.name))
      reject(path, fmt::format("tensor {} of {} is not in the index", io::in_quotes(info.name), info.file));
}

bool says_narrow(const std::string& config, const fs::path& path) {
  if (config.empty()) return false;
  if (config.find("narrow") == std::string::npos && config.find('\\') == std::string::npos) {  // no name and nothing that could spell it
    io::check_json(config, path);
    return false;
  }
  const io::Json json = io::parse_json(config, path);
  if (!json.is_object() || !json.contains("quantization_config")) return false;
  const io::Json& quantization = json.at("quantization_config");
  return quantization.is_object() && quantization.contains("quant_method") && quantization.at("quant_method") == "narrow";
}

/// The manifest and the files agree on sizes, headers, names, types and shapes. Values are left to verify_checkpoint.
void check_manifest(const Checkpoint::State& state, const fs::path& path) {
  const io::Manifest& manifest = *state.manifest;
  if (manifest.files.size() != state.open.size())
    reject(path, fmt::format("it lists {} tensor files, the directory has {}", manifest.files.size(), state.open.size()));
  for (const auto& [name, file] : manifest.files) {
    const auto open = state.open.find(name);
    if (open == state.open.end()) reject(path, fmt::format("its tensor file {} is not part of the checkpoint", io::in_quotes(name)));
    if (open->second.reader->size() != file.bytes)
      reject(open->second.reader->path(), fmt::format("it has {} bytes, the manifest says {}", open->second.reader->size(), file.bytes));
  }
  std::size_t stored = 0;
  const auto expect = [&](const std::string& name, const io::Manifest::StoredTensor& part, DType dtype, const Shape& shape) {
    const TensorInfo* info = find_stored(state.stored, name);
    if (info == nullptr || info->file != part.file || info->dtype != dtype || info->shape != shape)
      reject(path, fmt::format("tensor {} is not stored as {} {} in {}", io::in_quotes(name), name_of(dtype), to_string(shape), part.file));
    ++stored;
  };
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!tensor.scheme) {
      expect(name, tensor.stored.at(name), tensor.source_dtype, tensor.shape);
      continue;
    }
    for (const io::StoredPart& part : io::stored_parts(name, *tensor.scheme, tensor.shape))
      expect(part.name, tensor.stored.at(part.name), part.dtype, part.shape);
  }
  if (stored != state.stored.size())
    reject(path, fmt::format("it describes {} stored tensors, the files hold {}", stored, state.stored.size()));
}

/// What the files say of themselves as a manifest without hashes; nothing where one of them says nothing.
std::optional<io::Manifest> saved_manifest(const Checkpoint::State& state) {
  io::Manifest manifest;
  std::optional<std::string_view> said;
  for (const auto& [file, open] : state.open) {
    const auto text = open.metadata.find(io::kSavedTensors);
    if (text == open.metadata.end()) return std::nullopt;
    manifest.files[file].bytes = open.reader->size();
    if (!said) manifest.tensors = io::parse_saved_tensors(text->second, open.reader->path());
    if (said && *said != text->second)
      reject(open.reader->path(), "its metadata says other things of the quantized tensors than another file's");
    said = text->second;
  }
  std::set<std::string> parts;
  for (auto& [name, tensor] : manifest.tensors)
    for (const io::StoredPart& part : io::stored_parts(name, *tensor.scheme, tensor.shape)) {
      const TensorInfo* info = find_stored(state.stored, part.name);
      if (info == nullptr) reject(state.files.directory, fmt::format("tensor {} is missing", io::in_quotes(part.name)));
      tensor.stored[part.name] = {info->file, ""};
      parts.insert(part.name);
    }
  for (const TensorInfo& info : state.stored) {
    if (parts.contains(info.name)) continue;
    if (!manifest.tensors
             .try_emplace(info.name, io::Manifest::LogicalTensor{{}, info.shape, info.dtype, "", {{info.name, {info.file, ""}}}})
             .second)
      reject(state.files.directory, fmt::format("{} is there both quantized and plain", io::in_quotes(info.name)));
  }
  return manifest;
}

Buffer read_part(const Checkpoint& checkpoint, const TensorInfo& info) {
  Buffer buffer = Buffer::allocate(static_cast<std::size_t>(info.byte_size()));
  checkpoint.read_bytes(info, 0, {buffer.data(), buffer.size()});
  return buffer;
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& path) {
  auto state = std::make_shared<Checkpoint::State>();
  state->files = io::find_checkpoint_files(path);
  const fs::path& directory = state->files.directory;
  const std::vector<std::string>& side = state->files.side_files;
  const bool is_directory = fs::is_directory(path);
  if (std::find(side.begin(), side.end(), io::kConfigFile) != side.end())
    state->config = io::read_text(directory / io::kConfigFile, io::kLargestJsonFile);
  const bool has_manifest = is_directory && fs::exists(directory / io::kManifestFile);
  open_files(*state);
  check_index(*state);
  const fs::path manifest = has_manifest ? directory / io::kManifestFile : directory;
  if (has_manifest) {
    state->manifest = io::parse_manifest(io::read_text(manifest, io::kLargestJsonFile), manifest);
  } else if (says_narrow(state->config, directory / io::kConfigFile)) {
    state->manifest = saved_manifest(*state);
    if (!state->manifest)
      reject(directory, fmt::format("it is quantized but has no {}: its writing was interrupted, or another program saved it; `narrow "
                                    "quantize` writes it with its hashes",
                                    io::kManifestFile));
  }
  if (state->manifest) check_manifest(*state, manifest);
  return Checkpoint(std::move(state));
}

const fs::path& Checkpoint::directory() const { return state_->files.directory; }
bool Checkpoint::is_quantized() const { return state_->manifest.has_value(); }
const std::vector<TensorInfo>& Checkpoint::stored() const { return state_->stored; }
const std::vector<std::string>& Checkpoint::side_files() const { return state_->files.side_files; }
std::string Checkpoint::config() const { return state_->config; }
const std::vector<std::string>& Checkpoint::tensor_files() const { return state_->files.tensor_files; }
const std::string& Checkpoint::index_file() const { return state_->files.index_file; }

const std::map<std::string, std::string>& Checkpoint::metadata(std::string_view file) const {
  const auto open = state_->open.find(file);
  if (open == state_->open.end()) throw InvalidArgument(fmt::format("{} has no tensor file {}", directory().string(), io::in_quotes(file)));
  return open->second.metadata;
}

const TensorInfo& Checkpoint::stored(std::string_view name) const {
  const TensorInfo* info = find_stored(state_->stored, name);
  if (info == nullptr) throw InvalidArgument(fmt::format("{} has no tensor {}", directory().string(), io::in_quotes(name)));
  return *info;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  if (state_->manifest) {
    for (const auto& [name, tensor] : state_->manifest->tensors) names.push_back(name);
  } else {
    for (const TensorInfo& info : state_->stored) names.push_back(info.name);
  }
  return names;
}

bool Checkpoint::contains(std::string_view name) const {
  return state_->manifest ? state_->manifest->tensors.contains(std::string(name)) : find_stored(state_->stored, name) != nullptr;
}

Shape Checkpoint::shape(std::string_view name) const {
  const io::Manifest::LogicalTensor* tensor = state_->quantized(name);
  return tensor != nullptr ? tensor->shape : stored(name).shape;
}

DType Checkpoint::dtype(std::string_view name) const {
  const io::Manifest::LogicalTensor* tensor = state_->quantized(name);
  return tensor != nullptr ? tensor->source_dtype : stored(name).dtype;
}

std::optional<QuantizedInfo> Checkpoint::quantized_info(std::string_view name) const {
  const io::Manifest::LogicalTensor* tensor = state_->quantized(name);
  if (tensor == nullptr) return std::nullopt;
  return QuantizedInfo{std::string(name), *tensor->scheme, tensor->shape, tensor->source_dtype, tensor->source_hash};
}

void Checkpoint::read_bytes(const TensorInfo& info, std::uint64_t offset, std::span<std::byte> bytes) const {
  const auto open = state_->open.find(info.file);
  if (open == state_->open.end())
    throw InvalidArgument(fmt::format("{} has no tensor file {}", directory().string(), io::in_quotes(info.file)));
  if (offset > info.byte_size() || bytes.size() > info.byte_size() - offset)
    throw InvalidArgument(
        fmt::format("tensor {} has {} bytes; {} at {} are beyond them", io::in_quotes(info.name), info.byte_size(), bytes.size(), offset));
  open->second.reader->read(info.begin + offset, bytes);
}

Tensor Checkpoint::read_stored(std::string_view name) const {
  const TensorInfo& info = stored(name);
  return Tensor::over(read_part(*this, info), info.dtype, info.shape);
}

QuantizedTensor Checkpoint::quantized(std::string_view name) const {
  const io::Manifest::LogicalTensor* tensor = state_->quantized(name);
  if (tensor == nullptr)
    throw InvalidArgument(fmt::format("tensor {} of {} is not quantized by narrow", io::in_quotes(name), directory().string()));
  Buffer codes, scales = Buffer::allocate(0), zero_points = Buffer::allocate(0);
  float outer_scale = 1.0f;
  for (const io::StoredPart& part : io::stored_parts(name, *tensor->scheme, tensor->shape)) {
    const TensorInfo& info = stored(part.name);
    switch (part.part) {
      case io::Part::kCodes: codes = read_part(*this, info); break;
      case io::Part::kScales: scales = read_part(*this, info); break;
      case io::Part::kZeroPoints: zero_points = read_part(*this, info); break;
      case io::Part::kOuterScale: read_bytes(info, 0, std::as_writable_bytes(std::span(&outer_scale, 1))); break;
    }
  }
  try {
    return assemble(*tensor->scheme, tensor->shape, std::move(codes), std::move(scales), std::move(zero_points), outer_scale);
  } catch (const InvalidArgument& wrong) {
    reject(directory(), fmt::format("tensor {}: {}", io::in_quotes(name), wrong.what()));
  }
}

Tensor Checkpoint::tensor(std::string_view name) const {
  const io::Manifest::LogicalTensor* tensor = state_->quantized(name);
  return tensor != nullptr ? dequantize(quantized(name), tensor->source_dtype) : read_stored(name);
}

}  // namespace narrow
