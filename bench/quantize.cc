/// Quantize and dequantize of one large fp32 tensor: time, bytes moved per second, that rate against the machine's copy
/// bandwidth measured in the same run, and the speed-up over the scalar reference.
///   quantize [--quick] [--rows N] [--cols N] [--threads N] [--repeat N] [--cpu ISA] [--scheme S] [--json FILE]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include "bench/copy_bandwidth.h"
#include "device/cpu_features.h"
#include "device/float_environment.h"
#include "dispatch/quantize.h"
#include "narrow/quantize.h"

namespace narrow::bench {
namespace {

struct Options {
  std::int64_t rows = 16384, cols = 16384;
  int threads = 2, repeat = 9;
  bool quick = false;
  std::string cpu, json;
  std::vector<std::string> schemes{"int8:row",     "int8:block128", "fp8_e4m3:row", "fp8_e4m3:block128",
                                   "fp6_e3m2:row", "int4:block128", "msfp12",       "nvfp4"};
};

struct Row {
  std::string scheme, op;
  double seconds = 0.0, gigabytes_per_second = 0.0;
  double copy = 0.0;     ///< GB/s of copies between the runs
  double of_copy = 0.0;  ///< median of the ratios of a run to the copies before and after it
  double of_fill = 0.0;  ///< dequantize: time of writing as many bytes and doing nothing else, of its own
  double speedup = 0.0;
  int reads = 1;  ///< how often the input is read
};

template <typename Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Values like those of a trained layer: uniform noise added up to a bell, no NaN.
void fill(Tensor& x) {
  float* values = x.as<float>();
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1];
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint64_t state = 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(row + 1);
    for (std::int64_t col = 0; col < cols; ++col) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::uint64_t z = state ^ (state >> 29);
      const auto part = [&](int shift) { return static_cast<float>((z >> shift) & 0xFFFFu) - 32767.5f; };
      values[row * cols + col] = (part(0) + part(16) + part(32) + part(48)) * (0.02f / 37837.0f);
    }
  }
}

/// Seconds per element of the scalar reference, on one thread as many as are used.
struct ReferenceRates {
  double quantize = 0.0, dequantize = 0.0;
};

ReferenceRates time_reference(const Tensor& x, const Scheme& scheme) {
  limit_cpu(Isa::kScalar);
  QuantizedTensor q;
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  ReferenceRates rates;
  const double count = static_cast<double>(x.size());
  rates.quantize = seconds_of([&] { q = quantize(x, scheme); }) / count;
  rates.dequantize = seconds_of([&] { dequantize_into(q, y); }) / count;
  unlimit_cpu();
  return rates;
}

std::vector<Row> time_scheme(const Options& options, const Tensor& x, Tensor& y, const Scheme& scheme) {
  const Tensor slice = Tensor::borrow(x.data(), DType::kF32, {std::min<std::int64_t>(64, x.shape()[0]), x.shape()[1]});
  const ReferenceRates reference = time_reference(slice, scheme);
  if (!options.cpu.empty()) limit_cpu(*parse_isa(options.cpu));
  QuantizedTensor q = quantize(x, scheme);
  const double wide = static_cast<double>(x.byte_size()), narrow = static_cast<double>(q.byte_size()),
               count = static_cast<double>(x.size());
  const int reads = scheme.has_outer_scale ? 2 : 1;

  Row there{scheme.to_string(), "quantize"}, back{scheme.to_string(), "dequantize"};
  there.reads = reads;
  const double bytes_there = wide * reads + narrow, bytes_back = wide + narrow;
  std::vector<double> copy, quantized, dequantized, ratio_there, ratio_back, ratio_fill;
  const auto time_copy = [&] { return copy_seconds(y.data(), x.data(), x.byte_size()) / (2.0 * wide); };
  double before = time_copy();
  for (int i = -1; i < options.repeat; ++i) {  // a first round touches all memory
    // The machine may change its speed at any time, so every run stands between two copies.
    const double one = seconds_of([&] { quantize_into(x, q); }), between = time_copy();
    const double other = seconds_of([&] { dequantize_into(q, y); }), filled = fill_seconds(y.data(), y.byte_size()), after = time_copy();
    if (i >= 0) {
      copy.insert(copy.end(), {between, after});
      quantized.push_back(one);
      dequantized.push_back(other);
      ratio_there.push_back((before + between) / 2.0 * bytes_there / one);
      ratio_back.push_back((between + after) / 2.0 * bytes_back / other);
      ratio_fill.push_back(filled / other);
    }
    before = after;
  }
  const auto fill_in = [&](Row& row, std::vector<double>& seconds, std::vector<double>& ratios, double bytes, double reference_seconds) {
    row.seconds = median(seconds);
    row.gigabytes_per_second = bytes / row.seconds * 1e-9;
    row.copy = 1e-9 / median(copy);
    row.of_copy = median(ratios);
    row.speedup = reference_seconds * count / row.seconds;
  };
  fill_in(there, quantized, ratio_there, bytes_there, reference.quantize);
  fill_in(back, dequantized, ratio_back, bytes_back, reference.dequantize);
  back.of_fill = median(ratio_fill);
  unlimit_cpu();
  return {there, back};
}

void print(const Row& row) {
  fmt::print("{:<18} {:<10} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.0f}% {:>9.0f}x {}\n", row.scheme, row.op, row.seconds * 1e3,
             row.gigabytes_per_second, row.copy, row.of_copy * 100.0, row.speedup,
             row.reads == 2      ? " input read twice: the outer scale comes first"
             : row.of_fill > 0.0 ? fmt::format(" {:.0f}% of writing alone", row.of_fill * 100.0)
                                 : "");
  std::fflush(stdout);
}

void write_json(const std::string& path, const Options& options, const std::vector<Row>& rows) {
  nlohmann::json json{{"rows", options.rows}, {"cols", options.cols}, {"threads", options.threads}};
  for (const Row& row : rows)
    json["results"].push_back({{"scheme", row.scheme},
                               {"op", row.op},
                               {"seconds", row.seconds},
                               {"gb_per_s", row.gigabytes_per_second},
                               {"copy_gb_per_s", row.copy},
                               {"of_copy", row.of_copy},
                               {"of_fill", row.of_fill},
                               {"speedup_over_reference", row.speedup},
                               {"input_reads", row.reads}});
  std::ofstream(path) << json.dump(2) << "\n";
}

int run(Options options) {
  if (options.quick) options.rows = 2048, options.repeat = 3;
  omp_set_num_threads(options.threads);
  Tensor x = Tensor::empty(DType::kF32, {options.rows, options.cols}), y = Tensor::empty(DType::kF32, {options.rows, options.cols});
  fill(x);
  fmt::print("fp32 [{}, {}], {:.2f} GiB, {} threads; bytes read and written, of a copy's that ran in between\n", options.rows, options.cols,
             static_cast<double>(x.byte_size()) / (1 << 30), options.threads);
  fmt::print("{:<18} {:<10} {:>8} {:>8} {:>8} {:>9} {:>10}\n", "scheme", "op", "ms", "GB/s", "copy", "of copy", "over ref");
  std::vector<Row> rows;
  for (const std::string& text : options.schemes)
    for (const Row& row : time_scheme(options, x, y, Scheme::parse(text))) {
      print(row);
      rows.push_back(row);
    }
  if (!options.json.empty()) write_json(options.json, options, rows);
  return 0;
}

}  // namespace
}  // namespace narrow::bench

int main(int argc, char** argv) {
  narrow::bench::Options options;
  CLI::App app{"quantize and dequantize of a large tensor against the copy bandwidth"};
  app.add_flag("--quick", options.quick, "an eighth of the tensor, three runs");
  app.add_option("--rows", options.rows);
  app.add_option("--cols", options.cols);
  app.add_option("--threads", options.threads);
  app.add_option("--repeat", options.repeat, "runs, of which the median counts");
  app.add_option("--cpu", options.cpu, "highest instruction set: avx2, avx512, ...");
  app.add_option("--scheme", options.schemes, "schemes instead of the usual list");
  app.add_option("--json", options.json, "also write the table to this file");
  CLI11_PARSE(app, argc, argv);
  return narrow::bench::run(options);
}
