/// The page of `narrow search --report`: the sensitivity of every layer and the curve of budgets, in one file without scripts.

#include "search_page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/numbers.h"

namespace narrow::command {
namespace {

constexpr const char* kStyle =
    R"(:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --dim: #5d6878; --line: #d5dbe3; --mark: #0b66c3; --heat: 11, 102, 195; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --text: #e4e9f0; --dim: #98a4b3; --line: #333c48; --mark: #60a5fa; --heat: 96, 165, 250; } }
body { margin: 0 auto; max-width: 1200px; padding: 1rem; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { margin-top: 2rem; font-size: 1.1rem; } p { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.85rem; }
th, td { padding: 0.2rem 0.5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.chosen { outline: 2px solid var(--mark); outline-offset: -2px; font-weight: 600; }
svg { width: 100%; max-width: 760px; } svg text { fill: var(--dim); font-size: 12px; })";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text)
    result += letter == '<' ? "&lt;" : letter == '>' ? "&gt;" : letter == '&' ? "&amp;" : letter == '"' ? "&quot;" : std::string(1, letter);
  return result;
}

/// A number on a logarithmic axis, 0 .. 1 between two others; what is not positive lies at the lower end.
double place_of(double value, double low, double high) {
  if (!(value > 0.0) || !(high > low)) return 0.0;
  return std::clamp(std::log(value / low) / std::log(high / low), 0.0, 1.0);
}

struct Range {
  double low = HUGE_VAL, high = 0.0;
  void add(double value) {
    if (!(value > 0.0)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// One row per layer, one column per scheme: the darker, the more the answers lose.
std::string sensitivity_table(const SearchResult& result) {
  Range range;
  for (const SearchedModule& module : result.modules)
    for (const double cost : module.costs) range.add(cost);
  std::string text = "<div class=scroll><table>\n<tr><th>layer";
  for (const Scheme& scheme : result.menu) text += fmt::format("<th>{}", escaped(scheme.to_string()));
  text += "<th>bits chosen\n";
  for (const SearchedModule& module : result.modules) {
    text += fmt::format("<tr><td>{}", escaped(module.module));
    for (std::size_t s = 0; s < result.menu.size(); ++s)
      text += fmt::format("<td{} style=\"background: rgba(var(--heat), {:.2f})\">{}", s == module.choice ? " class=chosen" : "",
                          0.5 * place_of(module.costs[s], range.low, range.high), report::value_text(module.costs[s]));
    text += fmt::format("<td>{:.2f}\n", 8.0 * static_cast<double>(module.bytes[module.choice]) / static_cast<double>(module.weights));
  }
  return text + "</table></div>\n";
}

/// Bits per weight to the right, predicted divergence upwards (logarithmic); the choice is the larger mark.
std::string curve_picture(const SearchResult& result) {
  constexpr double kLeft = 70.0, kTop = 10.0, kWidth = 670.0, kHeight = 280.0;
  double low = result.bits, high = result.bits;
  Range range;
  range.add(result.divergence);
  for (const CurvePoint& point : result.curve) {
    low = std::min(low, point.bits);
    high = std::max(high, point.bits);
    range.add(point.divergence);
  }
  const auto x = [&](double bits) { return kLeft + (high > low ? (bits - low) / (high - low) : 0.5) * kWidth; };
  const auto y = [&](double divergence) { return kTop + (1.0 - place_of(divergence, range.low, range.high)) * kHeight; };
  std::string points, marks;
  for (const CurvePoint& point : result.curve) {
    points += fmt::format("{:.1f},{:.1f} ", x(point.bits), y(point.divergence));
    marks += fmt::format("<circle cx={:.1f} cy={:.1f} r=3 fill=\"var(--mark)\"><title>{:.3f} bits: {}</title></circle>\n", x(point.bits),
                         y(point.divergence), point.bits, report::value_text(point.divergence));
  }
  const double bottom = kTop + kHeight;
  std::string text = fmt::format("<svg viewBox=\"0 0 760 340\" role=img aria-label=\"predicted divergence against bits per weight\">\n");
  text += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=none stroke=\"var(--line)\"/>\n", kLeft, kTop, bottom, kLeft + kWidth);
  text += fmt::format("<polyline points=\"{}\" fill=none stroke=\"var(--mark)\"/>\n{}", points, marks);
  text +=
      fmt::format("<circle cx={:.1f} cy={:.1f} r=7 fill=none stroke=\"var(--mark)\" stroke-width=2><title>the choice</title></circle>\n",
                  x(result.bits), y(result.divergence));
  text += fmt::format("<text x={} y={} text-anchor=end>{}</text><text x={} y={} text-anchor=end>{}</text>\n", kLeft - 6.0, kTop + 10.0,
                      report::value_text(range.high), kLeft - 6.0, bottom, report::value_text(range.low));
  text += fmt::format("<text x={} y={}>{:.2f} bits per weight</text><text x={} y={} text-anchor=end>{:.2f}</text>\n", kLeft, bottom + 20.0,
                      low, kLeft + kWidth, bottom + 20.0, high);
  return text + "</svg>\n";
}

}  // namespace

std::string search_page(const std::string& model, const SearchResult& result) {
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width, "
      "initial-scale=1\">\n<title>narrow: the best mix for {0}</title>\n<link rel=icon href=\"data:,\">\n<style>\n{1}\n</style>\n</head>\n"
      "<body>\n<h1>The best mix for {0}</h1>\n",
      escaped(model), kStyle);
  text += fmt::format("<p>{} layers, {} schemes: {:.4f} bits per weight, {} bytes, predicted divergence {} nats.</p>\n",
                      result.modules.size(), result.menu.size(), result.bits, report::count_text(static_cast<std::int64_t>(result.bytes)),
                      report::value_text(result.divergence));
  text +=
      "<h2>Sensitivity</h2>\n<p>The predicted KL divergence, in nats, of the model with one layer in one scheme. Framed: the choice.</p>\n";
  text += sensitivity_table(result);
  text +=
      "<h2>Other budgets</h2>\n<p>The least sum of these predictions that each number of bits per weight allows. Ring: the choice.</p>\n";
  return text + curve_picture(result) + "</body>\n</html>\n";
}

}  // namespace narrow::command
