/// The fused neighbours of a product on a tensor beyond the caches: time, bytes moved per second, and that rate against the
/// machine's copy bandwidth, measured in turn with them.
///   fused [--quick] [--best] [--rows N] [--cols N] [--threads N ...] [--repeat N] [--cpu ISA] [--layout NAME] [--json FILE]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include "bench/copy_bandwidth.h"
#include "device/cpu_features.h"
#include "kernels/storage.h"
#include "narrow/fused.h"

namespace narrow::bench {
namespace {

struct Options {
  std::int64_t rows = 16384, cols = 4096;
  std::vector<int> threads{2, 1};
  int repeat = 7;
  bool quick = false, best = false;
  std::string cpu, json, layout = "row";
};

struct Operation {
  const char* name;
  FusedOp op;
  int reads, writes;  ///< tensors of x's type that are read and written, besides the codes
};

constexpr Operation kOperations[] = {
    {"layer_norm", FusedOp::kLayerNorm, 1, 0}, {"rms_norm", FusedOp::kRmsNorm, 1, 0}, {"add_rms_norm", FusedOp::kAddRmsNorm, 2, 1},
    {"silu_mul", FusedOp::kSiluMul, 2, 0},     {"gelu", FusedOp::kGelu, 1, 0},        {"gelu_tanh", FusedOp::kGeluTanh, 1, 0},
};

/// Times of work and of a copy before each, in seconds and in seconds per byte moved.
struct Times {
  std::vector<double> work, copy;

  template <typename Work>
  Times(int repeat, const Tensor& from, Tensor& to, const Work& run) {
    for (int i = -1; i < repeat; ++i) {  // a first round touches all memory
      const double copied = copy_seconds(to.data(), from.data(), from.byte_size()) / (2.0 * static_cast<double>(from.byte_size()));
      const auto begin = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (i < 0) continue;
      work.push_back(elapsed.count());
      copy.push_back(copied);
    }
  }
};

/// The median, or the least where others use the machine too.
double typical(std::vector<double> values, bool best) {
  if (best) return *std::min_element(values.begin(), values.end());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Tensor filled(DType dtype, Shape shape, unsigned seed) {
  Tensor x = Tensor::empty(dtype, std::move(shape));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> sample(4093);
  for (float& value : sample) value = normal(generator);
  const std::int64_t count = x.size();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) store_value(x.data(), dtype, i, sample[static_cast<std::size_t>(i % 4093)]);
  return x;
}

int run(Options options) {
  if (options.quick) options.rows = 4096, options.repeat = 3;
  if (!options.cpu.empty()) limit_cpu(*parse_isa(options.cpu));
  const Layout layout = parse_layout(options.layout);
  nlohmann::json json = nlohmann::json::array();
  for (const int threads : options.threads) {
    omp_set_num_threads(threads);
    fmt::print("[{}, {}], {} threads, codes in layout {}; bytes read and written, of a copy's that ran in between\n", options.rows,
               options.cols, threads, options.layout);
    fmt::print("{:<14} {:<5} {:<18} {:>8} {:>8} {:>8} {:>9}\n", "op", "x", "scheme", "ms", "GB/s", "copy", "of copy");
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      const Tensor x = filled(dtype, {options.rows, options.cols}, 1), other = filled(dtype, {options.rows, options.cols}, 2);
      const Tensor weight = filled(DType::kF32, {options.cols}, 3);
      Tensor copied = Tensor::empty(dtype, {options.rows, options.cols});
      for (const Operation& operation : kOperations)
        for (const char* scheme : {"int8:row", "fp8_e4m3:block128"}) {
          FusedInput input{.op = operation.op, .x = x};
          if (operation.reads == 2) input.other = other;
          if (operation.op == FusedOp::kLayerNorm || operation.op == FusedOp::kRmsNorm || operation.op == FusedOp::kAddRmsNorm)
            input.weight = weight;
          QuantizedTensor q;
          LaidOutTensor laid;
          const Times times(options.repeat, x, copied, [&] {
            layout == Layout::kRow ? fused_quantize(input, Scheme::parse(scheme), q)
                                   : fused_quantize(input, Scheme::parse(scheme), layout, laid);
          });
          const double codes = static_cast<double>(layout == Layout::kRow ? q.byte_size() : laid.codes.size() + laid.scales.size());
          const double bytes = static_cast<double>(x.byte_size()) * (operation.reads + operation.writes) + codes;
          const double seconds = typical(times.work, options.best), rate = bytes / seconds * 1e-9,
                       copy = 1e-9 / typical(times.copy, options.best);
          std::vector<double> ratios;
          for (std::size_t i = 0; i < times.work.size(); ++i) ratios.push_back(bytes * times.copy[i] / times.work[i]);
          const double share = options.best ? rate / copy : typical(ratios, false);
          fmt::print("{:<14} {:<5} {:<18} {:>8.2f} {:>8.1f} {:>8.1f} {:>8.0f}%\n", operation.name, name_of(dtype), scheme, seconds * 1e3,
                     rate, copy, share * 100.0);
          std::fflush(stdout);
          json.push_back({{"op", operation.name},
                          {"x", name_of(dtype)},
                          {"scheme", scheme},
                          {"threads", threads},
                          {"seconds", seconds},
                          {"gb_per_s", rate},
                          {"copy_gb_per_s", copy},
                          {"of_copy", share},
                          {"layout", options.layout}});
        }
    }
  }
  if (!options.json.empty()) std::ofstream(options.json) << json.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace narrow::bench

int main(int argc, char** argv) {
  narrow::bench::Options options;
  CLI::App app{"norms and activations fused with quantize, against the copy bandwidth"};
  app.add_flag("--quick", options.quick, "a quarter of the tensor, three runs");
  app.add_flag("--best", options.best, "the least of the runs and of the copies instead of the median, for machines that others use too");
  app.add_option("--rows", options.rows);
  app.add_option("--cols", options.cols);
  app.add_option("--threads", options.threads, "one table for each");
  app.add_option("--repeat", options.repeat, "runs, of which the median counts");
  app.add_option("--cpu", options.cpu, "highest instruction set: avx2, avx512, ...");
  app.add_option("--layout", options.layout, "of the codes: row, col32, ...");
  app.add_option("--json", options.json, "also write the table to this file");
  CLI11_PARSE(app, argc, argv);
  return narrow::bench::run(options);
}
