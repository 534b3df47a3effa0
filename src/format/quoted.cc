#include "format/quoted.h"

namespace narrow {

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) text += is_control(c) ? '?' : c;
  if (name.size() > kLongest) {
    while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xC0u) == 0x80u) text.pop_back();  // no half of a character
    if (static_cast<unsigned char>(text.back()) >= 0xC0u) text.pop_back();
    text += "...";
  }
  return text + "'";
}

}  // namespace narrow
