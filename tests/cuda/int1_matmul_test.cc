/// int1 products: bit for bit the definition on random shapes in guarded and poisoned memory, and bit for bit the CPU's quantize and
/// matmul.

#include <cmath>

#include "int1_matmul_oracle.h"
#include "narrow/matmul.h"
#include "ops/cuda_binary.h"
#include "product_test.h"

namespace narrow::cuda::testing {
namespace {

constexpr int kRandomShapes = 2000;
constexpr DType kOutputs[] = {DType::kI32, DType::kBf16, DType::kF16, DType::kF32};

class Int1MatmulTest : public CodesTest {
 protected:
  Int1MatmulTest() : CodesTest(1, 12) {}
  DeviceQuantized quantized(const char* scheme, std::int64_t rows, std::int64_t k) {
    const std::size_t unit = pick(2) == 0 ? 1 : 16;
    DeviceQuantized q{Scheme::parse(scheme), {rows, k}, piece(bytes_, rows * ((k + 7) / 8), unit), {}, {}, {}};
    q.scales = piece(scales_, (q.scheme.granularity == Granularity::row() ? rows : 1) * 4, 4);
    return q;
  }
  static CanonicalBits side(const DeviceQuantized& q) {
    return {q.codes.as<std::uint8_t>(), q.scales.as<float>(), q.scheme.granularity == Granularity::row() ? 1 : 0};
  }

  /// Multiplies into guarded memory, `offset` elements off alignment and rows `gap` elements apart, and compares every element.
  void expect_right(const DeviceQuantized& xq, const DeviceQuantized& wq, DType out, const Int1MatmulOptions& options, std::int64_t gap,
                    std::int64_t offset, const std::string& what) {
    const Stream stream = *stream_;
    const Int1Matrix x = prepare_int1(xq, stream), w = prepare_int1(wq, stream);
    const std::size_t element = static_cast<std::size_t>(bits_of(out)) / 8;
    const std::int64_t pitch = w.rows + gap;
    const Guarded memory(static_cast<std::size_t>(x.rows * pitch) * element, static_cast<std::size_t>(offset) * element, stream);
    const Tensor y = Tensor::borrow(memory.data(), out, {x.rows, w.rows}, {pitch, 1}, kDevice);
    unsigned long long wrong = 0;
    ASSERT_NO_THROW({
      matmul(x, w, y, stream, options);
      wrong = count_wrong(side(xq), side(wq), int1_problem(x, w, y, options), stream);
    }) << what;
    ASSERT_EQ(wrong, 0u) << what;
    memory.check(stream, what);
  }
};

TEST_F(Int1MatmulTest, RandomShapesAreExact) {
  const std::vector<std::string> names = int1_matmul_kernel_names();
  for (int i = 0; i < kRandomShapes; ++i) {
    const std::int64_t m = size(700), n = size(700), k = 1 + pick(pick(4) == 0 ? 9000 : 1500);
    const DeviceQuantized xq = quantized(pick(3) == 0 ? "int1:tensor" : "int1:row", m, k),
                          wq = quantized(pick(3) == 0 ? "int1:tensor" : "int1:row", n, k);
    const DType out = kOutputs[pick(4)];
    Int1MatmulOptions options;
    if (out != DType::kI32 && pick(2) == 0) {
      if (pick(3) == 0) options.bias = floats({n});
      if (pick(3) == 0) options.activation = static_cast<Activation>(pick(4));
      if (pick(4) == 0) options.residual = floats({m, n});
    }
    std::int64_t gap = 0, offset = 0;
    if (pick(3) == 0) gap = pick(2) == 0 ? 16 : pick(9), offset = pick(2) == 0 ? 0 : pick(9);
    if (pick(4) != 0) options.kernel = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
    const std::string what = "case " + std::to_string(i) + ": " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
                             " -> " + std::string(name_of(out)) + " kernel '" + std::string(options.kernel) + "' activation " +
                             std::to_string(static_cast<int>(options.activation)) + (options.bias ? " bias" : "") +
                             (options.residual ? " residual" : "");
    ASSERT_NO_FATAL_FAILURE(expect_right(xq, wq, out, options, gap, offset, what));
  }
}

TEST_F(Int1MatmulTest, EveryRowIsExactOverManyTilesAndBlocks) {
  for (const std::string& name : int1_matmul_kernel_names())
    for (const DType out : kOutputs) {
      Int1MatmulOptions options;
      options.kernel = name;
      for (const std::int64_t n : {3000, 3008})
        ASSERT_NO_FATAL_FAILURE(expect_right(quantized("int1:row", 2500, 5000), quantized("int1:row", n, 5000), out, options, 0, 0, name));
    }
}

/// Equal bits: sums of +-k, and the largest magnitudes on the way to them.
TEST_F(Int1MatmulTest, TheLargestKIsExact) {
  const std::string kernel = int1_matmul_kernel_names()[0];
  for (const int x_byte : {0, 255})
    for (const int w_byte : {0, 255})
      for (const DType out : {DType::kI32, DType::kF32}) {
        const auto filled = [&](std::int64_t rows, int byte) {
          const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * kMostBitK / 8), static_cast<std::uint8_t>(byte));
          DeviceQuantized q{Scheme::parse("int1:row"), {rows, kMostBitK}, upload(bytes.data(), bytes.size()), {}, {}, {}};
          q.scales = piece(scales_, rows * 4, 4);
          return q;
        };
        Int1MatmulOptions options;
        options.kernel = kernel;
        ASSERT_NO_FATAL_FAILURE(expect_right(filled(8, x_byte), filled(24, w_byte), out, options, 0, 0,
                                             std::to_string(x_byte) + " x " + std::to_string(w_byte)));
      }
}

TEST_F(Int1MatmulTest, GivesTheBitsOfTheCpu) {
  for (const char* x_scheme : {"int1:row", "int1:tensor"})
    for (const char* w_scheme : {"int1:row", "int1:tensor"})
      for (const DType out : kOutputs) {
        const std::int64_t m = 137, n = 150, k = 1333;
        const Tensor x = random_values(DType::kF32, {m, k}, Values::kNormal, 1), w = random_values(DType::kF32, {n, k}, Values::kNormal, 2);
        const QuantizedTensor xq = narrow::quantize(x, Scheme::parse(x_scheme)), wq = narrow::quantize(w, Scheme::parse(w_scheme));
        const Tensor bias = random_values(DType::kF32, {n}, Values::kNormal, 3);
        MatmulOptions cpu;
        cpu.out = out;
        Int1MatmulOptions gpu;
        if (out == DType::kF32) {
          cpu.bias = bias;
          gpu.bias = to_device(bias, kDevice, *stream_);
          cpu.activation = gpu.activation = Activation::kRelu;
        }
        const Tensor y = Tensor::empty(out, {m, n}, kDevice);
        matmul(prepare_int1(to_device(xq, kDevice, *stream_), *stream_), prepare_int1(to_device(wq, kDevice, *stream_), *stream_), y,
               *stream_, gpu);
        expect_equal(narrow::matmul(xq, prepare(wq), cpu), to_host(y, *stream_),
                     std::string(x_scheme) + " x " + w_scheme + " -> " + std::string(name_of(out)));
      }
}

TEST_F(Int1MatmulTest, PacksAsTheCpuQuantizes) {
  const Scheme scheme = Scheme::parse("int1:row");
  for (const DType dtype : kTypes)
    for (const Values values : {Values::kNormal, Values::kWide, Values::kTies, Values::kNonFinite})
      for (const std::int64_t k : {1, 31, 33, 128, 1000, 1024, 1025, 3000, 4096, 5001}) {
        const Tensor x = random_values(dtype, {29, k}, values, static_cast<unsigned>(k));
        narrow::QuantizeOptions options;
        options.nonfinite = NonFinite::kSaturate;
        const QuantizedTensor expected = narrow::quantize(x, scheme, options);
        const bool aligned = k % 2 == 0;  // then rows start at multiples of 16 bytes where k is a multiple of 8
        const GuardedValues source(x, aligned ? 0 : k % 3, aligned ? 0 : k % 5, *stream_);
        const Int1Matrix q = allocate_int1(29, k, kDevice);
        quantize(source.x, q, *stream_);
        const std::string what =
            std::string(name_of(dtype)) + " values " + std::to_string(static_cast<int>(values)) + " k " + std::to_string(k);
        expect_equal(expected, unprepare_int1(q, *stream_), *stream_, what);
        // Terms, padding and zeros beyond k are what prepare_int1 makes of the canonical bytes.
        const Int1Matrix prepared = prepare_int1(to_device(expected, kDevice, *stream_), *stream_);
        const auto bytes = [&](const Buffer& b) {
          return to_host(Tensor::over(b, DType::kU8, {static_cast<std::int64_t>(b.size())}), *stream_);
        };
        expect_equal(bytes(prepared.terms), bytes(q.terms), what + ": terms");
        expect_equal(bytes(prepared.codes), bytes(q.codes), what + ": codes");
      }
}

TEST_F(Int1MatmulTest, PreparingHasAnExactInverse) {
  for (const char* scheme : {"int1:row", "int1:tensor"})
    for (const std::int64_t k : {7, 128, 300}) {
      const QuantizedTensor q = narrow::quantize(random_values(DType::kF32, {300, k}, Values::kNormal, 5), Scheme::parse(scheme));
      expect_equal(q, unprepare_int1(prepare_int1(to_device(q, kDevice, *stream_), *stream_), *stream_), *stream_, scheme);
    }
}

TEST_F(Int1MatmulTest, RefusesWhatItCannotDoInOneSentence) {
  const Int1Matrix x = prepare_int1(quantized("int1:row", 8, 64), *stream_), w = prepare_int1(quantized("int1:row", 24, 64), *stream_);
  const Tensor y = Tensor::empty(DType::kBf16, {8, 24}, kDevice);
  EXPECT_THROW(matmul(x, prepare_int1(quantized("int1:row", 24, 80), *stream_), y, *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kBf16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kU8, {8, 24}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(quantize(Tensor::empty(DType::kF32, {9, 64}, kDevice), x, *stream_), InvalidArgument);
  EXPECT_THROW(prepare_int1(allocate_quantized(Scheme::parse("int1:block64"), {8, 64}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(prepare_int1(allocate_quantized(Scheme::parse("int8:row"), {8, 64}, kDevice), *stream_), Unsupported);
  Int1MatmulOptions options;
  options.bias = floats({24});
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI32, {8, 24}, kDevice), *stream_, options), InvalidArgument);
  options.bias.reset();
  options.kernel = "sm90_matmul_int1_int1_7x7";
  EXPECT_THROW(matmul(x, w, y, *stream_, options), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
