#pragma once
/// JSON documents beside the tensors (config, index, manifest), read strictly.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace narrow::io {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  ///< keeps the order of keys; slow for very many

inline constexpr std::uint64_t kLargestJsonFile = std::uint64_t{256} << 20;

/// Throws CorruptFile naming the path and the offset: broken JSON, a byte-order mark, a NUL, a key twice in one object,
/// or more than 64 levels.
Json parse_json(std::string_view text, const std::filesystem::path& path);
/// The same, and no object may have more than 32768 keys.
OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path);

}  // namespace narrow::io
