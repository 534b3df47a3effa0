/// The GPU kernels that memory limits: quantize, dequantize and their relatives, beside the copy bandwidth of the same run.
///   bench_cuda_memory_bound [--json FILE] [--only TEXT] [--kernel NAME] [--quick]

#include "cuda_bench.cuh"

namespace {

using namespace narrow;
using namespace narrow::bench;

enum class Scales { kDynamic, kStatic };

void bench_quantize(Bench& bench, const char* scheme_text, DType dtype, const Shape& shape, Scales scales, double target, double peer) {
  const Scheme scheme = Scheme::parse(scheme_text);
  const std::string name = "quantize " + std::string(name_of(dtype)) + " " + scheme_text + (scales == Scales::kStatic ? " static" : "");
  if (!bench.wants(name)) return;
  const double in = static_cast<double>(element_count(shape)) * (dtype == DType::kF32 ? 4 : 2);
  const double out = static_cast<double>(quantized_bytes(scheme, shape));
  const int sets = sets_for(in + out);
  std::vector<Tensor> x;
  std::vector<cuda::DeviceQuantized> q;
  for (int i = 0; i < sets; ++i) {
    x.push_back(random_on_device(dtype, shape, static_cast<unsigned>(i), bench.stream()));
    q.push_back(cuda::allocate_quantized(scheme, shape, kDevice));
  }
  const Tensor one = cuda::to_device(Tensor::of({0.03f}, {1}), kDevice, bench.stream());
  cuda::QuantizeOptions options;
  options.kernel = bench.options().kernel;
  if (scales == Scales::kStatic) (scheme.has_outer_scale ? options.outer_scale : options.scales) = one;
  const Buffer workspace = Buffer::allocate(cuda::quantize_workspace(x[0], scheme, options), kDevice);
  const double us = bench.time(sets, [&](std::size_t i) {
    cuda::quantize(x[i], q[i], bench.stream(), options, {workspace.data(), workspace.size()});
  });
  bench.add(name, text_of(shape), us, in + out, target, peer);
}

void bench_dequantize(Bench& bench, const char* scheme_text, DType dtype, const Shape& shape, double target, double peer) {
  const Scheme scheme = Scheme::parse(scheme_text);
  const std::string name = "dequantize " + std::string(scheme_text) + " " + std::string(name_of(dtype));
  if (!bench.wants(name)) return;
  const double out = static_cast<double>(element_count(shape)) * (dtype == DType::kF32 ? 4 : 2);
  const double in = static_cast<double>(quantized_bytes(scheme, shape));
  const int sets = sets_for(in + out);
  std::vector<Tensor> y;
  std::vector<cuda::DeviceQuantized> q;
  for (int i = 0; i < sets; ++i) {
    const Tensor x = random_on_device(DType::kBf16, shape, static_cast<unsigned>(i), bench.stream());
    y.push_back(Tensor::empty(dtype, shape, kDevice));
    q.push_back(cuda::allocate_quantized(scheme, shape, kDevice));
    cuda::quantize(x, q.back(), bench.stream());
    cuda::synchronize(bench.stream());
  }
  const double us = bench.time(sets, [&](std::size_t i) { cuda::dequantize(q[i], y[i], bench.stream()); });
  bench.add(name, text_of(shape), us, in + out, target, peer);
}

/// A row of the table: targets and Triton's figures for 4096x4096 and 16384x8192.
struct Row {
  const char* scheme;
  DType dtype;
  Scales scales;
  double target[2], peer[2];
};

constexpr Row kQuantizeRows[] = {
    {"fp8_e4m3:block128", DType::kF32, Scales::kDynamic, {4.0, 4.4}, {4.01, 4.37}},
    {"fp8_e4m3:tensor", DType::kF32, Scales::kStatic, {4.0, 4.4}, {3.97, 4.39}},
    {"fp8_e4m3:block128", DType::kBf16, Scales::kDynamic, {3.8, 4.3}, {3.69, 4.26}},
    {"fp8_e4m3:row", DType::kBf16, Scales::kDynamic, {3.8, 4.3}, {0, 0}},
    {"fp8_e4m3:tensor", DType::kBf16, Scales::kStatic, {3.8, 4.3}, {3.67, 4.29}},
    {"int8:block128", DType::kBf16, Scales::kDynamic, {3.8, 4.3}, {0, 0}},
    {"int8:row", DType::kBf16, Scales::kDynamic, {3.8, 4.3}, {0, 0}},
    {"int8:tensor", DType::kBf16, Scales::kStatic, {3.8, 4.3}, {0, 0}},
    {"fp8_e4m3:tensor", DType::kBf16, Scales::kDynamic, {3.0, 2.8}, {2.12, 2.48}},
    {"fp8_e4m3:tensor", DType::kF32, Scales::kDynamic, {2.6, 2.6}, {1.91, 2.31}},
    {"fp6_e3m2:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"fp6_e2m3:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"fp5_e2m2:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"fp4_e2m1:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"int4:block128", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"mxfp4", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"nvfp4", DType::kBf16, Scales::kStatic, {3.4, 4.0}, {0, 0}},
    {"nvfp4", DType::kBf16, Scales::kDynamic, {0, 0}, {0, 0}},
    {"msfp12", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
};

constexpr Row kDequantizeRows[] = {
    {"fp8_e4m3:block128", DType::kBf16, Scales::kDynamic, {3.6, 4.1}, {3.38, 3.96}},
    {"int8:row", DType::kBf16, Scales::kDynamic, {3.6, 4.1}, {0, 0}},
    {"fp6_e3m2:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"fp5_e2m2:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"fp4_e2m1:row", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"int4:block128", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"mxfp4", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"nvfp4", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
    {"msfp12", DType::kBf16, Scales::kDynamic, {3.4, 4.0}, {0, 0}},
};

}  // namespace

int main(int argc, char** argv) {
  if (cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(BenchOptions::of(argc, argv));
  bench_copy(bench, std::int64_t{4} << 30);
  bench_copy(bench, std::int64_t{64} << 20);
  const Shape shapes[] = {{4096, 4096}, {16384, 8192}};
  for (int s = 0; s < 2; ++s) {
    for (const Row& row : kQuantizeRows) bench_quantize(bench, row.scheme, row.dtype, shapes[s], row.scales, row.target[s], row.peer[s]);
    for (const Row& row : kDequantizeRows) bench_dequantize(bench, row.scheme, row.dtype, shapes[s], row.target[s], row.peer[s]);
  }
  bench.write_json();
  return 0;
}
