/// narrow bench --report: this machine's kernels, timed, as a page.

#include <cstdio>
#include <fstream>
#include <memory>

#include <fmt/format.h>

#include "bench_report.h"
#include "commands.h"
#include "narrow/error.h"
#include "report/numbers.h"

namespace narrow::command {
namespace {

void run_bench_report(Context& context, const std::string& path, double seconds_each) {
  std::ofstream file(path, std::ios::binary);
  if (!file) throw IoError(fmt::format("{} cannot be written", path));  // before the minute that timing takes
  const bool shows = context.err_is_terminal && !context.quiet;
  const BenchReport report = measure_kernels(seconds_each, [&](std::string_view name) {
    if (shows) std::fputs(fmt::format("\rtiming {:<40}", name).c_str(), stderr);
  });
  if (shows) std::fputs(fmt::format("\r{:<47}\r", "").c_str(), stderr);
  file << bench_page(report);
  file.close();
  if (!file) throw IoError(fmt::format("{} cannot be written", path));
  context.answer(bench_object(report));
  context.print(fmt::format("{} timings in {}: {}\n", report.timings.size(), report::duration_text(report.seconds), path));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto path = std::make_shared<std::string>();
  auto seconds = std::make_shared<double>(0.1);
  CLI::App* command = add_command(app, "bench", "Time this machine's kernels beside its limits and the libraries that it has",
                                  "  narrow bench --report bench.html\n");
  command->add_option("--report", *path, "Write one HTML page, to be attached to an issue")->option_text("FILE")->required();
  command->add_option("--seconds", *seconds, "Repeat each kernel for this long (default 0.1)")
      ->option_text("N")
      ->check(CLI::Range(0.0, 60.0).description(""));
  command->callback([&context, path, seconds] { context.run = [&context, path, seconds] { run_bench_report(context, *path, *seconds); }; });
}

}  // namespace narrow::command
