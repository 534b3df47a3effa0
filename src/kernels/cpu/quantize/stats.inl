// What scales are made of: the statistics of runs of values, and of the cells of the scale grid.
// The fast loops look at all values and learn from the largest magnitude whether one was not finite; only then the
// careful loop runs, which leaves such values out.

enum class Statistic : std::uint8_t { kAmax, kRange, kSum };

struct RunStats {
  std::uint32_t amax = 0;  ///< fp32 bits of max |x| over the finite values
  float low = 0.0f, high = 0.0f;
  bool has_nan = false, has_infinity = false;
};

/// Leaves out what is not finite; any count, no padding.
[[gnu::noinline]] inline RunStats careful_stats(const float* x, int count) {
  RunStats stats;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = bits_of_float(x[i]) & kMagnitude;
    stats.has_nan = stats.has_nan || magnitude > 0x7F800000u;
    stats.has_infinity = stats.has_infinity || magnitude == 0x7F800000u;
    if (magnitude >= 0x7F800000u) continue;
    stats.amax = max_of(stats.amax, magnitude);
    stats.low = min_of(stats.low, x[i]);
    stats.high = max_of(stats.high, x[i]);
  }
  return stats;
}

/// The largest magnitude, finite or not, of whole vectors.
NARROW_FAST_INLINE VI largest_magnitude(const float* x, int vectors) {
  VI a = splat(0), b = a, c = a, d = a;
  int i = 0;
  for (; i + 4 <= vectors; i += 4, x += 4 * kLanes) {
    a = larger(a, magnitude_of(load<VF>(x)));
    b = larger(b, magnitude_of(load<VF>(x + kLanes)));
    c = larger(c, magnitude_of(load<VF>(x + 2 * kLanes)));
    d = larger(d, magnitude_of(load<VF>(x + 3 * kLanes)));
  }
  for (; i < vectors; ++i, x += kLanes) a = larger(a, magnitude_of(load<VF>(x)));
  return larger(larger(a, b), larger(c, d));
}

/// The statistics of `count` values at x.
template <bool kWithRange>
inline RunStats run_stats(const float* x, int count) {
  const int vectors = count / kLanes, rest = count % kLanes;
  VF low = splat(0.0f), high = low;
  VI largest = splat(0);
  if constexpr (kWithRange) {
    VF second_low = low, second_high = low;
    VI second_largest = largest;
    int i = 0;
    for (; i + 2 <= vectors; i += 2) {
      const VF first = load<VF>(x + i * kLanes), second = load<VF>(x + (i + 1) * kLanes);
      largest = larger(largest, magnitude_of(first));
      second_largest = larger(second_largest, magnitude_of(second));
      low = smaller(first, low);
      second_low = smaller(second, second_low);
      high = larger(first, high);
      second_high = larger(second, second_high);
    }
    if (i < vectors) {
      const VF value = load<VF>(x + i * kLanes);
      largest = larger(largest, magnitude_of(value));
      low = smaller(value, low);
      high = larger(value, high);
    }
    largest = larger(largest, second_largest);
    low = smaller(second_low, low);
    high = larger(second_high, high);
  } else {
    largest = largest_magnitude(x, vectors);
  }
  if (rest != 0) {
    float padded[kLanes] = {};
    __builtin_memcpy(padded, x + vectors * kLanes, static_cast<std::size_t>(rest) * sizeof(float));
    const VF value = load<VF>(padded);
    largest = larger(largest, magnitude_of(value));
    low = smaller(value, low);
    high = larger(value, high);
  }
  RunStats stats;
  const std::int32_t amax = highest_lane(largest);
  if (amax >= kInfinityBits) return careful_stats(x, count);
  stats.amax = static_cast<std::uint32_t>(amax);
  if constexpr (kWithRange) {
    for (int i = 0; i < kLanes; ++i) {
      stats.low = min_of(stats.low, float{low[i]});
      stats.high = max_of(stats.high, float{high[i]});
    }
  }
  return stats;
}

/// One segment of int1's sum of |x| (format/scale_rule.h fixes the order): at most 1024 values, in 32 partial sums.
inline double segment_sum(const float* x, int count) {
  constexpr int kParts = 32, kHalf = kLanes / 2;
  VD sums[kParts / kHalf] = {};
  for (int i = 0; i < count; i += kParts) {
    float group[kParts] = {};
    const float* from = x + i;
    if (count - i < kParts) {
      __builtin_memcpy(group, from, static_cast<std::size_t>(count - i) * sizeof(float));
      from = group;
    }
    for (int j = 0; j < kParts / kHalf; ++j) {
      VD wide{};
      for (int lane = 0; lane < kHalf; ++lane) {
        const std::uint32_t magnitude = bits_of_float(from[j * kHalf + lane]) & kMagnitude;
        wide[lane] = static_cast<double>(magnitude < 0x7F800000u ? float_of(magnitude) : 0.0f);
      }
      sums[j] += wide;
    }
  }
  double parts[kParts];
  __builtin_memcpy(parts, sums, sizeof parts);
  for (int half = kParts / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

/// The statistics of the cells of a group.
struct CellStats {
  alignas(64) std::uint32_t amax[kMaxCells];
  alignas(64) float low[kMaxCells], high[kMaxCells];
  alignas(64) double sum[kMaxCells];
  bool has_nan, has_infinity;

  void clear(int cells, Statistic statistic) {
    const std::size_t count = static_cast<std::size_t>(round_up(cells, kLanes));
    __builtin_memset(amax, 0, count * sizeof amax[0]);
    if (statistic == Statistic::kRange) {
      __builtin_memset(low, 0, count * sizeof low[0]);
      __builtin_memset(high, 0, count * sizeof high[0]);
    }
    if (statistic == Statistic::kSum) __builtin_memset(sum, 0, count * sizeof sum[0]);
    has_nan = has_infinity = false;
  }

  void merge(int cell, const RunStats& run) {
    amax[cell] = max_of(amax[cell], run.amax);
    low[cell] = min_of(low[cell], run.low);
    high[cell] = max_of(high[cell], run.high);
    has_nan = has_nan || run.has_nan;
    has_infinity = has_infinity || run.has_infinity;
  }
};

/// Cells of a whole number of vectors, kLanes cells at a time: a cell's vectors shrink to one, then kLanes vectors to the
/// one vector of their maxima. Returns how many cells were done; stops where a value is not finite.
/// One cell after another, in a loop: the hardware foresees what is read in order.
template <int kVectors>
inline int amax_of_cells(const float* x, int cells, int vectors_per_cell, std::uint32_t* amax) {
  const int vectors = kVectors != 0 ? kVectors : vectors_per_cell;
  int cell = 0;
  for (; cell + kLanes <= cells; cell += kLanes) {
    VI each[kLanes];
    if constexpr (kVectors == 1 || kVectors == 2) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i, x += vectors * kLanes) each[i] = largest_magnitude(x, vectors);
    } else {
#pragma GCC unroll 1
      for (int i = 0; i < kLanes; ++i, x += vectors * kLanes) each[i] = largest_magnitude(x, vectors);
    }
    const VI largest = max_of_each(each);
    if (any_lane(largest >= kInfinityBits)) break;
    store(amax + cell, larger(largest, load<VI>(amax + cell)));
  }
  return cell;
}

inline int amax_of_cells(const float* x, int cells, int vectors_per_cell, std::uint32_t* amax) {
  switch (vectors_per_cell) {
    case 1: return amax_of_cells<1>(x, cells, 1, amax);
    case 2: return amax_of_cells<2>(x, cells, 2, amax);
    case 8: return amax_of_cells<8>(x, cells, 8, amax);
    default: return amax_of_cells<0>(x, cells, vectors_per_cell, amax);
  }
}

/// Cells of one column each.
inline void amax_of_columns(const float* x, int count, CellStats& stats) {
  VI largest = splat(0);
  for (int i = 0; i < count; i += kLanes) {
    const VI magnitude = magnitude_of(load<VF>(x + i));
    largest = larger(largest, magnitude);
    store(stats.amax + i, larger(magnitude < kInfinityBits ? magnitude : splat(0), load<VI>(stats.amax + i)));
  }
  if (!any_lane(largest >= kInfinityBits)) return;
  const RunStats run = careful_stats(x, count);
  stats.has_nan = stats.has_nan || run.has_nan;
  stats.has_infinity = stats.has_infinity || run.has_infinity;
}
