/// Products of int8 activations with int4 weights: bit for bit the CPU's matmul on random shapes in guarded and poisoned memory.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "narrow/matmul.h"
#include "ops/cuda_matmul.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

constexpr int kRandomShapes = 500;
constexpr const char* kWeights[] = {"int4:block128", "int4:block32",
                                    "int4:block64",  "int4:block256:asym",
                                    "int4:block96",  "int4:row",
                                    "int4:tensor",   "int4:block128:asym",
                                    "int4:row:asym", "int4:block160:scale=fp16",
                                    "int4:block256", "int4:block32:asym",
                                    "int4:8x64",     "int4:block64:asym:scale=bf16"};
constexpr const char* kActivations[] = {"int8:row", "int8:tensor"};
constexpr DType kOutputs[] = {DType::kBf16, DType::kF16, DType::kF32, DType::kI8};

class Int4MatmulTest : public ProductTest {
 protected:
  Int4MatmulTest() : ProductTest(48) {}

  /// Quantized values; with `any_codes` every code that four or eight bits hold instead.
  QuantizedTensor quantized(const char* scheme, std::int64_t rows, std::int64_t k, bool any_codes) {
    const Tensor values = random_values(DType::kF32, {rows, k}, Values::kNormal, static_cast<unsigned>(generator_()));
    QuantizedTensor q = narrow::quantize(values, Scheme::parse(scheme));
    if (any_codes && k % 2 == 0)
      for (std::size_t i = 0; i < q.codes.size(); ++i) q.codes.data()[i] = static_cast<std::byte>(generator_() >> 9);
    return q;
  }

  struct Case {
    QuantizedTensor x, w;
    DType out = DType::kBf16;
    MatmulOptions options;  ///< of the CPU
    std::string kernel;
    std::int64_t gap = 0, offset = 0;
  };

  void expect_right(const Case& c, const std::string& what) {
    const Stream stream = *stream_;
    const std::int64_t m = c.x.shape[0], n = c.w.shape[0], pitch = n + c.gap;
    const std::size_t element = static_cast<std::size_t>(bits_of(c.out)) / 8;
    Int8MatmulOptions options;
    options.activation = c.options.activation;
    options.out_scale = c.options.out_scale;
    options.kernel = c.kernel;
    if (c.options.bias) options.bias = to_device(*c.options.bias, kDevice, stream);
    if (c.options.residual) options.residual = to_device(*c.options.residual, kDevice, stream);
    const Guarded memory(static_cast<std::size_t>(m * pitch) * element, static_cast<std::size_t>(c.offset) * element, stream);
    const Tensor y = Tensor::borrow(memory.data(), c.out, {m, n}, {pitch, 1}, kDevice);
    const Int4Weight w = prepare_int4(to_device(c.w, kDevice, stream), stream);
    ASSERT_NO_THROW(matmul(prepare_int8(to_device(c.x, kDevice, stream), stream, false), w, y, stream, options)) << what;
    Tensor got = Tensor::empty(c.out, {m, n});
    std::vector<std::byte> rows(static_cast<std::size_t>(m * pitch) * element);
    copy_bytes(rows.data(), memory.data(), rows.size(), stream);
    synchronize(stream);
    for (std::int64_t row = 0; row < m; ++row)
      std::memcpy(got.data() + static_cast<std::size_t>(row * n) * element, rows.data() + static_cast<std::size_t>(row * pitch) * element,
                  static_cast<std::size_t>(n) * element);
    MatmulOptions cpu = c.options;
    cpu.out = c.out;
    ASSERT_NO_FATAL_FAILURE(expect_equal(narrow::matmul(c.x, prepare(c.w), cpu), got, what));
    memory.check(stream, what);
  }

  static bool takes(const Case& c, const std::string& name) {
    for (const MatmulChoice& choice : explain_int4_matmul(c.x.shape[0], c.w.shape[0], c.w.shape[1], c.w.scheme))
      if (choice.name == name) return choice.accepted;
    return false;
  }
};

std::string describe(const QuantizedTensor& x, const QuantizedTensor& w, DType out, const std::string& kernel) {
  return x.scheme.to_string() + " " + to_string(x.shape) + " x " + w.scheme.to_string() + " " + to_string(w.shape) + " -> " +
         std::string(name_of(out)) + " kernel '" + kernel + "'";
}

TEST_F(Int4MatmulTest, RandomShapesGiveTheBitsOfTheCpu) {
  const std::vector<std::string> names = int4_matmul_kernel_names();
  for (int i = 0; i < kRandomShapes; ++i) {
    const std::int64_t m = size(pick(2) == 0 ? 20 : 300), n = size(300), k = 1 + pick(pick(4) == 0 ? 3000 : 700);
    Case c{quantized(kActivations[pick(2)], m, k, pick(2) == 0),
           quantized(kWeights[pick(std::size(kWeights))], n, k, pick(2) == 0),
           kOutputs[pick(4)],
           {},
           {}};
    if (pick(3) == 0) c.options.bias = random_values(DType::kF32, {n}, Values::kNormal, static_cast<unsigned>(i));
    if (pick(3) == 0) c.options.activation = Activation::kRelu;
    if (pick(3) == 0) c.options.residual = random_values(kTypes[pick(3)], {m, n}, Values::kNormal, static_cast<unsigned>(i) + 1);
    c.options.out_scale = std::ldexp(0.5f + static_cast<float>(pick(1000)) / 1000.0f, pick(10) - 4);
    if (pick(3) == 0) c.gap = pick(9), c.offset = pick(9);
    if (pick(3) != 0) c.kernel = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
    if (!takes(c, c.kernel)) c.kernel.clear();
    ASSERT_NO_FATAL_FAILURE(expect_right(c, "case " + std::to_string(i) + ": " + describe(c.x, c.w, c.out, c.kernel)));
  }
}

TEST_F(Int4MatmulTest, EveryRowTakesItsProducts) {
  for (const std::string& name : int4_matmul_kernel_names())
    for (const char* weight : kWeights)
      for (const Shape& s : {Shape{5, 160, 512}, Shape{130, 304, 1000}, Shape{64, 128, 2048}}) {
        const Case c{quantized("int8:row", s[0], s[2], true), quantized(weight, s[1], s[2], true), DType::kBf16, {}, name};
        if (takes(c, name)) {
          ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c.x, c.w, c.out, name)));
        } else {
          const Int8Matrix x = prepare_int8(to_device(c.x, kDevice, *stream_), *stream_);
          const Tensor y = Tensor::empty(c.out, {s[0], s[1]}, kDevice);
          Int8MatmulOptions options;
          options.kernel = name;
          ASSERT_THROW(matmul(x, prepare_int4(to_device(c.w, kDevice, *stream_), *stream_), y, *stream_, options), Unsupported) << name;
        }
      }
}

/// So many rows and columns that thread blocks take several tiles and rings wrap around.
TEST_F(Int4MatmulTest, LongAndTallProducts) {
  for (const Shape& s : {Shape{300, 9000, 256}, Shape{16, 20000, 384}, Shape{130, 192, 9000}, Shape{2100, 1040, 512}})
    for (const char* weight : {"int4:block128", "int4:block256:asym", "int4:row"}) {
      const Case c{quantized("int8:row", s[0], s[2], true), quantized(weight, s[1], s[2], true), DType::kF32, {}, {}};
      ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c.x, c.w, c.out, {})));
    }
}

/// The largest sums that a scale can have, of either sign.
TEST_F(Int4MatmulTest, SumsOfTheLargestCodesAreExact) {
  for (const std::string& name : int4_matmul_kernel_names())
    for (const int x_code : {0x80, 0x7F})
      for (const int w_code : {0x88, 0x77}) {
        Case c{quantized("int8:row", 20, 1024, false), quantized("int4:block256", 70, 1024, false), DType::kF32, {}, name};
        std::memset(c.x.codes.data(), x_code, c.x.codes.size());
        std::memset(c.w.codes.data(), w_code, c.w.codes.size());
        ASSERT_NO_FATAL_FAILURE(expect_right(c, name));
      }
}

TEST_F(Int4MatmulTest, SmoothActivationsAreClose) {
  for (const Activation activation : {Activation::kGelu, Activation::kSilu}) {
    const QuantizedTensor x = quantized("int8:row", 37, 512, false), w = quantized("int4:block128", 150, 512, false);
    MatmulOptions cpu;
    cpu.activation = activation;
    Int8MatmulOptions gpu;
    gpu.activation = activation;
    const Tensor y = Tensor::empty(DType::kF32, {37, 150}, kDevice);
    matmul(prepare_int8(to_device(x, kDevice, *stream_), *stream_, false), prepare_int4(to_device(w, kDevice, *stream_), *stream_), y,
           *stream_, gpu);
    const Tensor expected = narrow::matmul(x, prepare(w), cpu), actual = to_host(y, *stream_);
    for (std::int64_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual.as<float>()[i], expected.as<float>()[i], 8e-6f * (std::abs(expected.as<float>()[i]) + 1.0f)) << i;
  }
}

TEST_F(Int4MatmulTest, PreparedWeightsComeBackBitForBit) {
  for (const char* weight : kWeights)
    for (const Shape& shape : {Shape{32, 128}, Shape{70, 333}, Shape{1, 1}, Shape{129, 1000}}) {
      const QuantizedTensor w = quantized(weight, shape[0], shape[1], false);
      const DeviceQuantized back = unprepare_int4(prepare_int4(to_device(w, kDevice, *stream_), *stream_), *stream_);
      expect_equal(w, back, *stream_, std::string(weight) + " " + to_string(shape));
    }
}

TEST_F(Int4MatmulTest, RefusesWhatItCannotDoInOneSentence) {
  const auto device = [&](const char* scheme, std::int64_t rows, std::int64_t k) {
    return to_device(quantized(scheme, rows, k, false), kDevice, *stream_);
  };
  const Int8Matrix x = prepare_int8(device("int8:row", 8, 64), *stream_);
  const Int4Weight w = prepare_int4(device("int4:block32", 24, 64), *stream_);
  const Tensor y = Tensor::empty(DType::kBf16, {8, 24}, kDevice);
  EXPECT_THROW(prepare_int4(device("int4:block20", 24, 64), *stream_), Unsupported);
  EXPECT_THROW(prepare_int4(device("int8:row", 24, 64), *stream_), Unsupported);
  EXPECT_THROW(matmul(x, prepare_int4(device("int4:block32", 24, 80), *stream_), y, *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI32, {8, 24}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(matmul(prepare_int8(device("int8:row:asym", 8, 64), *stream_), w, y, *stream_), Unsupported);
  Int8MatmulOptions options;
  options.kernel = "mma_matmul_int8_int4_7x7";
  EXPECT_THROW(matmul(x, w, y, *stream_, options), InvalidArgument);
}

TEST(Int4MatmulPlan, NeedsNoDevice) {
  const auto chosen = [](std::int64_t m, std::int64_t n, std::int64_t k, const char* scheme) {
    std::string name;
    for (const MatmulChoice& choice : explain_int4_matmul(m, n, k, Scheme::parse(scheme))) {
      EXPECT_FALSE(choice.reason.empty());
      if (choice.chosen) name = choice.name;
    }
    return name;
  };
  EXPECT_EQ(chosen(1, 8192, 8192, "int4:block128"), "mma_matmul_int8_int4_few_rows");
  EXPECT_EQ(chosen(64, 8192, 8192, "int4:row"), "sm90_matmul_int8_int4_64x64");
  EXPECT_EQ(chosen(4096, 4096, 4096, "int4:block128:asym"), "sm90_matmul_int8_int4_128x128");
  EXPECT_EQ(chosen(4096, 4096, 4096, "int4:block64:asym"), "mma_matmul_int8_int4_128x128");
  EXPECT_EQ(chosen(16, 4096, 4096, "int4:block32"), "mma_matmul_int8_int4_few_rows");
  EXPECT_TRUE(explain_int4_matmul(8, 64, 64, Scheme::parse("int8:row")).empty());
  EXPECT_TRUE(explain_int4_matmul(8, 64, 64, Scheme::parse("int4:block24")).empty());
}

}  // namespace
}  // namespace narrow::cuda::testing
