/// Products: every row of the table that runs here, by shape: time, GB/s of weights, GOP/s, the share of the limit measured in the same
/// run (VNNI or FMA peak, best read bandwidth), the ratio to OpenBLAS and, with --peers, oneDNN; of quantized activations also the time
/// with their dynamic quantization over the time without ("dynamic").
///   bench_matmul [--quick] [--best] [--peers] [--json] [--cpu ISA] [--threads 1,2] [--only TEXT] [--shape MxNxK]...

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include "bench/limits.h"
#include "bench/peers.h"
#include "device/cpu_features.h"
#include "narrow/matmul.h"
#include "ops/matmul.h"

namespace narrow::bench {
namespace {

struct Settings {
  bool quick = false, peers = false, json = false, best = false;
  std::vector<int> threads{1, 2};
  std::string only;
  std::vector<std::array<std::int64_t, 3>> shapes;  ///< instead of the workloads' own
};

struct Shape3 {
  std::int64_t m, n, k;
};

/// What is multiplied: the weight's scheme ("fp32" for dense), the activation's ("" for fp32 values), and the shapes that show it.
struct Workload {
  const char* weight;
  const char* activation;
  std::vector<Shape3> shapes;
};

const std::vector<Shape3> kSquare{{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}};
const std::vector<Shape3> kServing{{1, 4096, 4096},  {8, 4096, 4096},  {32, 4096, 4096},  {128, 4096, 4096},
                                   {1, 11008, 4096}, {8, 11008, 4096}, {32, 11008, 4096}, {128, 11008, 4096}};
const std::vector<Shape3> kDecode{{1, 4096, 4096}, {1, 11008, 4096}};
const std::vector<Shape3> kBatch{{16, 4096, 4096}, {64, 4096, 4096}, {512, 4096, 4096}};

std::vector<Shape3> join(std::vector<Shape3> a, const std::vector<Shape3>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<Workload> workloads() {
  std::vector<Workload> list{{"fp32", "", join(kDecode, kBatch)},
                             {"int8:row", "int8:row", join(join(kSquare, kServing), kBatch)},
                             {"int4:block128", "int8:row", join(kDecode, kBatch)}};
  for (const char* weight : {"int8:row", "fp8_e4m3:row", "int4:block128", "fp6_e3m2:row", "fp5_e2m2:row", "fp4_e2m1:row", "fp3_e2m0:row",
                             "nvfp4", "mxfp4", "msfp12", "int3:block128", "int2:block128", "int1:row"})
    list.push_back({weight, "", kDecode});
  for (const char* weight : {"bf16", "fp8_e5m2:row", "int4:block128:asym", "nf4:block64", "mxfp8_e4m3", "mxfp6_e3m2", "msfp16"})
    list.push_back({weight, "", {kDecode[0]}});
  for (const char* weight : {"int8:row", "fp8_e4m3:row", "int4:block128", "fp6_e3m2:row", "fp4_e2m1:row", "nvfp4", "mxfp4", "msfp12"})
    list.push_back({weight, "", {kBatch[1], kBatch[2]}});
  return list;
}

Tensor random_tensor(narrow::Shape shape, unsigned seed) {
  Tensor x = Tensor::empty(DType::kF32, std::move(shape));
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    x.as<float>()[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return x;
}

/// A weight of random codes: preparing is not what is measured.
PreparedWeight random_weight(const std::string& weight, std::int64_t n, std::int64_t k) {
  const Tensor part = random_tensor({std::min<std::int64_t>(n, 128), k}, 3);
  PreparedWeight p = weight == "fp32" ? prepare(part) : prepare(quantize(part, Scheme::parse(weight)));
  const std::size_t repeat = static_cast<std::size_t>((n + 127) / 128);
  const auto repeated = [&](const Buffer& buffer) {
    Buffer result = Buffer::allocate(buffer.size() * repeat);
    for (std::size_t i = 0; i < repeat; ++i) std::memcpy(result.data() + i * buffer.size(), buffer.data(), buffer.size());
    return result;
  };
  p.codes = repeated(p.codes);
  p.scales = repeated(p.scales);
  p.zero_points = repeated(p.zero_points);
  p.sums = repeated(p.sums);
  p.n = n;
  return p;
}

/// The median of at least three timings, in seconds; the least of them with --best, for machines that others use too.
double typical_time(const std::function<void(int)>& work, double budget, bool best) {
  std::vector<double> times;
  work(0);
  double spent = 0.0;
  for (int i = 1; i < 400 && (times.size() < 3 || spent < budget); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work(i);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    spent += times.back();
  }
  if (best) return *std::min_element(times.begin(), times.end());
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

struct Result {
  std::string kernel, weight, activation;
  Shape3 shape{};
  int threads = 1;
  double seconds = 0.0, gops = 0.0, gbytes = 0.0, share = 0.0;
  const char* limit = "";
  double openblas = 0.0, onednn = 0.0;  ///< ratio of speeds, 0 where not measured
  double dynamic = 0.0;                 ///< time with the activations' quantization over the time without
};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings) {}

  void run() {
    for (const int threads : settings_.threads) {
      omp_set_num_threads(threads);
      limits_ = measure_limits(threads);
      if (!settings_.json)
        fmt::print(
            "{} thread{}: read {:.1f} GB/s, VNNI {:.0f} GOP/s, FMA {:.0f} GFLOP/s\n"
            "{:<36} {:<18} {:>18} {:>10} {:>8} {:>8} {:>12} {:>9} {:>8} {:>8}\n",
            threads, threads == 1 ? "" : "s", limits_.read, limits_.vnni, limits_.fma, "row", "weight", "m x n x k", "us", "GB/s", "GOP/s",
            "of limit", "xOpenBLAS", "xoneDNN", "dynamic");
      for (const Workload& workload : workloads()) {
        const std::string name = fmt::format("{}/{}", workload.weight, workload.activation);
        if (!settings_.only.empty() && name.find(settings_.only) == std::string::npos) continue;
        std::vector<Shape3> shapes = workload.shapes;
        if (!settings_.shapes.empty()) shapes.clear();
        for (const auto& [m, n, k] : settings_.shapes) shapes.push_back({m, n, k});
        for (const Shape3& shape : shapes)
          if (!settings_.quick || (shape.n <= 4096 && shape.m * shape.n * shape.k <= (std::int64_t{1} << 33)))
            measure(workload, shape, threads);
      }
    }
    if (settings_.json) fmt::print("{}\n", json_.dump(1));
  }

 private:
  void measure(const Workload& workload, const Shape3& shape, int threads) {
    const PreparedWeight one = random_weight(workload.weight, shape.n, shape.k);
    // At small m the weights rotate through more memory than the caches hold.
    const std::size_t copies =
        shape.m <= 32 ? std::max<std::size_t>(2, (std::size_t{160} << 20) / std::max<std::size_t>(1, one.codes.size())) : 1;
    std::vector<PreparedWeight> weights{one};
    for (std::size_t i = 1; i < copies; ++i) weights.push_back(random_weight(workload.weight, shape.n, shape.k));
    const Tensor x = random_tensor({shape.m, shape.k}, 5), bias = random_tensor({shape.n}, 6);
    MatmulOptions options;
    options.bias = bias;
    Tensor y = Tensor::empty(DType::kF32, {shape.m, shape.n});
    const bool reads = shape.m <= 8;  // bound by memory: its rate right before and after counts
    if (reads) limits_.read = read_bandwidth(threads);
    double seconds = 0.0, dynamic = 0.0;
    const double budget = settings_.quick ? 0.1 : 0.4;
    const auto weight_of = [&](int i) -> const PreparedWeight& { return weights[static_cast<std::size_t>(i) % copies]; };
    const auto float_product = [&](int i) { matmul_into(x, weight_of(i), y, options); };
    if (*workload.activation != '\0') {
      const QuantizedTensor q = quantize(x, Scheme::parse(workload.activation));
      seconds = typical_time([&](int i) { matmul_into(q, weight_of(i), y, options); }, budget, settings_.best);
      options.quantize = ActivationQuantization{Scheme::parse(workload.activation), {}, {}};
      dynamic = typical_time(float_product, budget, settings_.best) / seconds;
    } else {
      seconds = typical_time(float_product, budget, settings_.best);
    }
    if (reads) limits_.read = std::max(limits_.read, read_bandwidth(threads));
    report(workload, shape, threads, seconds, dynamic, static_cast<double>(one.codes.size() + one.scales.size() + one.zero_points.size()));
  }

  void report(const Workload& workload, const Shape3& shape, int threads, double seconds, double dynamic, double weight_bytes) {
    const bool integers = *workload.activation != '\0';
    const double operations = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    Result r;
    MatmulOptions options;
    if (integers) options.quantize = ActivationQuantization{Scheme::parse(workload.activation), {}, {}};
    Scheme scheme;
    scheme.element = kFp32;
    scheme.granularity = Granularity::none();
    if (std::strcmp(workload.weight, "fp32") != 0) scheme = Scheme::parse(workload.weight);
    for (const MatmulChoice& choice : explain_matmul(shape.m, shape.n, shape.k, scheme, options))
      if (choice.chosen) r.kernel = choice.name;
    r.weight = workload.weight;
    r.activation = integers ? workload.activation : "fp32";
    r.shape = shape;
    r.threads = threads;
    r.seconds = seconds;
    r.dynamic = dynamic;
    r.gops = operations / seconds * 1e-9;
    r.gbytes = weight_bytes / seconds * 1e-9;
    // The limit that the product is nearer to: the time to read the weight, or the time to multiply. One row may do without FMA.
    const double peak = integers ? limits_.vnni : limits_.fma;
    const double read_time = weight_bytes / (limits_.read * 1e9), compute_time = operations / (peak * 1e9);
    const bool reads = shape.m == 1 || read_time > compute_time;
    r.limit = reads ? "read" : (integers ? "VNNI" : "FMA");
    r.share = (reads ? read_time : compute_time) / seconds;
    if (settings_.peers || shape.m > 1) r.openblas = openblas_time(shape.m, shape.n, shape.k, threads, settings_.best) / seconds;
    if (settings_.peers && integers && std::strncmp(workload.weight, "int8", 4) == 0)
      r.onednn = onednn_int8_time(shape.m, shape.n, shape.k, threads, settings_.best) / seconds;
    print(r);
  }

  void print(const Result& r) {
    if (settings_.json) {
      json_.push_back({{"row", r.kernel},
                       {"weight", r.weight},
                       {"activation", r.activation},
                       {"m", r.shape.m},
                       {"n", r.shape.n},
                       {"k", r.shape.k},
                       {"threads", r.threads},
                       {"seconds", r.seconds},
                       {"gops", r.gops},
                       {"weight_gb_s", r.gbytes},
                       {"read_gb_s", limits_.read},
                       {"limit", r.limit},
                       {"share", r.share},
                       {"x_openblas", r.openblas},
                       {"x_onednn", r.onednn},
                       {"dynamic", r.dynamic}});
      return;
    }
    const auto ratio = [](double value) { return value > 0.0 ? fmt::format("{:.2f}", value) : std::string("-"); };
    fmt::print("{:<36} {:<18} {:>18} {:>10.1f} {:>8.1f} {:>8.0f} {:>7.0f}% {:<4} {:>9} {:>8} {:>8}\n", r.kernel, r.weight,
               fmt::format("{}x{}x{}", r.shape.m, r.shape.n, r.shape.k), r.seconds * 1e6, r.gbytes, r.gops, r.share * 100.0, r.limit,
               ratio(r.openblas), ratio(r.onednn), ratio(r.dynamic));
    std::fflush(stdout);
  }

  Settings settings_;
  Limits limits_;
  nlohmann::json json_ = nlohmann::json::array();
};

}  // namespace
}  // namespace narrow::bench

int main(int argc, char** argv) {
  narrow::bench::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick")
      settings.quick = true;
    else if (word == "--best")
      settings.best = true;
    else if (word == "--peers")
      settings.peers = true;
    else if (word == "--json")
      settings.json = true;
    else if (const auto isa = i + 1 < argc ? narrow::parse_isa(argv[i + 1]) : std::nullopt; word == "--cpu" && isa) {
      narrow::limit_cpu(*isa);
      ++i;
    } else if (word == "--threads" && i + 1 < argc) {
      settings.threads.clear();
      for (const char* p = argv[++i]; *p != '\0'; ++p)
        if (*p >= '1' && *p <= '9') settings.threads.push_back(*p - '0');
    } else if (word == "--only" && i + 1 < argc)
      settings.only = argv[++i];
    else if (long m = 0, n = 0, k = 0; word == "--shape" && i + 1 < argc && std::sscanf(argv[i + 1], "%ldx%ldx%ld", &m, &n, &k) == 3) {
      settings.shapes.push_back({m, n, k});
      ++i;
    } else {
      fmt::print(stderr,
                 "bench_matmul [--quick] [--best] [--peers] [--json] [--cpu ISA] [--threads 1,2] [--only TEXT] [--shape MxNxK]...\n");
      return 2;
    }
  }
  narrow::bench::Bench(settings).run();
  return 0;
}
