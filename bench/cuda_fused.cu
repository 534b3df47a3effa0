/// The fused neighbours and the layouts on the GPU, beside the copy bandwidth of the same run.
///   bench_cuda_fused [--json FILE] [--only TEXT] [--quick]

#include "cuda_bench.cuh"
#include "narrow/cuda_fused.h"

namespace {

using namespace narrow;
using namespace narrow::bench;

/// A row of the table: targets and Triton's figures for 4096x4096 and 16384x8192.
struct Row {
  const char* name;
  FusedOp op;
  const char* scheme;
  bool given, col32, transposed;
  double target[2], peer[2];
};

constexpr Row kRows[] = {
    {"rms_norm", FusedOp::kRmsNorm, "int8:row", false, false, false, {3.5, 4.2}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "fp8_e4m3:row", false, false, false, {3.5, 4.2}, {0, 0}},
    {"layer_norm", FusedOp::kLayerNorm, "int8:row", false, false, false, {3.5, 4.2}, {2.33, 3.01}},
    {"layer_norm", FusedOp::kLayerNorm, "fp8_e4m3:row", false, false, false, {3.5, 4.2}, {0, 0}},
    {"add_rms_norm", FusedOp::kAddRmsNorm, "int8:row", false, false, false, {3.5, 4.2}, {0, 0}},
    {"add_rms_norm", FusedOp::kAddRmsNorm, "fp8_e4m3:row", false, false, false, {3.5, 4.2}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "fp8_e4m3:block128", false, false, false, {0, 0}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "fp8_e4m3:block128", false, false, true, {0, 0}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "int8:row", false, true, false, {0, 0}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "fp8_e4m3:tensor", true, false, false, {0, 0}, {0, 0}},
    {"rms_norm", FusedOp::kRmsNorm, "int8:tensor", true, false, false, {0, 0}, {0, 0}},
    {"silu_mul", FusedOp::kSiluMul, "fp8_e4m3:block128", false, false, true, {0, 0}, {0, 0}},
    {"silu_mul", FusedOp::kSiluMul, "int8:row", false, false, false, {0, 0}, {0, 0}},
    {"gelu", FusedOp::kGelu, "int8:row", false, false, false, {0, 0}, {0, 0}},
    {"gelu_tanh", FusedOp::kGeluTanh, "int8:row", false, false, false, {0, 0}, {0, 0}},
};

void bench_fused(Bench& bench, const Row& row, const Shape& shape, int which) {
  const std::string name = std::string(row.name) + " bf16 " + row.scheme + (row.given ? " static" : "") + (row.col32 ? " col32" : "") +
                           (row.transposed ? " transposed" : "");
  if (!bench.wants(name)) return;
  const Scheme scheme = Scheme::parse(row.scheme);
  const bool other = row.op == FusedOp::kSiluMul || row.op == FusedOp::kAddRmsNorm,
             norm = row.op == FusedOp::kLayerNorm || row.op == FusedOp::kRmsNorm || row.op == FusedOp::kAddRmsNorm;
  const double elements = static_cast<double>(element_count(shape));
  const double bytes = elements * (2.0 + (other ? 2.0 : 0.0) + (row.op == FusedOp::kAddRmsNorm ? 2.0 : 0.0)) +
                       static_cast<double>(quantized_bytes(scheme, shape));
  const int sets = sets_for(bytes);
  std::vector<FusedInput> inputs;
  std::vector<cuda::FusedOutput> outputs;
  const Tensor weight = random_on_device(DType::kBf16, {shape[1]}, 1, bench.stream()),
               bias = random_on_device(DType::kBf16, {shape[1]}, 2, bench.stream());
  const Tensor scale = cuda::to_device(Tensor::of({0.03f}, {1}), kDevice, bench.stream());
  for (int i = 0; i < sets; ++i) {
    FusedInput input{.op = row.op, .x = random_on_device(DType::kBf16, shape, static_cast<unsigned>(2 * i), bench.stream())};
    if (other) input.other = random_on_device(DType::kBf16, shape, static_cast<unsigned>(2 * i + 1), bench.stream());
    if (norm) input.weight = weight;
    if (row.op == FusedOp::kLayerNorm) input.bias = bias;
    if (row.given) input.scales = scale;
    inputs.push_back(input);
    outputs.push_back(cuda::allocate_fused(scheme, shape, kDevice, row.col32 ? Layout::kCol32 : Layout::kRow, row.transposed));
  }
  const double us = bench.time(sets, [&](std::size_t i) { cuda::fused_quantize(inputs[i], outputs[i], bench.stream()); });
  bench.add(name, text_of(shape), us, bytes, row.target[which], row.peer[which]);
}

void bench_transform(Bench& bench, Layout from, Layout to, const Shape& shape, double target) {
  const std::string name = "transform " + std::string(name_of(from)) + " -> " + std::string(name_of(to));
  if (!bench.wants(name)) return;
  const double bytes = 2.0 * static_cast<double>(element_count(shape));
  const int sets = sets_for(bytes);
  std::vector<Tensor> in, out;
  for (int i = 0; i < sets; ++i) {
    in.push_back(random_on_device(DType::kI8, {element_count(shape)}, static_cast<unsigned>(i), bench.stream()));
    out.push_back(Tensor::empty(DType::kI8, {element_count(shape)}, kDevice));
  }
  const double us = bench.time(sets, [&](std::size_t i) { cuda::transform(in[i], out[i], shape, from, to, bench.stream()); });
  bench.add(name, text_of(shape), us, bytes, target, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(BenchOptions::of(argc, argv));
  bench_copy(bench, std::int64_t{4} << 30);
  bench_copy(bench, std::int64_t{32} << 20);
  const Shape shapes[] = {{4096, 4096}, {16384, 8192}};
  constexpr double kLayoutTargets[] = {3.4, 4.0};
  for (int s = 0; s < 2; ++s) {
    for (const Row& row : kRows) bench_fused(bench, row, shapes[s], s);
    for (const Layout layout : {Layout::kCol32, Layout::kCol4_4r2_8c, Layout::kCol32_2r_4r4})
      bench_transform(bench, Layout::kRow, layout, shapes[s], kLayoutTargets[s]);
    for (const Layout layout : {Layout::kCol32, Layout::kCol4_4r2_8c, Layout::kCol32_2r_4r4})
      bench_transform(bench, layout, Layout::kRow, shapes[s], 0);
    bench_transform(bench, Layout::kRow, Layout::kCol, shapes[s], 0);
  }
  bench.write_json();
  return 0;
}
