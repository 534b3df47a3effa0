#include "bench/copy_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

#include "narrow/tensor.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace narrow::bench {
namespace {

void copy_plain(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

/// Whole cache lines around the caches; 64-byte aligned.
void copy_around_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Writes alone, as copy_around_caches writes.
void fill_around_caches(std::byte* to, const std::byte*, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_set1_epi32(0x3F800000));  // zeros are faster
  _mm_sfence();
#else
  std::memset(to, 1, bytes);
#endif
}

using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

double seconds_on_all_threads(Copy copy, std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto start = std::chrono::steady_clock::now();
#pragma omp parallel
  {
    const std::size_t threads = static_cast<std::size_t>(omp_get_num_threads()), thread = static_cast<std::size_t>(omp_get_thread_num());
    const std::size_t lines = bytes / 64, begin = lines * thread / threads * 64, end = lines * (thread + 1) / threads * 64;
    copy(to + begin, from + begin, end - begin);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double copy_seconds(std::byte* to, const std::byte* from, std::size_t bytes) {
  return seconds_on_all_threads(copy_around_caches, to, from, bytes);
}

double fill_seconds(std::byte* to, std::size_t bytes) { return seconds_on_all_threads(fill_around_caches, to, to, bytes); }

double copy_bandwidth(std::size_t bytes, int repeat) {
  const Buffer from = Buffer::allocate(bytes), to = Buffer::allocate(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(to.data(), 1, bytes);
  double best = 0.0;
  for (const auto copy : {copy_plain, copy_around_caches}) {
    std::vector<double> seconds;
    for (int i = 0; i <= repeat; ++i) {
      const double elapsed = seconds_on_all_threads(copy, to.data(), from.data(), bytes);
      if (i > 0) seconds.push_back(elapsed);
    }
    std::nth_element(seconds.begin(), seconds.begin() + repeat / 2, seconds.end());
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds[static_cast<std::size_t>(repeat / 2)] * 1e-9);
  }
  return best;
}

}  // namespace narrow::bench
