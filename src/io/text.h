#pragma once
/// Names from files inside sentences: cut, and without control characters.

#include <string>
#include <string_view>

#include "format/quoted.h"

namespace narrow::io {

using narrow::in_quotes;
/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);
/// A name of a file in the same directory: no separator, not hidden, no control character, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace narrow::io
