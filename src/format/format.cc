#include "narrow/format.h"

#include <charconv>

#include <fmt/format.h>

#include "format/quoted.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// Reads a decimal number from the front of text; -1 where there is none or it has a leading zero: a format has one name.
int take_number(std::string_view& text) {
  int value = -1;
  if (text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9') return -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string name_of(const Format& format) {
  for (const NamedFormat& named : kNamedFormats)
    if (named.format == format) return std::string(named.name);
  if (format == kMxInt8) return "mxint8 element";
  if (format.is_float() && format.exponent_bits == 1 && format.bias == 1) return fmt::format("msfp{} element", format.bits + 8);
  return fmt::format("fp{}_e{}m{}", format.bits, format.exponent_bits, format.mantissa_bits);
}

Format parse_format(std::string_view name) {
  for (const NamedFormat& named : kNamedFormats)
    if (named.name == name) return named.format;

  std::string_view rest = name;
  if (take(rest, "fp")) {
    const int bits = take_number(rest);
    const int exponent = take(rest, "_e") ? take_number(rest) : -1;
    const int mantissa = take(rest, "m") ? take_number(rest) : -1;
    if (rest.empty() && exponent >= 0 && mantissa >= 0) {
      if (exponent < 1 || exponent > 8 || mantissa > 10 || 1 + exponent + mantissa > 16)
        throw InvalidArgument(fmt::format("format {} is outside of fpN_eEmM with 1 <= E <= 8, 0 <= M <= 10 and N <= 16", in_quotes(name)));
      if (bits != 1 + exponent + mantissa)
        throw InvalidArgument(fmt::format("format {} says {} bits, but a sign, {} exponent and {} mantissa bits make {}", in_quotes(name),
                                          bits, exponent, mantissa, 1 + exponent + mantissa));
      if (exponent == 5 && mantissa == 10) return kFp16;
      if (exponent == 8 && mantissa == 7) return kBf16;
      return float_format(exponent, mantissa);
    }
  }
  std::string names;
  for (const NamedFormat& named : kNamedFormats) names += fmt::format("{}{}", names.empty() ? "" : ", ", named.name);
  throw InvalidArgument(fmt::format("format {} is not known; there are {} and any fpN_eEmM", in_quotes(name), names));
}

}  // namespace narrow
