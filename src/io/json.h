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

/// object[key] as a whole number. Throws InvalidArgument for a text, a fraction, or a number beyond 64 bits; nlohmann's exception where it
/// is missing.
std::int64_t whole_number(const Json& object, const char* key);
/// The same of an array's element.
std::int64_t whole_number(const Json& array, std::size_t index);

/// Throws CorruptFile naming the path and the offset: broken JSON, a byte-order mark, a NUL, a key twice in one object,
/// or more than 64 levels.
Json parse_json(std::string_view text, const std::filesystem::path& path);
/// Throws as parse_json does, and builds nothing.
void check_json(std::string_view text, const std::filesystem::path& path);
/// The same, and no object may have more than 32768 keys.
OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path);

}  // namespace narrow::io
