#include "io/text.h"

#include <algorithm>
#include <cstdint>

namespace narrow::io {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

}  // namespace

bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  for (std::size_t i = 0; i < text.size();) {
    const std::uint32_t first = byte(i);
    if (first < 0x80u) {
      ++i;
      continue;
    }
    const int more = first >= 0xF0u ? 3 : (first >= 0xE0u ? 2 : 1);
    if (first < 0xC2u || first > 0xF4u) return false;
    std::uint32_t point = first & (0x3Fu >> more);
    for (int k = 1; k <= more; ++k) {
      const std::uint32_t next = byte(i + static_cast<std::size_t>(k));
      if ((next & 0xC0u) != 0x80u) return false;
      point = point << 6 | (next & 0x3Fu);
    }
    constexpr std::uint32_t kSmallest[4] = {0, 0x80, 0x800, 0x10000};
    if (point < kSmallest[more] || point > 0x10FFFFu || (point >= 0xD800u && point <= 0xDFFFu)) return false;
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name.front() == '.' || !is_utf8(name)) return false;
  return std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\\' || c == ':' || is_control(c); });
}

}  // namespace narrow::io
