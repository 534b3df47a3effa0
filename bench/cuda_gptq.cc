/// GPTQ on a CUDA device: what its parts take for the weights of an 8B model.

#include <chrono>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/decoder/decoder.h"
#include "kernels/cuda/gptq/gptq.h"
#include "methods/cuda/device_fit.h"

namespace {

using namespace narrow;

constexpr Device kDevice = Device::cuda(0);

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Tensor random(DType type, Shape shape, float deviation, cuda::Stream stream) {
  Tensor x = Tensor::empty(type, std::move(shape), kDevice);
  cuda::check(cuda::launch_random(x.data(), type, x.size(), deviation, 5, stream), "random");
  return x;
}

void measure(std::int64_t k, std::initializer_list<std::int64_t> weights, cuda::Stream stream) {
  constexpr std::int64_t kRows = 8192;
  const Tensor x = random(DType::kF32, {kRows, k}, 1.0f, stream);
  DeviceHessian hessian(k, kDevice, stream);
  for (int i = 0; i < 2; ++i) hessian.add(x);
  cuda::synchronize(stream);
  double begin = now();
  for (int i = 0; i < 3; ++i) hessian.add(x);
  cuda::synchronize(stream);
  double seconds = (now() - begin) / 3;
  fmt::print("k {}: moment of {} tokens {:.2f} ms, {:.1f} Tflop/s\n", k, kRows, seconds * 1e3,
             static_cast<double>(kRows) * static_cast<double>(k) * static_cast<double>(k) / seconds * 1e-12);
  for (int i = 0; i < 2; ++i) {
    begin = now();
    const DeviceInput input(hessian, {.gptq = true});
    fmt::print("  factor by {}: {:.1f} ms\n", device_factor_by(), (now() - begin) * 1e3);
    if (i == 0) continue;
    for (const std::int64_t n : weights)
      for (const char* scheme : {"int4:block128", "nvfp4"}) {
        const Tensor w = cuda::to_host(random(DType::kBf16, {n, k}, 0.02f, stream), stream);
        for (int repeat = 0; repeat < 2; ++repeat) {
          begin = now();
          const FittedWeight fitted = fit_on_device(w, Scheme::parse(scheme), input);
          fmt::print("  fit [{}, {}] {}: {:.1f} ms, loss {:.6f} -> {:.6f}\n", n, k, scheme, (now() - begin) * 1e3, fitted.loss_before,
                     fitted.loss_after);
        }
      }
  }
}

}  // namespace

int main() {
  const cuda::OwnedStream stream;
  measure(4096, {1024, 4096, 14336}, stream);
  measure(14336, {4096}, stream);
}
