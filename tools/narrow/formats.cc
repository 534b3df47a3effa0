/// narrow formats: the table of all formats, or one format drawn and listed.

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "commands.h"
#include "narrow/codec.h"
#include "narrow/error.h"
#include "narrow/recipe.h"
#include "report/numbers.h"
#include "report/plot.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Align;
using report::Json;
using report::Paint;

constexpr int kMostListedBits = 8;
constexpr int kMostDrawnBits = 16;
constexpr std::size_t kPipeWidth = 100;

/// MSFP elements have no hidden one: an even grid, like an integer's.
bool is_even_grid(const Format& format) {
  return format.is_integer() || (format.is_float() && format.exponent_bits == 1 && format.bias == 1);
}

std::string kind_text(const Format& format) {
  switch (format.kind) {
    case FormatKind::kFloat: return is_even_grid(format) ? "sign and magnitude" : "float";
    case FormatKind::kInteger: return format.is_signed ? "integer" : "unsigned integer";
    case FormatKind::kCodebook: return "codebook";
    case FormatKind::kExponent: return "power of two";
  }
  return "";
}

std::string specials_text(const Format& format) {
  if (format.has_infinity()) return "Inf, NaN";
  return format.has_nan() ? "NaN" : "none";
}

bool has_subnormals(const Format& format) { return format.is_float() && !is_even_grid(format) && format.mantissa_bits > 0; }
double smallest_normal(const Format& format) { return is_even_grid(format) ? format.smallest_positive() : format.smallest_normal(); }
/// The spacing of floats at 1; nothing for the others.
double epsilon(const Format& format) { return std::ldexp(1.0, -format.mantissa_bits); }
double decimal_digits(const Format& format) { return (format.mantissa_bits + 1) * std::log10(2.0); }

std::string largest_text(const Format& format) {
  return format.kind == FormatKind::kExponent ? report::power_text(format.largest()) : fmt::format("{:.6g}", format.largest());
}

std::string precision_text(const Format& format) {
  if (is_even_grid(format)) return fmt::format("step {}", report::value_text(format.smallest_positive()));
  if (format.kind == FormatKind::kCodebook) return fmt::format("{} levels", format.code_count());
  if (format.kind == FormatKind::kExponent) return "a factor of 2";
  return fmt::format("{:.1f} digits", decimal_digits(format));
}

/// Bits that a weight takes with its share of a block's scale; nothing where a scale's share depends on the shape.
std::optional<double> bits_per_weight(const Scheme& scheme) {
  if (!scheme.has_scales()) return scheme.element.bits;
  const double cells = static_cast<double>(scheme.granularity.rows) * static_cast<double>(scheme.granularity.cols);
  if (cells == 0.0) return std::nullopt;
  return scheme.element.bits + (scheme.scale.bits + (scheme.asymmetric ? 8.0 : 0.0)) / cells;
}

std::string scaling_text(const Scheme& scheme) {
  if (!scheme.has_scales()) return "no scale";
  const auto& [kind, rows, cols] = scheme.granularity;
  std::string text = fmt::format("{} scale", name_of(scheme.scale));
  if (kind == Granularity::Kind::kTensor)
    text += " per tensor";
  else if (rows == 1 && cols == 0)
    text += " per row";
  else if (rows == 0 && cols == 1)
    text += " per column";
  else if (rows == 1)
    text += fmt::format(" per {} values", cols);
  else
    text += fmt::format(" per {}x{} tile", rows, cols);
  if (scheme.asymmetric) text += ", zero point";
  if (scheme.has_outer_scale) text += ", fp32 scale per tensor";
  return text;
}

Json format_object(const std::string& name, const Format& format) {
  const bool is_plain_float = format.is_float() && !is_even_grid(format);
  Json object{{"name", name}, {"kind", kind_text(format)}, {"bits", format.bits}};
  object["exponent_bits"] = is_plain_float || format.kind == FormatKind::kExponent ? Json(format.exponent_bits) : Json(nullptr);
  object["mantissa_bits"] = is_plain_float ? Json(format.mantissa_bits) : Json(nullptr);
  object["bias"] = is_plain_float || format.kind == FormatKind::kExponent ? Json(format.bias) : Json(nullptr);
  object["max"] = format.largest();
  object["min_normal"] = smallest_normal(format);
  object["min_subnormal"] = has_subnormals(format) ? Json(format.smallest_positive()) : Json(nullptr);
  object["epsilon"] = is_plain_float ? Json(epsilon(format)) : Json(nullptr);
  object["specials"] = specials_text(format);
  return object;
}

Json scheme_object(const std::string& name, const Scheme& scheme) {
  Json object = format_object(name, scheme.element);
  object["kind"] = "scheme";
  object["element"] = name_of(scheme.element);
  object["scaling"] = scaling_text(scheme);
  const std::optional<double> bits = bits_per_weight(scheme);
  object["bits_per_weight"] = bits ? Json(*bits) : Json(nullptr);
  return object;
}

/// The weights' scheme, and what becomes of inputs.
Json preset_object(const Preset& preset) {
  Json object = scheme_object(std::string(preset.name), Scheme::parse(preset.weights));
  object["kind"] = "preset";
  object["weights"] = preset.weights;
  object["activations"] = preset.activations.empty() ? Json(nullptr) : Json(preset.activations);
  object["meaning"] = preset.meaning;
  return object;
}

void list_formats(Context& context) {
  Json list = Json::array();
  report::Table formats({{"format"},
                         {"kind"},
                         {"bits", Align::kRight},
                         {"max", Align::kRight},
                         {"min normal", Align::kRight},
                         {"min subnormal", Align::kRight},
                         {"precision", Align::kRight},
                         {"specials"}});
  for (const auto& [name, format] : kNamedFormats) {
    list.push_back(format_object(std::string(name), format));
    formats.add({{std::string(name), Paint::kAccent},
                 kind_text(format),
                 std::to_string(format.bits),
                 largest_text(format),
                 report::power_text(smallest_normal(format)),
                 has_subnormals(format) ? report::power_text(format.smallest_positive()) : "-",
                 precision_text(format),
                 specials_text(format)});
  }
  report::Table blocks({{"block format"}, {"element"}, {"bits/weight", Align::kRight}, {"element max", Align::kRight}, {"scaling"}});
  for (const auto& [name, scheme] : block_formats()) {
    list.push_back(scheme_object(std::string(name), scheme));
    blocks.add({{std::string(name), Paint::kAccent},
                name_of(scheme.element),
                report::value_text(bits_per_weight(scheme).value_or(0.0)),
                largest_text(scheme.element),
                scaling_text(scheme)});
  }
  report::Table named({{"preset"}, {"weights"}, {"inputs"}, {"meaning", Align::kLeft, false, true}});
  for (const Preset& preset : presets()) {
    list.push_back(preset_object(preset));
    named.add({{std::string(preset.name), Paint::kAccent},
               std::string(preset.weights),
               std::string(preset.activations.empty() ? "as they are" : preset.activations),
               {std::string(preset.meaning), Paint::kDim}});
  }
  context.answer(list);
  context.print(formats.render(context.out) + "\n" + blocks.render(context.out) + "\n" + named.render(context.out));
  context.print("\nAny other fpN_eEmM works too (1 <= E <= 8, M <= 10, N = 1+E+M <= 16). `narrow formats fp6_e3m2` shows every value.\n");
}

/// The code's fields: s|eee|mm.
std::string bits_text(const Format& format, std::uint32_t code) {
  const bool split_sign = format.is_signed && (format.is_float() || format.is_integer());
  const bool split_mantissa = format.is_float() && !is_even_grid(format) && format.mantissa_bits > 0;
  std::string text;
  for (int bit = format.bits - 1; bit >= 0; --bit) {
    text += (code >> bit & 1u) != 0 ? '1' : '0';
    const bool after_sign = split_sign && bit == format.bits - 1 && bit > 0;
    if (after_sign || (split_mantissa && bit == format.mantissa_bits)) text += '|';
  }
  return text;
}

std::string hex_text(const Format& format, std::uint32_t code) { return fmt::format("0x{:0{}x}", code, (format.bits + 3) / 4); }

std::string code_value_text(const Format& format, std::uint32_t code) {
  const float value = decode(format, code);
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "Inf";
  const double magnitude = std::fabs(value);
  if (format.kind == FormatKind::kExponent) return report::power_text(value);
  return magnitude != 0.0 && magnitude < 1e-3 ? fmt::format("{:.6g}", value) : report::exact_text(value);
}

/// All codes, downwards in as many columns as fit.
std::string code_listing(const report::Style& style, const Format& format) {
  std::vector<std::string> values;
  std::size_t widest = 0;
  for (std::uint32_t code = 0; code < format.code_count(); ++code) {
    values.push_back(code_value_text(format, code));
    widest = std::max(widest, values.back().size());
  }
  const std::size_t bits_width = bits_text(format, 0).size(), hex_width = hex_text(format, 0).size();
  const std::size_t cell = hex_width + 2 + bits_width + 2 + widest,
                    room = style.width > 0 ? static_cast<std::size_t>(style.width) : kPipeWidth;
  const std::size_t columns = std::max<std::size_t>(1, (room + 4) / (cell + 4)), rows = (values.size() + columns - 1) / columns;
  std::string text;
  for (std::size_t row = 0; row < rows; ++row) {
    std::string line;
    for (std::size_t code = row; code < values.size(); code += rows) {
      if (!line.empty()) line += "    ";
      const auto bits = static_cast<std::uint32_t>(code);
      line += report::painted(style, Paint::kDim, hex_text(format, bits)) + "  " + bits_text(format, bits) + "  ";
      line += fmt::format("{:>{}}", values[code], widest);
    }
    text += line + "\n";
  }
  return text;
}

std::string value_lines(const report::Style& style, const Format& format) {
  if (format.bits > kMostDrawnBits) return "";
  std::vector<double> positive;
  for (std::uint32_t code = 0; code < format.code_count(); ++code)
    if (const float value = decode(format, code); std::isfinite(value) && value > 0.0f && value <= format.largest())
      positive.push_back(value);
  const std::size_t width = style.width > 0 ? static_cast<std::size_t>(std::min(style.width, 160)) : kPipeWidth;
  std::string text;
  if (format.kind != FormatKind::kExponent) {
    text += fmt::format("{}\n{}\n", report::painted(style, Paint::kBold, "Positive values, linear"),
                        report::value_line(style, positive, report::Axis::kLinear, width));
  }
  if (format.kind == FormatKind::kExponent || (format.is_float() && !is_even_grid(format)))
    text += fmt::format("{}\n{}\n", report::painted(style, Paint::kBold, "Positive values, logarithmic"),
                        report::value_line(style, positive, report::Axis::kLog2, width));
  return text;
}

std::string equation_text(const Format& format) {
  const int bias = format.bias, m = format.mantissa_bits;
  switch (format.kind) {
    case FormatKind::kCodebook: return "value = table[code]";
    case FormatKind::kExponent: return "value = 2^(code - 127); scales only";
    case FormatKind::kInteger:
      return format.fraction_bits > 0 ? fmt::format("value = code * 2^-{}, two's complement", format.fraction_bits)
             : format.is_signed       ? fmt::format("value = code, two's complement; -{} is never used", 1 << m)
                                      : "value = code; the codes of asymmetric schemes";
    case FormatKind::kFloat: break;
  }
  if (is_even_grid(format)) return fmt::format("value = (-1)^s * k * 2^-{}, k = the {} bits after the sign", m, m + 1);
  if (m == 0) return fmt::format("value = (-1)^s * 2^(e-{}),  e = 0: zero", bias);
  return fmt::format("value = (-1)^s * 2^(e-{0}) * (1 + m/{1}),  e = 0: (-1)^s * 2^{2} * m/{1}", bias, 1 << m, 1 - bias);
}

std::string facts(const report::Style& style, const std::string& name, const Format& format) {
  std::string text = fmt::format("{}  {}, {} bits\n", report::painted(style, Paint::kBold, name), kind_text(format), format.bits);
  text += fmt::format("  {}\n  max {}   min normal {}", equation_text(format), largest_text(format),
                      report::power_text(smallest_normal(format)));
  if (has_subnormals(format)) text += fmt::format("   min subnormal {}", report::power_text(format.smallest_positive()));
  text += fmt::format("   precision {}   specials {}\n\n", precision_text(format), specials_text(format));
  return text;
}

void show_one(Context& context, const std::string& name) {
  std::optional<Scheme> scheme;
  Format format;
  try {
    format = parse_format(name);
  } catch (const InvalidArgument&) {
    scheme = Recipe::of(name).scheme;  // a scheme or a preset; its sentence says where all are listed
    format = scheme->element;
  }
  Json object = scheme ? scheme_object(name, *scheme) : format_object(name, format);
  std::string text;
  for (const Preset& preset : presets()) {
    if (preset.name != name) continue;
    object = preset_object(preset);
    text += fmt::format("{}  {}: weights {}, inputs {}\n\n", report::painted(context.out, Paint::kBold, name), preset.meaning,
                        preset.weights, preset.activations.empty() ? "as they are" : preset.activations);
  }
  if (scheme) {
    const std::optional<double> bits = bits_per_weight(*scheme);
    text += fmt::format("{}  {} elements, {}{}\n\n", report::painted(context.out, Paint::kBold, scheme->to_string()), name_of(format),
                        scaling_text(*scheme), bits ? fmt::format(": {} bits per weight", report::value_text(*bits)) : "");
  }
  text += facts(context.out, name_of(format), format) + value_lines(context.out, format);
  if (format.bits <= kMostListedBits) {
    Json codes = Json::array();
    for (std::uint32_t code = 0; code < format.code_count(); ++code)
      codes.push_back({{"code", code}, {"bits", bits_text(format, code)}, {"value", report::number(decode(format, code))}});
    object["codes"] = std::move(codes);
    text += code_listing(context.out, format);
  } else {
    text += fmt::format("{} codes; formats of at most {} bits are listed code by code.\n",
                        format.bits >= 32 ? "2^32" : report::count_text(format.code_count()), kMostListedBits);
  }
  context.answer(object);
  context.print(text);
}

}  // namespace

void add_formats(CLI::App& app, Context& context) {
  auto name = std::make_shared<std::string>();
  CLI::App* command = add_command(app, "formats", "List all number formats and presets, or draw one and list its codes",
                                  "  narrow formats\n  narrow formats fp6_e3m2\n  narrow formats nvfp4\n  narrow formats W8A8\n");
  command->add_option("NAME", *name, "A format (fp6_e3m2, int4, any fpN_eEmM), a scheme (nvfp4) or a preset (W8A8)")->type_name("");
  command->callback(
      [&context, name] { context.run = [&context, name] { name->empty() ? list_formats(context) : show_one(context, *name); }; });
}

}  // namespace narrow::command
