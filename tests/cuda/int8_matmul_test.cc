/// int8 products: bit for bit the definition on random shapes in guarded and poisoned memory, and bit for bit the CPU's matmul.

#include <cmath>

#include "int8_matmul_oracle.h"
#include "narrow/matmul.h"
#include "ops/cuda_matmul.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

constexpr int kRandomShapes = 2000;
constexpr const char* kSchemes[] = {"int8:row", "int8:tensor", "int8:row:asym", "int8:tensor:asym"};
constexpr DType kOutputs[] = {DType::kI32, DType::kI8, DType::kBf16, DType::kF16, DType::kF32};

class Int8MatmulTest : public CodesTest {
 protected:
  Int8MatmulTest() : CodesTest(8, 1) {}
  DeviceQuantized quantized(const char* scheme, std::int64_t rows, std::int64_t k) {
    DeviceQuantized q{Scheme::parse(scheme), {rows, k}, piece(bytes_, rows * k, 1), {}, {}, {}};
    const std::int64_t count = q.scheme.granularity == Granularity::row() ? rows : 1;
    q.scales = piece(scales_, count * 4, 4);
    if (q.scheme.asymmetric) q.zero_points = piece(bytes_, count, 1);
    return q;
  }
  static CanonicalSide side(const DeviceQuantized& q) {
    return {q.codes.as<std::uint8_t>(), q.scales.as<float>(), q.scheme.asymmetric ? q.zero_points.as<std::uint8_t>() : nullptr,
            q.scheme.granularity == Granularity::row() ? 1 : 0};
  }
  Int8Matrix in_stripes(const DeviceQuantized& q) {
    FusedOutput laid{q.scheme, q.shape, Layout::kCol32, false, {}, q.scales};
    const std::int64_t bytes = layout_size(Layout::kCol32, q.shape[0], q.shape[1]);
    laid.codes = Buffer::allocate(static_cast<std::size_t>(bytes), kDevice);
    transform(Tensor::over(q.codes, DType::kI8, q.shape), Tensor::over(laid.codes, DType::kI8, {bytes}), q.shape, Layout::kRow,
              Layout::kCol32, *stream_);
    return prepare_int8(laid, *stream_);
  }

  /// Multiplies into guarded memory, `offset` elements off alignment and rows `gap` elements apart, and compares every element.
  void expect_right(const DeviceQuantized& xq, const Int8Matrix& x, const DeviceQuantized& wq, const Int8Matrix& w, DType out,
                    const Int8MatmulOptions& options, std::int64_t gap, std::int64_t offset, const std::string& what) {
    const Stream stream = *stream_;
    const std::size_t element = static_cast<std::size_t>(bits_of(out)) / 8;
    const bool stripes = options.y_layout == Layout::kCol32;
    const std::int64_t pitch = w.rows + gap, count = stripes ? layout_size(Layout::kCol32, x.rows, w.rows) : x.rows * pitch;
    const Guarded memory(static_cast<std::size_t>(count) * element, static_cast<std::size_t>(offset) * element, stream);
    const Tensor y = stripes ? Tensor::borrow(memory.data(), out, {count}, {}, kDevice)
                             : Tensor::borrow(memory.data(), out, {x.rows, w.rows}, {pitch, 1}, kDevice);
    unsigned long long wrong = 0;
    ASSERT_NO_THROW({
      matmul(x, w, y, stream, options);
      wrong = count_wrong(side(xq), side(wq), int8_problem(x, w, y, options), stream);
    }) << what;
    ASSERT_EQ(wrong, 0u) << what;
    memory.check(stream, what);
  }
};

TEST_F(Int8MatmulTest, RandomShapesAreExact) {
  const std::vector<std::string> names = int8_matmul_kernel_names();
  for (int i = 0; i < kRandomShapes; ++i) {
    const std::int64_t m = size(700), n = size(700), k = 1 + pick(pick(4) == 0 ? 3000 : 700);
    const char* x_scheme = kSchemes[pick(2) == 0 ? 0 : pick(4)];
    const char* w_scheme = kSchemes[pick(2) == 0 ? 0 : pick(4)];
    const DeviceQuantized xq = quantized(x_scheme, m, k), wq = quantized(w_scheme, n, k);
    const bool stripes = pick(6) == 0 && !xq.scheme.asymmetric && !wq.scheme.asymmetric;
    const Int8Matrix x = stripes ? in_stripes(xq) : prepare_int8(xq, *stream_), w = prepare_int8(wq, *stream_);
    const DType out = kOutputs[pick(5)];
    Int8MatmulOptions options;
    if (out != DType::kI32) {
      if (pick(3) == 0) options.bias = floats({n});
      if (pick(3) == 0) options.activation = static_cast<Activation>(pick(4));
      if (pick(4) == 0) options.residual = floats({m, n});
      options.out_scale = std::ldexp(0.5f + static_cast<float>(pick(1000)) / 1000.0f, pick(10) - 4);
    }
    if (pick(6) == 0) options.y_layout = Layout::kCol32;
    std::int64_t gap = 0, offset = 0;
    if (pick(3) == 0) gap = pick(2) == 0 ? 16 : pick(9), offset = pick(2) == 0 ? 0 : pick(9);
    if (pick(2) == 0) {
      const bool y_stripes = options.y_layout == Layout::kCol32;
      const Tensor y = Tensor::empty(out, y_stripes ? Shape{layout_size(Layout::kCol32, m, n)} : Shape{m, n}, kDevice);
      const std::string& name = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
      for (const MatmulChoice& choice : explain_matmul(x, w, y, options))
        if (choice.name == name && choice.accepted) options.kernel = name;
      if (options.kernel.starts_with("cublaslt")) gap = offset = 0;  // into plain memory
    }
    const std::string what = "case " + std::to_string(i) + ": " + x_scheme + (stripes ? " col32" : "") + " x " + w_scheme + " " +
                             std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " -> " + std::string(name_of(out)) +
                             (options.y_layout == Layout::kCol32 ? " col32" : "") + " kernel '" + std::string(options.kernel) +
                             "' activation " + std::to_string(static_cast<int>(options.activation)) + (options.bias ? " bias" : "") +
                             (options.residual ? " residual" : "");
    ASSERT_NO_FATAL_FAILURE(expect_right(xq, x, wq, w, out, options, gap, offset, what));
  }
}

TEST_F(Int8MatmulTest, EveryRowTakesItsProducts) {
  for (const std::string& name : int8_matmul_kernel_names())
    for (const DType out : kOutputs)
      for (const Shape& s : {Shape{5, 704, 512}, Shape{130, 304, 1000}, Shape{300, 528, 2064}}) {
        const DeviceQuantized xq = quantized("int8:row", s[0], s[2]), wq = quantized("int8:row", s[1], s[2]);
        const Int8Matrix w = prepare_int8(wq, *stream_);
        Int8MatmulOptions options;
        options.kernel = name;
        for (const Int8Matrix& x : {prepare_int8(xq, *stream_), in_stripes(xq)}) {
          const Tensor y = Tensor::empty(out, {s[0], s[1]}, kDevice);
          bool accepted = false;
          for (const MatmulChoice& choice : explain_matmul(x, w, y)) accepted = accepted || (choice.name == name && choice.accepted);
          if (accepted)
            ASSERT_NO_FATAL_FAILURE(expect_right(xq, x, wq, w, out, options, 0, 0, name + " " + to_string(s)));
          else
            ASSERT_THROW(matmul(x, w, y, *stream_, options), Unsupported) << name;
        }
      }
}

/// More tiles than multiprocessors, in every row: notes, stages and turns go round several times. 4416 columns are whole blocks of what the
/// kernels store at once, and no whole tiles; 4432 are neither.
TEST_F(Int8MatmulTest, EveryRowTakesManyTiles) {
  struct {
    const char *x, *w;
    std::int64_t m, n;
    bool stripes;
  } constexpr kCases[] = {{"int8:row", "int8:row:asym", 2310, 4432, false}, {"int8:row:asym", "int8:row", 2310, 4432, false},
                          {"int8:row", "int8:row", 2310, 4416, false},      {"int8:row:asym", "int8:row", 2310, 4416, false},
                          {"int8:row", "int8:row", 2310, 4416, true},       {"int8:row", "int8:row", 2312, 4432, true}};
  for (const std::string& name : int8_matmul_kernel_names())
    for (const DType out : kOutputs)
      for (const auto& c : kCases) {
        constexpr std::int64_t kK = 528;
        const DeviceQuantized xq = quantized(c.x, c.m, kK), wq = quantized(c.w, c.n, kK);
        const Int8Matrix x = c.stripes ? in_stripes(xq) : prepare_int8(xq, *stream_), w = prepare_int8(wq, *stream_);
        Int8MatmulOptions options;
        if (xq.scheme.asymmetric && out != DType::kI32) options.bias = floats({c.n});
        if (c.stripes) options.y_layout = Layout::kCol32;
        const Tensor y = Tensor::empty(out, c.stripes ? Shape{layout_size(Layout::kCol32, c.m, c.n)} : Shape{c.m, c.n}, kDevice);
        for (const MatmulChoice& choice : explain_matmul(x, w, y, options))
          if (choice.name == name && choice.accepted) options.kernel = name;
        if (!options.kernel.empty()) {
          ASSERT_NO_FATAL_FAILURE(expect_right(xq, x, wq, w, out, options, 0, 0, name));
        }
      }
}

TEST_F(Int8MatmulTest, FewRowsMeetWeightsOfAnyNumberOfRows) {
  for (const std::int64_t m : {1, 9, 16})
    for (const std::int64_t n : {4100, 9001, 17000}) {
      const std::int64_t k = 400;
      const DeviceQuantized xq = quantized("int8:row", m, k), wq = quantized("int8:row", n, k);
      const std::string what = std::to_string(m) + "x" + std::to_string(n);
      ASSERT_NO_FATAL_FAILURE(expect_right(xq, prepare_int8(xq, *stream_), wq, prepare_int8(wq, *stream_), DType::kBf16, {}, 0, 0, what));
    }
}

TEST_F(Int8MatmulTest, GivesTheBitsOfTheCpu) {
  for (const char* x_scheme : kSchemes)
    for (const char* w_scheme : kSchemes)
      for (const DType out : kOutputs) {
        const std::int64_t m = 37, n = 150, k = 333;
        const Tensor x = random_values(DType::kF32, {m, k}, Values::kNormal, 1), w = random_values(DType::kF32, {n, k}, Values::kNormal, 2);
        const QuantizedTensor xq = narrow::quantize(x, Scheme::parse(x_scheme)), wq = narrow::quantize(w, Scheme::parse(w_scheme));
        const Tensor bias = random_values(DType::kF32, {n}, Values::kNormal, 3);
        MatmulOptions cpu;
        cpu.out = out;
        cpu.out_scale = 0.37f;
        Int8MatmulOptions gpu;
        gpu.out_scale = 0.37f;
        if (out != DType::kI32) {
          cpu.bias = bias;
          gpu.bias = to_device(bias, kDevice, *stream_);
          cpu.activation = gpu.activation = Activation::kRelu;
        }
        const Tensor y = Tensor::empty(out, {m, n}, kDevice);
        matmul(prepare_int8(to_device(xq, kDevice, *stream_), *stream_), prepare_int8(to_device(wq, kDevice, *stream_), *stream_), y,
               *stream_, gpu);
        expect_equal(narrow::matmul(xq, prepare(wq), cpu), to_host(y, *stream_),
                     std::string(x_scheme) + " x " + w_scheme + " -> " + std::string(name_of(out)));
      }
}

/// Quotients that are exact halves, scales next to powers of two, and in some rows and columns scales that are huge or no numbers.
TEST_F(Int8MatmulTest, RequantizesAtAnyScales) {
  constexpr std::int64_t kM = 270, kK = 64;
  constexpr float kSpecial[] = {INFINITY, NAN, 3e38f, 0x1p41f, 0.0f, 1e-40f};
  const auto with_scales = [&](std::int64_t rows, bool special, int first) {
    std::vector<float> scales(static_cast<std::size_t>(rows), 1.0f);
    for (std::size_t i = 0; special && i < std::size(kSpecial); ++i) scales[i * 2] = kSpecial[(i + static_cast<std::size_t>(first)) % 6];
    for (std::size_t i = 250; special && i < 254; ++i) scales[i] = 0x1p40f;
    DeviceQuantized q = quantized("int8:row", rows, kK);
    q.scales = upload(scales.data(), scales.size() * sizeof(float));
    return q;
  };
  for (const bool special : {false, true})
    for (const std::int64_t n : {496, 512}) {
      const DeviceQuantized xq = with_scales(kM, special, 0), wq = with_scales(n, special, 1);
      const Int8Matrix x = prepare_int8(xq, *stream_), w = prepare_int8(wq, *stream_);
      for (const float out_scale :
           {1.0f, 2.0f, 6.0f, 200.0f, 900.0f, 0x1.000002p7f, 0x1.00000ep7f, 0x1.fffffep6f, 0x1.02000ep7f, 0x1p-40f, 0x1p40f})
        for (const std::string& name : int8_matmul_kernel_names()) {
          Int8MatmulOptions options;
          options.out_scale = out_scale;
          for (const MatmulChoice& choice : explain_matmul(x, w, Tensor::empty(DType::kI8, {kM, n}, kDevice), options))
            if (choice.name == name && choice.accepted) options.kernel = name;
          if (options.kernel.empty()) continue;
          ASSERT_NO_FATAL_FAILURE(expect_right(xq, x, wq, w, DType::kI8, options, 0, 0,
                                               name + " / " + std::to_string(out_scale) + (special ? " special" : "")));
        }
    }
}

/// Sums of 2^23, -2^23 and next to them, beside small ones: ends that take the bits of small sums for floats leave the others to exact
/// conversions. With zero points their products with the sums of rows are as large.
TEST_F(Int8MatmulTest, SumsMayBeLarge) {
  constexpr std::int64_t kM = 270, kK = 2048, kLarge = 100;  // rows of either side, from the first on
  const auto with_codes = [&](const char* scheme, std::int64_t rows, bool either_sign) {
    DeviceQuantized q = quantized(scheme, rows, kK);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * kK));
    for (std::int64_t i = 0; i < rows * kK; ++i) {
      const std::int64_t row = i / kK;
      int code = row >= kLarge ? pick(9) - 4 : either_sign && row % 2 == 1 ? -64 : 64;
      if (row < kLarge && i % kK == 0) code += static_cast<int>(row % 3) - 1;
      codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(q.scheme.asymmetric ? code + 128 : code);
    }
    q.codes = upload(codes.data(), codes.size());
    return q;
  };
  for (const char* x_scheme : {"int8:row", "int8:row:asym"})
    for (const DType out : {DType::kI8, DType::kBf16, DType::kF16})
      for (const std::string& name : int8_matmul_kernel_names()) {
        constexpr std::int64_t kN = 512;
        const DeviceQuantized xq = with_codes(x_scheme, kM, false), wq = with_codes("int8:row", kN, true);
        const Int8Matrix x = prepare_int8(xq, *stream_), w = prepare_int8(wq, *stream_);
        Int8MatmulOptions options;
        options.out_scale = 40.0f;
        if (xq.scheme.asymmetric && out != DType::kI8) options.bias = floats({kN});
        for (const MatmulChoice& choice : explain_matmul(x, w, Tensor::empty(out, {kM, kN}, kDevice), options))
          if (choice.name == name && choice.accepted) options.kernel = name;
        if (options.kernel.empty()) continue;
        ASSERT_NO_FATAL_FAILURE(expect_right(xq, x, wq, w, out, options, 0, 0, name + " " + x_scheme + " -> " + std::string(name_of(out))));
      }
}

TEST_F(Int8MatmulTest, LinearIsTheFusedQuantizationAndTheProduct) {
  const std::int64_t m = 77, n = 240, k = 512;
  const Tensor x = random_values(DType::kBf16, {m, k}, Values::kNormal, 4), weight = random_values(DType::kBf16, {k}, Values::kNormal, 5);
  const Tensor w = random_values(DType::kF32, {n, k}, Values::kNormal, 6);
  const QuantizedTensor wq = narrow::quantize(w, Scheme::parse("int8:row"));
  FusedInput host{.op = FusedOp::kRmsNorm, .x = x};
  host.weight = weight;
  const QuantizedTensor xq = narrow::fused_quantize(host, Scheme::parse("int8:row"));
  MatmulOptions cpu;
  cpu.out = DType::kBf16;
  FusedInput input{.op = FusedOp::kRmsNorm, .x = to_device(x, kDevice, *stream_)};
  input.weight = to_device(weight, kDevice, *stream_);
  const Int8Matrix wm = prepare_int8(to_device(wq, kDevice, *stream_), *stream_);
  const Tensor y = Tensor::empty(DType::kBf16, {m, n}, kDevice);
  for (const Layout layout : {Layout::kRow, Layout::kCol32}) {
    const FusedOutput scratch = allocate_fused(Scheme::parse("int8:row"), {m, k}, kDevice, layout);
    linear(input, scratch, wm, y, *stream_);
    expect_equal(narrow::matmul(xq, prepare(wq), cpu), to_host(y, *stream_), std::string("linear ").append(name_of(layout)));
  }
}

TEST(Int8MatmulPlan, NeedsNoDevice) {
  const Scheme weight = Scheme::parse("int8:row");
  const auto chosen = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    std::string name;
    for (const MatmulChoice& choice : explain_int8_matmul(m, n, k, weight)) {
      EXPECT_FALSE(choice.reason.empty());
      if (!choice.chosen) continue;
      EXPECT_TRUE(choice.accepted);
      EXPECT_TRUE(name.empty()) << "two rows are chosen";
      name = choice.name;
    }
    return name;
  };
  EXPECT_EQ(chosen(1, 8192, 8192), "sm90_matmul_int8_int8_swapped_64x16");
  EXPECT_EQ(chosen(64, 4096, 4096), "sm90_matmul_int8_int8_64x64");
  EXPECT_EQ(chosen(2048, 1920, 1920), "sm90_matmul_int8_int8_128x240");
  EXPECT_EQ(chosen(4096, 4096, 4096), "sm90_matmul_int8_int8_128x128_pingpong");
  EXPECT_EQ(chosen(8192, 8192, 8192), "sm90_matmul_int8_int8_128x176_pingpong");
  EXPECT_TRUE(explain_int8_matmul(8, 64, 64, Scheme::parse("int4:block128")).empty());
}

TEST_F(Int8MatmulTest, RefusesWhatItCannotDoInOneSentence) {
  const Int8Matrix x = prepare_int8(quantized("int8:row", 8, 64), *stream_), w = prepare_int8(quantized("int8:row", 24, 64), *stream_);
  const Tensor y = Tensor::empty(DType::kBf16, {8, 24}, kDevice);
  EXPECT_THROW(matmul(x, prepare_int8(quantized("int8:row", 24, 80), *stream_), y, *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kU8, {8, 24}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(matmul(prepare_int8(quantized("int8:row:asym", 8, 64), *stream_),
                      prepare_int8(quantized("int8:row", 24, 64), *stream_, false), y, *stream_),
               InvalidArgument);
  Int8MatmulOptions options;
  options.bias = floats({24});
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI32, {8, 24}, kDevice), *stream_, options), InvalidArgument);
  options.bias = floats({23});
  EXPECT_THROW(matmul(x, w, y, *stream_, options), InvalidArgument);
  options.bias.reset();
  options.kernel = "sm90_matmul_int8_int8_7x7";
  EXPECT_THROW(matmul(x, w, y, *stream_, options), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
