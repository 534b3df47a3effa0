#pragma once
/// Names from files inside sentences: cut, and without control characters.

#include <string>
#include <string_view>

namespace narrow::io {

/// 'name', at most 100 characters of it, every control character as '?'.
std::string in_quotes(std::string_view name);
/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);
/// A name of a file in the same directory: no separator, not hidden, no control character, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace narrow::io
