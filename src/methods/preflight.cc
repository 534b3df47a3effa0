#include "methods/preflight.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "io/interop.h"
#include "io/json.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

fs::path parent_of(const fs::path& path) {
  const fs::path parent = without_slash(path).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

bool lies_in(const fs::path& inner, const fs::path& outer) {
  const auto [outer_end, inner_end] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return outer_end == outer.end();
}

}  // namespace

std::uint64_t free_disk(const fs::path& place) {
  std::error_code error;
  fs::path existing = fs::absolute(place.empty() ? fs::path(".") : place, error);
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  return error ? 0 : space.available;
}

void check_output_place(const fs::path& input, const fs::path& output, std::uint64_t needed) {
  std::error_code error;
  if (output.empty()) throw InvalidArgument("the output is not named; name a directory that does not exist yet");
  if (!fs::exists(input, error)) throw IoError(fmt::format("{} does not exist", input.string()));
  const fs::path place = without_slash(output), parent = parent_of(output);
  const fs::file_status status = fs::symlink_status(place, error);
  if (fs::exists(status)) {
    const fs::path source = fs::canonical(input, error), target = fs::canonical(place, error);
    if (!error && source == target)
      throw InvalidArgument(fmt::format("{} is the input itself; name another directory for the output", output.string()));
    if (!fs::is_directory(status)) throw InvalidArgument(fmt::format("{} exists already; name a new place", output.string()));
    if (!fs::is_empty(place, error))
      throw InvalidArgument(fmt::format("{} exists and is not empty; name a new directory or remove it first", output.string()));
  }
  if (!fs::is_directory(parent, error))
    throw InvalidArgument(fmt::format("{} cannot be created: {} is not a directory", output.string(), parent.string()));
  if (lies_in(fs::canonical(parent, error), fs::canonical(input, error)))
    throw InvalidArgument(fmt::format("{} lies inside the input {}; name a place outside of it", output.string(), input.string()));
  if (::access(parent.c_str(), W_OK | X_OK) != 0)
    throw InvalidArgument(
        fmt::format("{} cannot be created: {} cannot be written: {}", output.string(), parent.string(), std::strerror(errno)));
  const std::uint64_t available = free_disk(parent);
  if (available < needed)
    throw IoError(fmt::format("{} needs {} bytes, but only {} are free in {}", output.string(), needed, available, parent.string()));
}

void check_not_quantized(const Checkpoint& input) {
  if (input.is_quantized())
    throw InvalidArgument(
        fmt::format("{} is already quantized by narrow; dequantize it first or use its source", input.directory().string()));
  const io::Json quantization = io::quantization_config(input);
  if (quantization.is_null()) return;
  const bool has_name = quantization.is_object() && quantization.contains("quant_method") && quantization.at("quant_method").is_string();
  const std::string method = has_name ? quantization.at("quant_method").get_ref<const std::string&>() : "an unknown method";
  throw InvalidArgument(fmt::format(
      "{} is already quantized by {}; use its unquantized source{}", input.directory().string(), io::in_quotes(method),
      io::InteropReader::open(input, quantization) ? ", or make one: `narrow convert IN OWN --to narrow`, `narrow dequantize OWN OUT`"
                                                   : ""));
}

std::uint64_t side_file_bytes(const Checkpoint& input) {
  std::uint64_t bytes = 0;
  for (const std::string& name : input.side_files()) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(input.directory() / name, error);
    bytes += error ? 0 : size;
  }
  return bytes;
}

}  // namespace narrow
