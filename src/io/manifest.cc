#include "io/manifest.h"

#include <algorithm>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/quantized_layout.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kFormatName = "narrow-checkpoint";
constexpr std::string_view kNoHash = "0000000000000000";
constexpr std::string_view kTail = "\"\n}\n";  // follows the hash, the last value of the document

bool is_hash(const Json& value) {
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  return text.size() == kNoHash.size() && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// A member that is an object; nlohmann's items() would take null and numbers too.
const Json& object_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_object()) throw InvalidArgument(fmt::format("its {} is no object", key));
  return value;
}

/// So small that no count of bytes or scales made of it can overflow; zeros do not excuse the other dimensions.
void check_shape(const std::string& name, const Shape& shape) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  constexpr std::size_t kMostDimensions = 64;
  if (shape.size() > kMostDimensions)
    throw InvalidArgument(fmt::format("tensor {} has more than {} dimensions", in_quotes(name), kMostDimensions));
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || (dimension > 0 && count > kMostElements / dimension))
      throw InvalidArgument(fmt::format("tensor {} has a shape whose size overflows", in_quotes(name)));
    count *= std::max<std::int64_t>(dimension, 1);
  }
}

/// Scheme, shape and source: what a tensor is, wherever it lies.
Manifest::LogicalTensor parse_meaning(const std::string& name, const Json& json) {
  Manifest::LogicalTensor tensor;
  if (json.contains("scheme")) tensor.scheme = Scheme::parse(json.at("scheme").get<std::string>());
  for (const Json& dimension : json.at("shape")) {
    if (!dimension.is_number_unsigned())
      throw InvalidArgument(fmt::format("tensor {} has a dimension that is not a whole number", in_quotes(name)));
    tensor.shape.push_back(dimension.get<std::int64_t>());
  }
  check_shape(name, tensor.shape);
  tensor.source_dtype = parse_dtype(json.at("source_dtype").get<std::string>());
  if (tensor.scheme && !is_floating(tensor.source_dtype))
    throw InvalidArgument(fmt::format("tensor {} is quantized from {}", in_quotes(name), name_of(tensor.source_dtype)));
  return tensor;
}

Manifest::LogicalTensor parse_tensor(const std::string& name, const Json& json) {
  Manifest::LogicalTensor tensor = parse_meaning(name, json);
  tensor.source_hash = json.at("source_xxh3").get<std::string>();
  if (!is_hash(json.at("source_xxh3"))) throw InvalidArgument(fmt::format("the hash of tensor {} is not one", in_quotes(name)));
  for (const auto& [stored, part] : object_at(json, "stored").items()) {
    if (!is_hash(part.at("xxh3"))) throw InvalidArgument(fmt::format("the hash of tensor {} is not one", in_quotes(stored)));
    tensor.stored[stored] = {part.at("file").get<std::string>(), part.at("xxh3").get<std::string>()};
  }
  std::size_t expected = 1;
  if (tensor.scheme) {
    const std::vector<StoredPart> parts = stored_parts(name, *tensor.scheme, tensor.shape);
    expected = parts.size();
    for (const StoredPart& part : parts)
      if (!tensor.stored.contains(part.name))
        throw InvalidArgument(fmt::format("tensor {} has no part {}", in_quotes(name), in_quotes(part.name)));
  } else if (!tensor.stored.contains(name)) {
    throw InvalidArgument(fmt::format("tensor {} is not stored under its name", in_quotes(name)));
  }
  if (tensor.stored.size() != expected)
    throw InvalidArgument(fmt::format("tensor {} has {} parts instead of {}", in_quotes(name), tensor.stored.size(), expected));
  return tensor;
}

std::uint64_t bytes_at(const Json& file, const char* key) {
  const std::int64_t bytes = whole_number(file, key);
  if (bytes < 0) throw InvalidArgument(fmt::format("{} is {}", key, bytes));
  return static_cast<std::uint64_t>(bytes);
}

Manifest from_json(const Json& json) {
  Manifest manifest;
  if (json.at("format") != kFormatName) throw InvalidArgument("it is not the manifest of a checkpoint");
  if (json.at("format_version") != kManifestVersion)
    throw InvalidArgument(
        fmt::format("its format version is {}, this library reads {}", json.at("format_version").dump(), kManifestVersion));
  manifest.narrow_version = json.at("narrow_version").get<std::string>();
  for (const auto& [name, file] : object_at(json, "files").items()) {
    if (!is_plain_file_name(name) || !is_hash(file.at("header_xxh3")))
      throw InvalidArgument(fmt::format("its entry for the file {} is not valid", in_quotes(name)));
    manifest.files[name] = {bytes_at(file, "bytes"), bytes_at(file, "header_bytes"), file.at("header_xxh3").get<std::string>()};
  }
  for (const auto& [name, file] : object_at(json, "side_files").items()) {
    if (!is_plain_file_name(name) || !is_hash(file.at("xxh3")))
      throw InvalidArgument(fmt::format("its entry for the file {} is not valid", in_quotes(name)));
    manifest.side_files[name] = {bytes_at(file, "bytes"), file.at("xxh3").get<std::string>()};
  }
  for (const auto& [name, tensor] : object_at(json, "tensors").items()) {
    const Manifest::LogicalTensor& parsed = manifest.tensors[name] = parse_tensor(name, tensor);
    for (const auto& [stored, part] : parsed.stored)
      if (!manifest.files.contains(part.file))
        throw InvalidArgument(fmt::format("tensor {} lies in the unknown file {}", in_quotes(stored), in_quotes(part.file)));
  }
  return manifest;
}

}  // namespace

std::string_view library_version() { return NARROW_VERSION; }

std::string print_manifest(const Manifest& manifest) {
  Json json;
  json["format"] = kFormatName;
  json["format_version"] = kManifestVersion;
  json["narrow_version"] = manifest.narrow_version;
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files)
    json["files"][name] = {{"bytes", file.bytes}, {"header_bytes", file.header_bytes}, {"header_xxh3", file.header_hash}};
  json["side_files"] = Json::object();
  for (const auto& [name, file] : manifest.side_files) json["side_files"][name] = {{"bytes", file.bytes}, {"xxh3", file.hash}};
  Json& tensors = json["tensors"] = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json& entry = tensors[name];
    if (tensor.scheme) entry["scheme"] = tensor.scheme->to_string();
    entry["shape"] = tensor.shape;
    entry["source_dtype"] = name_of(tensor.source_dtype);
    entry["source_xxh3"] = tensor.source_hash;
    for (const auto& [stored, part] : tensor.stored) entry["stored"][stored] = {{"file", part.file}, {"xxh3", part.hash}};
  }
  std::string text = json.dump(1);
  text.erase(text.size() - 2);  // "\n}"
  text += fmt::format(",\n \"manifest_xxh3\": \"{}{}", kNoHash, kTail);
  text.replace(text.size() - kTail.size() - kNoHash.size(), kNoHash.size(), hash_of(text));
  return text;
}

std::map<std::string, Manifest::LogicalTensor> parse_saved_tensors(std::string_view text, const std::filesystem::path& path) {
  std::map<std::string, Manifest::LogicalTensor> tensors;
  try {
    const Json json = parse_json(text, path);
    if (!json.is_object()) throw InvalidArgument("it is no object");
    for (const auto& [name, tensor] : json.items()) {
      tensors[name] = parse_meaning(name, tensor);
      if (!tensors[name].scheme) throw InvalidArgument(fmt::format("tensor {} has no scheme", in_quotes(name)));
    }
  } catch (const nlohmann::json::exception&) {
    throw CorruptFile(fmt::format("{}: its metadata {} lacks a field, or one has another type", path.string(), kSavedTensors));
  } catch (const InvalidArgument& wrong) {
    throw CorruptFile(fmt::format("{}: its metadata {}: {}", path.string(), kSavedTensors, wrong.what()));
  }
  return tensors;
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  const auto reject = [&](std::string_view why) { throw CorruptFile(fmt::format("{}: {}", path.string(), why)); };
  if (text.size() < kTail.size() + kNoHash.size() || !text.ends_with(kTail)) reject("it does not end with its own hash");
  std::string copy(text);
  const std::size_t place = text.size() - kTail.size() - kNoHash.size();
  copy.replace(place, kNoHash.size(), kNoHash);
  if (hash_of(copy) != text.substr(place, kNoHash.size()))
    reject("its contents do not have the hash that it ends with: it was damaged or edited");
  try {
    return from_json(parse_json(text, path));
  } catch (const nlohmann::json::exception&) {
    reject("it lacks a field, or one has another type");
  } catch (const InvalidArgument& wrong) {
    reject(wrong.what());
  }
  return {};
}

}  // namespace narrow::io
