/// The measured choices that products consult, and their measurement.

#include "ops/tuned_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>

#include "device/cuda/runtime.h"
#include "kernels/cuda/library_product.h"
#include "narrow/error.h"
#include "ops/cuda_matmul.h"

namespace narrow::cuda {
namespace {

/// Products ask at every launch: without choices that is one load.
struct Choices {
  std::atomic<bool> any = false;
  std::mutex mutex;
  std::vector<TunedKernel> list;
};
Choices& choices() {
  static Choices all;
  return all;
}

constexpr std::string_view kFp8Prefix = "sm90_matmul_fp8_fp8_", kInt8Prefix = "sm90_matmul_int8_int8_",
                           kFp8Library = "cublaslt_matmul_fp8_fp8", kInt8Library = "cublaslt_matmul_int8_int8";
constexpr int kMostParts = 3, kSamples = 7;
constexpr double kRotation = 256e6, kGraphMicroseconds = 400.0;

/// Random codes that are all numbers: a small piece, copied over and over.
void fill_codes(const Buffer& buffer, unsigned seed, Stream stream) {
  std::mt19937 generator(seed);
  std::vector<std::uint8_t> piece(std::min<std::size_t>(buffer.size(), std::size_t{1} << 20));
  for (std::uint8_t& byte : piece) byte = static_cast<std::uint8_t>(generator() & 0xB7u);
  for (std::size_t at = 0; at < buffer.size(); at += piece.size())
    copy_bytes(buffer.data() + at, piece.data(), std::min(piece.size(), buffer.size() - at), stream);
  synchronize(stream);
}

DeviceQuantized random_codes(const Scheme& scheme, std::int64_t rows, std::int64_t k, unsigned seed, Device device, Stream stream) {
  const DeviceQuantized q = allocate_quantized(scheme, {rows, k}, device);
  fill_codes(q.codes, seed, stream);
  const std::vector<float> scales(q.scales.size() / sizeof(float), 0x1p-6f);
  copy_bytes(q.scales.data(), scales.data(), q.scales.size(), stream);
  synchronize(stream);
  return q;
}

/// Microseconds of one launch: the median of replays of a graph of several, each on its own weights.
double time_launches(const std::vector<ByteProblem>& problems, const std::function<int(const ByteProblem&)>& launch, double estimate,
                     Stream stream) {
  const std::size_t calls = std::max(problems.size(), static_cast<std::size_t>(std::clamp(kGraphMicroseconds / estimate, 1.0, 50.0)));
  check(launch(problems.front()), "time_kernels");
  synchronize(stream);
  const Graph graph(stream, [&] {
    for (std::size_t i = 0; i < calls; ++i) check(launch(problems[i % problems.size()]), "time_kernels");
  });
  std::vector<double> samples;
  for (int i = 0; i <= kSamples; ++i) {
    Timer timer;
    timer.start(stream);
    graph.launch(stream);
    timer.stop(stream);
    const double microseconds = timer.seconds() * 1e6 / static_cast<double>(calls);
    if (i > 0) samples.push_back(microseconds);  // the first one warms up
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

}  // namespace

TunedKernel product_of(const ByteProblem& p) {
  const auto name = [&](bool e5m2) { return p.is_int8 ? "int8" : (e5m2 ? "fp8_e5m2" : "fp8_e4m3"); };
  constexpr const char* kScales[] = {"outer", "outer fast", "block128 x 128x128", "block128 x block128"};
  TunedKernel product;
  product.types = fmt::format("{} x {}", name(p.a_is_e5m2), name(p.b_is_e5m2));
  product.scales = kScales[static_cast<std::size_t>(p.scaling)];
  product.out = name_of(p.epilogue.out);
  product.m = p.m;
  product.n = p.n;
  product.k = p.k;
  return product;
}

std::optional<TunedKernel> tuned_kernel(const ByteProblem& problem) {
  Choices& all = choices();
  if (!all.any.load(std::memory_order_acquire) || problem.grouping != ByteGrouping::kNone || problem.a_is_col32 || problem.d_is_col32)
    return std::nullopt;
  const TunedKernel product = product_of(problem);
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.list.begin(), all.list.end(), [&](const TunedKernel& choice) { return choice.is_for(product); });
  return found == all.list.end() ? std::nullopt : std::optional(*found);
}

void set_tuned_kernels(std::vector<TunedKernel> list) {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.list = std::move(list);
  all.any.store(!all.list.empty(), std::memory_order_release);
}

TunedMachine tuned_machine(int device) {
  TunedMachine machine{{}, versions().driver, NARROW_VERSION};
  if (device < device_count()) machine.gpu = device_facts(device).name;
  return machine;
}

std::vector<TunedKernel> time_kernels(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, DType out, int index) {
  const Device device = Device::cuda(index);
  require_device(index);
  const DeviceGuard guard(index);
  const OwnedStream stream(index);
  const bool int8 = weight.element == kInt8;
  Scheme activation = weight;
  activation.granularity = weight.granularity.kind == Granularity::Kind::kRectangle && weight.granularity != Granularity::row()
                               ? Granularity::block(128)
                               : Granularity::row();
  const double bytes = static_cast<double>(n) * static_cast<double>(k);
  const std::size_t sets = static_cast<std::size_t>(std::clamp(kRotation / bytes + 1.0, 1.0, 8.0));
  const Tensor y = Tensor::empty(out, {m, n}, device);
  std::vector<Fp8Matrix> fp8;
  std::vector<Int8Matrix> ints;
  std::vector<ByteProblem> problems;
  const auto make = [&](const Scheme& scheme, std::int64_t rows, unsigned seed) {
    const DeviceQuantized q = random_codes(scheme, rows, k, seed, device, stream);
    if (int8)
      ints.push_back(prepare_int8(q, stream, false));
    else
      fp8.push_back(prepare_fp8(q, stream));
    synchronize(stream);
  };
  make(activation, m, 1);
  for (std::size_t i = 0; i < sets; ++i) {
    make(weight, n, static_cast<unsigned>(i) + 2);
    problems.push_back(int8 ? int8_problem(ints.front(), ints.back(), y, {}) : fp8_problem(fp8.front(), fp8.back(), y, {}));
  }

  const ByteDevice facts = byte_device();
  if (!facts.is_hopper) throw Unsupported("time_kernels: the device is not a Hopper; other devices have one row for a product");
  const ByteProblem& problem = problems.front();
  std::vector<TunedKernel> timed;
  const auto add = [&](std::string name, int parts, double estimate, const std::function<int(const ByteProblem&)>& launch) {
    TunedKernel row = product_of(problem);
    row.kernel = std::move(name);
    row.parts = parts;
    row.microseconds = time_launches(problems, launch, estimate, stream);
    timed.push_back(std::move(row));
  };
  for (int config = 0; config < static_cast<int>(byte_configs().size()); ++config) {
    if (!has_byte_config(problem, config)) continue;
    int parts_before = 0;
    for (int parts = 1; parts <= kMostParts; ++parts) {
      const BytePlan plan = make_byte_plan(problem, config, parts, facts.multiprocessors);
      if (plan.parts == parts_before) break;
      parts_before = plan.parts;
      add(std::string(int8 ? kInt8Prefix : kFp8Prefix).append(byte_configs()[static_cast<std::size_t>(config)].name), plan.parts,
          estimate_byte_plan(problem, plan), [&, plan](const ByteProblem& p) { return launch_byte_product(p, plan, stream); });
    }
  }
  if (library_refuses(problem).empty() && library_takes(problem))
    add(std::string(int8 ? kInt8Library : kFp8Library), 1, estimate_library_product(problem),
        [&](const ByteProblem& p) { return launch_library_product(p, stream); });
  std::stable_sort(timed.begin(), timed.end(), [](const TunedKernel& a, const TunedKernel& b) { return a.microseconds < b.microseconds; });
  return timed;
}

}  // namespace narrow::cuda
