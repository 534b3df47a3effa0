#include "bench_report.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "device/cpu_features.h"
#include "dispatch/fused.h"
#include "dispatch/quantize.h"
#include "narrow/fused.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "ops/matmul.h"
#include "peers.h"

namespace narrow::command {
namespace {

constexpr std::int64_t kSide = 4096;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The least of several timings, at least three: the machine may have other work to do.
double least_time(double seconds_each, const std::function<void(int)>& work) {
  work(0);
  double best = 1e30, spent = 0.0;
  for (int i = 1; i <= 3 || (spent < seconds_each && i < 1000); ++i) {
    const double begin = now();
    work(i);
    const double seconds = now() - begin;
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

Tensor random_values(Shape shape) {
  Tensor x = Tensor::empty(DType::kF32, std::move(shape));
  std::uint32_t state = 16;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    x.as<float>()[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return x;
}

class Measurement {
 public:
  Measurement(double seconds_each, const std::function<void(std::string_view)>& begun) : seconds_each_(seconds_each), begun_(begun) {
    for (const Isa isa : all_isas())
      if (isa != Isa::kScalar && cpu_supports(isa)) isas_.push_back(isa);
  }

  BenchReport run() {
    const double begin = now();
    report_.machine = inspect_machine();
    report_.roofline = measure_roofline(report_.machine.threads);
    peers_ = find_peers(report_.machine.threads);
    for (const Peer& peer : peers_) report_.peers.push_back(peer.name);
    for (const char* scheme : {"int8:row", "fp8_e4m3:row", "fp6_e3m2:row", "int4:block128", "nvfp4", "mxfp4", "msfp12"})
      measure_conversions(Scheme::parse(scheme));
    measure_fused();
    for (const std::int64_t m : {1, 64}) measure_products(m);
    report_.seconds = now() - begin;
    return std::move(report_);
  }

 private:
  /// Times what the newest instruction set of every row gives; rows of the same name are timed once.
  template <typename Kernel>
  void measure_memory_bound(const char* op, const std::string& task, double bytes, const Kernel& kernel,
                            const std::function<void(int)>& work) {
    std::string last;
    for (const Isa isa : isas_) {
      limit_cpu(isa);
      if (const std::string name = kernel(); name != last) {
        last = name;
        begun_(name);
        add({.op = op, .kernel = name, .task = task, .seconds = least_time(seconds_each_, work), .bytes = bytes}, "copy");
      }
    }
    if (!isas_.empty()) limit_cpu(isas_.back());
  }

  void measure_conversions(const Scheme& scheme) {
    const Shape shape{kSide, kSide};
    const Tensor x = convert(random_values(shape), DType::kBf16);
    QuantizedTensor q = quantize(x, scheme);
    Tensor y = Tensor::empty(DType::kBf16, shape);
    const double bytes = static_cast<double>(x.byte_size() + q.byte_size());
    QuantizeProblem quantizing;
    quantizing.dtype = DType::kBf16;
    quantizing.rows = quantizing.cols = quantizing.row_stride = kSide;
    quantizing.scheme = scheme;
    quantizing.grid = q.grid();
    quantizing.row_bytes = q.row_bytes();
    DequantizeProblem dequantizing;
    dequantizing.dtype = DType::kBf16;
    dequantizing.rows = dequantizing.cols = kSide;
    dequantizing.scheme = scheme;
    dequantizing.grid = q.grid();
    dequantizing.row_bytes = q.row_bytes();
    measure_memory_bound(
        "quantize", fmt::format("bf16 {0} x {0} to {1}", kSide, scheme.to_string()), bytes,
        [&] { return std::string(find(quantizing).name); }, [&](int) { quantize_into(x, q); });
    measure_memory_bound(
        "dequantize", fmt::format("{1} {0} x {0} to bf16", kSide, scheme.to_string()), bytes,
        [&] { return std::string(find(dequantizing).name); }, [&](int) { dequantize_into(q, y); });
  }

  void measure_fused() {
    FusedInput input;
    input.x = convert(random_values({kSide, kSide}), DType::kBf16);
    input.op = FusedOp::kRmsNorm;
    const Scheme scheme = Scheme::parse("int8:row");
    QuantizedTensor q = fused_quantize(input, scheme);
    FusedProblem problem;
    problem.op = input.op;
    problem.dtype = DType::kBf16;
    problem.rows = problem.cols = problem.x_stride = kSide;
    measure_memory_bound(
        "fused", fmt::format("RMSNorm of bf16 {0} x {0}, then int8:row", kSide), static_cast<double>(input.x.byte_size() + q.byte_size()),
        [&] { return std::string(find(problem).name); }, [&](int) { fused_quantize(input, scheme, q); });
  }

  /// A product by every row that takes it; arithmetic: the limit that goes with its operands, or none. Weights of few tokens rotate through
  /// more memory than the caches hold.
  void measure_rows(MatmulProblem problem, const PreparedWeight& weight, const std::string& task, const char* arithmetic,
                    double peer_seconds, const std::string& peer) {
    const std::size_t wanted = std::clamp<std::size_t>(3 * report_.machine.last_cache, std::size_t{64} << 20, std::size_t{256} << 20);
    const std::size_t copies =
        problem.m > 8 ? 1 : std::clamp<std::size_t>(wanted / std::max<std::size_t>(1, weight.codes.size()) + 1, 2, 64);
    std::vector<PreparedWeight> weights{weight};
    for (std::size_t i = 1; i < copies; ++i) {
      weights.push_back(weight);
      weights.back().codes = Buffer::allocate(weight.codes.size());
      std::memcpy(weights.back().codes.data(), weight.codes.data(), weight.codes.size());
    }
    Tensor y = Tensor::empty(DType::kF32, {problem.m, problem.n});
    problem.epilogue.y = y.data();
    problem.epilogue.y_stride = problem.n;
    problem.w = view_of(weight);
    for (const MatmulKernel& kernel : matmul_kernels()) {
      if (kernel.isa == Isa::kScalar || !cpu_supports(kernel.isa) || !kernel.accepts(problem)) continue;
      begun_(kernel.name);
      const double seconds = least_time(seconds_each_, [&](int i) {
        problem.w = view_of(weights[static_cast<std::size_t>(i) % copies]);
        run_matmul(problem, kernel);
      });
      const double operations = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
      add({.op = "matmul",
           .kernel = kernel.name,
           .task = task,
           .m = problem.m,
           .n = problem.n,
           .k = problem.k,
           .seconds = seconds,
           .bytes = static_cast<double>(weight.codes.size() + weight.scales.size() + weight.zero_points.size()),
           .operations = operations,
           .peer = peer,
           .peer_ratio = peer_seconds / seconds},
          arithmetic);
    }
  }

  /// The best peer with the same kind of operands.
  std::pair<double, std::string> peer_time(std::int64_t m, bool integers) {
    std::pair<double, std::string> best{0.0, ""};
    const std::size_t width = integers ? 1 : 4, weight_bytes = static_cast<std::size_t>(kSide * kSide) * width;
    const std::size_t copies = m > 8 ? 1 : 1 + std::max<std::size_t>(1, (std::size_t{128} << 20) / weight_bytes);
    for (const Peer& peer : peers_) {
      if (peer.int8 != integers) continue;
      begun_(peer.name);
      std::vector<std::byte> x(static_cast<std::size_t>(m * kSide) * width, std::byte{1}), w(weight_bytes * copies, std::byte{1}),
          y(static_cast<std::size_t>(m * kSide) * 4);
      const double seconds = least_time(seconds_each_, [&](int i) {
        peer.multiply(m, kSide, kSide, x.data(), w.data() + weight_bytes * (static_cast<std::size_t>(i) % copies), y.data());
      });
      if (best.second.empty() || seconds < best.first) best = {seconds, peer.name};
    }
    return best;
  }

  void measure_products(std::int64_t m) {
    const Tensor x = random_values({m, kSide}), values = random_values({kSide, kSide});
    const auto [fp32_seconds, fp32_peer] = peer_time(m, false);
    const auto [int8_seconds, int8_peer] = peer_time(m, true);
    MatmulProblem problem;
    problem.m = m;
    problem.n = problem.k = kSide;
    problem.x.data = x.data();
    problem.x.row_stride = kSide;
    measure_rows(problem, prepare(values), "fp32 weights", "fp32", fp32_seconds, fp32_peer);
    const Tensor half = convert(x, DType::kBf16);
    MatmulProblem of_halves = problem;
    of_halves.x.data = half.data();
    of_halves.x.dtype = DType::kBf16;
    measure_rows(of_halves, prepare(convert(values, DType::kBf16)), "bf16 weights and inputs", "", fp32_seconds, fp32_peer);
    for (const char* text :
         {"int8:row", "fp8_e4m3:row", "fp6_e3m2:row", "fp5_e2m2:row", "int4:block128", "int4:block128:asym", "nvfp4", "mxfp4",
          "int3:block128", "int3:block128:asym", "fp3_e2m0:row", "int2:block128", "int2:block128:asym", "int1:row", "msfp12"}) {
      const Scheme scheme = Scheme::parse(text);
      const PreparedWeight weight = prepare(quantize(values, scheme));
      measure_rows(problem, weight, fmt::format("{} weights", text), "fp32", fp32_seconds, fp32_peer);
      if (scheme.is_msfp || scheme.element == kInt1) measure_quantized(problem, weight, text, scheme, 0.0, "");
      if (is_exact_integer(scheme.element) && !scheme.asymmetric)
        measure_quantized(problem, weight, text, Scheme::parse("int8:row"), int8_seconds, int8_peer);
    }
  }

  void measure_quantized(MatmulProblem problem, const PreparedWeight& weight, const char* text, const Scheme& activation,
                         double peer_seconds, const std::string& peer) {
    const Tensor x = random_values({problem.m, problem.k});
    const QuantizedTensor q = quantize(x, activation);
    problem.x = view_of(q);
    const bool is_int8 = activation.element == kInt8;
    measure_rows(problem, weight, fmt::format("{} weights, {} inputs", text, activation.to_string()), is_int8 ? "int8" : "", peer_seconds,
                 peer);
  }

  /// Adds a timing with its share of the limit that takes longer: moving its bytes, or doing its operations.
  void add(Timing timing, const char* arithmetic) {
    const Roofline& r = report_.roofline;
    const bool moves = timing.op != "matmul";
    const double peak = std::strcmp(arithmetic, "int8") == 0 ? r.int8 : std::strcmp(arithmetic, "fp32") == 0 ? r.fp32 : 0.0;
    const double moving = timing.bytes / ((moves ? r.copy : r.read) * 1e9), computing = peak > 0.0 ? timing.operations / (peak * 1e9) : 0.0;
    timing.limit = moves ? "copy" : moving > computing ? "read" : arithmetic;
    timing.share = std::max(moving, computing) / timing.seconds;
    if (timing.m > 8 && peak == 0.0) timing.share = 0.0;  // arithmetic may bound it, and its peak is not known
    report_.timings.push_back(std::move(timing));
  }

  BenchReport report_;
  double seconds_each_;
  std::function<void(std::string_view)> begun_;
  std::vector<Isa> isas_;
  std::vector<Peer> peers_;
};

}  // namespace

BenchReport measure_kernels(double seconds_each, const std::function<void(std::string_view)>& begun) {
  return Measurement(seconds_each, begun).run();
}

report::Json bench_object(const BenchReport& report) {
  using report::Json;
  Json timings = Json::array();
  for (const Timing& t : report.timings) {
    Json object{{"op", t.op}, {"kernel", t.kernel}, {"task", t.task}};
    if (t.m > 0) object.update({{"m", t.m}, {"n", t.n}, {"k", t.k}});
    object.update({{"seconds", t.seconds},
                   {"bytes", t.bytes},
                   {"operations", t.operations},
                   {"limit", t.limit},
                   {"share", t.share > 0.0 ? Json(t.share) : Json(nullptr)}});
    object["peer"] = t.peer.empty() ? Json(nullptr) : Json(t.peer);
    object["peer_ratio"] = t.peer.empty() ? Json(nullptr) : Json(t.peer_ratio);
    timings.push_back(std::move(object));
  }
  const Roofline& r = report.roofline;
  return {{"cpu", report.machine.cpu},
          {"threads", report.machine.threads},
          {"roofline", {{"copy_gb_s", r.copy}, {"read_gb_s", r.read}, {"int8_gop_s", r.int8}, {"fp32_gflop_s", r.fp32}}},
          {"peers", report.peers},
          {"seconds", report.seconds},
          {"timings", timings}};
}

}  // namespace narrow::command
