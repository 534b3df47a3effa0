#pragma once
/// What can be known to go wrong before any work is done.

#include <cstdint>
#include <filesystem>

#include "narrow/checkpoint.h"

namespace narrow {

/// Free bytes where `place` is, or would be created.
std::uint64_t free_disk(const std::filesystem::path& place);

/// Throws InvalidArgument where `output` is taken, is the input or lies in it, or its parent is missing or cannot be
/// written; IoError where fewer than `needed` bytes are free. Creates nothing.
void check_output_place(const std::filesystem::path& input, const std::filesystem::path& output, std::uint64_t needed);

/// Throws InvalidArgument where the checkpoint is already quantized, by narrow or by another tool.
void check_not_quantized(const Checkpoint& input);

/// Bytes of all side files.
std::uint64_t side_file_bytes(const Checkpoint& input);

}  // namespace narrow
