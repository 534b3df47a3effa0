/// The index over shards, read and printed.

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {

constexpr std::string_view kTensorSuffix = ".safetensors";

ShardIndex parse_index(std::string_view text, const std::filesystem::path& path) {
  const auto reject = [&](const std::string& why) { throw CorruptFile(fmt::format("{}: {}", path.string(), why)); };
  const Json json = parse_json(text, path);
  if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object()) reject("it has no object weight_map");
  if (json.at("weight_map").empty()) reject("its weight_map names no tensor");
  ShardIndex index;
  if (json.contains("metadata")) {
    if (!json.at("metadata").is_object()) reject("its metadata is not an object");
    index.metadata = json.at("metadata");
  }
  for (const auto& [tensor, file] : json.at("weight_map").items()) {
    if (!file.is_string()) reject(fmt::format("the file of tensor {} is not a string", in_quotes(tensor)));
    const std::string name = file.get<std::string>();
    if (!is_plain_file_name(name) || !name.ends_with(kTensorSuffix))
      reject(fmt::format("tensor {} lies in {}, which is not the plain name of a safetensors file in this directory", in_quotes(tensor),
                         in_quotes(name)));
    index.weight_map.emplace(tensor, name);
  }
  return index;
}

std::string print_index(const ShardIndex& index) {
  Json json;
  json["metadata"] = index.metadata;
  json["weight_map"] = index.weight_map;
  return json.dump(2) + "\n";
}

}  // namespace narrow::io
