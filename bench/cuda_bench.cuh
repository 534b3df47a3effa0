#pragma once
/// How the GPU benchmarks measure: buffers rotate beyond the second-level cache, calls are captured into a graph, its replays are timed
/// with events, and the median is taken. Beside the copy bandwidth of the same run.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "narrow/cuda.h"

namespace narrow::bench {

inline const Device kDevice = Device::cuda(0);

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

struct Result {
  std::string name, shape;
  double microseconds, terabytes, target, peer;
};

/// Random bits that are finite values near one in any of the three types.
static __global__ void fill(std::uint16_t* out, std::int64_t count, std::uint32_t seed, int kind) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t state = static_cast<std::uint32_t>(i) * 2654435761u ^ seed;
    state ^= state >> 15;
    state *= 2246822519u;
    state ^= state >> 13;
    state *= 3266489917u;
    state ^= state >> 16;
    if (kind == 0 && i % 2 == 0)
      out[i] = static_cast<std::uint16_t>(state);  // the low half of an fp32
    else if (kind == 1)
      out[i] = static_cast<std::uint16_t>((state & 0x83FFu) | (0x2800u + (state >> 16) % 0x1800u));
    else
      out[i] = static_cast<std::uint16_t>((state & 0x807Fu) | (0x3E00u + (state >> 16) % 0x200u));
  }
}

static __global__ void __launch_bounds__(256) copy_words(const uint4* __restrict__ from, uint4* __restrict__ to, std::int64_t count) {
  const std::int64_t first = std::int64_t{blockIdx.x} * 1024 + threadIdx.x;
  uint4 words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) words[i] = __ldcs(from + first + i * 256);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i * 256 < count) __stcs(to + first + i * 256, words[i]);
}

/// [--json FILE] [--only TEXT] [--kernel NAME] [--quick]
struct BenchOptions {
  std::string json, only, kernel;
  bool quick = false;

  static BenchOptions of(int argc, char** argv) {
    BenchOptions options;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
        options.json = argv[++i];
      else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
        options.only = argv[++i];
      else if (std::strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
        options.kernel = argv[++i];
      else if (std::strcmp(argv[i], "--quick") == 0)
        options.quick = true;
    }
    return options;
  }
};

class Bench {
 public:
  explicit Bench(BenchOptions options) : options_(std::move(options)) {
    require(cudaEventCreate(&start_), "cudaEventCreate");
    require(cudaEventCreate(&stop_), "cudaEventCreate");
  }

  cuda::Stream stream() { return stream_; }
  const BenchOptions& options() const { return options_; }
  bool wants(const std::string& name) const { return options_.only.empty() || name.find(options_.only) != std::string::npos; }

  /// Median microseconds of one call; call(i) uses buffer set i of `sets`. A graph of about 2 ms of calls, warmed up for 15 ms, so that
  /// neither the start of a graph nor a slow clock counts: the method by which the other programs' figures were taken.
  double time(int sets, const std::function<void(std::size_t)>& call) {
    for (int i = 0; i < sets; ++i) call(static_cast<std::size_t>(i));
    cuda::synchronize(stream_);
    require(cudaEventRecord(start_, stream_), "cudaEventRecord");
    for (int i = 0; i < 4; ++i) call(static_cast<std::size_t>(i % sets));
    const double rough = std::max(1.0, elapsed() / 4);
    const int calls = std::clamp(static_cast<int>(2000.0 / rough) + 1, 3, 400);
    const int warm = std::clamp(static_cast<int>((options_.quick ? 3000.0 : 15000.0) / (rough * calls)) + 1, 2, 30);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < calls; ++i) call(static_cast<std::size_t>(i % sets));
    require(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < warm; ++i) require(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    std::vector<double> times;
    for (int i = 0; i < (options_.quick ? 5 : 13); ++i) {
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
    std::printf("%-46s %-12s %8.1f us %6.2f TB/s %4.0f%% of copy", r.name.c_str(), r.shape.c_str(), r.microseconds, r.terabytes,
                copy_ > 0 ? 100 * r.terabytes / copy_ : 0);
    if (target > 0) std::printf("  target %.1f %s", target, r.terabytes >= target ? "ok" : "--");
    if (peer > 0) std::printf("  Triton %.2f", peer);
    std::printf("\n");
    std::fflush(stdout);
  }

  /// To the file of --json, where one was asked for.
  void write_json() const {
    if (options_.json.empty()) return;
    std::ofstream out(options_.json);
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
  BenchOptions options_;
  double copy_ = 0.0;
  std::vector<Result> results_;
};

inline Tensor random_on_device(DType dtype, const Shape& shape, unsigned seed, cuda::Stream stream) {
  Tensor x = Tensor::empty(dtype, shape, kDevice);
  const std::int64_t halves = static_cast<std::int64_t>(x.byte_size() / 2);
  fill<<<1024, 256, 0, stream>>>(reinterpret_cast<std::uint16_t*>(x.data()), halves, seed,
                                 dtype == DType::kF32 ? 0 : (dtype == DType::kF16 ? 1 : 2));
  return x;
}

inline std::string text_of(const Shape& shape) { return std::to_string(shape[0]) + "x" + std::to_string(shape[1]); }

/// Sets of buffers that the calls take in turns, by the bytes of one call: together several times the cache (60 MB on an H200).
inline int sets_for(double bytes) { return static_cast<int>(std::clamp(256.0 * 1048576.0 / bytes + 1, 2.0, 32.0)); }

inline void bench_copy(Bench& bench, std::int64_t bytes) {
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

}  // namespace narrow::bench
