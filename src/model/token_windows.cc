/// Token files: a tensor of whole numbers to windows.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"
#include "narrow/evaluate.h"

namespace narrow {
namespace {

template <typename T>
std::int64_t at(const Tensor& tensor, std::int64_t index) {
  const T value = tensor.as<T>()[index];
  if (static_cast<std::uint64_t>(value) > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) return -1;
  return static_cast<std::int64_t>(value);
}

std::int64_t token_at(const Tensor& tensor, std::int64_t index) {
  switch (tensor.dtype()) {
    case DType::kI64: return at<std::int64_t>(tensor, index);
    case DType::kI32: return at<std::int32_t>(tensor, index);
    case DType::kU32: return at<std::uint32_t>(tensor, index);
    case DType::kU16: return at<std::uint16_t>(tensor, index);
    default: return -1;
  }
}

}  // namespace

TokenWindows read_token_windows(const std::filesystem::path& path, const std::string& tensor) {
  const Checkpoint file = open_checkpoint(path);
  if (!file.contains(tensor)) {
    std::string names;
    constexpr std::size_t kMost = 8;
    const std::vector<std::string> there = file.names();
    for (std::size_t i = 0; i < std::min(there.size(), kMost); ++i) names += (i == 0 ? "" : ", ") + io::in_quotes(there[i]);
    if (there.size() > kMost) names += fmt::format(" and {} more", there.size() - kMost);
    throw InvalidArgument(
        fmt::format("{}: it has no tensor {}; there is {}", path.string(), io::in_quotes(tensor), names.empty() ? "none" : names));
  }
  const Tensor tokens = file.tensor(tensor);
  const DType dtype = tokens.dtype();
  if (tokens.rank() != 2 || (dtype != DType::kI64 && dtype != DType::kI32 && dtype != DType::kU32 && dtype != DType::kU16))
    throw InvalidArgument(fmt::format("{}: tensor {} is {} of {}; tokens are I32, I64, U32 or U16 of [windows, length]", path.string(),
                                      io::in_quotes(tensor), name_of(dtype), to_string(tokens.shape())));
  if (tokens.size() == 0)
    throw InvalidArgument(
        fmt::format("{}: tensor {} is {}: there are no tokens in it", path.string(), io::in_quotes(tensor), to_string(tokens.shape())));
  TokenWindows windows(static_cast<std::size_t>(tokens.shape()[0]));
  std::int64_t place = 0;
  for (std::vector<std::int32_t>& window : windows)
    for (std::int64_t i = 0; i < tokens.shape()[1]; ++i, ++place) {
      const std::int64_t token = token_at(tokens, place);
      if (token < 0)
        throw InvalidArgument(
            fmt::format("{}: tensor {} has a token at element {} that is none", path.string(), io::in_quotes(tensor), place));
      window.push_back(static_cast<std::int32_t>(token));
    }
  return windows;
}

}  // namespace narrow
