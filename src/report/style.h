#pragma once
/// How text may look where it goes: nothing here asks the terminal, the caller says what it can do.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace narrow::report {

/// What the destination can show. The default is right for a pipe: ASCII, no escape codes, lines of any length.
struct Style {
  bool color = false;
  bool unicode = false;
  int width = 0;  ///< columns of the terminal; 0: unbounded
};

enum class Paint : std::uint8_t { kPlain, kBold, kDim, kGood, kWarning, kBad, kAccent };

/// The text with escape codes around it where the style has colour.
std::string painted(const Style& style, Paint paint, std::string_view text);

/// Columns that UTF-8 text takes, one per code point.
std::size_t display_width(std::string_view text);

/// The text cut in its middle to at most `width` columns: "model.layer...j.weight".
std::string shortened(const Style& style, std::string_view text, std::size_t width);

/// `count` copies of a glyph, in Unicode or its ASCII stand-in.
std::string repeated(std::string_view glyph, std::size_t count);

}  // namespace narrow::report
