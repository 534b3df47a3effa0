/// The device layer: graphs, streams, errors, sizes beyond 32 bits.

#include <cstring>
#include <memory>

#include <cuda_runtime_api.h>

#include "device/cuda/runtime.h"
#include "harness.h"

namespace narrow::cuda::testing {
namespace {

TEST(CudaRuntime, ErrorsNameTheCall) {
  NARROW_REQUIRE_DEVICE();
  try {
    check(cudaErrorInvalidValue, "cudaExample");
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("cudaExample"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cudaErrorInvalidValue"), std::string::npos);
  }
  EXPECT_THROW(DeviceGuard guard(device_count()), Unsupported);
  EXPECT_THROW(Buffer::allocate(std::size_t{1} << 50, kDevice), InvalidArgument);
}

TEST(CudaRuntime, RefusesWhatDoesNotFit) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Tensor x = Tensor::empty(DType::kF32, {4, 64}, kDevice);
  DeviceQuantized q = allocate_quantized(Scheme::parse("int8:row"), {4, 64}, kDevice);
  EXPECT_THROW(quantize(Tensor::empty(DType::kF32, {4, 64}), q, stream), InvalidArgument);
  EXPECT_THROW(quantize(Tensor::empty(DType::kF32, {4, 32}, kDevice), q, stream), InvalidArgument);
  EXPECT_THROW(quantize(Tensor::empty(DType::kI32, {4, 64}, kDevice), q, stream), InvalidArgument);
  EXPECT_THROW(quantize(x, q, stream, {.kernel = "no_such_kernel"}), InvalidArgument);
  q.codes = Buffer::allocate(3, kDevice);
  EXPECT_THROW(quantize(x, q, stream), InvalidArgument);
  EXPECT_THROW(quantize(x, allocate_quantized(Scheme::parse("int8:tensor"), {4, 64}, kDevice), stream, {}, {x.data(), 1}), InvalidArgument);
}

TEST(CudaRuntime, GraphReplayEqualsEager) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const Scheme& scheme : standard_schemes()) {
    const Tensor first = random_values(DType::kBf16, {40, 512}, Values::kNormal, 1),
                 second = random_values(DType::kBf16, {40, 512}, Values::kTies, 2);
    const Tensor x = to_device(first, kDevice, stream), y = Tensor::empty(DType::kF32, {40, 512}, kDevice);
    const GuardedQuantized out(scheme, {40, 512}, 0, stream);
    const Buffer workspace = Buffer::allocate(quantize_workspace(x, scheme), kDevice);
    synchronize(stream);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    quantize(x, out.q, stream, {}, {workspace.data(), workspace.size()});
    dequantize(out.q, y, stream);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (const Tensor& host : {first, second, first}) {
      copy(host, x, stream);
      ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
      const QuantizedTensor expected = quantize(host, scheme);
      expect_equal(expected, out.q, stream, scheme.to_string());
      expect_equal(dequantize(expected), to_host(y, stream), scheme.to_string());
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(CudaRuntime, EightStreamsAtOnce) {
  NARROW_REQUIRE_DEVICE();
  constexpr int kStreams = 8;
  std::vector<std::unique_ptr<OwnedStream>> streams;
  std::vector<Tensor> hosts, inputs, outputs;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<OwnedStream>());
    hosts.push_back(random_values(DType::kBf16, {64 + i, 2048}, Values::kNormal, static_cast<unsigned>(i)));
    inputs.push_back(to_device(hosts.back(), kDevice, *streams.back()));
    outputs.push_back(Tensor::empty(DType::kF32, hosts.back().shape(), kDevice));
  }
  for (const char* text : {"int8:tensor", "nvfp4", "fp8_e4m3:row", "int8:col", "int4:block128:asym", "fp6_e3m2:row"}) {
    const Scheme scheme = Scheme::parse(text);
    std::vector<DeviceQuantized> quantized;
    for (int i = 0; i < kStreams; ++i) quantized.push_back(allocate_quantized(scheme, hosts[static_cast<std::size_t>(i)].shape(), kDevice));
    for (int repeat = 0; repeat < 5; ++repeat)
      for (std::size_t i = 0; i < kStreams; ++i) {
        quantize(inputs[i], quantized[i], *streams[i]);
        dequantize(quantized[i], outputs[i], *streams[i]);
      }
    for (std::size_t i = 0; i < kStreams; ++i) {
      const QuantizedTensor expected = quantize(hosts[i], scheme);
      expect_equal(expected, quantized[i], *streams[i], text);
      expect_equal(dequantize(expected), to_host(outputs[i], *streams[i]), text);
    }
  }
}

/// More elements than 32 bits count: the first and the last rows against the CPU. Skipped in reduced runs by its name.
TEST(CudaLarge, TwoToThe31AndOne) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 1;
  for (const Shape& shape : {Shape{kCount}, Shape{(std::int64_t{1} << 20) + 1, 2048}})
    for (const char* text : {"fp8_e4m3:tensor", "int4:block128", "fp6_e3m2:row"}) {
      const Scheme scheme = Scheme::parse(text);
      if (shape.size() == 1 && scheme.granularity == Granularity::row()) continue;
      const std::int64_t count = element_count(shape), edge = 4096;
      const Tensor x = Tensor::empty(DType::kBf16, shape, kDevice), y = Tensor::empty(DType::kBf16, shape, kDevice);
      set_bytes(x.data(), 0, x.byte_size(), stream);
      const Tensor ends = random_values(DType::kBf16, {2, edge}, Values::kNormal, 8);
      copy_bytes(x.data(), ends.data(), edge * 2, stream);
      copy_bytes(x.data() + (count - edge) * 2, ends.data() + edge * 2, edge * 2, stream);
      const DeviceQuantized q = allocate_quantized(scheme, shape, kDevice);
      set_bytes(q.codes.data(), 0xA5, q.codes.size(), stream);
      quantize(x, q, stream);
      dequantize(q, y, stream);
      // What the CPU makes of the ends alone: blocks and rows are independent, and the zeros between do not move the amax.
      const std::int64_t lead = shape.size() == 1 ? count % 128 : 0;  // the last block is short, so the tail starts at a block's start
      Tensor expected_head = Tensor::empty(DType::kBf16, shape.size() == 1 ? Shape{edge} : Shape{edge / 2048, 2048});
      Tensor expected_tail = Tensor::empty(DType::kBf16, shape.size() == 1 ? Shape{edge - 128 + lead} : Shape{edge / 2048, 2048});
      if (scheme.granularity == Granularity::tensor()) {
        const Tensor both = dequantize(quantize(ends, scheme), DType::kBf16);
        std::memcpy(expected_head.data(), both.data(), expected_head.byte_size());
        std::memcpy(expected_tail.data(), both.data() + both.byte_size() - expected_tail.byte_size(), expected_tail.byte_size());
      } else {
        std::memcpy(expected_head.data(), ends.data(), expected_head.byte_size());
        std::memcpy(expected_tail.data(), ends.data() + ends.byte_size() - expected_tail.byte_size(), expected_tail.byte_size());
        expected_head = dequantize(quantize(expected_head, scheme), DType::kBf16);
        expected_tail = dequantize(quantize(expected_tail, scheme), DType::kBf16);
      }
      Tensor head = Tensor::empty(DType::kBf16, expected_head.shape()), tail = Tensor::empty(DType::kBf16, expected_tail.shape());
      copy_bytes(head.data(), y.data(), head.byte_size(), stream);
      copy_bytes(tail.data(), y.data() + (y.byte_size() - tail.byte_size()), tail.byte_size(), stream);
      synchronize(stream);
      expect_equal(expected_head, head, std::string(text) + " head");
      expect_equal(expected_tail, tail, std::string(text) + " tail");
    }
}

}  // namespace
}  // namespace narrow::cuda::testing
