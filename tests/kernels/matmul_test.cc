/// Every row of the table against the reference: integer products bit for bit, float products within gamma(K) sum |x||w|.

#include "kernels/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "format/packing.h"
#include "kernels/storage.h"
#include "narrow/quantize.h"
#include "ops/matmul.h"

#if defined(NARROW_AMX_MODEL)
#include "kernels/cpu/matmul_rows.h"
namespace narrow::amx_model {
extern const cpu::AmxIntegerBodies kIntegers;
}
#endif

namespace narrow {
namespace {

struct Random {
  std::mt19937 generator;
  std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(bound)); }
  template <typename T>
  const T& one_of(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(below(static_cast<std::int64_t>(items.size())))];
  }
  Tensor tensor(Shape shape) {
    Tensor x = Tensor::empty(DType::kF32, std::move(shape));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = normal(generator);
    return x;
  }
};

/// Odd sizes near the edges of lanes, groups, panels and tiles.
Shape random_sizes(Random& random) {
  static const std::vector<std::int64_t> m{1, 1, 2, 3, 4, 5, 6, 7, 11, 13, 17, 35};
  static const std::vector<std::int64_t> n{1, 2, 15, 16, 17, 31, 63, 64, 65, 67, 127, 131};
  static const std::vector<std::int64_t> k{1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 160, 256, 257, 300, 509};
  return {random.one_of(m), random.one_of(n), random.one_of(k)};
}

/// The same with sizes of 0 among them, and few products: thousands of them are tried.
Shape random_small_sizes(Random& random) {
  static const std::vector<std::int64_t> m{0, 1, 1, 2, 3, 4, 5, 6, 7, 11, 13, 19, 29, 33, 47};
  static const std::vector<std::int64_t> n{0, 1, 2, 3, 5, 15, 16, 17, 31, 47, 63, 64, 65, 67, 129};
  static const std::vector<std::int64_t> k{0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 61, 64, 65, 96, 97, 127, 128, 129, 193, 256};
  while (true) {
    const Shape sizes{random.one_of(m), random.one_of(n), random.one_of(k)};
    if (sizes[0] * sizes[1] * sizes[2] <= 12000) return sizes;
  }
}

/// A product with its operands; y is written by one row or another.
struct Case {
  Tensor x, y, bias, residual;
  QuantizedTensor xq;
  std::vector<std::uint8_t> apart;  ///< rows of xq's codes that neither touch each other nor are aligned
  PreparedWeight w;
  MatmulProblem problem;

  /// Activations are the values of x, results fp32.
  void finish_values(const Shape& sizes) {
    problem.x.data = x.data();
    problem.x.dtype = x.dtype();
    problem.x.row_stride = sizes[2];
    finish(sizes, DType::kF32);
  }
  void finish(const Shape& sizes, DType out) {
    problem.m = sizes[0];
    problem.n = sizes[1];
    problem.k = sizes[2];
    problem.w = view_of(w);
    y = Tensor::empty(out, {sizes[0], sizes[1] + 3});
    problem.epilogue.y = y.data();
    problem.epilogue.y_stride = sizes[1] + 3;
    problem.epilogue.out = out;
    problem.epilogue.out_scale = 0.37f;
    std::memset(y.data(), 0x5A, y.byte_size());
  }
  /// Moves the codes of x to rows `gap` bytes apart, the first at byte 3.
  void set_rows_apart(std::size_t gap) {
    const std::size_t bytes = problem.x.row_bytes, pitch = bytes + gap, rows = static_cast<std::size_t>(xq.shape[0]);
    apart.assign(rows * pitch + 3, 0xA5);
    for (std::size_t row = 0; row < rows; ++row) std::copy_n(problem.x.codes + row * bytes, bytes, apart.data() + 3 + row * pitch);
    problem.x.codes = apart.data() + 3;
    problem.x.row_bytes = pitch;
  }
  std::vector<std::byte> run(const MatmulKernel& kernel) {
    std::memset(y.data(), 0x5A, y.byte_size());
    run_matmul(problem, kernel);
    return {y.data(), y.data() + y.byte_size()};
  }
};

void random_epilogue(Random& random, Case& c, const Shape& sizes) {
  if (c.problem.epilogue.out == DType::kI32) return;
  if (random.below(2) == 0) {
    c.bias = random.tensor({sizes[1]});
    c.problem.epilogue.bias = c.bias.as<float>();
  }
  c.problem.epilogue.activation = static_cast<Activation>(random.below(4));
  if (random.below(2) == 0) {
    c.residual = convert(random.tensor({sizes[0], sizes[1] + 2}), random.one_of<DType>({DType::kF32, DType::kF16, DType::kBf16}));
    c.problem.epilogue.residual = c.residual.data();
    c.problem.epilogue.residual_dtype = c.residual.dtype();
    c.problem.epilogue.residual_stride = sizes[1] + 2;
  }
}

/// A row of AMX with tiles in plain C++ (kernels/amx_model.h), where there is AVX-512 for all else; as it is where that is not known.
MatmulKernel modelled(MatmulKernel kernel) {
#if defined(NARROW_AMX_MODEL)
  const cpu::AmxIntegerBodies &own = amx::kIntegers, &model = amx_model::kIntegers;
  for (const auto run : {&cpu::AmxIntegerBodies::dot8, &cpu::AmxIntegerBodies::dot4, &cpu::AmxIntegerBodies::dot3,
                         &cpu::AmxIntegerBodies::dot2, &cpu::AmxIntegerBodies::dot1})
    if (kernel.run == own.*run && cpu_supports(Isa::kAvx512)) {
      kernel.isa = Isa::kAvx512;
      kernel.run = model.*run;
      break;
    }
#endif
  return kernel;
}

/// The fast rows that run here, and how often each was tried: a row that no case reaches is not tested.
struct FastRows {
  std::vector<MatmulKernel> rows;
  std::vector<int> tried;
  FastRows() {
    for (const MatmulKernel& entry : matmul_kernels()) {
      const MatmulKernel kernel = cpu_supports(entry.isa) ? entry : modelled(entry);
      if (cpu_supports(kernel.isa) && kernel.run != reference::kMatmul.run) rows.push_back(kernel);
    }
    tried.assign(rows.size(), 0);
  }
  template <typename Work>
  void each_that_accepts(const MatmulProblem& problem, const Work& work) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (rows[i].accepts(problem)) {
        ++tried[i];
        work(rows[i]);
      }
  }
};

TEST(MatmulRows, IntegersEqualTheReference) {
  FastRows fast;
  // clang-format off
  const std::vector<std::string> weights{
      "int8:row", "int8:tensor", "int8:row:asym", "int8:block128", "int8:block32:asym", "int8:64x64", "int4:row", "int4:block128",
      "int4:block32:asym", "int4:block64:scale=fp16", "int4:block128:asym:scale=bf16", "int4:block32:scale=e8m0", "int3:block128",
      "int3:block32:asym", "int3:row", "int2:block64", "int2:block128:asym", "int2:row", "int1:row", "int1:block64"};
  // clang-format on
  const std::vector<std::string> activations{"int8:row",      "int8:tensor",  "int8:row:asym",    "int8:tensor:asym",
                                             "int8:block128", "int8:block64", "int8:block32:asym"};
  const std::vector<DType> outs{DType::kF32,  DType::kF32, DType::kI32,    DType::kF16,
                                DType::kBf16, DType::kI8,  DType::kF8E4m3, DType::kF8E5m2};
  Random random{std::mt19937(7)};
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);  // ThreadsDoNotChangeABit tries more
  for (int round = 0; round < 10000; ++round) {
    const Shape sizes = round % 50 == 0 ? random_sizes(random) : random_small_sizes(random);
    const Scheme weight = Scheme::parse(random.one_of(weights)), activation = Scheme::parse(random.one_of(activations));
    Case c;
    c.w = prepare(quantize(random.tensor({sizes[1], sizes[2]}), weight));
    c.xq = quantize(random.tensor({sizes[0], sizes[2]}), activation);
    c.problem.x = view_of(c.xq);
    if (round % 3 == 0) c.set_rows_apart(static_cast<std::size_t>(random.below(9)));
    DType out = random.one_of(outs);
    if (out == DType::kI32 && (varies_along_k(weight, scale_grid(weight, {sizes[1], sizes[2]})) || varies_along_k(activation, c.xq.grid())))
      out = DType::kF32;
    c.finish(sizes, out);
    random_epilogue(random, c, sizes);
    const auto wanted = c.run(reference::kMatmul);
    fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
      ASSERT_EQ(c.run(kernel), wanted) << kernel.name << " " << weight.to_string() << " " << activation.to_string() << " "
                                       << to_string(sizes) << " " << name_of(out);
    });
    if (HasFatalFailure()) break;
  }
  omp_set_num_threads(before);
}

/// More rows and longer ones than a row's tiles, or what it keeps of them in a cache, hold at once.
TEST(MatmulRows, ManyLongRowsOfIntegersEqualTheReference) {
  FastRows fast;
  Random random{std::mt19937(23)};
  for (const char* weight : {"int8:row", "int3:block128:asym"}) {
    const Shape sizes{101, 65, 8192 + 96};
    Case c;
    c.w = prepare(quantize(random.tensor({sizes[1], sizes[2]}), Scheme::parse(weight)));
    c.xq = quantize(random.tensor({sizes[0], sizes[2]}), Scheme::parse("int8:row:asym"));
    c.problem.x = view_of(c.xq);
    c.finish(sizes, DType::kF32);
    const auto wanted = c.run(reference::kMatmul);
    fast.each_that_accepts(c.problem,
                           [&](const MatmulKernel& kernel) { EXPECT_EQ(c.run(kernel), wanted) << kernel.name << " " << weight; });
  }
}

/// |got - wanted| <= gamma(K) sum |x||w| + one rounding, element by element; bytes between rows of y stay untouched.
void expect_within_bound(const Case& c, const Tensor& dense, const std::vector<std::byte>& fast, const std::vector<std::byte>& exact,
                         const std::string& what) {
  const std::int64_t k = c.problem.k, stride = c.problem.n + 3;
  const double u = 0x1p-24, gamma = static_cast<double>(k) * u / (1.0 - static_cast<double>(k) * u);
  for (std::int64_t m = 0; m < c.problem.m; ++m)
    for (std::int64_t n = 0; n < stride; ++n) {
      float got, wanted;
      std::memcpy(&got, fast.data() + (m * stride + n) * 4, 4);
      std::memcpy(&wanted, exact.data() + (m * stride + n) * 4, 4);
      if (got == wanted) continue;
      ASSERT_LT(n, c.problem.n) << what;
      double magnitude = 0.0;
      for (std::int64_t i = 0; i < k; ++i)
        magnitude += std::fabs(static_cast<double>(load_value(c.x.data(), c.x.dtype(), m * k + i)) * dense.as<float>()[n * k + i]);
      // wanted itself is y64 rounded once; so is got.
      ASSERT_LE(std::fabs(static_cast<double>(got) - wanted), gamma * magnitude + 2.0 * u * std::fabs(static_cast<double>(wanted)))
          << what << " " << m << "," << n;
    }
}

TEST(MatmulRows, FloatsStayWithinTheBound) {
  FastRows fast;
  Random random{std::mt19937(11)};
  std::vector<Scheme> schemes = standard_schemes();
  for (const char* text : {"fp9_e4m4:row", "fp16_e7m8:block32", "fp13_e8m4:none", "fp2_e1m0:row", "fp5_e1m3:block16", "nf4:row",
                           "fp6_e3m2:block16", "fp7_e5m1:block64"})
    schemes.push_back(Scheme::parse(text));
  for (int round = 0; round < 6; ++round)
    for (const Scheme& scheme : schemes) {
      const Shape sizes = random_sizes(random);
      Case c;
      const QuantizedTensor w = quantize(random.tensor({sizes[1], sizes[2]}), scheme);
      c.w = prepare(w);
      c.x = convert(random.tensor({sizes[0], sizes[2]}), random.one_of<DType>({DType::kF32, DType::kF16, DType::kBf16}));
      c.finish_values(sizes);
      const auto exact = c.run(reference::kMatmul);
      const Tensor dense = dequantize(w);
      fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
        expect_within_bound(c, dense, c.run(kernel), exact, fmt::format("{} {} {}", kernel.name, scheme.to_string(), to_string(sizes)));
      });
      if (HasFatalFailure()) return;
    }
}

/// The same order of sums in fp64 gives the same bits, whatever the instruction set; every scheme in panels has a fast row.
TEST(MatmulRows, SumsInFp64EqualTheReference) {
  FastRows fast;
  Random random{std::mt19937(13)};
  for (int round = 0; round < 3; ++round)
    for (const Scheme& scheme : standard_schemes()) {
      const Shape sizes = random_sizes(random);
      Case c;
      c.w = prepare(quantize(random.tensor({sizes[1], sizes[2]}), scheme));
      c.x = random.tensor({sizes[0], sizes[2]});
      c.problem.in_fp64 = true;
      c.finish_values(sizes);
      random_epilogue(random, c, sizes);
      c.problem.epilogue.activation = Activation::kNone;
      const auto exact = c.run(reference::kMatmul);
      int rows = 0;
      fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
        ++rows;
        EXPECT_EQ(c.run(kernel), exact) << kernel.name << " " << scheme.to_string() << " " << to_string(sizes);
      });
      EXPECT_TRUE(rows > 0 || c.w.layout != WeightLayout::kPanels || !cpu_supports(Isa::kAvx2)) << scheme.to_string();
    }
}

/// One row whose values span many powers of two, with zeros: what rows make of their common range must not show. One large value among
/// small ones stands where most weights are zero, so that the sum is of the small ones.
TEST(MatmulRows, RowsOfAnyRangeStayWithinTheBound) {
  FastRows fast;
  Random random{std::mt19937(17)};
  // clang-format off
  constexpr const char* kSchemes[] = {
      "int4:block128", "int4:row", "int3:block128", "fp4_e2m1:row", "fp4_e3m0:block64", "fp3_e2m0:row", "nvfp4", "mxfp4", "msfp12",
      "msfp11", "nf4:block64", "int2:block64", "int1:row", "int8:row", "int8:block64", "fp8_e4m3:row", "fp8_e5m2:block128",
      "fp8_e2m5:row", "fp6_e3m2:row", "fp6_e2m3:block64", "fp5_e2m2:row", "fp4_e3m0:block16", "int4:block16:scale=fp16",
      "fp4_e2m1:block16", "int4:block128:asym", "int4:row:asym", "int3:block96:asym:scale=fp16"};
  // clang-format on
  for (const char* text : kSchemes)
    for (int round = 0; round < 12; ++round) {
      const Shape sizes{1, random.one_of<std::int64_t>({1, 64, 97}), random.one_of<std::int64_t>({1, 31, 32, 64, 129, 509, 1024})};
      const int spread = static_cast<int>(random.one_of<std::int64_t>({1, 8, 14, 30, 70, 110}));
      const std::int64_t large = random.below(sizes[2]);
      Tensor dense = random.tensor({sizes[1], sizes[2]});
      if (round % 2 == 0)
        for (std::int64_t n = 0; n < sizes[1]; ++n) dense.as<float>()[n * sizes[2] + large] = 0.0f;
      Case c;
      const QuantizedTensor w = quantize(dense, Scheme::parse(text));
      c.w = prepare(w);
      c.x = random.tensor({1, sizes[2]});
      for (std::int64_t i = 0; i < sizes[2]; ++i) {
        float& value = c.x.as<float>()[i];
        value = random.below(7) == 0 ? 0.0f : std::ldexp(value, static_cast<int>(random.below(spread)) - spread / 2);
      }
      c.x.as<float>()[large] = std::ldexp(1.7f, spread / 2);
      c.finish_values(sizes);
      const auto exact = c.run(reference::kMatmul);
      const Tensor values = dequantize(w);
      fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
        const std::string what = fmt::format("{} {} {} spread {}", kernel.name, text, to_string(sizes), spread);
        expect_within_bound(c, values, c.run(kernel), exact, what);
      });
      if (HasFatalFailure()) return;
    }
}

/// Long rows of few bits, of which none, some, just as many and more values than a row keeps by themselves (two of 32 k) are much smaller
/// than the rest; the weights of some outputs are zero, or as small as they get, wherever the row is large.
TEST(MatmulRows, RowsWithFewSmallValuesStayWithinTheBound) {
  FastRows fast;
  Random random{std::mt19937(29)};
  constexpr const char* kSchemes[] = {"int1:row",     "int1:block64", "int1:tensor",  "int2:block128",    "int2:block32",
                                      "int2:block96", "int2:row",     "fp2_e1m0:row", "fp2_e1m0:block64", "int2:block128:scale=fp16"};
  for (const char* text : kSchemes)
    for (const std::int64_t k : {127, 128, 129, 160, 384, 1056, 4096})
      for (const std::int64_t small : {std::int64_t{0}, std::int64_t{1}, k / 20, k / 16, k / 16 + 3, k / 2}) {
        Tensor dense = random.tensor({20, k});
        Case c;
        c.x = random.tensor({1, k});
        float* x = c.x.as<float>();
        const int size = static_cast<int>(random.one_of<std::int64_t>({-80, 0, 0, 0, 70})),
                  distance = static_cast<int>(random.one_of<std::int64_t>({10, 14, 18, 25, 40}));
        for (std::int64_t i = 0; i < k; ++i) {
          if (std::fabs(x[i]) < 0.1f) x[i] += 0.5f;
          const bool is_small = i * small % k < small;
          if (k == 1056 && i / 512 == 0) x[i] = 0.0f;
          x[i] = std::ldexp(x[i], size - (is_small ? distance : 0));
          if (!is_small)
            for (std::int64_t n = 0; n < 10; ++n) dense.as<float>()[n * k + i] = 0.0f;
        }
        const QuantizedTensor w = quantize(dense, Scheme::parse(text));
        c.w = prepare(w);
        c.finish_values({1, 20, k});
        const auto exact = c.run(reference::kMatmul);
        const Tensor values = dequantize(w);
        fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
          expect_within_bound(c, values, c.run(kernel), exact,
                              fmt::format("{} {} k {} small {} by {}", kernel.name, text, k, small, distance));
        });
        if (HasFatalFailure()) return;
      }
}

/// Infinities and NaN in the only row: every output is the reference's, or NaN as that is.
TEST(MatmulRows, RowsThatAreNotFiniteGiveWhatTheReferenceGives) {
  FastRows fast;
  Random random{std::mt19937(31)};
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : {"int1:row", "int1:block64", "int2:block128", "int2:row", "int3:row", "int4:block128", "int4:block128:asym",
                           "nvfp4", "msfp12", "int8:row"})
    for (const float value : {kInfinity, -kInfinity, kNan}) {
      const std::int64_t k = 300;
      Case c;
      c.w = prepare(quantize(random.tensor({65, k}), Scheme::parse(text)));
      c.x = random.tensor({1, k});
      c.x.as<float>()[random.below(k)] = value;
      c.finish_values({1, 65, k});
      const auto exact = c.run(reference::kMatmul);
      fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
        const auto got = c.run(kernel);
        for (std::size_t n = 0; n < 65; ++n) {
          float a, b;
          std::memcpy(&a, got.data() + n * 4, 4);
          std::memcpy(&b, exact.data() + n * 4, 4);
          if (std::isfinite(b)) continue;
          ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << kernel.name << " " << text << " " << value << " " << a << " " << b;
        }
      });
      if (HasFatalFailure()) return;
    }
}

/// The largest value of a row with each of the mantissas near a power of two, either sign: what a row makes of it must not overflow.
TEST(MatmulRows, LargestValuesOfAnyMantissaStayWithinTheBound) {
  FastRows fast;
  Random random{std::mt19937(19)};
  for (const char* text : {"int8:row", "int4:row", "fp3_e2m0:row", "int2:block32", "nvfp4"}) {
    const Shape sizes{1, 1, 32};
    const QuantizedTensor w = quantize(random.tensor({1, 32}), Scheme::parse(text));
    const Tensor values = dequantize(w);
    Case c;
    c.w = prepare(w);
    c.x = random.tensor({1, 32});
    for (std::int64_t i = 0; i < 32; ++i) c.x.as<float>()[i] = std::fmod(c.x.as<float>()[i], 1.0f);
    c.finish_values(sizes);
    for (std::uint32_t mantissa = (1u << 23) - (1u << 17) - 512; mantissa < 1u << 23; mantissa += 11)
      for (const std::uint32_t sign : {0u, 1u << 31}) {
        c.x.as<float>()[5] = std::bit_cast<float>(sign | 127u << 23 | mantissa);
        const auto exact = c.run(reference::kMatmul);
        fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
          expect_within_bound(c, values, c.run(kernel), exact, fmt::format("{} {} mantissa {:x}", kernel.name, text, sign | mantissa));
        });
        if (HasFatalFailure()) return;
      }
  }
}

/// Activations that are all as large as the largest, against weights that are all as large: no sum may overflow on its way.
TEST(MatmulRows, SumsOfTheLargestValuesStayWithinTheBound) {
  FastRows fast;
  for (const char* text : {"nvfp4", "msfp12", "mxfp4", "fp4_e3m0:block16", "int4:block16", "int4:block128", "int3:row", "int8:row",
                           "int2:block128", "int2:row", "fp2_e1m0:row", "int1:row", "int1:block64", "int4:block128:asym", "int3:row:asym"})
    for (const float weight : {1.0f, -1.0f})
      for (const float value : {1.0f, 1.96875f, 1.984375f, 1.9921875f, 2.0f - 0x1p-23f, -1.96875f, -2.0f + 0x1p-23f}) {
        const std::int64_t k = 1024;
        Tensor dense = Tensor::empty(DType::kF32, {1, k});
        Case c;
        c.x = Tensor::empty(DType::kF32, {1, k});
        std::fill_n(dense.as<float>(), k, weight);
        std::fill_n(c.x.as<float>(), k, value);
        const QuantizedTensor w = quantize(dense, Scheme::parse(text));
        c.w = prepare(w);
        c.finish_values({1, 1, k});
        const auto exact = c.run(reference::kMatmul);
        const Tensor values = dequantize(w);
        fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
          expect_within_bound(c, values, c.run(kernel), exact, fmt::format("{} {} {} x {}", kernel.name, text, weight, value));
        });
        if (HasFatalFailure()) return;
      }
}

/// The largest sums of a group: all activations the largest that share their power of two, all weights their least or largest value.
TEST(MatmulRows, LargestSumsStayWithinTheBound) {
  FastRows fast;
  const float largest = std::bit_cast<float>((128u << 23) - (1u << 17) - 1u);
  for (const char* text : {"int8:row", "int4:row", "int4:block64", "int3:row", "int3:block32", "int2:row", "fp4_e2m1:row", "fp3_e2m0:row",
                           "nvfp4", "mxfp4", "msfp12", "msfp11"})
    for (const float sign : {-1.0f, 1.0f}) {
      const Shape sizes{1, 64, 96};
      Tensor dense = Tensor::empty(DType::kF32, {64, 96});
      std::fill_n(dense.as<float>(), dense.size(), sign);
      QuantizedTensor w = quantize(dense, Scheme::parse(text));
      const Format& element = w.scheme.element;
      if (element.is_integer())
        for (std::int64_t i = 0; i < dense.size(); ++i)
          write_code(w.codes.as<std::uint8_t>(), i, element.bits, (1u << (element.bits - 1)) - (sign > 0.0f ? 1u : 0u));
      const Tensor values = dequantize(w);
      Case c;
      c.w = prepare(w);
      c.x = Tensor::empty(DType::kF32, {1, 96});
      std::fill_n(c.x.as<float>(), 96, largest);
      c.finish_values(sizes);
      const auto exact = c.run(reference::kMatmul);
      fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
        expect_within_bound(c, values, c.run(kernel), exact, fmt::format("{} {} {}", kernel.name, text, sign));
      });
      if (HasFatalFailure()) return;
    }
}

TEST(MatmulRows, DenseWeightsStayWithinTheBound) {
  FastRows fast;
  Random random{std::mt19937(12)};
  for (int round = 0; round < 40; ++round) {
    const Shape sizes = random_sizes(random);
    Case c;
    const Tensor w = convert(random.tensor({sizes[1], sizes[2]}), random.one_of<DType>({DType::kF32, DType::kF16, DType::kBf16}));
    c.w = prepare(w);
    c.x = random.tensor({sizes[0], sizes[2]});
    c.finish_values(sizes);
    const auto exact = c.run(reference::kMatmul);
    const Tensor dense = convert(w, DType::kF32);
    fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
      expect_within_bound(c, dense, c.run(kernel), exact, fmt::format("{} {}", kernel.name, to_string(sizes)));
    });
    if (HasFatalFailure()) return;
  }
}

TEST(MatmulRows, ThreadsDoNotChangeABit) {
  FastRows fast;
  Random random{std::mt19937(13)};
  const int before = omp_get_max_threads();
  std::vector<std::optional<Scheme>> schemes(standard_schemes().begin(), standard_schemes().end());
  schemes.push_back(std::nullopt);  // dense fp32
  schemes.push_back(Scheme::parse("bf16:none"));
  for (const std::optional<Scheme>& scheme : schemes)
    for (const std::int64_t m : {1, 3, 29}) {
      const Shape sizes{m, 197, 288};
      Case c;
      const Tensor values = random.tensor({sizes[1], sizes[2]});
      c.w = scheme ? prepare(quantize(values, *scheme)) : prepare(values);
      c.x = convert(random.tensor({sizes[0], sizes[2]}), scheme && scheme->element == kBf16 ? DType::kBf16 : DType::kF32);
      c.finish(sizes, DType::kF32);
      std::vector<std::optional<Scheme>> activations{std::nullopt, Scheme::parse("int8:row")};
      if (scheme && (scheme->is_msfp || *scheme == Scheme::parse("int1:row"))) activations.push_back(scheme);  // both sides alike
      for (const std::optional<Scheme>& activation : activations) {
        if (activation) {
          c.xq = quantize(c.x, *activation);
          c.problem.x = view_of(c.xq);
        } else {
          c.problem.x.data = c.x.data();
          c.problem.x.dtype = c.x.dtype();
          c.problem.x.row_stride = sizes[2];
        }
        fast.each_that_accepts(c.problem, [&](const MatmulKernel& kernel) {
          omp_set_num_threads(1);
          const auto one = c.run(kernel);
          for (const int threads : {2, 3, 7}) {
            omp_set_num_threads(threads);
            ASSERT_EQ(c.run(kernel), one) << kernel.name << " " << (scheme ? scheme->to_string() : "fp32") << " " << threads;
          }
        });
        omp_set_num_threads(before);
        if (HasFatalFailure()) return;
      }
    }
  for (std::size_t i = 0; i < fast.rows.size(); ++i) EXPECT_GT(fast.tried[i], 0) << fast.rows[i].name << " was reached by no case";
}

}  // namespace
}  // namespace narrow
