/// narrow doctor: what this machine has, which kernels will run on it, and whether they compute what they should. One screen.

#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include "build_facts.h"
#include "commands.h"
#include "dispatch/fused.h"
#include "dispatch/quantize.h"
#include "machine.h"
#include "narrow/matmul.h"
#include "report/numbers.h"
#include "report/table.h"
#include "self_test.h"
#include "value_checks.h"

namespace narrow::command {
namespace {

using report::Json;
using report::Paint;

constexpr double kMostSeconds = 20.0;

/// An operation that models spend their time in, and the row that runs it here.
struct Use {
  std::string operation, kernel;
};

std::string product_row(std::int64_t m, const char* weight, const char* activation = nullptr, DType x = DType::kF32) {
  MatmulOptions options;
  if (activation != nullptr) options.quantize = ActivationQuantization{Scheme::parse(activation), {}, {}};
  for (const MatmulChoice& row : explain_matmul(m, 4096, 4096, Scheme::parse(weight), options, x))
    if (row.chosen) return row.name;
  return "";
}

std::vector<Use> typical_uses() {
  const Shape shape{4096, 4096};
  const Scheme int8 = Scheme::parse("int8:row");
  QuantizeProblem problem;
  problem.dtype = DType::kBf16;
  problem.rows = shape[0];
  problem.cols = problem.row_stride = shape[1];
  problem.scheme = int8;
  problem.grid = scale_grid(int8, shape);
  problem.row_bytes = packed_row_bytes(int8, shape[1]);
  FusedProblem norm;
  norm.op = FusedOp::kRmsNorm;
  norm.rows = shape[0];
  norm.cols = shape[1];
  return {{"quantize bf16 to int8:row", find(problem).name},
          {"RMSNorm, then int8:row", find(norm).name},
          {"one token x int4:block128", product_row(1, "int4:block128")},
          {"one token x nvfp4", product_row(1, "nvfp4")},
          {"one token x fp8_e4m3:row", product_row(1, "fp8_e4m3:row")},
          {"512 tokens in int8 x int8:row", product_row(512, "int8:row", "int8:row")},
          {"512 tokens in bf16 x bf16", product_row(512, "bf16:none", nullptr, DType::kBf16)}};
}

struct Findings {
  Machine machine;
  Roofline roofline;
  std::vector<Use> uses;
  SelfTest test;
};

Json answer_of(const Findings& found) {
  const BuildFacts& build = build_facts();
  const Machine& m = found.machine;
  const auto text_or_null = [](std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json gpus = Json::array(), uses = Json::array(), rows = Json::array();
  for (const Gpu& gpu : m.gpus)
    gpus.push_back({{"name", gpu.name}, {"capability", gpu.capability}, {"multiprocessors", gpu.multiprocessors}, {"memory", gpu.memory}});
  for (const Use& use : found.uses) uses.push_back({{"operation", use.operation}, {"kernel", use.kernel}});
  for (const SelfTestRow& row : found.test.rows)
    rows.push_back({{"op", row.op}, {"kernel", row.kernel}, {"cases", row.cases}, {"failure", text_or_null(row.failure)}});
  return {{"version", build.version},
          {"build",
           {{"commit", text_or_null(build.commit)},
            {"compiler", build.compiler},
            {"type", build.build_type},
            {"architecture", build.architecture},
            {"cuda", text_or_null(build.cuda)}}},
          {"cpu",
           {{"name", m.cpu},
            {"cores", m.cores},
            {"threads", m.threads},
            {"instruction_sets", m.instruction_sets},
            {"missing", m.missing_sets}}},
          {"memory", {{"bytes", m.memory}, {"free", m.free_memory}, {"last_cache", m.last_cache}}},
          {"gpus", gpus},
          {"gpu_reason", text_or_null(m.gpu_reason)},
          {"cuda_driver", text_or_null(m.cuda_driver)},
          {"python",
           {{"version", text_or_null(m.python.version)},
            {"narrow", text_or_null(m.python.narrow_version)},
            {"torch", text_or_null(m.python.torch_version)},
            {"numpy", text_or_null(m.python.numpy_version)}}},
          {"roofline",
           {{"copy_gb_s", found.roofline.copy},
            {"read_gb_s", found.roofline.read},
            {"int8_gop_s", found.roofline.int8},
            {"fp32_gflop_s", found.roofline.fp32}}},
          {"kernels", uses},
          {"self_test",
           {{"passed", found.test.passed()},
            {"complete", found.test.complete},
            {"cases", found.test.cases()},
            {"seconds", found.test.seconds},
            {"rows", rows}}}};
}

std::string python_text(const PythonFacts& python) {
  if (python.version.empty()) return "no python3 on the path";
  const auto package = [](const char* name, const std::string& version) {
    return fmt::format("{} {}", name, version.empty() ? "not installed" : version);
  };
  return fmt::format("{}; {}, {}, {}", python.version, package("narrow", python.narrow_version), package("torch", python.torch_version),
                     package("numpy", python.numpy_version));
}

std::string gpu_text(const Machine& m) {
  if (m.gpus.empty()) return "none: " + m.gpu_reason;
  std::vector<std::string> texts;
  for (const Gpu& gpu : m.gpus)
    texts.push_back(
        fmt::format("{}, sm_{}, {} multiprocessors, {}", gpu.name, gpu.capability, gpu.multiprocessors, report::bytes_text(gpu.memory)));
  return fmt::format("{}; driver for CUDA {}", fmt::join(texts, "; "), m.cuda_driver);
}

void print_facts(Context& context, const Findings& found) {
  const BuildFacts& build = build_facts();
  const Machine& m = found.machine;
  const Roofline& r = found.roofline;
  const auto line = [&](const char* name, const std::string& text) {
    context.print(fmt::format("{}  {}\n", report::painted(context.out, Paint::kBold, fmt::format("{:<9}", name)), text));
  };
  const auto rate = [](double value, const char* unit) {
    return value > 0.0 ? fmt::format("{:.0f} {}", value, unit) : std::string("not measured");
  };
  line("narrow", fmt::format("{}{}, {}, {}, CUDA {}", build.version, build.commit.empty() ? "" : fmt::format(" ({})", build.commit),
                             build.compiler, build.build_type, build.cuda.empty() ? "left out" : build.cuda));
  line("cpu", fmt::format("{}, {} core{}, {} thread{}", m.cpu, m.cores, m.cores == 1 ? "" : "s", m.threads, m.threads == 1 ? "" : "s"));
  line("sets",
       fmt::format("{}{}", m.instruction_sets.empty() ? "none that has kernels" : fmt::format("{}", fmt::join(m.instruction_sets, ", ")),
                   m.missing_sets.empty() ? "" : fmt::format("; not used: {}", fmt::join(m.missing_sets, ", "))));
  line("memory", fmt::format("{}, {} free; last cache {}", report::bytes_text(m.memory), report::bytes_text(m.free_memory),
                             m.last_cache > 0 ? report::bytes_text(m.last_cache) : "unknown"));
  line("gpu", gpu_text(m));
  line("python", python_text(m.python));
  line("roofline", fmt::format("copy {:.1f} GB/s, read {:.1f} GB/s, int8 {}, fp32 {} on {} thread{}", r.copy, r.read, rate(r.int8, "GOP/s"),
                               rate(r.fp32, "GFLOP/s"), m.threads, m.threads == 1 ? "" : "s"));
  report::Table uses({{"operation (weights 4096 x 4096)"}, {"kernel"}});
  for (const Use& use : found.uses) uses.add({use.operation, {use.kernel, Paint::kAccent}});
  context.print("\n" + uses.render(context.out) + "\n");
}

void print_test(Context& context, const SelfTest& test) {
  for (const SelfTestRow& row : test.rows) {
    if (row.failure.empty() && row.cases > 0) continue;
    context.print(fmt::format(
        "{}  {} {}: {}\n",
        report::painted(context.out, row.failure.empty() ? Paint::kWarning : Paint::kBad, row.failure.empty() ? "untried" : "wrong"),
        row.op, row.kernel, row.failure.empty() ? "no case reached it" : row.failure));
  }
  const std::string verdict =
      test.passed() ? report::painted(context.out, Paint::kGood, "ok") : report::painted(context.out, Paint::kBad, "failed");
  context.print(fmt::format("{}  {}: {} kernels beside the reference, {} cases, {}{}\n",
                            report::painted(context.out, Paint::kBold, "self-test"), verdict, test.rows.size(), test.cases(),
                            report::duration_text(test.seconds), test.complete ? "" : "; the time was up before the last one"));
}

void run_doctor(Context& context, double seconds) {
  Findings found;
  found.machine = inspect_machine();
  found.uses = typical_uses();
  found.test = run_self_test(seconds);
  found.roofline = measure_roofline(found.machine.threads);
  context.answer(answer_of(found));
  print_facts(context, found);
  print_test(context, found.test);
  if (!found.test.passed()) context.exit_code = kCheckFailed;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  auto seconds = std::make_shared<double>(kMostSeconds);
  CLI::App* command = add_command(app, "doctor", "Show what this machine has and which kernels run on it, and test every one of them",
                                  "  narrow doctor\n  narrow doctor --json > doctor.json\n");
  command->add_option("--seconds", *seconds, "Give the self-test at most this long (default 20); one that is cut short has failed")
      ->option_text("N")
      ->check(number_from(0.0, 3600.0));
  command->callback([&context, seconds] { context.run = [&context, seconds] { run_doctor(context, *seconds); }; });
}

}  // namespace narrow::command
