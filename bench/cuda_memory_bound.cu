/// The GPU kernels that memory limits: quantize, dequantize and their relatives, beside the copy bandwidth of the same run.
///   bench_cuda_memory_bound [--json FILE] [--only TEXT] [--kernel NAME] [--quick]
/// Buffers rotate beyond the second-level cache; calls are captured into a graph and its replays timed with events; medians.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "narrow/cuda.h"

namespace {

using namespace narrow;

const Device kDevice = Device::cuda(0);

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

struct Result {
  std::string name, shape;
  double microseconds, terabytes, target, peer;
};

/// Random bits that are finite values near one in any of the three types.
__global__ void fill(std::uint16_t* out, std::int64_t count, std::uint32_t seed, int kind) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t state = static_cast<std::uint32_t>(i) * 2654435761u ^ seed;
    state ^= state >> 15;
    state *= 2246822519u;
    state ^= state >> 13;
    state *= 3266489917u;
    state ^= state >> 16;
    if (kind == 0 && i % 2 == 0) out[i] = static_cast<std::uint16_t>(state);  // the low half of an fp32
    else if (kind == 1) out[i] = static_cast<std::uint16_t>((state & 0x83FFu) | (0x2800u + (state >> 16) % 0x1800u));
    else out[i] = static_cast<std::uint16_t>((state & 0x807Fu) | (0x3E00u + (state >> 16) % 0x200u));
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

class Bench {
 public:
  Bench(std::string only, std::string kernel, bool quick) : only_(std::move(only)), kernel_(std::move(kernel)), quick_(quick) {
    require(cudaEventCreate(&start_), "cudaEventCreate");
    require(cudaEventCreate(&stop_), "cudaEventCreate");
  }

  cuda::Stream stream() { return stream_; }
  const std::string& kernel() const { return kernel_; }
  bool wants(const std::string& name) const { return only_.empty() || name.find(only_) != std::string::npos; }

  /// Median microseconds of one call; call(i) uses buffer set i of `sets`. A graph of about 2 ms of calls, warmed up for 15 ms, so that
  /// neither the start of a graph nor a slow clock counts: the method by which the other programs' figures were taken.
  double time(int sets, const std::function<void(int)>& call) {
    for (int i = 0; i < sets; ++i) call(i);
    cuda::synchronize(stream_);
    require(cudaEventRecord(start_, stream_), "cudaEventRecord");
    for (int i = 0; i < 4; ++i) call(i % sets);
    const double rough = std::max(1.0, elapsed() / 4);
    const int calls = std::clamp(static_cast<int>(2000.0 / rough) + 1, 3, 400);
    const int warm = std::clamp(static_cast<int>((quick_ ? 3000.0 : 15000.0) / (rough * calls)) + 1, 2, 30);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < calls; ++i) call(i % sets);
    require(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < warm; ++i) require(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    std::vector<double> times;
    for (int i = 0; i < (quick_ ? 5 : 13); ++i) {
      require(cudaEventRecord(start_, stream_), "cudaEventRecord");
      require(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
      times.push_back(elapsed() / calls);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void add(const std::string& name, const std::string& shape, double microseconds, double bytes, double target, double peer) {
    results_.push_back({name, shape, microseconds, bytes / microseconds * 1e-6, target, peer});
    const Result& r = results_.back();
    if (r.name.starts_with("copy")) copy_ = std::max(copy_, r.terabytes);
    std::printf("%-46s %-12s %8.1f us %6.2f TB/s %4.0f%% of copy", r.name.c_str(), r.shape.c_str(), r.microseconds, r.terabytes, copy_ > 0 ? 100 * r.terabytes / copy_ : 0);
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
      out << "  {\"kernel\": \"" << r.name << "\", \"shape\": \"" << r.shape << "\", \"us\": " << r.microseconds << ", \"tb_per_s\": " << r.terabytes
          << ", \"share_of_copy\": " << r.terabytes / copy_ << ", \"target_tb_per_s\": " << r.target << ", \"triton_tb_per_s\": " << r.peer << "}"
          << (i + 1 < results_.size() ? "," : "") << "\n";
    }
    out << "]\n";
  }

 private:
  /// Microseconds since start_ was recorded; waits.
  double elapsed() {
    require(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    cuda::synchronize(stream_);
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds;
  }

  cuda::OwnedStream stream_;
  cudaEvent_t start_{}, stop_{};
  std::string only_, kernel_;
  bool quick_;
  double copy_ = 0.0;
  std::vector<Result> results_;
};

Tensor random_on_device(DType dtype, const Shape& shape, unsigned seed, cuda::Stream stream) {
  Tensor x = Tensor::empty(dtype, shape, kDevice);
  const std::int64_t halves = static_cast<std::int64_t>(x.byte_size() / 2);
  fill<<<1024, 256, 0, stream>>>(reinterpret_cast<std::uint16_t*>(x.data()), halves, seed, dtype == DType::kF32 ? 0 : (dtype == DType::kF16 ? 1 : 2));
  return x;
}

std::string text_of(const Shape& shape) { return std::to_string(shape[0]) + "x" + std::to_string(shape[1]); }

/// Sets of buffers that the calls take in turns: together several times the second-level cache (60 MB on an H200).
int sets_for(double bytes) { return bytes < 210e6 ? 4 : 2; }

void bench_copy(Bench& bench, std::int64_t bytes, const char* name) {
  const int sets = sets_for(static_cast<double>(bytes));
  std::vector<Tensor> from, to;
  for (int i = 0; i < sets; ++i) {
    from.push_back(random_on_device(DType::kBf16, {bytes / 2}, static_cast<unsigned>(i), bench.stream()));
    to.push_back(Tensor::empty(DType::kBf16, {bytes / 2}, kDevice));
  }
  const double us = bench.time(sets, [&](int i) {
    const std::int64_t words = bytes / 16;
    copy_words<<<static_cast<unsigned>((words + 1023) / 1024), 256, 0, bench.stream()>>>(reinterpret_cast<const uint4*>(from[static_cast<std::size_t>(i)].data()),
                                                                                        reinterpret_cast<uint4*>(to[static_cast<std::size_t>(i)].data()), words);
  });
  bench.add(name, std::to_string(bytes >> 20) + " MiB", us, 2.0 * static_cast<double>(bytes), 0, 0);
}

enum class Scales { kDynamic, kStatic };

void bench_quantize(Bench& bench, const char* scheme_text, DType dtype, const Shape& shape, Scales scales, double target, double peer) {
  const Scheme scheme = Scheme::parse(scheme_text);
  const std::string name = "quantize " + std::string(name_of(dtype)) + " " + scheme_text + (scales == Scales::kStatic ? " static" : "");
  if (!bench.wants(name)) return;
  const double in = static_cast<double>(element_count(shape)) * (dtype == DType::kF32 ? 4 : 2), out = static_cast<double>(quantized_bytes(scheme, shape));
  const int sets = sets_for(std::max(in, out));
  std::vector<Tensor> x;
  std::vector<cuda::DeviceQuantized> q;
  for (int i = 0; i < sets; ++i) {
    x.push_back(random_on_device(dtype, shape, static_cast<unsigned>(i), bench.stream()));
    q.push_back(cuda::allocate_quantized(scheme, shape, kDevice));
  }
  const Tensor one = cuda::to_device(Tensor::of({0.03f}, {1}), kDevice, bench.stream());
  cuda::QuantizeOptions options;
  options.kernel = bench.kernel();
  if (scales == Scales::kStatic) (scheme.has_outer_scale ? options.outer_scale : options.scales) = one;
  const Buffer workspace = Buffer::allocate(cuda::quantize_workspace(x[0], scheme, options), kDevice);
  const double us = bench.time(sets, [&](int i) {
    cuda::quantize(x[static_cast<std::size_t>(i)], q[static_cast<std::size_t>(i)], bench.stream(), options, {workspace.data(), workspace.size()});
  });
  bench.add(name, text_of(shape), us, in + out, target, peer);
}

void bench_dequantize(Bench& bench, const char* scheme_text, DType dtype, const Shape& shape, double target, double peer) {
  const Scheme scheme = Scheme::parse(scheme_text);
  const std::string name = "dequantize " + std::string(scheme_text) + " " + std::string(name_of(dtype));
  if (!bench.wants(name)) return;
  const double out = static_cast<double>(element_count(shape)) * (dtype == DType::kF32 ? 4 : 2), in = static_cast<double>(quantized_bytes(scheme, shape));
  const int sets = sets_for(std::max(in, out));
  std::vector<Tensor> y;
  std::vector<cuda::DeviceQuantized> q;
  for (int i = 0; i < sets; ++i) {
    const Tensor x = random_on_device(DType::kBf16, shape, static_cast<unsigned>(i), bench.stream());
    y.push_back(Tensor::empty(dtype, shape, kDevice));
    q.push_back(cuda::allocate_quantized(scheme, shape, kDevice));
    cuda::quantize(x, q.back(), bench.stream());
    cuda::synchronize(bench.stream());
  }
  const double us = bench.time(sets, [&](int i) { cuda::dequantize(q[static_cast<std::size_t>(i)], y[static_cast<std::size_t>(i)], bench.stream()); });
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
  std::string json, only, kernel;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    else if (std::strcmp(argv[i], "--kernel") == 0 && i + 1 < argc) kernel = argv[++i];
    else if (std::strcmp(argv[i], "--quick") == 0) quick = true;
  }
  if (cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(only, kernel, quick);
  bench_copy(bench, std::int64_t{4} << 30, "copy");
  bench_copy(bench, std::int64_t{64} << 20, "copy");
  const Shape shapes[] = {{4096, 4096}, {16384, 8192}};
  for (int s = 0; s < 2; ++s) {
    for (const Row& row : kQuantizeRows) bench_quantize(bench, row.scheme, row.dtype, shapes[s], row.scales, row.target[s], row.peer[s]);
    for (const Row& row : kDequantizeRows) bench_dequantize(bench, row.scheme, row.dtype, shapes[s], row.target[s], row.peer[s]);
  }
  if (!json.empty()) bench.write_json(json);
  return 0;
}
