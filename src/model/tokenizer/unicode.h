#pragma once
/// What tokenizers ask of Unicode: letters, numbers, white space, and normal form C.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace narrow::unicode {

/// Categories L and N, and the property White_Space.
bool is_letter(char32_t code);
bool is_number(char32_t code);
bool is_space(char32_t code);

/// The code point at `place` of well-formed UTF-8, and the place after it.
char32_t next_code(std::string_view text, std::size_t& place);
void append_utf8(std::string& text, char32_t code);

/// Canonical decomposition, then composition.
std::string to_nfc(std::string_view text);

}  // namespace narrow::unicode
