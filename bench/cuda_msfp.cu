/// MSFP products on the GPU, both sides packed, beside bf16 by cuBLASLt in the same run. The time of a product includes all decoding.
///   bench_cuda_msfp [--json FILE] [--quick]
/// Inputs are random and rotate; calls are captured into a graph and its replays timed with events, each contender alone, in the order of
/// the list and in every rotation of it, and in turns of 6 ms; medians. TFLOP/s are 2 m n k / time.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt.h"
#include "cuda_timing.h"
#include "narrow/cuda_msfp.h"

namespace {

using namespace narrow;

const Device kDevice = Device::cuda(0);

__device__ float uniform(std::uint64_t i, std::uint64_t seed) {
  std::uint64_t x = i + seed * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return static_cast<float>((x >> 40) + 1) * (1.0f / 16777217.0f);
}
__global__ void fill_normal(std::uint16_t* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = static_cast<std::uint16_t>(
        __float_as_uint(sqrtf(-2.0f * logf(uniform(2 * i, seed))) * cospif(2.0f * uniform(2 * i + 1, seed))) >> 16);
}
Tensor normal(std::int64_t rows, std::int64_t columns, unsigned seed, cuda::Stream stream) {
  Tensor x = Tensor::empty(DType::kBf16, {rows, columns}, kDevice);
  fill_normal<<<1024, 256, 0, stream>>>(x.as<std::uint16_t>(), rows * columns, seed);
  return x;
}

struct Shape3 {
  std::int64_t m, n, k;
};
constexpr Shape3 kShapes[] = {{4096, 4096, 4096}, {8192, 8192, 8192}, {2048, 4096, 4096}};

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--quick") == 0)
      quick = true;
  }
  const cuda::OwnedStream owned;
  const cuda::Stream stream = owned;
  const bench::CublasLt peer;
  std::string lines;
  for (const Shape3& s : kShapes) {
    constexpr std::size_t kSets = 2;
    const std::string shape = std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
    std::vector<Tensor> x, w, y;
    for (std::size_t i = 0; i < kSets; ++i) {
      x.push_back(normal(s.m, s.k, static_cast<unsigned>(i + 1), stream));
      w.push_back(normal(s.n, s.k, static_cast<unsigned>(i + 7), stream));
      y.push_back(Tensor::empty(DType::kBf16, {s.m, s.n}, kDevice));
    }
    std::vector<bench::Contender> contenders;
    const auto add = [&](const std::string& name, const std::function<void(std::size_t)>& call) {
      contenders.push_back({name, call, kSets});
    };
    bench::CublasLt::Product product{};
    if (peer.available()) {
      product = peer.dense_product(s.m, s.n, s.k, true);
      for (std::size_t a = 0; a < std::min<std::size_t>(3, product.algorithms.size()); ++a)
        add("cuBLASLt bf16, algorithm " + std::to_string(a),
            [&, a](std::size_t i) { peer.run(product, a, x[i].data(), w[i].data(), y[i].data(), stream); });
    }
    std::vector<std::vector<cuda::MsfpMatrix>> matrices;  // [format][2 * set + side]
    Buffer workspace;                                     // as large for all formats
    for (const char* name : {"msfp16", "msfp12"}) {
      const Scheme scheme = Scheme::parse(name);
      auto& mine = matrices.emplace_back();
      for (std::size_t i = 0; i < 2 * kSets; ++i) {
        const Tensor& from = i % 2 == 0 ? x[i / 2] : w[i / 2];
        const cuda::DeviceQuantized q = cuda::allocate_quantized(scheme, from.shape(), kDevice);
        cuda::quantize(from, q, stream);
        mine.push_back(cuda::prepare_msfp(q, stream));
      }
      const std::size_t which = matrices.size() - 1;
      if (which == 0) workspace = Buffer::allocate(cuda::msfp_matmul_workspace(mine[0], mine[1]), kDevice);
      add(std::string(name) + " x " + name, [&, which](std::size_t i) {
        cuda::matmul(matrices[which][2 * i], matrices[which][2 * i + 1], y[i], stream, {}, {workspace.data(), workspace.size()});
      });
    }
    for (const std::string how : {"alone", "alone, rotated", "in turns"}) {
      const std::vector<double> medians = how == "alone"            ? bench::one_by_one(stream, contenders)
                                          : how == "alone, rotated" ? bench::one_by_one_rotated(stream, contenders)
                                                                    : bench::in_long_turns(stream, contenders, {quick ? 3 : 20});
      double best = 0.0;
      for (std::size_t i = 0; i < contenders.size(); ++i)
        if (contenders[i].name.starts_with("cuBLASLt") && (best == 0.0 || medians[i] < best)) best = medians[i];
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        const double rate = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / medians[i] * 1e-6;
        const std::string name = contenders[i].name + ", " + how;
        std::printf("%-42s %-16s %9.2f us %7.0f TFLOP/s  %.3f of cuBLASLt bf16\n", name.c_str(), shape.c_str(), medians[i], rate,
                    best / medians[i]);
        lines += std::string(lines.empty() ? "" : ",\n") + "  {\"kernel\": \"" + name + "\", \"shape\": \"" + shape +
                 "\", \"us\": " + std::to_string(medians[i]) + ", \"of_bf16\": " + std::to_string(best / medians[i]) + "}";
      }
    }
    std::fflush(stdout);
  }
  if (!json.empty()) std::ofstream(json) << "[\n" << lines << "\n]\n";
}
