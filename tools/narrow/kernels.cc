/// narrow kernels: the rows of every kernel table, which run here, and which one a scheme gets.

#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "commands.h"
#include "dispatch/binary.h"
#include "dispatch/fused.h"
#include "dispatch/quantize.h"
#include "kernels/matmul.h"
#include "narrow/cuda_matmul.h"
#include "narrow/cuda_weights.h"
#include "narrow/error.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "narrow/tuned_kernels.h"
#include "report/table.h"

namespace narrow::command {
namespace {

using report::Json;
using report::Paint;

/// The shape that choices are shown for.
constexpr std::int64_t kRows = 4096, kCols = 4096;

struct Row {
  std::string name;
  Isa isa;
};

/// A row that a scheme gets, and for what: the operation, with its activations where products have several kinds.
struct Choice {
  std::string use;
  std::string kernel;
};

/// One operation's table, whatever its kernels look like.
struct KernelTable {
  std::string op;
  std::vector<Row> rows;
  std::function<std::vector<Choice>(const Scheme&, DType)> choose;
};

const QuantizeKernel& chosen_quantize(const Scheme& scheme, DType dtype) {
  QuantizeProblem problem;
  problem.dtype = dtype;
  problem.rows = kRows;
  problem.cols = problem.row_stride = kCols;
  problem.scheme = scheme;
  problem.grid = scale_grid(scheme, {kRows, kCols});
  problem.row_bytes = packed_row_bytes(scheme, kCols);
  return find(problem);
}

const DequantizeKernel& chosen_dequantize(const Scheme& scheme, DType dtype) {
  DequantizeProblem problem;
  problem.dtype = dtype;
  problem.rows = kRows;
  problem.cols = kCols;
  problem.scheme = scheme;
  problem.grid = scale_grid(scheme, {kRows, kCols});
  problem.row_bytes = packed_row_bytes(scheme, kCols);
  return find(problem);
}

/// The product of one token with a weight of the scheme: activations as values, as int8, and, where both sides can be alike, in the scheme.
std::vector<Choice> chosen_matmul(const Scheme& scheme, DType dtype) {
  std::vector<Choice> choices;
  const auto add = [&](std::string use, const MatmulOptions& options) {
    for (const MatmulChoice& row : explain_matmul(1, kRows, kCols, scheme, options, dtype))
      if (row.chosen) choices.push_back({std::move(use), row.name});
  };
  add("matmul", {});
  MatmulOptions options;
  options.quantize = ActivationQuantization{};
  add("matmul, x int8:row", options);
  if (!scheme.is_msfp && scheme.element != kInt1) return choices;
  options.quantize->scheme = scheme;
  add(fmt::format("matmul, x {}", scheme.to_string()), options);
  return choices;
}

std::vector<Choice> chosen_fused(const Scheme&, DType dtype) {
  FusedProblem problem;
  problem.dtype = dtype;
  problem.rows = kRows;
  problem.cols = kCols;
  return {{"fused", find(problem).name}};
}

std::vector<Choice> chosen_binary(const Scheme& scheme, DType) {
  if (scheme.element != kInt1) return {};
  return {{"binary", find(BinaryProblem{.m = kRows, .n = kRows, .k = kCols, .words = kCols / 32}).name}};
}

template <typename Kernels, typename Choose>
KernelTable table_of(std::string op, const Kernels& kernels, Choose choose) {
  KernelTable table{std::move(op), {}, choose};
  for (const auto& kernel : kernels) table.rows.push_back({kernel.name, kernel.isa});
  return table;
}

std::vector<KernelTable> kernel_tables() {
  return {
      table_of("quantize", quantize_kernels(),
               [](const Scheme& scheme, DType x) {
                 return std::vector<Choice>{{"quantize", chosen_quantize(scheme, x).name}};
               }),
      table_of("dequantize", dequantize_kernels(),
               [](const Scheme& scheme, DType y) {
                 return std::vector<Choice>{{"dequantize", chosen_dequantize(scheme, y).name}};
               }),
      table_of("matmul", matmul_kernels(), chosen_matmul),
      table_of("fused", fused_kernels(), chosen_fused),
      table_of("binary", binary_kernels(), chosen_binary),
  };
}

constexpr std::array kDTypes{DType::kF32, DType::kF16, DType::kBf16};

/// For each row the standard schemes that get it with some type.
std::map<std::string, std::set<std::string>> schemes_by_row(const KernelTable& table) {
  std::map<std::string, std::set<std::string>> result;
  for (const Scheme& scheme : standard_schemes())
    for (const DType dtype : kDTypes)
      for (const Choice& choice : table.choose(scheme, dtype)) result[choice.kernel].insert(scheme.to_string());
  return result;
}

void list_kernels(Context& context) {
  Json kernels = Json::array();
  report::Table text({{"op"}, {"kernel"}, {"needs"}, {"runs here"}, {"chosen for"}});
  for (const KernelTable& table : kernel_tables()) {
    const auto chosen = schemes_by_row(table);
    for (const Row& row : table.rows) {
      const bool runs = cpu_supports(row.isa);
      const auto found = chosen.find(row.name);
      const std::set<std::string> schemes = found == chosen.end() ? std::set<std::string>{} : found->second;
      kernels.push_back({{"op", table.op}, {"name", row.name}, {"isa", name_of(row.isa)}, {"runs_here", runs}, {"chosen_for", schemes}});
      text.add({table.op,
                {row.name, schemes.empty() ? Paint::kPlain : Paint::kAccent},
                std::string(name_of(row.isa)),
                {runs ? "yes" : "no", runs ? Paint::kGood : Paint::kDim},
                schemes.empty() ? "-" : fmt::format("{} of {} schemes", schemes.size(), standard_schemes().size())});
    }
  }
  Json sets = Json::array();
  std::string names;
  for (const Isa isa : all_isas()) {
    if (!cpu_supports(isa)) continue;
    sets.push_back(name_of(isa));
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(isa));
  }
  context.answer(Json{{"instruction_sets", sets}, {"kernels", kernels}});
  context.print(text.render(context.out));
  context.print(fmt::format(
      "\nInstruction sets in use: {}. Rows are tried from the top; `narrow kernels int8:row` shows a scheme's own choice.\n", names));
}

void explain(Context& context, const std::string& name) {
  const Scheme scheme = Scheme::parse(name);
  Json choices = Json::array();
  report::Table text({{"op"}, {"values"}, {"kernel"}});
  for (const KernelTable& table : kernel_tables()) {
    for (const DType dtype : kDTypes)
      for (const Choice& choice : table.choose(scheme, dtype)) {
        choices.push_back({{"op", table.op}, {"use", choice.use}, {"dtype", name_of(dtype)}, {"kernel", choice.kernel}});
        text.add({choice.use, std::string(name_of(dtype)), {choice.kernel, Paint::kAccent}});
      }
  }
  context.answer(Json{{"scheme", scheme.to_string()}, {"choices", choices}});
  context.print(text.render(context.out));
}

/// M, N and K of `option M N K SCHEME`.
std::array<std::int64_t, 3> sizes_of(const std::vector<std::string>& words, const char* option) {
  std::array<std::int64_t, 3> sizes{};
  for (std::size_t i = 0; i < 3; ++i) {
    const char* end = words[i].data() + words[i].size();
    const auto [stop, error] = std::from_chars(words[i].data(), end, sizes[i]);
    if (error != std::errc{} || stop != end || sizes[i] < 1)
      throw InvalidArgument(fmt::format("kernels: '{}' is not a size; write {} M N K SCHEME with sizes from 1", words[i], option));
  }
  return sizes;
}

/// The rows of the product's table for x [M, K] times w [N, K], with the reason for each.
void explain_product(Context& context, const std::vector<std::string>& words) {
  const auto sizes = sizes_of(words, "--explain");
  const Scheme scheme = Scheme::parse(words[3]);
  Json rows = Json::array();
  report::Table text({{"kernel"}, {"instruction set"}, {"accepts"}, {"why"}});
  const auto add = [&](const MatmulChoice& choice) {
    rows.push_back(
        {{"name", choice.name}, {"isa", choice.isa}, {"accepted", choice.accepted}, {"chosen", choice.chosen}, {"reason", choice.reason}});
    text.add({{choice.name, choice.chosen ? Paint::kAccent : Paint::kPlain}, choice.isa, choice.accepted ? "yes" : "no", choice.reason});
  };
  for (const MatmulChoice& choice : explain_matmul(sizes[0], sizes[1], sizes[2], scheme)) add(choice);
  // Weights in fp8 and int8: how an H200 would multiply them, with activations in the scales that go with them.
  for (const MatmulChoice& choice : cuda::explain_fp8_matmul(sizes[0], sizes[1], sizes[2], scheme)) add(choice);
  for (const MatmulChoice& choice : cuda::explain_int8_matmul(sizes[0], sizes[1], sizes[2], scheme)) add(choice);
  // Weights in int4, with activations in int8.
  for (const MatmulChoice& choice : cuda::explain_int4_matmul(sizes[0], sizes[1], sizes[2], scheme)) add(choice);
  // And with activations in fp16.
  for (const MatmulChoice& choice : cuda::explain_weight_matmul(sizes[0], sizes[1], sizes[2], scheme)) add(choice);
  context.answer(Json{{"m", sizes[0]}, {"n", sizes[1]}, {"k", sizes[2]}, {"scheme", scheme.to_string()}, {"rows", rows}});
  context.print(text.render(context.out));
}

/// Times the rows of a product on this machine's GPU, and keeps the fastest in the file of --tuned.
void tune_product(Context& context, const std::vector<std::string>& words) {
  const auto sizes = sizes_of(words, "--tune");
  const Scheme scheme = Scheme::parse(words[3]);
  if (cuda::explain_fp8_matmul(sizes[0], sizes[1], sizes[2], scheme).empty() &&
      cuda::explain_int8_matmul(sizes[0], sizes[1], sizes[2], scheme).empty())
    throw Unsupported(
        fmt::format("kernels: --tune takes weights in fp8_e4m3 and int8 whose products this build has, not {}", scheme.to_string()));
  const TunedMachine here = cuda::tuned_machine();
  TunedKernels file{here, {}};
  if (!context.tuned.empty() && std::filesystem::exists(context.tuned)) file = read_tuned_kernels(context.tuned);
  if (file.machine != here)
    throw InvalidArgument(
        fmt::format("kernels: {} was measured on '{}' with driver {} by narrow {}; write to another file, or remove this one",
                    context.tuned, file.machine.gpu, file.machine.driver, file.machine.narrow));
  const std::vector<TunedKernel> timed = cuda::time_kernels(sizes[0], sizes[1], sizes[2], scheme);
  Json rows = Json::array();
  report::Table text({{"kernel"}, {"parts"}, {"us"}});
  for (const TunedKernel& row : timed) {
    rows.push_back({{"name", row.kernel}, {"parts", row.parts}, {"microseconds", row.microseconds}});
    text.add({{row.kernel, &row == timed.data() ? Paint::kAccent : Paint::kPlain},
              std::to_string(row.parts),
              fmt::format("{:.2f}", row.microseconds)});
  }
  if (!context.tuned.empty() && !timed.empty()) {
    file.add(timed.front());
    write_tuned_kernels(context.tuned, file);
  }
  context.answer(
      Json{{"m", sizes[0]}, {"n", sizes[1]}, {"k", sizes[2]}, {"scheme", scheme.to_string()}, {"gpu", here.gpu}, {"rows", rows}});
  context.print(text.render(context.out));
}

}  // namespace

void add_kernels(CLI::App& app, Context& context) {
  auto scheme = std::make_shared<std::string>();
  CLI::App* command =
      add_command(app, "kernels", "List the kernels and which are chosen on this machine",
                  "  narrow kernels\n  narrow kernels nvfp4 --cpu avx2\n  narrow kernels --explain 1 4096 4096 int4:block128\n");
  command->add_option("SCHEME", *scheme, "Show which kernel this scheme gets")->type_name("");
  auto product = std::make_shared<std::vector<std::string>>();
  command->add_option("--explain", *product, "Show which row multiplies x [M, K] by a weight [N, K] of this scheme, and why")
      ->expected(4)
      ->option_text("M N K SCHEME");
  auto tuned = std::make_shared<std::vector<std::string>>();
  command->add_option("--tune", *tuned, "Time the GPU's rows for such a product; --tuned FILE keeps the fastest for later products")
      ->expected(4)
      ->option_text("M N K SCHEME")
      ->excludes("--explain");
  command->callback([&context, scheme, product, tuned] {
    context.run = [&context, scheme, product, tuned] {
      if (!product->empty()) return explain_product(context, *product);
      if (!tuned->empty()) return tune_product(context, *tuned);
      scheme->empty() ? list_kernels(context) : explain(context, *scheme);
    };
  });
}

}  // namespace narrow::command
