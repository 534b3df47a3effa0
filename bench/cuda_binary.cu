/// Products of +-1 on the GPU, beside int8 by cuBLASLt and the rate of the instruction itself, in the same run.
///   bench_cuda_binary [--json FILE] [--only cubes|pack|small|conv] [--kernels TEXT] [--quick]
/// --kernels: every configuration of the cubes whose name contains the text, too.
/// Inputs are random and rotate; calls are captured into graphs, whose replays are timed with events; medians. The cubes twice: each
/// contender alone, as CUTLASS's figures and so the goals were taken, and in turns of 6 ms, where int8's heat sets the clocks of all; the
/// others in turns. TOP/s are 2 m n k / time.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt.h"
#include "cuda_timing.h"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/wgmma_bits.cuh"
#include "narrow/cuda_binary.h"

namespace {

using namespace narrow;
using bench::require;

const Device kDevice = Device::cuda(0);

__device__ std::uint32_t scramble(std::uint64_t i, std::uint64_t seed) {
  std::uint64_t x = i + seed * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return static_cast<std::uint32_t>(x >> 32);
}
__global__ void fill_words(std::uint32_t* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = scramble(static_cast<std::uint64_t>(i), seed);
}
/// Normal values of standard deviation 32 as int8, and scales between 0.5 and 1.5.
__global__ void fill_int8(std::int8_t* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    const float u = (static_cast<float>(scramble(2 * i, seed) >> 8) + 1.0f) / 16777217.0f,
                w = static_cast<float>(scramble(2 * i + 1, seed) >> 8) / 16777216.0f;
    out[i] = static_cast<std::int8_t>(fminf(fmaxf(rintf(32.0f * sqrtf(-2.0f * logf(u)) * cospif(2.0f * w)), -127.0f), 127.0f));
  }
}
__global__ void fill_scales(float* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = 0.5f + static_cast<float>(scramble(i, seed) >> 8) / 16777216.0f;
}

__global__ void flip_signs(float* values, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    if (scramble(i, seed) % 2 == 0) values[i] = -values[i];
}

/// wgmma of bits over and over on the same random operands in shared memory: the rate of the instruction.
constexpr int kCeilingSteps = 4096;
__global__ void __launch_bounds__(256, 1) instruction_rate(int* out) {
  extern __shared__ std::byte memory[];
  std::byte* tiles = memory + (1024 - cuda::sm90::shared_address(memory) % 1024) % 1024;
  for (int i = static_cast<int>(threadIdx.x); i < 48 * 1024 / 4; i += 256)
    reinterpret_cast<std::uint32_t*>(tiles)[i] = scramble(static_cast<std::uint64_t>(i), blockIdx.x);
  cuda::sm90::fence_shared_for_copies();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  const std::uint32_t a = cuda::sm90::operand_word(cuda::sm90::shared_address(tiles) + group * 64 * 128),
                      b = cuda::sm90::operand_word(cuda::sm90::shared_address(tiles) + 128 * 128);
  int sums[128] = {};
  cuda::sm90::pin(sums);
#pragma unroll 1
  for (int i = 0; i < kCeilingSteps / 4; ++i) {
    cuda::sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      cuda::sm90::wgmma_bits(sums, cuda::sm90::operand(a + step * 2), cuda::sm90::operand(b + step * 2), true);
    cuda::sm90::wgmma_commit();
    cuda::sm90::wgmma_wait<1>();
  }
  cuda::sm90::wgmma_wait<0>();
  cuda::sm90::pin(sums);
  int total = 0;
  for (int i = 0; i < 128; ++i) total ^= sums[i];
  if (total == 12345) *out = total;
}

struct Row {
  std::string name, shape;
  double microseconds, tops;
};
std::vector<Row> rows;

void report(const std::string& name, const std::string& shape, double microseconds, double operations) {
  rows.push_back({name, shape, microseconds, operations / microseconds * 1e-6});
  std::printf("%-44s %-24s %9.2f us %8.0f TOP/s\n", name.c_str(), shape.c_str(), microseconds, rows.back().tops);
  std::fflush(stdout);
}

Buffer words(std::int64_t bytes, unsigned seed, cuda::Stream stream) {
  Buffer buffer = Buffer::allocate(static_cast<std::size_t>(bytes), kDevice);
  fill_words<<<1024, 256, 0, stream>>>(buffer.as<std::uint32_t>(), bytes / 4, seed);
  return buffer;
}
cuda::Int1Matrix matrix(std::int64_t n, std::int64_t k, unsigned seed, cuda::Stream stream) {
  cuda::DeviceQuantized q{Scheme::parse("int1:row"),
                          {n, k},
                          words(n * k / 8, seed, stream),
                          Buffer::allocate(static_cast<std::size_t>(n) * 4, kDevice),
                          {},
                          {}};
  fill_scales<<<256, 256, 0, stream>>>(q.scales.as<float>(), n, seed + 1);
  return cuda::prepare_int1(q, stream);
}

struct Cube {
  std::int64_t m, n, k;
  double goal;
  std::string text() const { return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k); }
  double operations() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};
constexpr Cube kCubes[] = {{4096, 4096, 4096, 5500}, {8192, 8192, 8192, 8500}, {16384, 16384, 16384, 11500}};

void bench_ceiling(cuda::Stream stream) {
  require(cudaFuncSetAttribute(instruction_rate, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024), "cudaFuncSetAttribute");
  int blocks = 0;
  require(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  const Buffer out = Buffer::allocate(4, kDevice);
  const bench::Contender contender{
      "", [&](std::size_t) { instruction_rate<<<static_cast<unsigned>(blocks), 256, 64 * 1024, stream>>>(out.as<int>()); }, 1};
  report("instruction alone, m64n256k256", "registers", bench::one_by_one(stream, {contender})[0],
         2.0 * blocks * 2 * kCeilingSteps * 64.0 * 256.0 * 256.0);
}

/// Narrow's kernels alone, the peer's alone, and all in turns: each for all cubes before the next, so that no figure of a kernel alone
/// begins with the heat of another one.
enum class Pass { kAlone, kPeerAlone, kInTurns };

void bench_cube(const Cube& cube, Pass pass, const std::string& kernels, cuda::Stream stream, const bench::CublasLt& peer, int rounds) {
  constexpr std::size_t kSets = 3;
  std::vector<cuda::Int1Matrix> x, w;
  std::vector<Tensor> y16, y32;
  for (std::size_t i = 0; i < kSets; ++i) {
    x.push_back(matrix(cube.m, cube.k, static_cast<unsigned>(10 * i + 1), stream));
    w.push_back(matrix(cube.n, cube.k, static_cast<unsigned>(10 * i + 5), stream));
    y16.push_back(Tensor::empty(DType::kF16, {cube.m, cube.n}, kDevice));
    if (i < 2) y32.push_back(Tensor::empty(DType::kI32, {cube.m, cube.n}, kDevice));
  }
  std::vector<bench::Contender> contenders;
  const auto add = [&](const std::string& name, const std::function<void(std::size_t)>& call, std::size_t sets) {
    contenders.push_back({name, call, sets});
  };
  if (pass != Pass::kPeerAlone) {
    add(
        "narrow, fp16", [&](std::size_t i) { cuda::matmul(x[i], w[i], y16[i], stream); }, kSets);
    add(
        "narrow, int32", [&](std::size_t i) { cuda::matmul(x[i], w[i], y32[i], stream); }, 2);
    if (!kernels.empty())
      for (const std::string& name : cuda::int1_matmul_kernel_names())
        if (name.find(kernels) != std::string::npos)
          add(
              name + ", fp16", [&, name](std::size_t i) { cuda::matmul(x[i], w[i], y16[i], stream, {.kernel = name}); }, kSets);
  }
  Buffer x8, w8;
  bench::CublasLt::Product product{};
  if (pass != Pass::kAlone && peer.available()) {
    x8 = Buffer::allocate(static_cast<std::size_t>(cube.m * cube.k), kDevice);
    w8 = Buffer::allocate(static_cast<std::size_t>(cube.n * cube.k), kDevice);
    fill_int8<<<1024, 256, 0, stream>>>(x8.as<std::int8_t>(), cube.m * cube.k, 3);
    fill_int8<<<1024, 256, 0, stream>>>(w8.as<std::int8_t>(), cube.n * cube.k, 4);
    product = peer.product(cube.m, cube.n, cube.k, bench::CublasLt::Kind::kInt8ToInt32, nullptr, nullptr);
    for (std::size_t a = 0; a < std::min<std::size_t>(2, product.algorithms.size()); ++a)
      add(
          "cuBLASLt int8 -> int32, algorithm " + std::to_string(a),
          [&, a](std::size_t i) { peer.run(product, a, x8.data(), w8.data(), y32[i].data(), stream); }, 2);
  }
  const bool alone = pass != Pass::kInTurns;
  const char* const ending = alone ? ", alone" : ", in turns";
  const std::vector<double> medians = alone ? bench::one_by_one(stream, contenders) : bench::in_long_turns(stream, contenders, {rounds});
  for (std::size_t i = 0; i < contenders.size(); ++i) report(contenders[i].name + ending, cube.text(), medians[i], cube.operations());
  if (pass == Pass::kAlone) return;
  double mine = 0.0, int8 = 0.0;  // microseconds
  for (const Row& row : rows) {
    if (row.shape != cube.text() || !row.name.ends_with(ending)) continue;
    if (row.name.starts_with("narrow, fp16")) mine = row.microseconds;
    if (row.name.starts_with("cuBLASLt") && (int8 == 0.0 || row.microseconds < int8)) int8 = row.microseconds;
  }
  std::printf("  %s: goal %.0f: %s; %.2f times int8 by cuBLASLt\n", ending + 2, cube.goal,
              cube.operations() / mine * 1e-6 >= cube.goal ? "reached" : "missed", int8 / mine);
}

/// Packing of bf16 rows, and the product's small shapes.
void bench_pack(cuda::Stream stream, int rounds) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF32}) {
    const std::int64_t m = 8192, k = 8192, bytes = m * k * bits_of(dtype) / 8;
    constexpr std::size_t kSets = 2;
    std::vector<Tensor> x;
    std::vector<cuda::Int1Matrix> q;
    for (std::size_t i = 0; i < kSets; ++i) {
      Tensor t = Tensor::empty(dtype, {m, k}, kDevice), values = Tensor::empty(DType::kF32, {m, k}, kDevice);
      fill_scales<<<1024, 256, 0, stream>>>(values.as<float>(), m * k, i + 70);
      flip_signs<<<1024, 256, 0, stream>>>(values.as<float>(), m * k, i + 90);
      cuda::convert(values, t, stream);
      cuda::synchronize(stream);
      x.push_back(t);
      q.push_back(cuda::allocate_int1(m, k, kDevice));
    }
    bench::TimedGraph timed(
        stream, [&](std::size_t i) { cuda::quantize(x[i], q[i], stream); }, kSets);
    const double us = bench::in_long_turns({&timed}, {rounds})[0];
    std::printf("%-44s %-24s %9.2f us %8.2f TB/s\n", (std::string("pack ") + std::string(name_of(dtype))).c_str(), "8192x8192", us,
                (static_cast<double>(bytes) + static_cast<double>(m * k) / 8) / us * 1e-6);
  }
}

void bench_small(cuda::Stream stream, int rounds) {
  constexpr Cube kSmall[] = {{1, 4096, 4096, 0}, {16, 4096, 4096, 0},   {64, 4096, 4096, 0},  {256, 4096, 4096, 0},
                             {512, 512, 512, 0}, {1024, 1024, 1024, 0}, {2048, 2048, 2048, 0}};
  for (const Cube& s : kSmall) {
    const cuda::Int1Matrix x = matrix(s.m, s.k, 1, stream), w = matrix(s.n, s.k, 2, stream);
    const Tensor y = Tensor::empty(DType::kF16, {s.m, s.n}, kDevice);
    std::vector<std::unique_ptr<bench::TimedGraph>> graphs;
    std::vector<bench::TimedGraph*> timed;
    std::vector<std::string> names{""};
    for (const std::string& name : cuda::int1_matmul_kernel_names()) names.push_back(name);
    for (const std::string& name : names) {
      graphs.push_back(std::make_unique<bench::TimedGraph>(
          stream, [&](std::size_t) { cuda::matmul(x, w, y, stream, {.kernel = name}); }, 1));
      timed.push_back(graphs.back().get());
    }
    const std::vector<double> medians = bench::in_long_turns(timed, {rounds});
    for (std::size_t i = 0; i < names.size(); ++i)
      report(names[i].empty() ? "narrow, fp16" : names[i] + ", fp16", s.text(), medians[i], s.operations());
  }
}

/// The 3x3 layers of a binary ResNet-18; bench/cudnn_conv.py times the same ones in fp16.
struct Layer {
  std::int64_t size, channels, outputs, stride;
};
constexpr Layer kLayers[] = {{56, 64, 64, 1},   {56, 64, 128, 2},  {28, 128, 128, 1}, {28, 128, 256, 2},
                             {14, 256, 256, 1}, {14, 256, 512, 2}, {7, 512, 512, 1}};

void bench_conv(cuda::Stream stream, int rounds) {
  for (const std::int64_t images : {1, 128})
    for (const Layer& layer : kLayers) {
      const std::int64_t k = 9 * layer.channels, out = (layer.size - 1) / layer.stride + 1;
      const auto quantized = [&](const char* scheme, const Shape& shape, std::int64_t bits, std::int64_t scales, unsigned seed) {
        cuda::DeviceQuantized q{Scheme::parse(scheme),
                                shape,
                                words(bits / 8, seed, stream),
                                Buffer::allocate(static_cast<std::size_t>(scales) * 4, kDevice),
                                {},
                                {}};
        fill_scales<<<1, 256, 0, stream>>>(q.scales.as<float>(), scales, seed);
        return q;
      };
      const cuda::DeviceQuantized x = quantized("int1:tensor", {images, layer.size, layer.size, layer.channels},
                                                images * layer.size * layer.size * layer.channels, 1, 3);
      const cuda::DeviceBinaryConv2d w = cuda::prepare_binary_conv2d(
          quantized("int1:row", {layer.outputs, k}, layer.outputs * k, layer.outputs, 4),
          {.kernel_h = 3, .kernel_w = 3, .stride_h = layer.stride, .stride_w = layer.stride, .pad_h = 1, .pad_w = 1}, stream);
      const Tensor y = Tensor::empty(DType::kF16, {images, out, out, layer.outputs}, kDevice);
      const cuda::DeviceQuantized bits = cuda::allocate_quantized(Scheme::parse("int1:tensor"), y.shape(), kDevice);
      const cuda::BinaryThresholds thresholds{words(layer.outputs * 4, 5, stream), words(layer.outputs * 4, 6, stream)};
      bench::TimedGraph half(
          stream, [&](std::size_t) { cuda::binary_conv2d(x, w, y, stream); }, 1);
      bench::TimedGraph one_bit(
          stream, [&](std::size_t) { cuda::binary_conv2d(x, w, thresholds, bits, stream); }, 1);
      const std::vector<double> medians = bench::in_long_turns({&half, &one_bit}, {rounds});
      const std::string shape = std::to_string(images) + "x" + std::to_string(layer.size) + "x" + std::to_string(layer.size) + "x" +
                                std::to_string(layer.channels) + "->" + std::to_string(layer.outputs) + "/" + std::to_string(layer.stride);
      const double operations = 2.0 * static_cast<double>(images * out * out * layer.outputs * k);
      report("conv 3x3, fp16", shape, medians[0], operations);
      report("conv 3x3, one bit", shape, medians[1], operations);
    }
}

}  // namespace

int main(int argc, char** argv) {
  std::string json, kernels, only;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--kernels") == 0 && i + 1 < argc)
      kernels = argv[++i];
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (std::strcmp(argv[i], "--quick") == 0)
      quick = true;
  }
  const cuda::OwnedStream stream;
  const bench::CublasLt peer;
  const int rounds = quick ? 3 : 5;
  const auto wants = [&](const char* part) { return only.empty() || only == part; };
  bench_ceiling(stream);
  for (const Pass pass : {Pass::kAlone, Pass::kPeerAlone, Pass::kInTurns})
    for (const Cube& cube : kCubes)
      if (wants("cubes")) bench_cube(cube, pass, kernels, stream, peer, 4 * rounds);
  if (wants("pack")) bench_pack(stream, rounds);
  if (wants("small")) bench_small(stream, rounds);
  if (wants("conv")) bench_conv(stream, rounds);
  if (!json.empty()) {
    std::ofstream out(json);
    out << "[\n";
    for (std::size_t i = 0; i < rows.size(); ++i)
      out << "  {\"kernel\": \"" << rows[i].name << "\", \"shape\": \"" << rows[i].shape << "\", \"us\": " << rows[i].microseconds
          << ", \"tops\": " << rows[i].tops << "}" << (i + 1 < rows.size() ? "," : "") << "\n";
    out << "]\n";
  }
}
