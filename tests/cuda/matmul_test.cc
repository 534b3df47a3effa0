/// fp8 products against the exact product in double precision, element by element, in guarded and poisoned memory.

#include <cmath>
#include <cstdio>

#include "matmul_oracle.h"
#include "ops/cuda_matmul.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

constexpr int kRandomShapes = 2000, kRandomGroups = 240;

/// Codes and scales on the device, from which cases borrow pieces at random places.
class Pool {
 public:
  explicit Pool(Stream stream) {
    std::mt19937 generator(20261115);
    std::vector<std::uint8_t> e4m3(kBytes), e5m2(kBytes);
    std::vector<float> scales(kScales);
    for (std::size_t i = 0; i < kBytes; ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(generator());
      e4m3[i] = (bits & 0x7Fu) == 0x7Fu ? std::uint8_t{0x80} : static_cast<std::uint8_t>(bits);
      e5m2[i] = (bits >> 8 & 0x7Cu) == 0x7Cu ? std::uint8_t{0} : static_cast<std::uint8_t>(bits >> 8);
    }
    for (float& scale : scales) scale = std::ldexp(0.5f + static_cast<float>(generator() % 1024) / 1024.0f, -6);
    const auto upload = [&](const void* data, std::size_t size) {
      const Buffer buffer = Buffer::allocate(size, kDevice);
      copy_bytes(buffer.data(), data, size, stream);
      synchronize(stream);
      return buffer;
    };
    e4m3_ = upload(e4m3.data(), kBytes);
    e5m2_ = upload(e5m2.data(), kBytes);
    scales_ = upload(scales.data(), kScales * sizeof(float));
  }

  Fp8Matrix matrix(bool e5m2, const char* scaling, std::int64_t groups, std::int64_t rows, std::int64_t k, std::mt19937& generator) const {
    Fp8Matrix m{Scheme::parse(std::string(e5m2 ? "fp8_e5m2:" : "fp8_e4m3:") + scaling), groups, rows, k, (k + 15) / 16 * 16, 0, {}, {}};
    const std::int64_t blocks = (k + 127) / 128, all = groups * rows;
    std::int64_t scales = 1;
    if (m.scheme.granularity == Granularity::row()) scales = all;
    if (m.scheme.granularity == Granularity::block(128)) m.scale_rows = groups * padded_scale_rows(rows), scales = blocks * m.scale_rows;
    if (m.scheme.granularity == Granularity::block(128, 128)) scales = groups * ((rows + 127) / 128) * blocks;
    m.codes = piece(e5m2 ? e5m2_ : e4m3_, static_cast<std::size_t>(all * m.pitch), generator);
    m.scales = piece(scales_, static_cast<std::size_t>(scales) * sizeof(float), generator);
    return m;
  }
  Tensor floats(std::int64_t count, std::mt19937& generator) const {
    return Tensor::over(piece(scales_, static_cast<std::size_t>(count) * sizeof(float), generator), DType::kF32, {count});
  }

 private:
  static Buffer piece(const Buffer& from, std::size_t size, std::mt19937& generator) {
    if (size > from.size()) throw InvalidArgument("the pool is too small for this case");
    const std::size_t places = (from.size() - size) / 16 + 1;
    return Buffer::borrow(from.data() + generator() % places * 16, size, kDevice);
  }
  static constexpr std::size_t kBytes = std::size_t{24} << 20, kScales = std::size_t{4} << 20;
  Buffer e4m3_, e5m2_, scales_;
};

struct Scales {
  const char* x;
  const char* w;
};
constexpr Scales kScalings[] = {{"block128", "128x128"}, {"tensor", "tensor"}, {"row", "row"},
                                {"row", "tensor"},       {"tensor", "row"},    {"block128", "block128"}};
constexpr const char* kPingPong[] = {"sm90_matmul_fp8_fp8_128x128_pingpong", "sm90_matmul_fp8_fp8_128x176_pingpong"};
constexpr DType kOutputs[] = {DType::kBf16, DType::kF32, DType::kF16, DType::kF8E4m3, DType::kF8E5m2};

class MatmulTest : public ProductTest {
 protected:
  MatmulTest() : ProductTest(7) {}
  void SetUp() override {
    ProductTest::SetUp();
    if (!IsSkipped()) pool_ = std::make_unique<Pool>(*stream_);
  }

  struct Case {
    Fp8Matrix x, w;
    Shape y;
    DType out = DType::kBf16;
    Fp8MatmulOptions options;
    std::int64_t row_gap = 0, offset = 0;  ///< of y, in elements
  };

  /// Runs the product into guarded memory and compares every element.
  void expect_right(Case& c, const std::string& what) {
    const Stream stream = *stream_;
    const std::size_t element = static_cast<std::size_t>(bits_of(c.out)) / 8;
    const std::int64_t n = c.y.back(), rows = element_count(c.y) / std::max<std::int64_t>(n, 1), pitch = n + c.row_gap;
    const Guarded memory(static_cast<std::size_t>(rows * pitch) * element, static_cast<std::size_t>(c.offset) * element, stream);
    Shape strides = c.y.size() == 2 ? Shape{pitch, 1} : Shape{};
    const Tensor y = Tensor::borrow(memory.data(), c.out, c.y, strides, kDevice);
    Tensor old;
    if (c.options.accumulate) {
      old = Tensor::empty(DType::kF32, {rows * pitch}, kDevice);
      copy_bytes(memory.data(), pool_->floats(rows * pitch, generator_).data(), static_cast<std::size_t>(rows * pitch) * 4, stream);
      copy_bytes(old.data(), memory.data(), static_cast<std::size_t>(rows * pitch) * 4, stream);
    }
    MatmulErrors errors;
    ASSERT_NO_THROW({
      matmul(c.x, c.w, y, stream, c.options);
      errors = compare_with_oracle(fp8_problem(c.x, c.w, y, c.options), c.options.accumulate ? old.as<float>() : nullptr, stream);
    }) << what;
    ASSERT_EQ(errors.outside, 0u) << what << ": worst share of the bound " << errors.worst_share;
    ASSERT_EQ(errors.touched, 0u) << what << ": rows outside the groups were written";
    memory.check(stream, what);
    worst_share_ = std::max(worst_share_, errors.worst_share);
    if (c.out == DType::kF32 && c.options.activation == Activation::kNone && !c.options.accumulate && !c.options.residual &&
        !c.options.bias)
      worst_relative_ = std::max(worst_relative_, errors.worst_relative);
  }

  void add_epilogue(Case& c) {
    const std::int64_t n = c.y.back();
    if (pick(3) == 0) c.options.bias = pool_->floats(n, generator_);
    if (pick(3) == 0) c.options.activation = static_cast<Activation>(pick(4));
    if (pick(4) == 0) c.options.residual = pool_->floats(element_count(c.y), generator_).reshape(c.y);
    if (c.out == DType::kF32 && pick(3) == 0) c.options.accumulate = true;
    c.options.fast_accumulation = pick(3) == 0;
    if (bits_of(c.out) == 8) c.options.out_scale = std::ldexp(1.0f, pick(8) - 4);
  }

  std::string describe(const Case& c) const {
    return c.x.scheme.to_string() + " x " + c.w.scheme.to_string() + " " + std::to_string(c.x.groups) + "x" + std::to_string(c.x.rows) +
           " x " + std::to_string(c.w.rows) + " x " + std::to_string(c.x.k) + " -> " + std::string(name_of(c.out)) + " kernel '" +
           std::string(c.options.kernel) + "' activation " + std::to_string(static_cast<int>(c.options.activation)) +
           (c.options.bias ? " bias" : "") + (c.options.residual ? " residual" : "") + (c.options.accumulate ? " accumulate" : "");
  }

  std::unique_ptr<Pool> pool_;
  double worst_share_ = 0.0, worst_relative_ = 0.0;
};

TEST_F(MatmulTest, RandomShapesStayInsideTheBound) {
  const std::vector<std::string> names = fp8_matmul_kernel_names();
  for (int i = 0; i < kRandomShapes; ++i) {
    const Scales& scales = kScalings[pick(2) == 0 ? 0 : pick(6)];
    const int formats = pick(3) == 0 ? 1 + pick(2) : 0;
    const std::int64_t m = size(700), n = size(700), k = 1 + pick(pick(4) == 0 ? 3000 : 700);
    Case c{pool_->matrix(formats == 1, scales.x, 1, m, k, generator_),
           pool_->matrix(formats == 2, scales.w, 1, n, k, generator_),
           {m, n},
           kOutputs[pick(5)],
           {},
           0,
           0};
    add_epilogue(c);
    if (pick(3) == 0) c.row_gap = pick(2) == 0 ? 8 : pick(9), c.offset = pick(2) == 0 ? 0 : pick(9);
    if (c.options.residual) c.row_gap = 0;
    if (pick(2) == 0) {
      c.options.kernel = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
      bool accepted = false;
      const Tensor y = Tensor::empty(c.out, c.y, kDevice);
      for (const MatmulChoice& choice : explain_matmul(c.x, c.w, y, {.fast_accumulation = c.options.fast_accumulation}))
        accepted = accepted || (choice.name == c.options.kernel && choice.accepted);
      if (!accepted) c.options.kernel = {};
      if (c.options.kernel.starts_with("cublaslt")) {  // bare products into plain memory
        c.options = {.fast_accumulation = c.options.fast_accumulation, .kernel = c.options.kernel};
        c.row_gap = c.offset = 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_right(c, "case " + std::to_string(i) + ": " + describe(c)));
  }
  std::printf("worst share of the bound %.3f, worst error in fp32 %.3g of sum |x||w|\n", worst_share_, worst_relative_);
}

TEST_F(MatmulTest, EveryRowTakesItsProducts) {
  for (const std::string& name : fp8_matmul_kernel_names())
    for (const Scales& scales : kScalings)
      for (int formats = 0; formats < 3; ++formats)
        for (const Shape& s : {Shape{5, 700, 512}, Shape{130, 300, 1000}, Shape{300, 520, 2064}}) {
          Case c{pool_->matrix(formats == 1, scales.x, 1, s[0], s[2], generator_),
                 pool_->matrix(formats == 2, scales.w, 1, s[1], s[2], generator_),
                 {s[0], s[1]},
                 DType::kBf16,
                 {},
                 0,
                 0};
          c.options.kernel = name;
          const Tensor y = Tensor::empty(c.out, c.y, kDevice);
          bool accepted = false;
          for (const MatmulChoice& choice : explain_matmul(c.x, c.w, y, {}))
            accepted = accepted || (choice.name == name && choice.accepted);
          if (accepted)
            ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
          else
            ASSERT_THROW(matmul(c.x, c.w, y, *stream_, c.options), Unsupported) << describe(c);
        }
}

/// More tiles than multiprocessors, in every row: notes, stages and turns go round several times.
TEST_F(MatmulTest, EveryRowTakesManyTiles) {
  for (const std::string& name : fp8_matmul_kernel_names())
    for (const Scales& scales : {kScalings[0], kScalings[2]})
      for (const DType out : kOutputs) {
        const std::int64_t m = 2310, n = 4432, k = 528;
        Case c{pool_->matrix(false, scales.x, 1, m, k, generator_),
               pool_->matrix(false, scales.w, 1, n, k, generator_),
               {m, n},
               out,
               {.fast_accumulation = true},
               0,
               0};
        for (const MatmulChoice& choice : explain_matmul(c.x, c.w, Tensor::empty(out, c.y, kDevice), c.options))
          if (choice.name == name && choice.accepted) c.options.kernel = name;
        if (!c.options.kernel.empty()) {
          ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
        }
      }
}

TEST_F(MatmulTest, FewRowsMeetWeightsOfAnyNumberOfRows) {
  for (const Scales& scales : {kScalings[0], kScalings[1], kScalings[2]})
    for (const std::int64_t m : {1, 9, 16})
      for (const std::int64_t n : {4100, 9001, 17000}) {
        const std::int64_t k = 400;
        Case c{pool_->matrix(false, scales.x, 1, m, k, generator_),
               pool_->matrix(false, scales.w, 1, n, k, generator_),
               {m, n},
               DType::kBf16,
               {},
               0,
               0};
        c.options.kernel = "sm90_matmul_fp8_fp8_few_rows";
        ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
      }
}

TEST_F(MatmulTest, GroupsOfRowsNeedNoAlignment) {
  for (int i = 0; i < kRandomGroups; ++i) {
    const bool counts = i % 2 == 1;
    const Scales& scales = kScalings[pick(2) == 0 ? 0 : pick(6)];
    const std::int64_t groups = 1 + pick(i % 20 == 0 ? 256 : 9), n = 8 * (1 + pick(30)) + (pick(3) == 0 ? pick(8) : 0),
                       k = 16 * (1 + pick(30));
    const std::int64_t most = i % 20 == 0 ? 20 : 300;
    std::vector<std::int32_t> numbers;
    std::int64_t total = counts ? 0 : pick(3);
    if (!counts) numbers.push_back(static_cast<std::int32_t>(total));
    for (std::int64_t g = 0; g < groups; ++g) {
      const int rows = pick(3) == 0 ? 0 : pick(static_cast<int>(most) + 1);
      total += rows;
      numbers.push_back(static_cast<std::int32_t>(counts ? rows : total));
    }
    const std::int64_t m = counts ? most : total + pick(5);
    if (m == 0) continue;
    const Tensor table =
        to_device(Tensor::borrow(numbers.data(), DType::kI32, {static_cast<std::int64_t>(numbers.size())}), kDevice, *stream_);
    Case c{pool_->matrix(false, scales.x, counts ? groups : 1, m, k, generator_),
           pool_->matrix(false, scales.w, groups, n, k, generator_),
           counts ? Shape{groups, m, n} : Shape{m, n},
           kOutputs[pick(5)],
           {},
           0,
           0};
    if (bits_of(c.out) == 8) c.options.out_scale = 4.0f;
    if (pick(3) == 0) c.options.bias = pool_->floats(n, generator_);
    (counts ? c.options.row_counts : c.options.row_offsets) = table;
    if (&scales != &kScalings[0] && &scales != &kScalings[5] && pick(2) == 0)
      c.options.fast_accumulation = true, c.options.kernel = kPingPong[pick(2)];
    ASSERT_NO_FATAL_FAILURE(expect_right(c, "groups, case " + std::to_string(i) + ": " + describe(c)));
  }
}

TEST_F(MatmulTest, GroupsAlongDepthAccumulateGradients) {
  for (int i = 0; i < kRandomGroups / 2; ++i) {
    const Scales& scales = kScalings[pick(2) == 0 ? 5 : 1 + pick(2)];
    const int most = i % 10 == 0 ? 1500 : 300;
    const std::int64_t groups = 1 + pick(6), m = size(most), n = size(most);
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t g = 0; g < groups; ++g) offsets.push_back(offsets.back() + (pick(3) == 0 ? 0 : 128 * pick(5)));
    const std::int64_t k = offsets.back();
    if (k == 0) continue;
    const Tensor table = to_device(Tensor::borrow(offsets.data(), DType::kI32, {groups + 1}), kDevice, *stream_);
    Case c{pool_->matrix(false, scales.x, 1, m, k, generator_),
           pool_->matrix(false, scales.w, 1, n, k, generator_),
           {groups, m, n},
           pick(2) == 0 ? DType::kF32 : DType::kBf16,
           {},
           0,
           0};
    c.options.accumulate = c.out == DType::kF32 && pick(2) == 0;
    c.options.depth_offsets = table;
    if (&scales != &kScalings[5] && pick(2) == 0) c.options.fast_accumulation = true, c.options.kernel = kPingPong[pick(2)];
    ASSERT_NO_FATAL_FAILURE(expect_right(c, "depth, case " + std::to_string(i) + ": " + describe(c)));
  }
}

TEST_F(MatmulTest, QuantizedTensorsOfAnyDepthMultiplyAsTheirValues) {
  for (const Scales& scales : kScalings)
    for (const std::int64_t k : {45, 128, 200}) {
      const Tensor x = random_values(DType::kF32, {17, k}, Values::kNormal, 1), w = random_values(DType::kF32, {33, k}, Values::kNormal, 2);
      const Scheme x_scheme = Scheme::parse(std::string("fp8_e4m3:") + scales.x),
                   w_scheme = Scheme::parse(std::string("fp8_e4m3:") + scales.w);
      const QuantizedTensor xq = narrow::quantize(x, x_scheme), wq = narrow::quantize(w, w_scheme);
      const Tensor xd = narrow::dequantize(xq), wd = narrow::dequantize(wq);
      const Fp8Matrix xm = prepare_fp8(to_device(xq, kDevice, *stream_), *stream_),
                      wm = prepare_fp8(to_device(wq, kDevice, *stream_), *stream_);
      const Tensor y = Tensor::empty(DType::kF32, {17, 33}, kDevice);
      matmul(xm, wm, y, *stream_);
      const Tensor host = to_host(y, *stream_);
      for (std::int64_t i = 0; i < 17; ++i)
        for (std::int64_t j = 0; j < 33; ++j) {
          double sum = 0, magnitude = 0;
          for (std::int64_t l = 0; l < k; ++l) {
            const double product = static_cast<double>(xd.as<float>()[i * k + l]) * wd.as<float>()[j * k + l];
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(host.as<float>()[i * 33 + j], sum, std::ldexp(magnitude, -10))
              << scales.x << " x " << scales.w << " k " << k << " at " << i << ", " << j;
        }
    }
}

TEST_F(MatmulTest, RepeatsBitForBit) {
  for (const Shape& s : {Shape{64, 2112, 7168}, Shape{300, 1000, 2064}, Shape{16, 4096, 4096}}) {
    const Fp8Matrix x = pool_->matrix(false, "block128", 1, s[0], s[2], generator_),
                    w = pool_->matrix(false, "128x128", 1, s[1], s[2], generator_);
    const Tensor first = Tensor::empty(DType::kF32, {s[0], s[1]}, kDevice), again = Tensor::empty(DType::kF32, {s[0], s[1]}, kDevice);
    matmul(x, w, first, *stream_);
    for (int i = 0; i < 5; ++i) {
      matmul(x, w, again, *stream_);
      expect_equal(to_host(first, *stream_), to_host(again, *stream_), to_string(s));
    }
  }
}

TEST_F(MatmulTest, RefusesWhatItCannotDoInOneSentence) {
  const Fp8Matrix x = pool_->matrix(false, "block128", 1, 8, 64, generator_), w = pool_->matrix(false, "128x128", 1, 24, 64, generator_);
  const Tensor y = Tensor::empty(DType::kBf16, {8, 24}, kDevice);
  EXPECT_THROW(matmul(x, pool_->matrix(false, "128x128", 1, 24, 80, generator_), y, *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, pool_->matrix(false, "row", 1, 24, 64, generator_), y, *stream_), Unsupported);
  EXPECT_THROW(matmul(pool_->matrix(true, "row", 1, 8, 64, generator_), pool_->matrix(true, "row", 1, 24, 64, generator_), y, *stream_),
               Unsupported);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI8, {8, 24}, kDevice), *stream_), Unsupported);
  Fp8MatmulOptions accumulate;
  accumulate.accumulate = true;
  EXPECT_THROW(matmul(x, w, y, *stream_, accumulate), InvalidArgument);
  Fp8MatmulOptions unknown;
  unknown.kernel = "sm90_matmul_fp8_fp8_7x7";
  EXPECT_THROW(matmul(x, w, y, *stream_, unknown), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
