/// Products of int1 matrices: every row of the table, against the peak of exclusive or + popcount + addition measured in the
/// same run (the addition that any sum needs is counted in the peak's time).
///   binary [--quick] [--threads N ...] [--size N ...]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <omp.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/binary.h"
#include "narrow/tensor.h"

namespace narrow::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

#if defined(__x86_64__)
/// Twelve independent sums in registers; every step has its own operand, so that nothing is shared between them.
[[gnu::target("avx512f,avx512vpopcntdq"), gnu::noinline]] std::int64_t count_steps(std::int64_t steps) {
  __m512i sums[12], bits[12], x = _mm512_set1_epi64(steps);
  for (int i = 0; i < 12; ++i) {
    sums[i] = _mm512_setzero_si512();
    bits[i] = _mm512_set1_epi64(0x123456789ABCDEF * (i + 1));
  }
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_add_epi64(sums[i], _mm512_popcnt_epi64(_mm512_xor_si512(bits[i], x)));
    asm volatile("" : "+v"(x));
  }
  std::int64_t total = 0;
  for (const __m512i& sum : sums) total += sum[0];
  return total;
}

/// In GOP/s, two operations per product, over all threads.
double popcount_peak(int threads) {
  if (!cpu_supports(Isa::kAvx512)) return 0.0;
  constexpr std::int64_t kSteps = 20'000'000;
  double best = 0.0;
  for (int round = 0; round < 3; ++round) {
    std::int64_t sink = 0;
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    sink += count_steps(kSteps);
    const double seconds = seconds_since(begin);
    if (sink != 1) best = std::max(best, 12.0 * kSteps * 1024.0 * threads / seconds * 1e-9);
  }
  return best;
}
#else
double popcount_peak(int) { return 0.0; }
#endif

void run_size(std::int64_t size, int threads, double peak) {
  const std::int64_t words = size / 32;
  const Tensor a = Tensor::empty(DType::kU32, {size, words}), w = Tensor::empty(DType::kU32, {size, words}),
               y = Tensor::empty(DType::kF32, {size, size});
  const Tensor scales = Tensor::empty(DType::kF32, {size});
  std::mt19937 generator(1);
  for (std::int64_t i = 0; i < a.size(); ++i)
    a.as<std::uint32_t>()[i] = static_cast<std::uint32_t>(generator()), w.as<std::uint32_t>()[i] = static_cast<std::uint32_t>(generator());
  std::fill_n(scales.as<float>(), size, 0.5f);
  const BinaryProblem problem{.m = size,
                              .n = size,
                              .k = size,
                              .words = words,
                              .a = a.as<std::uint32_t>(),
                              .a_stride = words,
                              .w = w.as<std::uint32_t>(),
                              .a_scales = scales.as<float>(),
                              .w_scales = scales.as<float>(),
                              .y = y.data(),
                              .y_stride = size};
  for (const BinaryKernel& kernel : binary_kernels()) {
    if (kernel.isa == Isa::kScalar || !cpu_supports(kernel.isa)) continue;
    double best = 1e30;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads)
      {
        const std::int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
        kernel.run(problem, size * thread / count, size * (thread + 1) / count, 0, size / kBinaryPanel);
      }
      best = std::min(best, seconds_since(begin));
    }
    const double rate = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size) / best * 1e-9;
    fmt::print("{:<26} {:>6}^3 {:>9.2f} {:>9.0f} {:>8.0f}%\n", kernel.name, size, best * 1e3, rate, peak > 0.0 ? rate / peak * 100.0 : 0.0);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace narrow::bench

int main(int argc, char** argv) {
  std::vector<int> threads{2, 1};
  std::vector<std::int64_t> sizes{1024, 2048, 4096};
  bool quick = false;
  CLI::App app{"int1 products against the peak of exclusive or and popcount"};
  app.add_flag("--quick", quick, "the smallest size alone");
  app.add_option("--threads", threads, "one table for each");
  app.add_option("--size", sizes, "m = n = k, multiples of 64");
  CLI11_PARSE(app, argc, argv);
  if (quick) sizes.resize(1);
  for (const int count : threads) {
    const double peak = narrow::bench::popcount_peak(count);
    fmt::print("{} threads; peak of exclusive or, popcount and addition: {:.0f} GOP/s\n", count, peak);
    fmt::print("{:<26} {:>8} {:>9} {:>9} {:>9}\n", "kernel", "m=n=k", "ms", "GOP/s", "of peak");
    for (const std::int64_t size : sizes) narrow::bench::run_size(size / 64 * 64, count, peak);
  }
  return 0;
}
