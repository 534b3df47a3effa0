#pragma once
/// What surrounds the tensor files of an output directory: index, config and the other side files.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint_directory.h"
#include "io/manifest.h"
#include "methods/output_layout.h"

namespace narrow {

/// Copies the side files to `place`, with config.json as `config` and an index over `files` where the input had one.
/// Returns their sizes and hashes.
std::map<std::string, io::Manifest::SideFile> write_side_files(const Checkpoint& input, const std::filesystem::path& place,
                                                               const std::string& config, const std::vector<OutputFile>& files);

/// Calls take(bytes) for the pieces of a stored tensor, in order, and returns the hash of all.
std::string stream_tensor(const Checkpoint& checkpoint, const TensorInfo& info,
                          const std::function<void(std::span<const std::byte>)>& take);

}  // namespace narrow
