/// W4A8 on the GPU: int8 activations x int4:block128 weights, beside the weight-only product of fp16 activations with the same weights,
/// int8 x int8, and cuBLASLt's bf16 product, in turns in one run.
///   bench_cuda_int4 [--kernels]
/// --kernels: every row of the table, too. Codes are random; weights rotate beyond the second-level cache. Microseconds, and speed-ups of
/// W4A8.

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt.h"
#include "cuda_timing.h"
#include "narrow/cuda_matmul.h"
#include "narrow/cuda_weights.h"

namespace {

using namespace narrow;
using bench::TimedGraph;

const Device kDevice = Device::cuda(0);
constexpr double kRotation = 256.0 * 1048576.0;
constexpr int kTurns = 15;

struct Shape3 {
  std::int64_t m, n, k;
};
constexpr Shape3 kShapes[] = {{1, 8192, 8192},    {16, 8192, 8192},   {64, 8192, 8192}, {128, 8192, 8192},
                              {2048, 8192, 8192}, {4096, 4096, 4096}, {1, 4096, 4096}};

__global__ void fill(std::uint32_t* out, std::int64_t count, std::uint32_t seed, std::uint32_t mask, std::uint32_t bits) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t x = (static_cast<std::uint64_t>(i) + seed) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
    out[i] = (static_cast<std::uint32_t>(x >> 32) & mask) | bits;
  }
}
/// Random codes; floats between 1/4 and 1 (as two halves of 16 bits, in bf16, each other's neighbours).
void fill_codes(const Buffer& buffer, std::uint32_t seed, cuda::Stream stream) {
  fill<<<1024, 256, 0, stream>>>(buffer.as<std::uint32_t>(), static_cast<std::int64_t>(buffer.size() / 4), seed, 0xFFFFFFFFu, 0u);
}
void fill_floats(const void* data, std::size_t bytes, std::uint32_t seed, cuda::Stream stream, bool half) {
  fill<<<1024, 256, 0, stream>>>(static_cast<std::uint32_t*>(const_cast<void*>(data)), static_cast<std::int64_t>(bytes / 4), seed,
                                 half ? 0x80FF80FFu : 0x80FFFFFFu, half ? 0x3E003E00u : 0x3E000000u);
}

cuda::DeviceQuantized random(const char* scheme, std::int64_t rows, std::int64_t k, std::uint32_t seed, cuda::Stream stream) {
  const cuda::DeviceQuantized q = cuda::allocate_quantized(Scheme::parse(scheme), {rows, k}, kDevice);
  fill_codes(q.codes, seed, stream);
  fill_floats(q.scales.data(), q.scales.size(), seed + 1, stream, false);
  return q;
}

void measure(const Shape3& s, const bench::CublasLt& lt, bool kernels, cuda::Stream stream) {
  const auto sets_for = [&](double bits) {
    return static_cast<std::size_t>(std::clamp(kRotation / (static_cast<double>(s.n * s.k) * bits / 8) + 1, 2.0, 16.0));
  };
  const cuda::Int8Matrix x = cuda::prepare_int8(random("int8:row", s.m, s.k, 1, stream), stream);
  const Tensor values = Tensor::empty(DType::kBf16, {s.m, s.k}, kDevice), y = Tensor::empty(DType::kBf16, {s.m, s.n}, kDevice);
  fill_floats(values.data(), values.byte_size(), 2, stream, true);
  std::vector<cuda::Int4Weight> int4;
  std::vector<cuda::DeviceWeight> only;
  std::vector<cuda::Int8Matrix> int8;
  std::vector<Tensor> dense;
  for (std::uint32_t i = 0; i < sets_for(4); ++i) {
    const cuda::DeviceQuantized q = random("int4:block128", s.n, s.k, 3 * i, stream);
    int4.push_back(cuda::prepare_int4(q, stream));
    only.push_back(cuda::prepare_weight(q, stream));
    cuda::synchronize(stream);
  }
  for (std::uint32_t i = 0; i < sets_for(8); ++i)
    int8.push_back(cuda::prepare_int8(random("int8:row", s.n, s.k, 5 * i, stream), stream, false));
  for (std::uint32_t i = 0; i < sets_for(16); ++i) {
    dense.push_back(Tensor::empty(DType::kBf16, {s.n, s.k}, kDevice));
    fill_floats(dense[i].data(), dense[i].byte_size(), 7 * i, stream, true);
  }
  TimedGraph ours(
      stream, [&](std::size_t i) { cuda::matmul(x, int4[i], y, stream); }, int4.size());
  TimedGraph weight_only(
      stream, [&](std::size_t i) { cuda::matmul(values, only[i], y, stream); }, only.size());
  TimedGraph bytes(
      stream, [&](std::size_t i) { cuda::matmul(x, int8[i], y, stream); }, int8.size());
  std::vector<TimedGraph*> all{&ours, &weight_only, &bytes};
  std::unique_ptr<TimedGraph> theirs;
  bench::CublasLt::Product product{};
  if (lt.available()) {
    product = lt.dense_product(s.m, s.n, s.k, true);
    theirs = std::make_unique<TimedGraph>(
        stream, [&](std::size_t i) { lt.run(product, 0, values.data(), dense[i].data(), y.data(), stream); }, dense.size());
    all.push_back(theirs.get());
  }
  const std::vector<double> us = bench::in_turns(all, kTurns);
  const double work = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  std::printf("%5ld x %ld x %ld   W4A8 %8.2f us %6.0f TOP/s %5.2f TB/s   weight-only fp16 %8.2f (%.2fx)   int8 %8.2f (%.2fx)", s.m, s.n,
              s.k, us[0], work / us[0] * 1e-6, static_cast<double>(int4[0].byte_size()) / us[0] * 1e-6, us[1], us[1] / us[0], us[2],
              us[2] / us[0]);
  if (theirs) std::printf("   cuBLASLt bf16 %8.2f (%.2fx)", us[3], us[3] / us[0]);
  std::printf("\n");
  if (!kernels) return;
  for (const std::string& name : cuda::int4_matmul_kernel_names()) {
    if (name.starts_with("any") || (name.ends_with("few_rows") && s.m > 64)) continue;
    cuda::Int8MatmulOptions options;
    options.kernel = name;
    TimedGraph one(
        stream, [&](std::size_t i) { cuda::matmul(x, int4[i], y, stream, options); }, int4.size());
    std::printf("    %-34s %8.2f us\n", name.c_str(), bench::in_turns({&one}, kTurns)[0]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda::device_count() == 0) return std::puts("no CUDA device"), 0;
  const cuda::OwnedStream stream;
  const bench::CublasLt lt;
  for (const Shape3& s : kShapes) measure(s, lt, argc > 1 && std::strcmp(argv[1], "--kernels") == 0, stream);
}
