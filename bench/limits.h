#pragma once
/// What the machine can do at best, measured in the run that is compared with it.

namespace narrow::bench {

struct Limits {
  double read = 0.0;  ///< GB/s, the best of several stream counts, over more memory than the caches hold
  double vnni = 0.0;  ///< 8-bit integer GOP/s (512-bit vpdpbusd); 0 where the CPU has none
  double fma = 0.0;   ///< fp32 GFLOP/s (AVX-512, AVX2 or NEON); 0 where the CPU has none
};
Limits measure_limits(int threads);
/// The best rate of reading memory beyond the caches, in GB/s. It changes by the minute on machines that others
/// use too.
double read_bandwidth(int threads);

}  // namespace narrow::bench
