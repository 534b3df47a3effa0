/// The fused neighbours and the layouts on the GPU, beside the copy bandwidth of the same run.
///   bench_cuda_fused [--json FILE] [--only TEXT] [--quick]
/// Buffers rotate beyond the second-level cache; calls are captured into a graph and its replays timed with events; medians.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "narrow/cuda_fused.h"

namespace {

using namespace narrow;

constexpr double kRotation = 512.0 * 1048576.0;  // bytes between two uses of a buffer: several times the cache
const Device kDevice = Device::cuda(0);

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

/// Random bf16 bits that are finite values near one; as bytes, any codes.
__global__ void fill(std::uint16_t* out, std::int64_t count, std::uint32_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t state = static_cast<std::uint32_t>(i) * 2654435761u ^ seed;
    state = (state ^ (state >> 15)) * 2246822519u;
    state = (state ^ (state >> 13)) * 3266489917u;
    state ^= state >> 16;
    out[i] = static_cast<std::uint16_t>((state & 0x807Fu) | (0x3E00u + (state >> 16) % 0x200u));
  }
}

__global__ void __launch_bounds__(256) copy_words(const uint4* __restrict__ from, uint4* __restrict__ to, std::int64_t count) {
  const std::int64_t first = std::int64_t{blockIdx.x} * 1024 + threadIdx.x;
  uint4 words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) words[i] = __ldcs(from + first + i * 256);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) __stcs(to + first + i * 256, words[i]);
}

struct Result {
  std::string name, shape;
  double microseconds, terabytes, target, peer;
};

class Bench {
 public:
  Bench(std::string only, bool quick) : only_(std::move(only)), quick_(quick) {
    require(cudaEventCreate(&start_), "cudaEventCreate");
    require(cudaEventCreate(&stop_), "cudaEventCreate");
  }

  cuda::Stream stream() { return stream_; }
  bool wants(const std::string& name) const { return only_.empty() || name.find(only_) != std::string::npos; }

  /// Median microseconds of one call; call(i) uses buffer set i of `sets`.
  double time(int sets, const std::function<void(std::size_t)>& call) {
    for (int i = 0; i < sets; ++i) call(static_cast<std::size_t>(i));
    cuda::synchronize(stream_);
    const int calls = std::max(sets, 12);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < calls; ++i) call(static_cast<std::size_t>(i % sets));
    require(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < 3; ++i) require(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    std::vector<double> times;
    for (int i = 0; i < (quick_ ? 5 : 13); ++i) {
      require(cudaEventRecord(start_, stream_), "cudaEventRecord");
      require(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
      require(cudaEventRecord(stop_, stream_), "cudaEventRecord");
      cuda::synchronize(stream_);
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
      times.push_back(1000.0 * milliseconds / calls);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void add(const std::string& name, const std::string& shape, double microseconds, double bytes, double target, double peer) {
    results_.push_back({name, shape, microseconds, bytes / microseconds * 1e-6, target, peer});
    const Result& r = results_.back();
    if (r.name == "copy") copy_ = std::max(copy_, r.terabytes);
    std::printf("%-46s %-12s %8.1f us %6.2f TB/s %4.0f%% of copy", r.name.c_str(), r.shape.c_str(), r.microseconds, r.terabytes,
                copy_ > 0 ? 100 * r.terabytes / copy_ : 0);
    if (target > 0) std::printf("  target %.1f %s", target, r.terabytes >= target ? "ok" : "--");
    if (peer > 0) std::printf("  Triton %.2f", peer);
    std::printf("\n");
    std::fflush(stdout);
  }

  void write_json(const std::string& path) const {
    std::ofstream out(path);
    out << "[\n";
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Result& r = results_[i];
      out << "  {\"kernel\": \"" << r.name << "\", \"shape\": \"" << r.shape << "\", \"us\": " << r.microseconds
          << ", \"tb_per_s\": " << r.terabytes << ", \"share_of_copy\": " << r.terabytes / copy_ << ", \"target_tb_per_s\": " << r.target
          << ", \"triton_tb_per_s\": " << r.peer << "}" << (i + 1 < results_.size() ? "," : "") << "\n";
    }
    out << "]\n";
  }

 private:
  cuda::OwnedStream stream_;
  cudaEvent_t start_{}, stop_{};
  std::string only_;
  bool quick_;
  double copy_ = 0.0;
  std::vector<Result> results_;
};

Tensor random_on_device(DType dtype, const Shape& shape, unsigned seed, cuda::Stream stream) {
  Tensor x = Tensor::empty(dtype, shape, kDevice);
  fill<<<1024, 256, 0, stream>>>(reinterpret_cast<std::uint16_t*>(x.data()), static_cast<std::int64_t>(x.byte_size() / 2), seed);
  return x;
}

std::string text_of(const Shape& shape) { return std::to_string(shape[0]) + "x" + std::to_string(shape[1]); }
int sets_for(double bytes) { return static_cast<int>(std::clamp(kRotation / bytes + 1, 2.0, 32.0)); }

void bench_copy(Bench& bench, std::int64_t bytes) {
  const int sets = sets_for(2.0 * static_cast<double>(bytes));
  std::vector<Tensor> from, to;
  for (int i = 0; i < sets; ++i) {
    from.push_back(random_on_device(DType::kBf16, {bytes / 2}, static_cast<unsigned>(i), bench.stream()));
    to.push_back(Tensor::empty(DType::kBf16, {bytes / 2}, kDevice));
  }
  const double us = bench.time(sets, [&](std::size_t i) {
    const std::int64_t words = bytes / 16;
    copy_words<<<static_cast<unsigned>((words + 1023) / 1024), 256, 0, bench.stream()>>>(reinterpret_cast<const uint4*>(from[i].data()),
                                                                                         reinterpret_cast<uint4*>(to[i].data()), words);
  });
  bench.add("copy", std::to_string(bytes >> 20) + " MiB", us, 2.0 * static_cast<double>(bytes), 0, 0);
}

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
  std::string json, only;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (std::strcmp(argv[i], "--quick") == 0)
      quick = true;
  }
  if (cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(only, quick);
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
  if (!json.empty()) bench.write_json(json);
  return 0;
}
