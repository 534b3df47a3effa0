/// Products of fp16 or bf16 activations with weights in narrow formats, beside cuBLASLt's fp16 product in the same run, in turns.
///   bench_cuda_weights [--json FILE] [--only SHAPE] [--schemes LIST] [--rows LIST] [--bf16]
/// Lists are separated by commas.
/// Codes and activations are random and weights rotate beyond the second-level cache. Figures are speed-ups over cuBLASLt (best of its
/// algorithms, with a workspace of 64 MB; ours has the workspace that it asks for). Every scheme is measured beside cuBLASLt after a rest
/// of the card, both in turns from there on, each first as often as the other, and every row of the table begins with another scheme:
/// without that those late in the list would meet a hotter card than those before them, and memory, which bounds cuBLASLt with few rows,
/// does not slow down with it.

#include <cuda_fp16.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "cublaslt.h"
#include "cuda_timing.h"
#include "ops/cuda_weights.h"

namespace {

using namespace narrow;
using bench::TimedGraph;

constexpr double kRotation = 256.0 * 1048576.0;
constexpr std::chrono::milliseconds kRest{50};
constexpr const char* kSchemes[] = {"int8:row",     "fp8_e4m3:row", "fp6_e3m2:row", "fp5_e2m2:row", "fp4_e2m1:row", "int4:block128",
                                    "int4:row",     "fp3_e2m0:row", "mxfp4",        "nvfp4",        "msfp12",       "int4:block128:asym",
                                    "fp6_e2m3:row", "fp5_e3m1:row", "fp4_e3m0:row", "fp8_e5m2:row", "mxfp8_e4m3"};
struct Sizes {
  std::int64_t n, k;
};
constexpr Sizes kSizes[] = {{4096, 4096}, {11008, 4096}, {4096, 11008}, {8192, 8192}, {28672, 8192}};
constexpr std::int64_t kRows[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
const Device kDevice = Device::cuda(0);

__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return x ^ (x >> 33);
}
__device__ float normal(std::uint64_t i, std::uint64_t seed) {
  const std::uint64_t bits = mix(i + seed * 0x9E3779B97F4A7C15ull);
  const float u = static_cast<float>((bits & 0xFFFFFF) + 1) / 16777217.0f, v = static_cast<float>(bits >> 40) / 16777216.0f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}
__global__ void fill_half(std::uint16_t* out, std::int64_t count, std::uint64_t seed, bool bf16) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    const float v = normal(static_cast<std::uint64_t>(i), seed);
    out[i] = bf16 ? static_cast<std::uint16_t>(__float_as_uint(v) >> 16) : __half_as_ushort(__float2half_rn(v));
  }
}
__global__ void fill_floats(float* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = normal(static_cast<std::uint64_t>(i), seed);
}

class Bench {
 public:
  Bench(std::string only, std::vector<std::string> schemes, std::vector<std::int64_t> rows, bool bf16)
      : only_(std::move(only)), schemes_(std::move(schemes)), rows_(std::move(rows)), bf16_(bf16) {}
  bool has_peer() const { return lt_.available(); }
  bool wants(const std::string& name) const { return only_.empty() || name.find(only_) != std::string::npos; }

  static std::size_t sets_for(double bytes) { return static_cast<std::size_t>(std::clamp(kRotation / bytes + 1, 2.0, 32.0)); }

  void shape(const Sizes& s) {
    const std::string shape = std::to_string(s.n) + "x" + std::to_string(s.k);
    if (!wants(shape)) return;
    const DType type = bf16_ ? DType::kBf16 : DType::kF16;
    const Tensor x = Tensor::empty(type, {rows_.back(), s.k}, kDevice);
    fill_half<<<1024, 256, 0, stream_>>>(reinterpret_cast<std::uint16_t*>(x.data()), x.size(), 1, bf16_);
    const Tensor y = Tensor::empty(type, {rows_.back(), s.n}, kDevice);
    const Tensor values = Tensor::empty(DType::kF32, {s.n, s.k}, kDevice);
    std::vector<Tensor> dense;
    for (std::size_t i = 0; i < sets_for(2.0 * static_cast<double>(s.n * s.k)); ++i) {
      dense.push_back(Tensor::empty(type, {s.n, s.k}, kDevice));
      fill_half<<<1024, 256, 0, stream_>>>(reinterpret_cast<std::uint16_t*>(dense[i].data()), s.n * s.k, i + 2, bf16_);
    }
    std::vector<std::vector<cuda::DeviceWeight>> weights;
    for (const std::string& name : schemes_) {
      const Scheme scheme = Scheme::parse(name);
      std::vector<cuda::DeviceWeight> list;
      const std::size_t sets = sets_for(static_cast<double>(quantized_bytes(scheme, {s.n, s.k})));
      fill_floats<<<1024, 256, 0, stream_>>>(values.as<float>(), s.n * s.k, 99);
      const cuda::DeviceQuantized q = cuda::allocate_quantized(scheme, {s.n, s.k}, kDevice);
      cuda::quantize(values, q, stream_);
      for (std::size_t i = 0; i < sets; ++i) list.push_back(cuda::prepare_weight(q, stream_));
      cuda::synchronize(stream_);
      if (s.n == 8192 && s.k == 8192) {
        cuda::WeightView view = cuda::weight_view({scheme, s.n, s.k, false, {}, {}, q.codes, q.scales, q.zero_points, q.outer_scale});
        view.layout = cuda::weight_layout(scheme, s.n, s.k).value();
        TimedGraph preparing(
            stream_,
            [&](std::size_t i) {
              cuda::launch_prepare_weight(view, list[i].chunks.as<std::uint8_t>(), list[i].factors.as<float>(), stream_);
            },
            sets);
        std::printf("prepare %-20s 8192x8192 %8.1f us\n", name.c_str(), preparing.sample());
      }
      weights.push_back(std::move(list));
    }
    std::printf("%-12s %5s %9s", shape.c_str(), "M", "cuBLASLt");
    for (const std::string& name : schemes_) std::printf(" %12.12s", name.c_str());
    std::printf("\n");
    for (const std::int64_t m : rows_) row(s, shape, m, x, y, dense, weights);
  }

  void write_json(const std::string& path) const {
    std::ofstream out(path);
    out << "[\n";
    for (std::size_t i = 0; i < lines_.size(); ++i) out << lines_[i] << (i + 1 < lines_.size() ? ",\n" : "\n");
    out << "]\n";
  }

 private:
  void row(const Sizes& s, const std::string& shape, std::int64_t m, const Tensor& all_x, const Tensor& all_y,
           const std::vector<Tensor>& dense, const std::vector<std::vector<cuda::DeviceWeight>>& weights) {
    const Tensor x = Tensor::borrow(all_x.data(), all_x.dtype(), {m, s.k}, {}, kDevice),
                 y = Tensor::borrow(all_y.data(), all_y.dtype(), {m, s.n}, {}, kDevice);
    std::unique_ptr<TimedGraph> theirs;
    if (lt_.available()) {
      const bench::CublasLt::Product product = lt_.dense_product(m, s.n, s.k, bf16_);
      double best = 1e30;
      for (std::size_t a = 0; a < product.algorithms.size(); ++a) {
        auto timed = std::make_unique<TimedGraph>(
            stream_, [&](std::size_t i) { lt_.run(product, a, x.data(), dense[i].data(), y.data(), stream_); }, dense.size());
        const double us = bench::median({timed->sample(), timed->sample(), timed->sample()});
        if (us < best) best = us, theirs = std::move(timed);
      }
    }
    std::vector<Cell> cells(weights.size());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::size_t f = (i + row_) % cells.size();
      cells[f] = measure(x, y, weights[f], theirs.get());
    }
    ++row_;
    std::printf("%-12s %5ld %9.1f", shape.c_str(), static_cast<long>(m), cells.empty() ? 0.0 : cells[0].peer);
    for (std::size_t f = 0; f < cells.size(); ++f) {
      const Cell& cell = cells[f];
      std::printf(" %6.1f %5.2f", cell.us, cell.peer / cell.us);
      std::string kernel;
      for (const MatmulChoice& choice : cuda::explain_weight_matmul(m, s.n, s.k, weights[f][0].scheme, x.dtype()))
        if (choice.chosen) kernel = choice.name;
      lines_.push_back("  {\"scheme\": \"" + schemes_[f] + "\", \"activations\": \"" + (bf16_ ? "bf16" : "fp16") +
                       "\", \"n\": " + std::to_string(s.n) + ", \"k\": " + std::to_string(s.k) + ", \"m\": " + std::to_string(m) +
                       ", \"us\": " + std::to_string(cell.us) + ", \"cublaslt_us\": " + std::to_string(cell.peer) +
                       ", \"speedup\": " + std::to_string(cell.peer / cell.us) + ", \"row\": \"" + kernel + "\"}");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  struct Cell {
    double us = 0.0, peer = 0.0;
  };
  /// One scheme beside cuBLASLt, a turn that does not count and eight that do. The clock falls from the rest on, so that each of both is
  /// the first in every other turn.
  Cell measure(const Tensor& x, const Tensor& y, const std::vector<cuda::DeviceWeight>& list, TimedGraph* theirs) {
    const auto bytes = static_cast<std::int64_t>(cuda::weight_matmul_workspace(x.shape()[0], list[0]));
    const Tensor space = Tensor::empty(DType::kU8, {bytes}, kDevice);
    const cuda::Workspace workspace{space.data(), space.byte_size()};
    TimedGraph ours(
        stream_, [&](std::size_t i) { cuda::matmul(x, list[i], y, stream_, {}, workspace); }, list.size());
    std::this_thread::sleep_for(kRest);
    std::vector<double> us, peer;
    for (int turn = 0; turn < 9; ++turn)
      for (const bool is_ours : {turn % 2 == 0, turn % 2 != 0}) {
        const double sample = is_ours ? ours.sample() : (theirs != nullptr ? theirs->sample() : 0.0);
        if (turn > 0) (is_ours ? us : peer).push_back(sample);
      }
    return {bench::median(us), bench::median(peer)};
  }

  cuda::OwnedStream stream_;
  bench::CublasLt lt_;
  std::string only_;
  std::vector<std::string> schemes_;
  std::vector<std::int64_t> rows_;
  bool bf16_;
  std::size_t row_ = 0;  ///< of all tables
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

int main(int argc, char** argv) {
  std::string json, only;
  std::vector<std::string> schemes(std::begin(kSchemes), std::end(kSchemes));
  std::vector<std::int64_t> rows(std::begin(kRows), std::end(kRows));
  bool bf16 = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (std::strcmp(argv[i], "--schemes") == 0 && i + 1 < argc)
      schemes = split(argv[++i]);
    else if (std::strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
      rows.clear();
      for (const std::string& m : split(argv[++i])) rows.push_back(std::stol(m));
      std::sort(rows.begin(), rows.end());
    } else if (std::strcmp(argv[i], "--bf16") == 0)
      bf16 = true;
  }
  if (narrow::cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(only, schemes, rows, bf16);
  if (!bench.has_peer()) std::puts("cuBLASLt was not found: no ratios to it");
  for (const Sizes& s : kSizes) bench.shape(s);
  if (!json.empty()) bench.write_json(json);
  return 0;
}
