#include "report/style.h"

#include <array>

namespace narrow::report {
namespace {

bool starts_code_point(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }

/// The byte offset of code point `index`, or the size of the text.
std::size_t offset_of(std::string_view text, std::size_t index) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (starts_code_point(text[i]) && seen++ == index) return i;
  return text.size();
}

}  // namespace

std::string painted(const Style& style, Paint paint, std::string_view text) {
  constexpr std::array<std::string_view, 7> kCodes{"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[36m"};
  if (!style.color || paint == Paint::kPlain || text.empty()) return std::string(text);
  return std::string(kCodes[static_cast<std::size_t>(paint)]).append(text).append("\x1b[0m");
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (const char byte : text) width += starts_code_point(byte) ? 1 : 0;
  return width;
}

std::string shortened(const Style& style, std::string_view text, std::size_t width) {
  const std::size_t full = display_width(text);
  if (full <= width) return std::string(text);
  const std::string_view dots = style.unicode ? "…" : "..";
  const std::size_t gap = display_width(dots);
  if (width <= gap) return std::string(text.substr(0, offset_of(text, width)));
  const std::size_t kept = width - gap, front = kept / 2;
  std::string result(text.substr(0, offset_of(text, front)));
  result += dots;
  result += text.substr(offset_of(text, full - (kept - front)));
  return result;
}

std::string repeated(std::string_view glyph, std::size_t count) {
  std::string result;
  result.reserve(glyph.size() * count);
  for (std::size_t i = 0; i < count; ++i) result += glyph;
  return result;
}

}  // namespace narrow::report
