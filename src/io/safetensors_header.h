#pragma once
/// The header of a safetensors file, checked.
///   u64 n (little end first) | n bytes of JSON | bytes of the tensors
///   JSON: {"__metadata__": {string: string}, name: {"dtype": S, "shape": [..], "data_offsets": [begin, end]}, ...}

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_reader.h"
#include "narrow/checkpoint.h"

namespace narrow::io {

inline constexpr std::uint64_t kLengthBytes = 8;              ///< of the field n
inline constexpr std::uint64_t kLargestHeader = 100'000'000;  ///< n, as in the reference implementation
inline constexpr std::size_t kHighestRank = 64;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< by name; their ranges tile the file from header_bytes to its end
  std::map<std::string, std::string> metadata;
  std::uint64_t header_bytes = 0;  ///< 8 + n: where the tensors' bytes begin
};

/// Throws CorruptFile, naming the path and the offset or the tensor, for anything that the format does not allow:
///   a length beyond the file or 100 MB; JSON that is broken, nested, or has duplicate or unknown keys; unknown dtypes;
///   numbers that are negative, fractional or too large; shapes that overflow or do not fit their range; ranges that
///   leave holes, overlap, or do not end where the file ends; names that are empty or hold a NUL.
/// Leading and trailing JSON white space is accepted, as the reference does.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t file_size, const std::filesystem::path& path);

/// n, checked against the file's size before anything is allocated.
std::uint64_t checked_header_length(std::span<const std::byte, kLengthBytes> field, std::uint64_t file_size,
                                    const std::filesystem::path& path);

SafetensorsHeader read_safetensors_header(const FileReader& file);

}  // namespace narrow::io
