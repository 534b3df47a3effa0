#pragma once
/// Which files of a directory make up a checkpoint, and the index over shards:
///   {"metadata": {"total_size": BYTES, ...}, "weight_map": {tensor: file, ...}}

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace narrow::io {

inline constexpr std::string_view kManifestFile = "narrow_manifest.json";
inline constexpr std::string_view kConfigFile = "config.json";

/// An index, checked: every file name is a plain one.
struct ShardIndex {
  Json metadata = Json::object();
  std::map<std::string, std::string> weight_map;
};
ShardIndex parse_index(std::string_view text, const std::filesystem::path& path);
std::string print_index(const ShardIndex& index);

struct CheckpointFiles {
  std::filesystem::path directory;
  std::vector<std::string> tensor_files;  ///< by name
  std::vector<std::string> side_files;    ///< by name; config.json, tokenizer files, ...; never weights of other kinds
  std::string index_file;                 ///< empty for a single file
  ShardIndex index;
};

/// Looks at a directory, or at one safetensors file (which has no side files). Reads the index, opens no shard.
/// Throws IoError, or CorruptFile where the index names what is not a regular file of this directory.
CheckpointFiles find_checkpoint_files(const std::filesystem::path& path);

}  // namespace narrow::io
