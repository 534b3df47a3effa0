/// The fused neighbours on the device against the CPU's, bit for bit: every operation, type, scheme, odd shape, offset and kernel.

#include <cmath>
#include <cstring>

#include <cuda_runtime_api.h>

#include "harness.h"
#include "kernels/storage.h"
#include "narrow/cuda_fused.h"

namespace narrow::cuda::testing {
namespace {

constexpr FusedOp kOps[] = {FusedOp::kIdentity, FusedOp::kLayerNorm, FusedOp::kRmsNorm, FusedOp::kAddRmsNorm,
                            FusedOp::kSiluMul,  FusedOp::kGelu,      FusedOp::kGeluTanh};
constexpr const char* kOpNames[] = {"identity", "layer_norm", "rms_norm", "add_rms_norm", "silu_mul", "gelu", "gelu_tanh"};

bool has_other(FusedOp op) { return op == FusedOp::kSiluMul || op == FusedOp::kAddRmsNorm; }
bool is_norm(FusedOp op) { return op == FusedOp::kLayerNorm || op == FusedOp::kRmsNorm || op == FusedOp::kAddRmsNorm; }

struct Case {
  FusedOp op;
  DType dtype;
  Shape shape;
  Values values = Values::kNormal;
  std::int64_t offset = 0, gap = 0;  ///< of x and the second tensor, in elements
  std::size_t code_offset = 0;
  bool with_weight = true, with_bias = true;
  DType weight_dtype = DType::kBf16;
  float epsilon = 1e-5f;
  bool with_scales = false;
  Layout layout = Layout::kRow;
  bool transposed = false;
  unsigned seed = 1;
};

/// Bytes equal but for NaNs, which need only both be NaN.
void expect_same_values(const Tensor& expected, const Tensor& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const float a = load_value(expected.data(), expected.dtype(), i), b = load_value(actual.data(), actual.dtype(), i);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b)) << what << ": element " << i;
  }
}

Buffer on_host(const Buffer& buffer, Stream stream) {
  const Tensor bytes = to_host(Tensor::over(buffer, DType::kU8, {static_cast<std::int64_t>(buffer.size())}), stream);
  Buffer copy = Buffer::allocate(buffer.size());
  if (buffer.size() > 0) std::memcpy(copy.data(), bytes.data(), buffer.size());
  return copy;
}

void expect_bytes(const Buffer& expected, const Buffer& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(static_cast<int>(expected.data()[i]), static_cast<int>(actual.data()[i]))
        << what << ": byte " << i << " of " << expected.size();
}

/// The block scales as [blocks, padded rows].
Buffer transposed(const Buffer& scales, std::int64_t rows, std::int64_t blocks) {
  const std::int64_t padded = padded_scale_rows(rows);
  Buffer result = Buffer::allocate(static_cast<std::size_t>(padded * blocks) * 4);
  std::memset(result.data(), 0, result.size());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t block = 0; block < blocks; ++block)
      result.as<float>()[block * padded + row] = scales.as<float>()[row * blocks + block];
  return result;
}

void check(const Case& c, const char* scheme_text, Stream stream) {
  const Scheme scheme = Scheme::parse(scheme_text);
  const MatrixShape matrix = as_matrices(c.shape);
  FusedInput host{.op = c.op, .x = random_values(c.dtype, c.shape, c.values, c.seed), .epsilon = c.epsilon};
  const Tensor other = random_values(c.dtype, c.shape, c.values, c.seed + 1);
  if (is_norm(c.op) && c.with_weight) host.weight = random_values(c.weight_dtype, {matrix.cols}, Values::kNormal, c.seed + 2);
  if (c.op == FusedOp::kLayerNorm && c.with_bias) host.bias = random_values(c.weight_dtype, {matrix.cols}, Values::kNormal, c.seed + 3);
  if (c.with_scales) {
    const std::int64_t cells = scale_grid(scheme, c.shape).count();
    host.scales = Tensor::empty(DType::kF32, {cells});
    for (std::int64_t i = 0; i < cells; ++i) host.scales->as<float>()[i] = 0.003f * static_cast<float>(i % 23 + 1);
  }
  FusedInput cpu = host;
  if (has_other(c.op)) {
    cpu.other = Tensor::empty(c.dtype, c.shape);
    std::memcpy(cpu.other->data(), other.data(), other.byte_size());
  }
  LaidOutTensor expected;
  if (c.layout == Layout::kRow) {
    const QuantizedTensor rows = fused_quantize(cpu, scheme);
    expected.codes = rows.codes, expected.scales = rows.scales;
  } else {
    expected = fused_quantize(cpu, scheme, c.layout);
  }
  if (c.transposed) expected.scales = transposed(expected.scales, matrix.total_rows(), (matrix.cols + 127) / 128);

  for (const std::string& kernel : fused_quantize_kernel_names()) {
    const std::string what = std::string(kOpNames[static_cast<int>(c.op)]) + " " + std::string(name_of(c.dtype)) + " " +
                             to_string(c.shape) + " " + scheme_text + " " + kernel + " values " +
                             std::to_string(static_cast<int>(c.values)) + " offset " + std::to_string(c.offset) + " gap " +
                             std::to_string(c.gap) + (c.with_scales ? " static" : "") + (c.transposed ? " transposed" : "") +
                             (c.layout == Layout::kRow ? "" : " col32");
    const GuardedValues x(host.x, c.offset, c.gap, stream), second(other, c.offset, c.gap, stream);
    FusedInput device = host;
    device.x = x.x;
    if (has_other(c.op)) device.other = second.x;
    if (host.weight) device.weight = to_device(*host.weight, kDevice, stream);
    if (host.bias) device.bias = to_device(*host.bias, kDevice, stream);
    if (host.scales) device.scales = to_device(*host.scales, kDevice, stream);
    const Guarded codes(expected.codes.size(), c.code_offset, stream), scales(expected.scales.size(), 0, stream);
    const FusedOutput out{scheme, c.shape, c.layout, c.transposed, codes.buffer(), scales.buffer()};
    try {
      fused_quantize(device, out, stream, kernel);
    } catch (const Unsupported&) {
      continue;
    }
    expect_bytes(expected.scales, on_host(out.scales, stream), what + ": scales");
    if (::testing::Test::HasFatalFailure()) return;
    expect_bytes(expected.codes, on_host(out.codes, stream), what + ": codes");
    if (::testing::Test::HasFatalFailure()) return;
    codes.check(stream, what);
    scales.check(stream, what);
    second.memory.check(stream, what);
    if (c.op == FusedOp::kAddRmsNorm && c.gap == 0) expect_same_values(*cpu.other, to_host(second.x, stream), what + ": residual");
    if (::testing::Test::HasFatalFailure()) return;
  }
}

#define CHECK_CASE(...)            \
  do {                             \
    check(__VA_ARGS__);            \
    if (HasFatalFailure()) return; \
  } while (false)

TEST(CudaFused, EveryOpTypeAndSchemeOnOddShapes) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 1;
  for (const FusedOp op : kOps)
    for (const DType dtype : kTypes)
      for (const char* scheme : {"int8:row", "fp8_e4m3:row", "int8:block128", "fp8_e4m3:block128"})
        for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{5, 128}, Shape{14, 1000}, Shape{40, 1024}, Shape{9, 4096},
                                   Shape{2, 3, 65}, Shape{7, 3080}, Shape{37}, Shape{3, 2049}}) {
          CHECK_CASE({.op = op,
                      .dtype = dtype,
                      .shape = shape,
                      .values = static_cast<Values>(seed % 4),
                      .weight_dtype = kTypes[seed % 3],
                      .seed = seed * 10},
                     scheme, stream);
          ++seed;
        }
}

TEST(CudaFused, OffsetsAndStrides) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  struct Place {
    std::int64_t offset, gap;
    std::size_t code_offset;
  };
  unsigned seed = 5000;
  for (const FusedOp op : kOps)
    for (const DType dtype : kTypes)
      for (const Place& place : {Place{1, 0, 1}, Place{0, 8, 0}, Place{0, 3, 2}, Place{8, 16, 4}, Place{3, 5, 3}}) {
        CHECK_CASE({.op = op,
                    .dtype = dtype,
                    .shape = {19, 1160},
                    .values = static_cast<Values>(seed % 4),
                    .offset = place.offset,
                    .gap = place.gap,
                    .code_offset = place.code_offset,
                    .seed = seed},
                   seed % 2 == 0 ? "int8:row" : "fp8_e4m3:block128", stream);
        seed += 7;
      }
}

TEST(CudaFused, StaticScalesColumnStripesAndTransposedScales) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 9000;
  for (const FusedOp op : kOps)
    for (const DType dtype : kTypes)
      for (const Shape& shape : {Shape{21, 1056}, Shape{2, 6, 2000}, Shape{5, 33}}) {
        for (const char* scheme : {"int8:tensor", "int8:row", "fp8_e4m3:tensor", "fp8_e4m3:block128", "int8:block128"})
          CHECK_CASE(
              {.op = op, .dtype = dtype, .shape = shape, .values = static_cast<Values>(seed % 4), .with_scales = true, .seed = seed += 5},
              scheme, stream);
        CHECK_CASE({.op = op,
                    .dtype = dtype,
                    .shape = shape,
                    .values = static_cast<Values>(seed % 4),
                    .layout = Layout::kCol32,
                    .seed = seed += 5},
                   "int8:row", stream);
        CHECK_CASE({.op = op,
                    .dtype = dtype,
                    .shape = shape,
                    .values = static_cast<Values>(seed % 4),
                    .code_offset = 1,
                    .layout = Layout::kCol32,
                    .seed = seed += 5},
                   "int8:block128", stream);
        CHECK_CASE(
            {.op = op, .dtype = dtype, .shape = shape, .values = static_cast<Values>(seed % 4), .transposed = true, .seed = seed += 5},
            "fp8_e4m3:block128", stream);
      }
}

TEST(CudaFused, NormsWithoutWeightOrEpsilon) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  unsigned seed = 12000;
  for (const FusedOp op : {FusedOp::kLayerNorm, FusedOp::kRmsNorm, FusedOp::kAddRmsNorm})
    for (const DType dtype : kTypes)
      for (const bool weight : {false, true}) {
        CHECK_CASE({.op = op,
                    .dtype = dtype,
                    .shape = {14, 2560},
                    .values = Values::kWide,
                    .with_weight = weight,
                    .with_bias = !weight,
                    .weight_dtype = DType::kF32,
                    .epsilon = 0.0f,
                    .seed = seed},
                   "int8:row", stream);
        seed += 3;
      }
}

TEST(CudaFused, WideRowsAndManyRows) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const FusedOp op : kOps)
    for (const Shape& shape : {Shape{3, 8192}, Shape{3, 16384}, Shape{2, 40008}, Shape{3000, 256}, Shape{700, 4096}})
      CHECK_CASE({.op = op, .dtype = DType::kBf16, .shape = shape, .seed = 77}, op == FusedOp::kSiluMul ? "fp8_e4m3:block128" : "int8:row",
                 stream);
}

void check_pairs(std::initializer_list<Shape> shapes, unsigned seed) {
  const OwnedStream stream;
  for (const Shape& shape : shapes)
    for (const DType dtype : {DType::kBf16, DType::kF16})
      for (const char* scheme : {"int8:row", "fp8_e4m3:row"}) {
        check({.op = FusedOp::kLayerNorm,
               .dtype = dtype,
               .shape = shape,
               .values = static_cast<Values>(seed % 4),
               .offset = 8,
               .gap = 24,
               .weight_dtype = dtype,
               .seed = seed},
              scheme, stream);
        if (::testing::Test::HasFatalFailure()) return;
        ++seed;
      }
}

// One row, one pair, an odd row behind pairs; 1, 5 and 8 segments.
TEST(CudaFused, LayerNormOfPairsOfRows) {
  NARROW_REQUIRE_DEVICE();
  check_pairs({Shape{1, 1024}, Shape{2, 8192}, Shape{9, 5120}}, 15000);
}

// Several pairs in a thread block; 1, 4 and 16 segments.
TEST(CudaFused, LayerNormOfManyRows) {
  NARROW_REQUIRE_DEVICE();
  check_pairs({Shape{4301, 1024}, Shape{1101, 4096}, Shape{271, 16384}}, 16000);
}

TEST(CudaFused, GraphReplayEqualsEager) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Scheme scheme = Scheme::parse("fp8_e4m3:block128");
  const Tensor host = random_values(DType::kBf16, {64, 4096}, Values::kNormal, 4), x = to_device(host, kDevice, stream);
  const FusedInput input{
      .op = FusedOp::kRmsNorm, .x = x, .weight = to_device(random_values(DType::kBf16, {4096}, Values::kNormal, 5), kDevice, stream)};
  const FusedOutput eager = allocate_fused(scheme, host.shape(), kDevice), replayed = allocate_fused(scheme, host.shape(), kDevice);
  fused_quantize(input, eager, stream);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  fused_quantize(input, replayed, stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  expect_bytes(on_host(eager.codes, stream), on_host(replayed.codes, stream), "codes");
  expect_bytes(on_host(eager.scales, stream), on_host(replayed.scales, stream), "scales");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(CudaFused, RefusesWithASentence) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Tensor x = Tensor::empty(DType::kBf16, {4, 256}, kDevice);
  EXPECT_THROW(allocate_fused(Scheme::parse("fp6_e3m2:row"), {4, 256}, kDevice), Unsupported);
  EXPECT_THROW(allocate_fused(Scheme::parse("fp8_e4m3:row"), {4, 256}, kDevice, Layout::kCol32), Unsupported);
  EXPECT_THROW(allocate_fused(Scheme::parse("int8:row"), {4, 256}, kDevice, Layout::kRow, true), InvalidArgument);
  const FusedOutput out = allocate_fused(Scheme::parse("int8:row"), {4, 256}, kDevice);
  EXPECT_THROW(fused_quantize({.op = FusedOp::kSiluMul, .x = x}, out, stream), InvalidArgument);
  EXPECT_THROW(fused_quantize({.op = FusedOp::kGelu, .x = x, .weight = x}, out, stream), InvalidArgument);
  EXPECT_THROW(fused_quantize({.op = FusedOp::kGelu, .x = Tensor::empty(DType::kBf16, {4, 256})}, out, stream), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
