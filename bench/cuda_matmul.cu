/// fp8 and int8 products on the GPU, beside cuBLASLt in the same run.
///   bench_cuda_matmul [--json FILE] [--only TEXT] [--kernels TEXT]
/// --only: rows of the table that contain the text; --kernels: every configuration whose name contains the text, too.
/// Inputs are random and rotate beyond the second-level cache; calls are captured into a graph and its replays timed with events; medians.
/// "of DeepGEMM" is (narrow / cuBLASLt here) / (DeepGEMM / cuBLASLt in the peers' run of 2026-11-15 on the same kind of machine): a guide;
/// in one run with DeepGEMM itself the mean is about 3 % lower (docs/benchmarks/2026-11-18-h200-fp8-products.md).

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt.h"
#include "cuda_timing.h"
#include "narrow/cuda_fused.h"
#include "narrow/cuda_matmul.h"

namespace {

using namespace narrow;

constexpr double kRotation = 256.0 * 1048576.0;
const Device kDevice = Device::cuda(0);

__device__ float uniform(std::uint64_t i, std::uint64_t seed) {
  std::uint64_t x = i + seed * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return static_cast<float>((x >> 40) + 1) * (1.0f / 16777217.0f);
}

/// Normal values as e4m3 codes or bf16, int8 codes of which each is as likely as the others (as the peers were measured), and scales
/// between 0.5 and 1.5.
enum class Fill { kE4m3, kBf16, kInt8 };
__global__ void fill_normal(void* out, std::int64_t count, Fill fill, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    const float v = sqrtf(-2.0f * logf(uniform(2 * i, seed))) * cospif(2.0f * uniform(2 * i + 1, seed));
    if (fill == Fill::kInt8)
      static_cast<std::int8_t*>(out)[i] = static_cast<std::int8_t>(static_cast<int>(uniform(i, seed) * 254.99f) - 127);
    else if (fill == Fill::kBf16)
      static_cast<std::uint16_t*>(out)[i] = static_cast<std::uint16_t>(__float_as_uint(v) >> 16);
    else
      static_cast<std::uint8_t*>(out)[i] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
  }
}
__global__ void fill_scales(float* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x)
    out[i] = 0.5f + uniform(i, seed);
}
__global__ void read_words(const uint4* data, std::int64_t count, unsigned* out) {
  unsigned x = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + step), c = __ldcs(data + i + 2 * step), d = __ldcs(data + i + 3 * step);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (x == 0x12345678u) *out = x;
}

/// RMSNorm of bf16 rows, 16 bytes at a time: what stands before the peer's bf16 product.
__global__ void rms_norm(const std::uint16_t* x, const std::uint16_t* weight, std::uint16_t* y, int columns) {
  __shared__ float shared[16];
  const uint4* row = reinterpret_cast<const uint4*>(x + std::int64_t{blockIdx.x} * columns);
  float values[8], sum = 0.0f;
  const int i = static_cast<int>(threadIdx.x);
  const bool real = i * 8 < columns;
  const uint4 words = real ? row[i] : uint4{};
  const std::uint32_t parts[4] = {words.x, words.y, words.z, words.w};
  for (int j = 0; j < 8; ++j) {
    values[j] = __uint_as_float(j % 2 == 0 ? parts[j / 2] << 16 : parts[j / 2] & 0xFFFF0000u);
    sum += values[j] * values[j];
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (i % 32 == 0) shared[i / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (const float part : shared) sum += part;
  const float factor = rsqrtf(sum / static_cast<float>(columns) + 1e-5f);
  if (!real) return;
  const uint4 scales = reinterpret_cast<const uint4*>(weight)[i];
  const std::uint32_t factors[4] = {scales.x, scales.y, scales.z, scales.w};
  std::uint32_t out[4];
  for (int j = 0; j < 4; ++j) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(values[2 * j] * factor * __uint_as_float(factors[j] << 16),
                                                     values[2 * j + 1] * factor * __uint_as_float(factors[j] & 0xFFFF0000u));
    out[j] = *reinterpret_cast<const std::uint32_t*>(&two);
  }
  reinterpret_cast<uint4*>(y + std::int64_t{blockIdx.x} * columns)[i] = {out[0], out[1], out[2], out[3]};
}

/// Short products need many calls before the start of a replay no longer counts.
struct Timed : bench::TimedGraph {
  Timed(cuda::Stream stream, const std::function<void(std::size_t)>& call, std::size_t sets) : TimedGraph(stream, call, sets, 2000.0) {}
};

struct Shape3 {
  std::int64_t m, n, k;
  double table_cublas, table_deepgemm;  ///< TFLOP/s of the peers' run: cuBLASLt per tensor, best; DeepGEMM, best
};
constexpr Shape3 kDense[] = {
    {64, 2112, 7168, 201, 200},     {64, 4096, 7168, 331, 304},     {64, 7168, 2048, 281, 252},      {64, 7168, 16384, 481, 378},
    {64, 24576, 1536, 379, 350},    {128, 2112, 7168, 411, 386},    {128, 4096, 7168, 616, 616},     {128, 7168, 2048, 542, 469},
    {128, 7168, 16384, 915, 609},   {128, 24576, 1536, 711, 678},   {256, 2112, 7168, 772, 667},     {256, 4096, 7168, 1026, 856},
    {256, 7168, 2048, 876, 749},    {256, 7168, 16384, 1271, 990},  {256, 24576, 1536, 1045, 940},   {4096, 2112, 7168, 1432, 1166},
    {4096, 4096, 7168, 1345, 1257}, {4096, 7168, 2048, 1465, 1288}, {4096, 7168, 16384, 1424, 1196}, {4096, 24576, 1536, 1455, 1174},
    {4096, 4096, 4096, 1442, 1369}, {8192, 8192, 8192, 1340, 1277}};

struct Grouped {
  std::int64_t groups, rows, n, k;
  bool masked;
  double table_deepgemm;
};
constexpr Grouped kGrouped[] = {{4, 8192, 4096, 7168, false, 1233}, {4, 8192, 7168, 2048, false, 1149}, {8, 4096, 4096, 7168, false, 1186},
                                {8, 4096, 7168, 2048, false, 1150}, {1, 1024, 4096, 7168, true, 1064},  {1, 1024, 7168, 2048, true, 812},
                                {2, 512, 4096, 7168, true, 1196},   {2, 512, 7168, 2048, true, 762},    {4, 256, 4096, 7168, true, 1070},
                                {4, 256, 7168, 2048, true, 752},    {32, 64, 4096, 7168, true, 509},    {32, 64, 7168, 2048, true, 469}};

class Bench {
 public:
  Bench(std::string only, std::string kernels) : only_(std::move(only)), kernels_(std::move(kernels)) {}
  bool wants(const std::string& name) const { return only_.empty() || name.find(only_) != std::string::npos; }
  bool has_peer() const { return lt_.available(); }

  cuda::Fp8Matrix random(const std::string& scheme, std::int64_t groups, std::int64_t rows, std::int64_t k, std::uint64_t seed) {
    const Scheme parsed = Scheme::parse(scheme);
    const Shape shape = groups == 1 ? Shape{rows, k} : Shape{groups, rows, k};
    cuda::DeviceQuantized q = cuda::allocate_quantized(parsed, shape, kDevice);
    fill_normal<<<1024, 256, 0, stream_>>>(q.codes.data(), static_cast<std::int64_t>(q.codes.size()), Fill::kE4m3, seed);
    fill_scales<<<256, 256, 0, stream_>>>(q.scales.as<float>(), static_cast<std::int64_t>(q.scales.size() / 4), seed + 1);
    return cuda::prepare_fp8(q, stream_);
  }

  void dense(const Shape3& s, const char* x_scales, const char* w_scales, bool table, bool fast = false) {
    const std::string name = std::string("fp8 ") + x_scales + " x " + w_scales + (fast ? " fast" : "");
    cuda::Fp8MatmulOptions options;
    options.fast_accumulation = fast;
    const std::string shape = std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
    if (!wants(name + " " + shape)) return;
    const double bytes = static_cast<double>(s.n * s.k + s.m * s.k + 2 * s.m * s.n),
                 flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    const std::size_t sets = static_cast<std::size_t>(std::clamp(kRotation / bytes + 1, 2.0, 64.0));
    std::vector<cuda::Fp8Matrix> x, w;
    std::vector<Tensor> y;
    for (std::size_t i = 0; i < sets; ++i) {
      x.push_back(random(std::string("fp8_e4m3:") + x_scales, 1, s.m, s.k, 4 * i));
      w.push_back(random(std::string("fp8_e4m3:") + w_scales, 1, s.n, s.k, 4 * i + 2));
      y.push_back(Tensor::empty(DType::kBf16, {s.m, s.n}, kDevice));
    }
    Timed ours(
        stream_, [&](std::size_t i) { cuda::matmul(x[i], w[i], y[i], stream_, options); }, sets);
    std::string row = "?";
    for (const MatmulChoice& choice : cuda::explain_matmul(x[0], w[0], y[0], options))
      if (choice.chosen) row = choice.name + ", " + choice.reason.substr(0, choice.reason.rfind(','));
    double peer = 0.0;
    std::unique_ptr<Timed> theirs;
    if (lt_.available()) {
      const bench::CublasLt::Product product =
          lt_.product(s.m, s.n, s.k, bench::CublasLt::Kind::kFp8, x[0].scales.as<float>(), w[0].scales.as<float>());
      double best = 1e30;
      for (std::size_t a = 0; a < product.algorithms.size(); ++a) {
        auto timed = std::make_unique<Timed>(
            stream_, [&](std::size_t i) { lt_.run(product, a, x[i].codes.data(), w[i].codes.data(), y[i].data(), stream_); }, sets);
        const double us = bench::median({timed->sample(), timed->sample(), timed->sample()});
        if (us < best * (theirs ? 0.985 : 1.0)) best = us, theirs = std::move(timed);
      }
    }
    std::vector<bench::TimedGraph*> all{&ours};
    if (theirs) all.push_back(theirs.get());
    const std::vector<double> us = bench::in_long_turns(all);
    if (!kernels_.empty())
      for (const MatmulChoice& choice : cuda::explain_matmul(x[0], w[0], y[0], options)) {
        if (!choice.accepted || choice.name.find(kernels_) == std::string::npos || choice.isa == "any") continue;
        cuda::Fp8MatmulOptions forced = options;
        forced.kernel = choice.name;
        Timed timed(
            stream_, [&](std::size_t i) { cuda::matmul(x[i], w[i], y[i], stream_, forced); }, sets);
        const double alone = bench::in_long_turns({&timed})[0];
        std::printf("    %-50s %8.2f us %6.0f\n", choice.name.c_str(), alone, flops / alone * 1e-6);
      }
    if (theirs) peer = flops / us[1] * 1e-6;
    add(name, shape, us[0], flops, peer, table ? s.table_cublas : 0, table ? s.table_deepgemm : 0, row);
  }

  void grouped(const Grouped& g) {
    const std::string shape =
        std::to_string(g.groups) + "x" + std::to_string(g.rows) + "x" + std::to_string(g.n) + "x" + std::to_string(g.k);
    const std::string name = g.masked ? "fp8 masked groups" : "fp8 contiguous groups";
    if (!wants(name + " " + shape)) return;
    const std::int64_t rows = g.groups * g.rows;
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(g.n) * static_cast<double>(g.k);
    std::vector<std::int32_t> numbers;
    for (std::int64_t i = 0; i < g.groups + (g.masked ? 0 : 1); ++i)
      numbers.push_back(static_cast<std::int32_t>(g.masked ? g.rows : i * g.rows));
    const Tensor table =
        cuda::to_device(Tensor::borrow(numbers.data(), DType::kI32, {static_cast<std::int64_t>(numbers.size())}), kDevice, stream_);
    constexpr std::size_t kSets = 2;
    std::vector<cuda::Fp8Matrix> x, w;
    for (std::size_t i = 0; i < kSets; ++i) {
      x.push_back(random("fp8_e4m3:block128", g.masked ? g.groups : 1, g.masked ? g.rows : rows, g.k, 4 * i));
      w.push_back(random("fp8_e4m3:128x128", g.groups, g.n, g.k, 4 * i + 2));
      if (g.masked && g.groups == 1) x[i].groups = 1;
    }
    const Tensor y = Tensor::empty(DType::kBf16, g.masked ? Shape{g.groups, g.rows, g.n} : Shape{rows, g.n}, kDevice);
    cuda::Fp8MatmulOptions options;
    (g.masked ? options.row_counts : options.row_offsets) = table;
    Timed ours(
        stream_, [&](std::size_t i) { cuda::matmul(x[i], w[i], y, stream_, options); }, kSets);
    std::string row = "?";
    for (const MatmulChoice& choice : cuda::explain_matmul(x[0], w[0], y, options))
      if (choice.chosen) row = choice.name;
    add(name, shape, bench::in_long_turns({&ours})[0], flops, 0, 0, g.table_deepgemm, row);
  }

  void few_rows(std::int64_t m, std::int64_t n, std::int64_t k, double read) {
    const std::string shape = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
    if (!wants("fp8 few rows " + shape)) return;
    const std::size_t sets = static_cast<std::size_t>(std::clamp(kRotation / static_cast<double>(n * k) + 1, 2.0, 16.0));
    std::vector<cuda::Fp8Matrix> w;
    for (std::size_t i = 0; i < sets; ++i) w.push_back(random("fp8_e4m3:128x128", 1, n, k, i));
    const cuda::Fp8Matrix x = random("fp8_e4m3:block128", 1, m, k, 99);
    const Tensor y = Tensor::empty(DType::kBf16, {m, n}, kDevice);
    Timed ours(
        stream_, [&](std::size_t i) { cuda::matmul(x, w[i], y, stream_); }, sets);
    const double us = bench::in_long_turns({&ours})[0], terabytes = static_cast<double>(n * k) / us * 1e-6;
    if (!kernels_.empty())
      for (const MatmulChoice& choice : cuda::explain_matmul(x, w[0], y)) {
        if (!choice.accepted || choice.name.find(kernels_) == std::string::npos || choice.isa == "any") continue;
        cuda::Fp8MatmulOptions forced;
        forced.kernel = choice.name;
        Timed timed(
            stream_, [&](std::size_t i) { cuda::matmul(x, w[i], y, stream_, forced); }, sets);
        std::printf("    %-50s %8.2f us\n", choice.name.c_str(), bench::in_long_turns({&timed})[0]);
      }
    std::printf("%-24s %-18s %8.2f us %6.2f TB/s of weights, %3.0f%% of a read\n", "fp8 few rows", shape.c_str(), us, terabytes,
                100 * terabytes / read);
    lines_.push_back("  {\"product\": \"fp8 few rows\", \"shape\": \"" + shape + "\", \"us\": " + std::to_string(us) +
                     ", \"tb_per_s\": " + std::to_string(terabytes) + ", \"share_of_read\": " + std::to_string(terabytes / read) + "}");
  }

  double read_bandwidth() {
    constexpr std::int64_t kBytes = std::int64_t{4} << 30;
    const Tensor data = Tensor::empty(DType::kU8, {kBytes}, kDevice), out = Tensor::empty(DType::kU32, {1}, kDevice);
    fill_normal<<<1024, 256, 0, stream_>>>(data.data(), kBytes, Fill::kE4m3, 5);
    Timed read(
        stream_,
        [&](std::size_t) {
          read_words<<<132 * 16, 512, 0, stream_>>>(reinterpret_cast<const uint4*>(data.data()), kBytes / 16, out.as<unsigned>());
        },
        1);
    const double terabytes = static_cast<double>(kBytes) / bench::in_long_turns({&read})[0] * 1e-6;
    std::printf("read 4 GiB %.2f TB/s\n", terabytes);
    read_ = terabytes;
    return terabytes;
  }

  /// RMSNorm + 1x128 quantization + product, beside cuBLASLt's bf16 product alone.
  void end_to_end(std::int64_t size) {
    if (!wants("end to end") || !lt_.available()) return;
    constexpr std::size_t kSets = 2;
    const double flops = 2.0 * static_cast<double>(size * size) * static_cast<double>(size);
    std::vector<Tensor> x, wide, y;
    std::vector<cuda::Fp8Matrix> w, quantized;
    std::vector<cuda::FusedOutput> fused;
    const Tensor weight = Tensor::empty(DType::kBf16, {size}, kDevice);
    fill_normal<<<64, 256, 0, stream_>>>(weight.data(), size, Fill::kBf16, 3);
    for (std::size_t i = 0; i < kSets; ++i) {
      x.push_back(Tensor::empty(DType::kBf16, {size, size}, kDevice));
      wide.push_back(Tensor::empty(DType::kBf16, {size, size}, kDevice));
      y.push_back(Tensor::empty(DType::kBf16, {size, size}, kDevice));
      fill_normal<<<1024, 256, 0, stream_>>>(x[i].data(), size * size, Fill::kBf16, i);
      fill_normal<<<1024, 256, 0, stream_>>>(wide[i].data(), size * size, Fill::kBf16, i + 7);
      w.push_back(random("fp8_e4m3:128x128", 1, size, size, i));
      fused.push_back(cuda::allocate_fused(Scheme::parse("fp8_e4m3:block128"), {size, size}, kDevice, Layout::kRow, true));
      quantized.push_back(cuda::prepare_fp8(fused[i], stream_));
    }
    Timed ours(
        stream_,
        [&](std::size_t i) {
          FusedInput input{.op = FusedOp::kRmsNorm, .x = x[i]};
          input.weight = weight;
          cuda::fused_quantize(input, fused[i], stream_);
          cuda::matmul(quantized[i], w[i], y[i], stream_);
        },
        kSets);
    const bench::CublasLt::Product product = lt_.product(size, size, size, bench::CublasLt::Kind::kBf16, nullptr, nullptr);
    Timed theirs(
        stream_, [&](std::size_t i) { lt_.run(product, 0, x[i].data(), wide[i].data(), y[i].data(), stream_); }, kSets);
    const std::vector<double> us = bench::in_long_turns({&ours, &theirs});
    std::printf("RMSNorm + quantize + product %ld^3: %.1f us, cuBLASLt bf16 product alone %.1f us: %.2f times as fast\n",
                static_cast<long>(size), us[0], us[1], us[1] / us[0]);
    lines_.push_back("  {\"product\": \"rms_norm + fp8 block128 x 128x128\", \"shape\": \"" + std::to_string(size) +
                     "^3\", \"us\": " + std::to_string(us[0]) + ", \"tflops\": " + std::to_string(flops / us[0] * 1e-6) +
                     ", \"cublaslt_bf16_us\": " + std::to_string(us[1]) + "}");
  }

  // int8.

  struct Int8Case {
    const char* name;
    DType out;
    bool asymmetric_x = false, bias = false;  ///< zero points of x, per token
    Layout layout = Layout::kRow;             ///< of x and y
    bool per_tensor = false;                  ///< one scale each instead of one per token and per channel

    /// The same output without zero points, bias and layout.
    bool is_plain() const { return !asymmetric_x && !bias && layout == Layout::kRow; }
    Int8Case plain() const { return {name, out, false, false, Layout::kRow, per_tensor}; }
  };

  cuda::Int8Matrix random_int8(const char* scheme, std::int64_t rows, std::int64_t k, std::uint64_t seed, Layout layout = Layout::kRow) {
    cuda::DeviceQuantized q = cuda::allocate_quantized(Scheme::parse(scheme), {rows, k}, kDevice);
    fill_normal<<<1024, 256, 0, stream_>>>(q.codes.data(), static_cast<std::int64_t>(q.codes.size()), Fill::kInt8, seed);
    fill_scales<<<256, 256, 0, stream_>>>(q.scales.as<float>(), static_cast<std::int64_t>(q.scales.size() / 4), seed + 1);
    if (q.zero_points.size() > 0)
      fill_normal<<<256, 256, 0, stream_>>>(q.zero_points.data(), static_cast<std::int64_t>(q.zero_points.size()), Fill::kInt8, seed + 2);
    if (layout == Layout::kRow) return cuda::prepare_int8(q, stream_);
    cuda::FusedOutput laid{q.scheme, q.shape, layout, false, q.codes, q.scales};  // any bytes are codes; rows are a multiple of 32
    return cuda::prepare_int8(laid, stream_);
  }

  /// Operands of a product, several times, and what happens to its sums.
  struct Int8Operands {
    std::vector<cuda::Int8Matrix> x, w;
    std::vector<Tensor> y;
    cuda::Int8MatmulOptions options;
  };

  Int8Operands int8_operands(std::int64_t m, std::int64_t n, std::int64_t k, const Int8Case& c, std::size_t sets) {
    Int8Operands o;
    for (std::size_t i = 0; i < sets; ++i) {
      o.x.push_back(random_int8(c.per_tensor ? "int8:tensor" : (c.asymmetric_x ? "int8:row:asym" : "int8:row"), m, k, 4 * i, c.layout));
      o.w.push_back(random_int8(c.per_tensor ? "int8:tensor" : "int8:row", n, k, 4 * i + 2));
      o.y.push_back(Tensor::empty(c.out, c.layout == Layout::kRow ? Shape{m, n} : Shape{layout_size(c.layout, m, n)}, kDevice));
    }
    o.options.out_scale = 900.0f;
    o.options.y_layout = c.layout;
    if (c.bias) {
      o.options.bias = Tensor::empty(DType::kF32, {n}, kDevice);
      fill_scales<<<64, 256, 0, stream_>>>(o.options.bias->as<float>(), n, 77);
    }
    return o;
  }

  void int8(std::int64_t m, std::int64_t n, std::int64_t k, const Int8Case& c) {
    const std::string name = std::string("int8 ") + c.name;
    const std::string shape = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
    if (!wants(name + " " + shape)) return;
    const double out_bytes = bits_of(c.out) / 8.0, flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double bytes = static_cast<double>(n * k + m * k) + out_bytes * static_cast<double>(m * n);
    const std::size_t sets = static_cast<std::size_t>(std::clamp(kRotation / bytes + 1, 2.0, 64.0));
    const Int8Operands operands = int8_operands(m, n, k, c, sets);
    const std::vector<cuda::Int8Matrix>&x = operands.x, &w = operands.w;
    const std::vector<Tensor>& y = operands.y;
    const cuda::Int8MatmulOptions& options = operands.options;
    Timed ours(
        stream_, [&](std::size_t i) { cuda::matmul(x[i], w[i], y[i], stream_, options); }, sets);
    std::string row = "?";
    for (const MatmulChoice& choice : cuda::explain_matmul(x[0], w[0], y[0], options))
      if (choice.chosen) row = choice.name + ", " + choice.reason.substr(0, choice.reason.rfind(','));
    // The peer writes int32, or int8 where we do.
    std::unique_ptr<Timed> theirs;
    Tensor peer_y;
    if (lt_.available()) {
      const bool to_int8 = c.out == DType::kI8;
      peer_y = Tensor::empty(to_int8 ? DType::kI8 : DType::kI32, {m, n}, kDevice);
      const auto product =
          lt_.product(m, n, k, to_int8 ? bench::CublasLt::Kind::kInt8ToInt8 : bench::CublasLt::Kind::kInt8ToInt32, nullptr, nullptr);
      double best = 1e30;
      for (std::size_t a = 0; a < product.algorithms.size(); ++a) {
        auto timed = std::make_unique<Timed>(
            stream_, [&](std::size_t i) { lt_.run(product, a, x[i].codes.data(), w[i].codes.data(), peer_y.data(), stream_); }, sets);
        const double us = bench::median({timed->sample(), timed->sample(), timed->sample()});
        if (us < best * (theirs ? 0.985 : 1.0)) best = us, theirs = std::move(timed);
      }
    }
    std::vector<bench::TimedGraph*> all{&ours};
    if (theirs) all.push_back(theirs.get());
    // What zero points, a bias or a layout cost is seen beside the product without them: from line to line the clocks change by more.
    Int8Operands plain;
    std::unique_ptr<Timed> without;
    if (!c.is_plain()) {
      plain = int8_operands(m, n, k, c.plain(), sets);
      without = std::make_unique<Timed>(
          stream_, [&](std::size_t i) { cuda::matmul(plain.x[i], plain.w[i], plain.y[i], stream_, plain.options); }, sets);
      all.push_back(without.get());
    }
    const std::vector<double> us = bench::in_long_turns(all), alone_us = bench::in_long_turns(all, bench::kAlone);
    const double cost = without ? us[0] / us.back() - 1.0 : 0.0;
    if (!kernels_.empty())
      for (const MatmulChoice& choice : cuda::explain_matmul(x[0], w[0], y[0], options)) {
        if (!choice.accepted || choice.name.find(kernels_) == std::string::npos || choice.isa == "any") continue;
        cuda::Int8MatmulOptions forced = options;
        forced.kernel = choice.name;
        Timed timed(
            stream_, [&](std::size_t i) { cuda::matmul(x[i], w[i], y[i], stream_, forced); }, sets);
        const double alone = bench::in_long_turns({&timed})[0];
        std::printf("    %-50s %8.2f us %6.0f\n", choice.name.c_str(), alone, flops / alone * 1e-6);
      }
    const double rate = flops / us[0] * 1e-6, peer = theirs ? flops / us[1] * 1e-6 : 0.0,
                 terabytes = static_cast<double>(n * k) / us[0] * 1e-6;
    const double alone = flops / alone_us[0] * 1e-6, peer_alone = theirs ? flops / alone_us[1] * 1e-6 : 0.0;
    std::printf("%-28s %-18s %8.2f us %6.0f TOP/s  cuBLASLt i8->%s %5.0f (%.2f)  alone %6.0f, %5.0f (%.2f)", name.c_str(), shape.c_str(),
                us[0], rate, c.out == DType::kI8 ? "i8" : "i32", peer, peer > 0 ? rate / peer : 0.0, alone, peer_alone,
                peer_alone > 0 ? alone / peer_alone : 0.0);
    if (m <= 64) std::printf("  %.2f TB/s of weights (%.0f%% of a read)", terabytes, 100 * terabytes / read_);
    if (without) std::printf("  costs %.1f%%", 100 * cost);
    std::printf("  %s\n", row.c_str());
    std::fflush(stdout);
    lines_.push_back("  {\"product\": \"" + name + "\", \"shape\": \"" + shape + "\", \"us\": " + std::to_string(us[0]) +
                     ", \"tops\": " + std::to_string(rate) + ", \"cublaslt_tops\": " + std::to_string(peer) +
                     (without ? ", \"cost\": " + std::to_string(cost) : std::string()) + ", \"tops_alone\": " + std::to_string(alone) +
                     ", \"cublaslt_tops_alone\": " + std::to_string(peer_alone) + ", \"tb_per_s\": " + std::to_string(terabytes) +
                     ", \"row\": \"" + row + "\"}");
  }

  /// RMSNorm + dynamic quantization per token + product + dequantization, beside RMSNorm + cuBLASLt's bf16 product.
  void int8_linear(std::int64_t size) {
    if (!wants("int8 linear") || !lt_.available()) return;
    constexpr std::size_t kSets = 2;
    std::vector<Tensor> x, wide, normed, y;
    std::vector<cuda::Int8Matrix> w;
    std::vector<cuda::FusedOutput> scratch;
    const Tensor weight = Tensor::empty(DType::kBf16, {size}, kDevice);
    fill_normal<<<64, 256, 0, stream_>>>(weight.data(), size, Fill::kBf16, 3);
    for (std::size_t i = 0; i < kSets; ++i) {
      for (std::vector<Tensor>* list : {&x, &wide, &normed, &y}) list->push_back(Tensor::empty(DType::kBf16, {size, size}, kDevice));
      fill_normal<<<1024, 256, 0, stream_>>>(x[i].data(), size * size, Fill::kBf16, i);
      fill_normal<<<1024, 256, 0, stream_>>>(wide[i].data(), size * size, Fill::kBf16, i + 7);
      w.push_back(random_int8("int8:row", size, size, i));
      scratch.push_back(cuda::allocate_fused(Scheme::parse("int8:row"), {size, size}, kDevice));
    }
    Timed ours(
        stream_,
        [&](std::size_t i) {
          FusedInput input{.op = FusedOp::kRmsNorm, .x = x[i]};
          input.weight = weight;
          cuda::linear(input, scratch[i], w[i], y[i], stream_);
        },
        kSets);
    const bench::CublasLt::Product product = lt_.product(size, size, size, bench::CublasLt::Kind::kBf16, nullptr, nullptr);
    Timed theirs(
        stream_,
        [&](std::size_t i) {
          rms_norm<<<static_cast<unsigned>(size), 512, 0, stream_>>>(x[i].as<std::uint16_t>(), weight.as<std::uint16_t>(),
                                                                     normed[i].as<std::uint16_t>(), static_cast<int>(size));
          lt_.run(product, 0, normed[i].data(), wide[i].data(), y[i].data(), stream_);
        },
        kSets);
    const std::vector<double> us = bench::in_long_turns({&ours, &theirs});
    std::printf("int8 linear (RMSNorm + quantize + product) %ld^3: %.1f us, RMSNorm + cuBLASLt bf16 %.1f us: %.2f times as fast\n",
                static_cast<long>(size), us[0], us[1], us[1] / us[0]);
    lines_.push_back("  {\"product\": \"int8 linear\", \"shape\": \"" + std::to_string(size) + "^3\", \"us\": " + std::to_string(us[0]) +
                     ", \"rms_norm_and_cublaslt_bf16_us\": " + std::to_string(us[1]) + "}");
  }

  void add(const std::string& name, const std::string& shape, double us, double flops, double peer, double table_cublas,
           double table_deepgemm, const std::string& row) {
    const double rate = flops / us * 1e-6;
    std::printf("%-24s %-18s %8.2f us %6.0f TFLOP/s", name.c_str(), shape.c_str(), us, rate);
    double ratio = 0.0;
    if (peer > 0) std::printf("  cuBLASLt per tensor %5.0f (%.2f)", peer, rate / peer);
    if (table_deepgemm > 0) {
      ratio = peer > 0 && table_cublas > 0 ? (rate / peer) / (table_deepgemm / table_cublas) : rate / table_deepgemm;
      std::printf("  %.2f of DeepGEMM", ratio);
      logs_ += std::log(ratio);
      ++count_;
    }
    std::printf("  %s\n", row.c_str());
    std::fflush(stdout);
    lines_.push_back("  {\"product\": \"" + name + "\", \"shape\": \"" + shape + "\", \"us\": " + std::to_string(us) +
                     ", \"tflops\": " + std::to_string(rate) + ", \"cublaslt_tflops\": " + std::to_string(peer) +
                     ", \"ratio_to_deepgemm\": " + std::to_string(ratio) + ", \"row\": \"" + row + "\"}");
  }
  void print_mean(const char* what) {
    if (count_ > 0) std::printf("geometric mean over %d %s: %.3f of DeepGEMM\n", count_, what, std::exp(logs_ / count_));
    logs_ = 0.0;
    count_ = 0;
  }
  void write_json(const std::string& path) const {
    std::ofstream out(path);
    out << "[\n";
    for (std::size_t i = 0; i < lines_.size(); ++i) out << lines_[i] << (i + 1 < lines_.size() ? ",\n" : "\n");
    out << "]\n";
  }

 private:
  cuda::OwnedStream stream_;
  bench::CublasLt lt_;
  std::string only_, kernels_;
  std::vector<std::string> lines_;
  double logs_ = 0.0, read_ = 4.67;
  int count_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string json, only, kernels;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--kernels") == 0) kernels = argv[i + 1];
  }
  if (cuda::device_count() == 0) {
    std::puts("no CUDA device: nothing is measured");
    return 0;
  }
  Bench bench(only, kernels);
  if (!bench.has_peer()) std::puts("cuBLASLt was not found: no ratios to it");
  for (const Shape3& s : kDense) bench.dense(s, "block128", "128x128", true);
  bench.print_mean("dense shapes");
  for (const Grouped& g : kGrouped) bench.grouped(g);
  bench.print_mean("grouped shapes");
  for (const Shape3& s : {kDense[20], kDense[16], kDense[3]}) {
    bench.dense(s, "tensor", "tensor", false);
    bench.dense(s, "tensor", "tensor", false, true);
    bench.dense(s, "row", "row", false);
    bench.dense(s, "row", "row", false, true);
    bench.dense(s, "block128", "block128", false);
  }
  const double read = bench.read_bandwidth();
  for (const std::int64_t m : {1, 16}) {
    bench.few_rows(m, 8192, 8192, read);
    bench.few_rows(m, 28672, 8192, read);
  }
  bench.end_to_end(4096);
  for (const std::int64_t size : {2048, 4096, 8192}) {
    const std::int64_t n = size == 2048 ? 1920 : size;  // 2048 x 1920 x 1920, and cubes
    bench.int8(size, n, n, {"-> bf16, row x row", DType::kBf16});
    bench.int8(size, n, n, {"-> f16, row x row", DType::kF16});
    bench.int8(size, n, n, {"-> f16, tensor x tensor", DType::kF16, false, false, Layout::kRow, true});
    bench.int8(size, n, n, {"-> bf16, zeros, bias", DType::kBf16, true, true});
    bench.int8(size, n, n, {"-> i8", DType::kI8});
    bench.int8(size, n, n, {"-> i32", DType::kI32});
    bench.int8(size, n, n, {"-> i8, col32", DType::kI8, false, false, Layout::kCol32});
    bench.int8(size, n, n, {"-> i32, col32", DType::kI32, false, false, Layout::kCol32});
    bench.int8(size, n, n, {"-> f16, col32", DType::kF16, false, false, Layout::kCol32});
  }
  for (const std::int64_t m : {1, 16, 32, 64})
    for (const std::int64_t n : {4096, 8192}) bench.int8(m, n, n, {"few rows -> bf16", DType::kBf16});
  bench.int8_linear(4096);
  if (!json.empty()) bench.write_json(json);
  return 0;
}
