/// The page of `narrow bench --report`: tables with bars, in one file without scripts.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench_report.h"
#include "build_facts.h"
#include "report/numbers.h"

namespace narrow::command {
namespace {

constexpr const char* kStyle =
    R"(:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --dim: #5d6878; --line: #d5dbe3; --bar: #0b66c3; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --text: #e4e9f0; --dim: #98a4b3; --line: #333c48; --bar: #60a5fa; } }
body { margin: 0 auto; max-width: 1100px; padding: 1rem; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { margin-top: 2rem; font-size: 1.1rem; } p { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
meter { width: 8rem; })";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char letter : text)
    result += letter == '<' ? "&lt;" : letter == '>' ? "&gt;" : letter == '&' ? "&amp;" : letter == '"' ? "&quot;" : std::string(1, letter);
  return result;
}

std::string row_of(const Timing& t) {
  const double rate = t.bytes / t.seconds * 1e-9;
  const std::string share = t.share > 0.0 ? fmt::format("<meter min=0 max=1 value={0:.3f}>{0:.2f}</meter> {1:.0f} % of {2}",
                                                        std::min(t.share, 1.0), t.share * 100.0, t.limit)
                                          : "-";
  return fmt::format("<tr><td>{}<td>{}<td>{:.1f}<td>{:.1f}<td>{}<td>{}<td>{}\n", escaped(t.kernel), escaped(t.task), t.seconds * 1e6, rate,
                     t.operations > 0.0 ? fmt::format("{:.0f}", t.operations / t.seconds * 1e-9) : "-", share,
                     t.peer.empty() ? "-" : fmt::format("{:.2f} x {}", t.peer_ratio, escaped(t.peer)));
}

std::string section(const BenchReport& report, const std::string& op, std::int64_t m, const std::string& title) {
  std::string rows;
  for (const Timing& timing : report.timings)
    if (timing.op == op && timing.m == m) rows += row_of(timing);
  if (rows.empty()) return "";
  return fmt::format(
      "<h2>{}</h2>\n<div class=scroll><table>\n<tr><th>kernel<th>task<th>us<th>GB/s<th>GOP/s<th>of the limit<th>speed\n{}</table></div>\n",
      title, rows);
}

}  // namespace

std::string bench_page(const BenchReport& report) {
  const Machine& machine = report.machine;
  const Roofline& r = report.roofline;
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width, "
      "initial-scale=1\">\n"
      "<title>narrow: kernels on this machine</title>\n<link rel=icon href=\"data:,\">\n<style>\n{}\n</style>\n</head>\n<body>\n"
      "<h1>narrow {}: kernels on {}</h1>\n",
      kStyle, build_facts().version, escaped(machine.cpu));
  text += fmt::format(
      "<p>{} threads; instruction sets {}; {} of memory, last cache {}; {}; built by {}, {}.<br>\nThe machine's limits, measured in this "
      "run: copy {:.1f} GB/s, "
      "read {:.1f} GB/s, int8 {:.0f} GOP/s, fp32 {:.0f} GFLOP/s. Peers found: {}. Every time is the least of several; the run took "
      "{}.</p>\n",
      machine.threads, fmt::join(machine.instruction_sets, ", "), report::bytes_text(machine.memory),
      report::bytes_text(machine.last_cache), machine.gpus.empty() ? "no GPU" : escaped(machine.gpus.front().name),
      escaped(build_facts().compiler), build_facts().commit.empty() ? "no commit known" : escaped(build_facts().commit), r.copy, r.read,
      r.int8, r.fp32, report.peers.empty() ? "none" : fmt::format("{}", fmt::join(report.peers, "; ")),
      report::duration_text(report.seconds));
  text += section(report, "quantize", 0, "Quantize") + section(report, "dequantize", 0, "Dequantize") +
          section(report, "fused", 0, "Norm and quantize");
  text += section(report, "matmul", 1, "Products of one token: weights 4096 x 4096, from memory");
  text += section(report, "matmul", 64, "Products of 64 tokens");
  text +=
      "<p>GB/s counts what must be read and written once (of products: the weight). A limit is the time to move that, or to do the "
      "multiplications and additions, "
      "whichever is longer; more than 100 % means that a kernel does less than was counted (signs and tables instead of multiplications) "
      "or that "
      "memory was faster than when the limit was measured. The peaks of bf16 and of single bits are not measured. The reference kernels, "
      "which define the operations, are not timed.</p>\n</body>\n</html>\n";
  return text;
}

}  // namespace narrow::command
