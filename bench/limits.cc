#include "bench/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include <omp.h>

#include "narrow/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace narrow::bench {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::int64_t kRounds = 100000;  // a fraction of a millisecond: some repetition escapes interruption
constexpr int kChains = 12;

/// Reads [data, data + size) as `streams` streams; 256 bytes of each in turn.
using ReadLoop = void (*)(const char* data, std::size_t size, std::size_t streams);

void read_plain(const char* data, std::size_t size, std::size_t streams) {
  const std::size_t length = size / streams;
  std::uint64_t sum[32] = {};
  for (std::size_t i = 0; i + 256 <= length; i += 256)
    for (std::size_t stream = 0; stream < streams; ++stream) {
      std::uint64_t words[32];
      std::memcpy(words, data + stream * length + i, 256);
      for (std::size_t u = 0; u < 32; ++u) sum[u] ^= words[u];
    }
  for (auto& s : sum) asm volatile("" : : "r"(s));
}

#if defined(__x86_64__)
#define NARROW_BENCH_AVX512 __attribute__((target("avx512f,avx512vnni,avx512bw")))

NARROW_BENCH_AVX512 void dot_loop() {
  __m512i sum[kChains];
  const __m512i a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x04030201);
  for (auto& s : sum) s = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (auto& s : sum) s = _mm512_dpbusd_epi32(s, a, b);
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

NARROW_BENCH_AVX512 void fma_loop() {
  __m512 sum[kChains];
  __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.5f);
  asm volatile("" : "+v"(a), "+v"(b));
  for (auto& s : sum) s = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (auto& s : sum) s = _mm512_fmadd_ps(s, a, b);
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

__attribute__((target("avx2,fma"))) void fma_loop_avx2() {
  __m256 sum[kChains];
  __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.5f);
  asm volatile("" : "+x"(a), "+x"(b));
  for (auto& s : sum) s = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (auto& s : sum) s = _mm256_fmadd_ps(s, a, b);
  for (auto& s : sum) asm volatile("" : : "x"(s));
}

NARROW_BENCH_AVX512 void read_avx512(const char* data, std::size_t size, std::size_t streams) {
  const std::size_t length = size / streams;
  __m512i sum[4];
  for (auto& s : sum) s = _mm512_setzero_si512();
  for (std::size_t i = 0; i + 256 <= length; i += 256)
    for (std::size_t stream = 0; stream < streams; ++stream)
      for (std::size_t u = 0; u < 4; ++u) sum[u] = _mm512_xor_si512(sum[u], _mm512_loadu_si512(data + stream * length + i + u * 64));
  for (auto& s : sum) asm volatile("" : : "v"(s));
}
#elif defined(__aarch64__)
void fma_loop_neon() {
  float32x4_t sum[kChains];
  float32x4_t a = vdupq_n_f32(0.999f), b = vdupq_n_f32(0.5f);
  asm volatile("" : "+w"(a), "+w"(b));
  for (auto& s : sum) s = vdupq_n_f32(0.0f);
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (auto& s : sum) s = vfmaq_f32(s, a, b);
  for (auto& s : sum) asm volatile("" : : "w"(s));
}
#endif

double time_of(int threads, void (*loop)()) {
  double best = 1e30;
  for (int i = 0; i < 100; ++i) {
    const double begin = now();
#pragma omp parallel num_threads(threads)
    loop();
    best = std::min(best, now() - begin);
  }
  return best;
}

double best_read(int threads, ReadLoop loop) {
  const std::size_t size = std::size_t{256} << 20;
  static const Buffer buffer = [] {
    const Buffer memory = Buffer::allocate(size);
    std::memset(memory.data(), 1, size);
    return memory;
  }();
  double best = 0.0;
  const std::size_t piece = std::size_t{16} << 20;
  for (const std::size_t streams : {1, 2, 4, 8})
    for (std::size_t offset = 0; offset < size; offset += piece) {
      const double begin = now();
#pragma omp parallel num_threads(threads)
      {
        const std::size_t part = piece / static_cast<std::size_t>(omp_get_num_threads());
        loop(reinterpret_cast<const char*>(buffer.data()) + offset + part * static_cast<std::size_t>(omp_get_thread_num()), part, streams);
      }
      best = std::max(best, static_cast<double>(piece) / (now() - begin) * 1e-9);
    }
  return best;
}

}  // namespace

Limits measure_limits(int threads) {
  Limits limits;
  const double steps = static_cast<double>(kRounds) * kChains * threads;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) {
    limits.vnni = steps * 128 / time_of(threads, dot_loop) * 1e-9;
    limits.fma = steps * 32 / time_of(threads, fma_loop) * 1e-9;
  } else if (__builtin_cpu_supports("fma")) {
    limits.fma = steps * 16 / time_of(threads, fma_loop_avx2) * 1e-9;
  }
#elif defined(__aarch64__)
  limits.fma = steps * 8 / time_of(threads, fma_loop_neon) * 1e-9;
#endif
  limits.read = read_bandwidth(threads);
  return limits;
}

double read_bandwidth(int threads) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) return best_read(threads, read_avx512);
#endif
  return best_read(threads, read_plain);
}

}  // namespace narrow::bench
