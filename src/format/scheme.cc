#include "narrow/scheme.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "format/quoted.h"
#include "narrow/error.h"

namespace narrow {
namespace {

Scheme mx(const Format& element) {
  return {.element = element, .granularity = Granularity::block(32), .scale = kE8m0, .rule = ScaleRule::kSharedExponent};
}

Scheme msfp(int bits) {
  Scheme scheme = mx(msfp_element(bits - 9));
  scheme.granularity = Granularity::block(16);
  scheme.is_msfp = true;
  return scheme;
}

Scheme nvfp4() { return {.element = kFp4E2m1, .granularity = Granularity::block(16), .scale = kFp8E4m3, .has_outer_scale = true}; }

/// The unsigned format whose codes an asymmetric scheme of a signed integer format uses, and back.
Format unsigned_of(const Format& format) { return uint_format(format.bits); }
Format signed_of(const Format& format) { return int_format(format.bits); }

Granularity default_granularity(const Format& format) {
  if (format.is_float() && format.bits >= 16) return Granularity::none();
  if (format.is_float() || format == kInt8 || format == kInt1) return Granularity::row();
  return Granularity::block(format == kNf4 ? 64 : 128);
}

bool parse_size(std::string_view text, std::int64_t& value) {
  if (text.starts_with('0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= 1 && value <= kLargestBlock;
}

bool parse_granularity(std::string_view text, Granularity& result) {
  if (text == "none") return result = Granularity::none(), true;
  if (text == "tensor") return result = Granularity::tensor(), true;
  if (text == "row") return result = Granularity::row(), true;
  if (text == "col") return result = Granularity::col(), true;
  std::int64_t rows = 1, cols = 0;
  if (text.starts_with("block")) {
    if (!parse_size(text.substr(5), cols)) return false;
    return result = Granularity::block(cols), true;
  }
  const std::size_t cross = text.find('x');
  if (cross == std::string_view::npos || !parse_size(text.substr(0, cross), rows) || !parse_size(text.substr(cross + 1), cols))
    return false;
  return result = Granularity::block(rows, cols), true;
}

std::string print_granularity(const Granularity& granularity) {
  if (granularity == Granularity::none()) return "none";
  if (granularity == Granularity::tensor()) return "tensor";
  if (granularity == Granularity::row()) return "row";
  if (granularity == Granularity::col()) return "col";
  if (granularity.rows == 1) return fmt::format("block{}", granularity.cols);
  return fmt::format("{}x{}", granularity.rows, granularity.cols);
}

[[noreturn]] void fail(std::string_view text, std::string_view part, std::string_view why) {
  throw InvalidArgument(fmt::format("scheme {}: {} {}", in_quotes(text), in_quotes(part), why));
}

std::string lower(std::string_view text) {
  std::string result;
  for (const char letter : text) result += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  return result;
}

bool is_format(std::string_view name) {
  for (const BlockFormat& block : block_formats())
    if (block.name == name) return true;
  for (const NamedFormat& format : kNamedFormats)
    if (format.name == name) return true;
  return false;
}

/// What a name of elsewhere is called here; empty where nobody knows.
std::string format_meant(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {{"fp8", "fp8_e4m3 or fp8_e5m2"},
                                                                          {"fp6", "fp6_e3m2 or fp6_e2m3"},
                                                                          {"fp5", "fp5_e2m2 or fp5_e3m1"},
                                                                          {"fp4", "fp4_e2m1"},
                                                                          {"fp3", "fp3_e2m0"},
                                                                          {"e4m3", "fp8_e4m3"},
                                                                          {"e5m2", "fp8_e5m2"},
                                                                          {"float8_e4m3fn", "fp8_e4m3"},
                                                                          {"float8_e5m2", "fp8_e5m2"},
                                                                          {"mxfp8", "mxfp8_e4m3 or mxfp8_e5m2"},
                                                                          {"mxfp6", "mxfp6_e3m2 or mxfp6_e2m3"},
                                                                          {"bfloat16", "bf16"},
                                                                          {"float16", "fp16"},
                                                                          {"half", "fp16"}};
  for (const auto& [other, here] : kElsewhere)
    if (other == name) return std::string(here);
  constexpr std::size_t kLongestName = 16;                                         // of a format, and more
  for (std::size_t place = std::min(name.size(), kLongestName + 1); place-- > 1;)  // a colon was left out: int8row
    if (name[place] >= 'a' && is_format(name.substr(0, place))) return std::string(name).insert(place, 1, ':');
  if (name.starts_with("int") && name.size() < 6) return "int1, int2, int3, int4 or int8";
  return {};
}

std::string granularity_meant(std::string_view part) {
  constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
      {"rows", "row"},          {"channel", "row"},    {"per_channel", "row"}, {"cols", "col"},       {"column", "col"},
      {"per_tensor", "tensor"}, {"block", "block128"}, {"group", "block128"},  {"asymmetric", "asym"}};
  for (const auto& [other, here] : kElsewhere)
    if (other == part) return std::string(here);
  for (const std::string_view prefix : {"group", "g", ""})
    if (std::int64_t size = 0; part.starts_with(prefix) && parse_size(part.substr(prefix.size()), size))
      return fmt::format("block{}", size);
  return {};
}

Format parse_element(std::string_view text, std::string_view name) {
  Format format;
  try {
    format = parse_format(name);
  } catch (const InvalidArgument&) {
    // A well-formed fpN_eEmM outside of the limits keeps its own sentence.
    if (name.starts_with("fp") && name.find("_e") != std::string_view::npos) throw;
    const std::string small = lower(name);
    const std::string meant = small != name && is_format(small) ? small : format_meant(small);
    if (!meant.empty()) fail(text, name, fmt::format("is not a format; write {}", meant));
    fail(text, name, "is not a format; `narrow formats` lists formats, block formats and presets, and any fpN_eEmM is one");
  }
  if (format == kE8m0) fail(text, name, "holds scales only; choose an element format such as mxfp4 and its e8m0 scale comes with it");
  if (format.is_integer() && !format.is_signed)
    fail(text, name, fmt::format("is the code type of asymmetric schemes; write {}:asym", name.substr(1)));
  return format;
}

Format parse_scale(std::string_view text, std::string_view part) {
  const std::string_view name = part.substr(std::string_view("scale=").size());
  for (const Format& format : {kFp32, kFp16, kBf16, kE8m0, kFp8E4m3})
    if (name_of(format) == name) return format;
  fail(text, part, "is not a scale format; use scale=fp32, fp16, bf16, e8m0 or fp8_e4m3");
}

}  // namespace

const std::vector<BlockFormat>& block_formats() {
  static const std::vector<BlockFormat> table{{"mxfp8_e4m3", mx(kFp8E4m3)}, {"mxfp8_e5m2", mx(kFp8E5m2)}, {"mxfp6_e3m2", mx(kFp6E3m2)},
                                              {"mxfp6_e2m3", mx(kFp6E2m3)}, {"mxfp4", mx(kFp4E2m1)},      {"mxint8", mx(kMxInt8)},
                                              {"nvfp4", nvfp4()},           {"msfp11", msfp(11)},         {"msfp12", msfp(12)},
                                              {"msfp13", msfp(13)},         {"msfp14", msfp(14)},         {"msfp15", msfp(15)},
                                              {"msfp16", msfp(16)}};
  return table;
}

Scheme Scheme::parse(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = text;;) {
    const std::size_t colon = rest.find(':');
    parts.push_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (parts.front().empty())
    throw InvalidArgument(
        fmt::format("scheme {} is empty before its first ':'; write FORMAT[:GRANULARITY][:asym][:scale=FORMAT]", in_quotes(text)));

  for (const BlockFormat& block : block_formats()) {
    if (block.name != parts.front()) continue;
    if (parts.size() > 1) fail(text, parts[1], fmt::format("cannot follow {}, whose blocks and scales are fixed", block.name));
    return block.scheme;
  }

  Scheme scheme;
  scheme.element = parse_element(text, parts.front());
  scheme.granularity = default_granularity(scheme.element);
  if (scheme.element == kInt1) scheme.rule = ScaleRule::kMeanAbsolute;
  int stage = 0;  // granularity, asym and scale come at most once each, in this order
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::string_view part = parts[i];
    if (stage < 1 && parse_granularity(part, scheme.granularity)) {
      stage = 1;
    } else if (stage < 2 && part == "asym") {
      if (!scheme.element.is_integer()) fail(text, part, "needs an integer format; float formats and int1 are symmetric");
      scheme.asymmetric = true;
      scheme.element = unsigned_of(scheme.element);
      stage = 2;
    } else if (stage < 3 && part.starts_with("scale=")) {
      scheme.scale = parse_scale(text, part);
      stage = 3;
    } else if (part == "asym" || part.starts_with("scale=") || parse_granularity(part, scheme.granularity)) {
      fail(text, part, "is repeated or out of order; write FORMAT[:GRANULARITY][:asym][:scale=FORMAT]");
    } else {
      const std::string meant = granularity_meant(part);
      fail(text, part,
           fmt::format("is not a granularity (none, tensor, row, col, blockB, RxC), asym or scale=FORMAT{}",
                       meant.empty() ? "" : fmt::format("; write {}", meant)));
    }
  }
  if (!scheme.has_scales() && !scheme.element.is_float()) fail(text, "none", "is for float formats; integers need a scale");
  if (!scheme.has_scales() && scheme.scale != kFp32) fail(text, parts.back(), "contradicts the granularity none");
  if (scheme.element == kInt1 && scheme.scale == kE8m0) fail(text, parts.back(), "cannot hold int1's scale of an all-zero block");
  return scheme;
}

std::string Scheme::to_string() const {
  for (const BlockFormat& block : block_formats())
    if (block.scheme == *this) return std::string(block.name);
  std::string text = name_of(asymmetric ? signed_of(element) : element) + ":" + print_granularity(granularity);
  if (asymmetric) text += ":asym";
  if (scale != kFp32) text += ":scale=" + name_of(scale);
  return text;
}

const std::vector<Scheme>& standard_schemes() {
  static const std::vector<Scheme> table = [] {
    std::vector<Scheme> schemes;
    // clang-format off
    constexpr const char* kTexts[] = {
        "fp16", "bf16", "fp8_e5m2:tensor", "fp8_e5m2:row", "fp8_e4m3:none", "fp8_e4m3:tensor", "fp8_e4m3:row", "fp8_e4m3:col",
        "fp8_e4m3:block128", "fp8_e4m3:128x128", "fp6_e3m2:row", "fp6_e2m3:row", "fp5_e3m1:row", "fp5_e2m2:row", "fp4_e2m1:row",
        "fp4_e2m1:block32", "fp4_e3m0:row", "fp3_e2m0:row", "fp7_e3m3:row", "fp12_e5m6:row", "int8:tensor", "int8:row", "int8:col",
        "int8:block128", "int8:row:asym", "int8:tensor:asym", "int8:64x64", "int4:row", "int4:block128", "int4:block32:asym",
        "int4:block128:asym", "int4:block64:scale=fp16", "int4:block128:asym:scale=bf16", "int3:block128", "int3:block128:asym",
        "int2:block64", "int2:block128:asym", "int4:block32:scale=e8m0", "int1:row", "int1:block128", "nf4:block64"};
    // clang-format on
    for (const char* text : kTexts) schemes.push_back(Scheme::parse(text));
    for (const BlockFormat& block : block_formats()) schemes.push_back(block.scheme);
    return schemes;
  }();
  return table;
}

}  // namespace narrow
