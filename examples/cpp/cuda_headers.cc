/// Every CUDA header of narrow by its main function, in a few lines each. Needs a device; without one it says so.   cuda_headers

#include <cmath>
#include <cstdio>

#include <narrow/cuda.h>
#include <narrow/cuda_binary.h>
#include <narrow/cuda_fused.h>
#include <narrow/cuda_matmul.h>
#include <narrow/cuda_msfp.h>
#include <narrow/cuda_training.h>
#include <narrow/cuda_weights.h>
#include <narrow/model_bench.h>
#include <narrow/narrow.h>
#include <narrow/tuned_kernels.h>

namespace {

using namespace narrow;

constexpr std::int64_t kRows = 64, kOutputs = 256, kDepth = 512;
constexpr Device kGpu = Device::cuda(0);

/// Smooth values of every sign on the device, [rows, cols].
Tensor values(std::int64_t rows, std::int64_t cols, DType dtype, cuda::Stream stream) {
  Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = std::sin(0.37f * static_cast<float>(i));
  const Tensor device = cuda::to_device(convert(x, dtype), kGpu, stream);
  cuda::synchronize(stream);  // the copy reads x
  return device;
}

// narrow/cuda.h: codes and scales on the device, the CPU's bits. Calls return before the device is done.
cuda::DeviceQuantized quantized(const char* scheme, std::int64_t rows, cuda::Stream stream) {
  const cuda::DeviceQuantized q = cuda::allocate_quantized(Scheme::parse(scheme), {rows, kDepth}, kGpu);
  cuda::quantize(values(rows, kDepth, DType::kF32, stream), q, stream);
  return q;
}

void done(const char* header, const Tensor& y, cuda::Stream stream) {
  std::printf("%-16s y is %s, y[0] = %g\n", header, to_string(y.shape()).c_str(),
              static_cast<double>(convert(cuda::to_host(y, stream), DType::kF32).as<float>()[0]));
}

// narrow/cuda_weights.h: fp16 activations times weights in any scheme.
void weight_only(cuda::Stream stream) {
  const cuda::DeviceWeight w = cuda::prepare_weight(quantized("int4:block128", kOutputs, stream), stream);  // once
  const Tensor y = Tensor::empty(DType::kF16, {kRows, kOutputs}, kGpu);
  cuda::matmul(values(kRows, kDepth, DType::kF16, stream), w, y, stream);
  done("cuda_weights.h", y, stream);
}

// narrow/cuda_fused.h, narrow/cuda_matmul.h: RMSNorm and its quantization in one pass, then an fp8 product.
void fp8(cuda::Stream stream) {
  const cuda::FusedOutput x = cuda::allocate_fused(Scheme::parse("fp8_e4m3:row"), {kRows, kDepth}, kGpu);
  cuda::fused_quantize({.op = FusedOp::kRmsNorm, .x = values(kRows, kDepth, DType::kBf16, stream)}, x, stream);
  const cuda::Fp8Matrix w = cuda::prepare_fp8(quantized("fp8_e4m3:row", kOutputs, stream), stream);
  const Tensor y = Tensor::empty(DType::kBf16, {kRows, kOutputs}, kGpu);
  cuda::matmul(cuda::prepare_fp8(x, stream), w, y, stream);
  done("cuda_matmul.h", y, stream);
}

// narrow/cuda_binary.h: +-1 times +-1.
void binary(cuda::Stream stream) {
  const cuda::Int1Matrix x = cuda::prepare_int1(quantized("int1:row", kRows, stream), stream),
                         w = cuda::prepare_int1(quantized("int1:row", kOutputs, stream), stream);
  const Tensor y = Tensor::empty(DType::kF32, {kRows, kOutputs}, kGpu);
  cuda::matmul(x, w, y, stream);
  done("cuda_binary.h", y, stream);
}

// narrow/cuda_msfp.h: boxes of 16 with a shared exponent, both sides packed.
void msfp(cuda::Stream stream) {
  const cuda::MsfpMatrix x = cuda::prepare_msfp(quantized("msfp16", kRows, stream), stream),
                         w = cuda::prepare_msfp(quantized("msfp12", kOutputs, stream), stream);
  const Tensor y = Tensor::empty(DType::kF32, {kRows, kOutputs}, kGpu);
  cuda::matmul(x, w, y, stream);
  done("cuda_msfp.h", y, stream);
}

// narrow/cuda_training.h: straight-through gradients of fake-quantize.
void training(cuda::Stream stream) {
  const cuda::DeviceQuantized q = quantized("int8:row", kRows, stream);
  const Tensor scales = Tensor::borrow(q.scales.data(), DType::kF32, {kRows, 1}, {}, kGpu);
  const Tensor gradient = values(kRows, kDepth, DType::kF32, stream);
  cuda::fake_quantize_backward({.x = values(kRows, kDepth, DType::kF32, stream), .scales = scales, .grad_y = gradient, .grad_x = gradient},
                               q.scheme, stream);
  done("cuda_training.h", gradient, stream);
}

// narrow/tuned_kernels.h: the kernels of one product, measured; narrow/model_bench.h: tokens per second of a model's shape.
void measured() {
  const cuda::DeviceGuard guard(0);
  const TunedKernel best = cuda::time_kernels(kRows, kOutputs, kDepth, Scheme::parse("fp8_e4m3:row")).front();
  std::printf("tuned_kernels.h  %s, %.1f us\n", best.kernel.c_str(), best.microseconds);
  ModelConfig config = model_presets().front().config;
  config.layers = 2;
  ModelBenchOptions options{.recipe = Recipe::of("int4:block128")};
  options.prompt = options.tokens = 16;
  std::printf("model_bench.h    %.0f tokens per second of two layers\n", bench_model(config, options).front().tokens_per_second);
}

}  // namespace

int main() {
  if (cuda::device_count() == 0) {
    std::printf("cuda_headers: there is no CUDA device here, or the library was built without CUDA\n");
    return 0;
  }
  try {
    const cuda::OwnedStream stream;
    weight_only(stream);
    fp8(stream);
    binary(stream);
    msfp(stream);
    training(stream);
    measured();
  } catch (const Error& error) {
    std::fprintf(stderr, "cuda_headers: %s\n", error.what());
    return 1;
  }
}
