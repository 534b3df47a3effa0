#include "self_test.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include <fmt/format.h>

#include "dispatch/binary.h"
#include "dispatch/fused.h"
#include "dispatch/quantize.h"
#include "narrow/binary.h"
#include "narrow/fused.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "ops/matmul.h"

namespace narrow::command {
namespace {

/// Uses no newer instruction set in its scope; the set that was the newest before comes back after it.
class CpuLimit {
 public:
  explicit CpuLimit(Isa isa) {
    for (const Isa known : all_isas())
      if (cpu_supports(known)) newest_ = known;
    limit_cpu(isa);
  }
  ~CpuLimit() { limit_cpu(newest_); }
  CpuLimit(const CpuLimit&) = delete;
  CpuLimit& operator=(const CpuLimit&) = delete;

 private:
  Isa newest_ = Isa::kScalar;
};

bool same_bytes(const Buffer& a, const Buffer& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0; }
bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  return same_bytes(a.codes, b.codes) && same_bytes(a.scales, b.scales) && same_bytes(a.zero_points, b.zero_points) &&
         a.outer_scale == b.outer_scale;
}
bool same(const Tensor& a, const Tensor& b) {
  return a.byte_size() == b.byte_size() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

class Tester {
 public:
  explicit Tester(double most_seconds)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(most_seconds))) {
    add_rows("quantize", quantize_kernels());
    add_rows("dequantize", dequantize_kernels());
    add_rows("matmul", matmul_kernels());
    add_rows("fused", fused_kernels());
    add_rows("binary", binary_kernels());
  }

  SelfTest run() {
    const Clock::time_point begin = Clock::now();
    for (const Scheme& scheme : standard_schemes()) {
      if (Clock::now() > end_) {
        test_.complete = false;
        break;
      }
      check_conversions(scheme);
      for (const std::int64_t m : {1, 5}) check_products(m, scheme);
    }
    check_dense_products();
    check_fused();
    check_binary_convolution();
    test_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return std::move(test_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  template <typename Kernels>
  void add_rows(const char* op, const Kernels& kernels) {
    for (const auto& kernel : kernels)
      if (kernel.isa != Isa::kScalar && cpu_supports(kernel.isa)) test_.rows.push_back({op, kernel.name});
  }

  SelfTestRow* row_of(const std::string& op, const std::string& kernel) {
    const auto found =
        std::find_if(test_.rows.begin(), test_.rows.end(), [&](const SelfTestRow& row) { return row.op == op && row.kernel == kernel; });
    return found == test_.rows.end() ? nullptr : &*found;
  }

  void note(const std::string& op, const std::string& kernel, bool right, const std::string& what) {
    SelfTestRow* row = row_of(op, kernel);
    if (row == nullptr) return;  // the reference
    ++row->cases;
    if (!right && row->failure.empty()) row->failure = what;
  }

  Tensor random(Shape shape) {
    Tensor x = Tensor::empty(DType::kF32, std::move(shape));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = normal(generator_);
    return x;
  }

  /// What work gives with each instruction set, beside what it gives with none; `kernel` names the row that runs then.
  template <typename Work>
  void compare_instruction_sets(const char* op, const std::string& what, const std::function<std::string()>& kernel, const Work& work) {
    const auto wanted = [&] {
      const CpuLimit limit(Isa::kScalar);
      return work();
    }();
    for (const Isa isa : all_isas()) {
      if (isa == Isa::kScalar || !cpu_supports(isa)) continue;
      const CpuLimit limit(isa);
      note(op, kernel(), same(work(), wanted), what);
    }
  }

  void check_conversions(const Scheme& scheme) {
    const Shape shape{9, 321};
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const Tensor x = convert(random(shape), dtype);
      QuantizeProblem quantizing;
      quantizing.dtype = dtype;
      quantizing.rows = shape[0];
      quantizing.cols = quantizing.row_stride = shape[1];
      quantizing.scheme = scheme;
      quantizing.grid = scale_grid(scheme, shape);
      quantizing.row_bytes = packed_row_bytes(scheme, shape[1]);
      DequantizeProblem dequantizing;
      dequantizing.dtype = dtype;
      dequantizing.rows = shape[0];
      dequantizing.cols = shape[1];
      dequantizing.scheme = scheme;
      dequantizing.grid = quantizing.grid;
      dequantizing.row_bytes = quantizing.row_bytes;
      const std::string what = fmt::format("{} of {}", scheme.to_string(), name_of(dtype));
      compare_instruction_sets(
          "quantize", what, [&] { return std::string(find(quantizing).name); }, [&] { return quantize(x, scheme); });
      const QuantizedTensor q = quantize(x, scheme);
      compare_instruction_sets(
          "dequantize", what, [&] { return std::string(find(dequantizing).name); }, [&] { return dequantize(q, dtype); });
    }
  }

  /// The problem by every row that takes it. dense: the weight's values; null: sums of integers, which are exact.
  void check_rows(MatmulProblem problem, const Tensor* x, const Tensor* dense, const std::string& what) {
    const auto product = [&](const MatmulKernel& kernel) {
      Tensor y = Tensor::empty(DType::kF32, {problem.m, problem.n});
      problem.epilogue.y = y.data();
      problem.epilogue.y_stride = problem.n;
      run_matmul(problem, kernel);
      return y;
    };
    const Tensor wanted = product(reference::kMatmul);
    for (const MatmulKernel& kernel : matmul_kernels()) {
      if (kernel.isa == Isa::kScalar || !cpu_supports(kernel.isa) || !kernel.accepts(problem)) continue;
      const Tensor got = product(kernel);
      note("matmul", kernel.name, dense == nullptr ? same(got, wanted) : within_bound(got, wanted, *x, *dense), what);
    }
  }

  static bool within_bound(const Tensor& got, const Tensor& wanted, const Tensor& x, const Tensor& w) {
    const std::int64_t rows = wanted.shape()[0], cols = wanted.shape()[1], k = x.shape()[1];
    const double unit = 0x1p-24, gamma = static_cast<double>(k) * unit / (1.0 - static_cast<double>(k) * unit);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) {
        double magnitude = 0.0;
        for (std::int64_t p = 0; p < k; ++p)
          magnitude += std::fabs(static_cast<double>(x.as<float>()[i * k + p]) * w.as<float>()[j * k + p]);
        const double a = got.as<float>()[i * cols + j], b = wanted.as<float>()[i * cols + j];
        if (!(std::fabs(a - b) <= gamma * magnitude + 2.0 * unit * std::fabs(b))) return false;  // not so of NaN either
      }
    return true;
  }

  void check_products(std::int64_t m, const Scheme& scheme) {
    const std::int64_t n = 67, k = 288;
    const QuantizedTensor q = quantize(random({n, k}), scheme);
    const PreparedWeight w = prepare(q);
    const Tensor x = random({m, k}), dense = dequantize(q);
    MatmulProblem problem;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.w = view_of(w);
    const std::string what = fmt::format("{}x{}x{} with {} weights", m, n, k, scheme.to_string());
    problem.x.row_stride = k;
    if (scheme.element == kBf16 || scheme.element == kFp16) {  // rows for 16-bit inputs: their values are exact in fp32
      const DType half = scheme.element == kBf16 ? DType::kBf16 : DType::kF16;
      const Tensor narrow_x = convert(x, half), wide_x = convert(narrow_x, DType::kF32);
      problem.x.data = narrow_x.data();
      problem.x.dtype = half;
      check_rows(problem, &wide_x, &dense, what);
    }
    problem.x.data = x.data();
    problem.x.dtype = DType::kF32;
    check_rows(problem, &x, &dense, what);
    std::vector<Scheme> activations{Scheme::parse("int8:row")};
    if (scheme.is_msfp || scheme.element == kInt1) activations.push_back(scheme);  // both sides alike
    for (const Scheme& activation : activations) {
      const QuantizedTensor xq = quantize(x, activation);
      const Tensor rounded = dequantize(xq);
      problem.x = view_of(xq);
      const bool exact = is_exact_integer(scheme.element) && is_exact_integer(activation.element);
      check_rows(problem, exact ? nullptr : &rounded, exact ? nullptr : &dense,
                 fmt::format("{} and {} inputs", what, activation.to_string()));
    }
  }

  void check_dense_products() {
    const Tensor x = random({5, 288}), w = random({67, 288});
    const PreparedWeight prepared = prepare(w);
    MatmulProblem problem;
    problem.m = 5;
    problem.n = 67;
    problem.k = problem.x.row_stride = 288;
    problem.x.data = x.data();
    problem.w = view_of(prepared);
    check_rows(problem, &x, &w, "5x67x288 with fp32 weights");
  }

  void check_fused() {
    for (const FusedOp op :
         {FusedOp::kIdentity, FusedOp::kLayerNorm, FusedOp::kRmsNorm, FusedOp::kSiluMul, FusedOp::kGelu, FusedOp::kGeluTanh})
      for (const char* scheme : {"int8:row", "fp8_e4m3:block128"}) {
        FusedInput input;
        input.op = op;
        input.x = random({7, 384});
        if (op == FusedOp::kSiluMul) input.other = random({7, 384});
        FusedProblem problem;
        problem.op = op;
        problem.rows = 7;
        problem.cols = problem.x_stride = 384;
        compare_instruction_sets(
            "fused", fmt::format("operation {} to {}", static_cast<int>(op), scheme), [&] { return std::string(find(problem).name); },
            [&] { return fused_quantize(input, Scheme::parse(scheme)); });
      }
  }

  void check_binary_convolution() {
    BinaryConv2dOptions options;
    options.kernel_h = options.kernel_w = 3;
    options.pad_h = options.pad_w = 1;
    const PreparedBinaryConv2d w = prepare_binary_conv2d(quantize(random({33, 9 * 40}), Scheme::parse("int1:row")), options);
    const QuantizedTensor x = quantize(random({2, 6, 7, 40}), Scheme::parse("int1:tensor"));
    const BinaryProblem problem{.m = 7, .n = 33, .k = 40, .words = 2};
    compare_instruction_sets(
        "binary", "a convolution 3x3", [&] { return std::string(find(problem).name); }, [&] { return binary_conv2d(x, w, DType::kI32); });
  }

  SelfTest test_;
  Clock::time_point end_;
  std::mt19937 generator_{16};
};

}  // namespace

bool SelfTest::passed() const {
  return complete && std::all_of(rows.begin(), rows.end(), [](const SelfTestRow& row) { return row.cases > 0 && row.failure.empty(); });
}

int SelfTest::cases() const {
  int count = 0;
  for (const SelfTestRow& row : rows) count += row.cases;
  return count;
}

SelfTest run_self_test(double most_seconds) { return Tester(most_seconds).run(); }

}  // namespace narrow::command
