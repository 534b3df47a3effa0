// The fused neighbours, kLanes elements at a time: reference/fused.cc, bit for bit. A leaf includes this file inside its own
// namespace, after vector.inl, quantize/encode.inl, quantize/run_codes.inl and its own
//   widen_half(VHalf) -> VF and narrow_half(VF) -> VHalf (nearest even, finite or NaN), widen_bf16(VHalf) -> VF
//   narrow_bits(VU) -> VHalf: lanes to words
//   multiply_add(a, b, c) = a b + c with one rounding
//   stream(to, VF): a store around the caches, and fence()
//
// Mapping:  rows one after the other; memory is read once per row, by the first pass (norms) or the one that produces; later passes find
//           the row in the caches. fused_quantize_rows also makes the codes, some blocks at a time; fused_run leaves that to a quantize
//           kernel. The first pass over the next row runs between the pass that produces this one and the one that encodes it.
// Bound:    memory; 2 or 4 bytes read per element and operand, 1 written.

/// n of kLanes elements; the others are zero.
template <typename V, typename T>
inline V load_part(const T* from, int n) {
  if (n == kLanes) return load<V>(from);
  T part[kLanes] = {};
  for (int i = 0; i < n; ++i) part[i] = from[i];
  return load<V>(part);
}

template <typename V, typename T>
inline void store_part(T* to, V value, int n) {
  if (n == kLanes) return store(to, value);
  T part[kLanes];
  store(part, value);
  for (int i = 0; i < n; ++i) to[i] = part[i];
}

/// Values of a type, as fp32. Type: 0 = fp32, 1 = fp16, 2 = bf16.
template <int kType>
struct Values {
  const void* data;

  VF at(std::int64_t index, int n) const {
    if constexpr (kType == 0) return load_part<VF>(static_cast<const float*>(data) + index, n);
    if constexpr (kType == 1) return widen_half(load_part<VHalf>(static_cast<const std::uint16_t*>(data) + index, n));
    if constexpr (kType == 2) return widen_bf16(load_part<VHalf>(static_cast<const std::uint16_t*>(data) + index, n));
  }
};

/// Stores in the type, saturating, and gives back what was stored.
template <int kType>
inline VF store_rounded(void* data, std::int64_t index, VF value, int n) {
  if constexpr (kType == 0) {
    store_part(static_cast<float*>(data) + index, value, n);
    return value;
  }
  const VU bits = as_bits(value), sign = bits & 0x80000000u;
  const VI magnitude = magnitude_of(value);
  if constexpr (kType == 1) {
    const VF finite = as_float((VU)smaller(magnitude, splat(0x477FE000)) | sign);
    const VHalf half = narrow_half(magnitude > kInfinityBits ? as_float(sign | 0x7FC00000u) : finite);
    store_part(static_cast<std::uint16_t*>(data) + index, half, n);
    return widen_half(half);
  }
  const VU finite = (VU)smaller(magnitude, splat(0x7F7F0000));
  const VU rounded = finite + 0x7FFFu + ((finite >> 16) & 1u);
  const VU stored = ((magnitude > kInfinityBits ? splat(0x7FC00000u) : rounded) & 0x7FFF0000u) | sign;
  store_part(static_cast<std::uint16_t*>(data) + index, narrow_bits(stored >> 16), n);
  return as_float(stored);
}

/// Writes a finished value; every NaN becomes the same one.
inline void finish_part(float* y, VF value, int n) { store_part(y, value == value ? value : as_float(splat(0x7FC00000)), n); }

/// Rows to fetch, a line at a time and evenly: a processor drops fetches that find no free miss buffer, so that most of a burst is lost.
/// Part of a row comes while values are produced and part while they are encoded.
struct FetchedRows {
  const char* first;  ///< null where there is none
  const char* second;
  std::int64_t producing_at, encoding_at;        ///< bytes of a row before each part
  std::int64_t producing_lines, encoding_lines;  ///< of a part, per 64 columns
  // Always inline: the compiler drops calls of functions that do nothing but fetch.
  /// Of columns [i, i + 64).
  [[gnu::always_inline]] void while_producing(std::int64_t i) const { fetch(producing_at + i * producing_lines, producing_lines); }
  [[gnu::always_inline]] void while_encoding(std::int64_t i) const { fetch(encoding_at + i * encoding_lines, encoding_lines); }

 private:
  [[gnu::always_inline]] void fetch(std::int64_t at, std::int64_t lines) const {
    for (std::int64_t line = 0; first != nullptr && line < lines; ++line) __builtin_prefetch(first + at + line * 64, 0, 2);
    for (std::int64_t line = 0; second != nullptr && line < lines; ++line) __builtin_prefetch(second + at + line * 64, 0, 2);
  }
};

/// body(index, n) for vectors of kLanes and the rest.
template <typename Body>
[[gnu::always_inline]] inline void for_vectors(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

template <int kDistance, typename V, int... kLane>
inline V exchanged(V value, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(value, value, (kLane ^ kDistance)...);
}

/// Lane 0 of lanes added by halves.
template <int kDistance = kLanes / 2>
inline float folded(VF value) {
  if constexpr (kDistance == 0)
    return value[0];
  else
    return folded<kDistance / 2>(value + exchanged<kDistance>(value, std::make_integer_sequence<int, kLanes>()));
}

/// total + the segments of format/row_sum.h in [begin, end), begin a multiple of 1024; join(sums, index, n) adds n summands to partial sums
/// and leaves the others. Segments do not wait for each other: kPairs takes two at a time, so that twice as many additions are under way.
/// Not where join stores: what is loaded 4 KiB further would wait for it. `fetched`, where it is not null, is fetched meanwhile, a byte
/// per column.
template <bool kPairs, typename Join>
inline double row_sum_of(double total, std::int64_t begin, std::int64_t end, const char* fetched, const Join& join) {
  constexpr int kParts = 32 / kLanes;
  const auto fold = [](VF(&sums)[kParts]) {
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int part = 0; part < half; ++part) sums[part] += sums[part + half];
    return static_cast<double>(folded(sums[0]));
  };
  for (; kPairs && begin + 2048 <= end; begin += 2048) {
    VF first[kParts] = {}, second[kParts] = {};
    for (std::int64_t i = begin; i < begin + 1024; i += 32) {
      if (fetched != nullptr) __builtin_prefetch(fetched + begin + 2 * (i - begin), 0, 2);
      for (int part = 0; part < kParts; ++part) {
        first[part] = join(first[part], i + part * kLanes, kLanes);
        second[part] = join(second[part], i + 1024 + part * kLanes, kLanes);
      }
    }
    total += fold(first);
    total += fold(second);
  }
  for (; begin < end; begin += 1024) {
    const std::int64_t stop = min_of<std::int64_t>(begin + 1024, end);
    VF sums[kParts] = {};
    std::int64_t i = begin;
    for (; i + 32 <= stop; i += 32)
      for (int part = 0; part < kParts; ++part) sums[part] = join(sums[part], i + part * kLanes, kLanes);
    for (int part = 0; part < kParts && i + part * kLanes < stop; ++part)
      sums[part] = join(sums[part], i + part * kLanes, static_cast<int>(min_of<std::int64_t>(kLanes, stop - i - part * kLanes)));
    total += fold(sums);
  }
  return total;
}

inline VF exp_of(VF x) {
  using C = ExpConstants;
  const VF shifted = x * C::kLog2e + C::kRound;
  const VF n = shifted - C::kRound;
  const VF r = (x - n * C::kLn2High) - n * C::kLn2Low;
  const VF p = (((C::kC4 * r + C::kC3) * r + C::kC2) * r + C::kC1) * r + C::kC0;
  const VF mantissa = ((r * r) * p + r) + 1.0f;
  VF result = as_float(as_bits(mantissa) + (as_bits(shifted) << 23));
  result = x > C::kHighest ? as_float(splat(kInfinityBits)) : result;
  result = x < C::kLowest ? splat(0.0f) : result;
  return x == x ? result : x;
}

inline VF silu_of(VF x) { return x / (1.0f + exp_of(-x)); }

inline VF gelu_of(VF x) {
  using C = GeluConstants;
  const VF z = x < 0.0f ? -x : x;
  const VF t = 1.0f / (1.0f + C::kT * z);
  const VF low = ((C::kP7 * t + C::kP6) * t + C::kP5) * t + C::kP4;
  const VF p = (((low * t + C::kP3) * t + C::kP2) * t + C::kP1) * t + C::kP0;
  const VF tail = (t * p) * exp_of((x * x) * -0.5f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

inline VF gelu_tanh_of(VF x) {
  using C = GeluConstants;
  const VF cube = ((x * x) * x) * C::kCubic;
  return x / (1.0f + exp_of(-(C::kTwiceRoot * (x + cube))));
}

inline float inverse_root(double sum, std::int64_t count, float epsilon) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(sum / static_cast<double>(count)) + epsilon);
}

/// work(Values<type>) for the type of weights; ones where there are none.
struct Ones {
  VF at(std::int64_t, int) const { return splat(1.0f); }
};
struct Zeros {
  VF at(std::int64_t, int) const { return splat(0.0f); }
};

template <typename Work>
inline auto with_type(DType dtype, const void* data, const Work& work) {
  switch (dtype) {
    case DType::kF16: return work(Values<1>{data});
    case DType::kBf16: return work(Values<2>{data});
    default: return work(Values<0>{data});
  }
}

/// total + what columns [begin, end) of a row add to the sum of a norm's first pass, of its squares or values; begin is a multiple of 1024.
/// kAddRmsNorm also stores the residual.
template <int kType>
[[gnu::noinline]] double first_pass(const FusedProblem& problem, std::int64_t row, double total, std::int64_t begin, std::int64_t end,
                                    const char* fetched = nullptr) {
  const std::int64_t first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  if (problem.op == FusedOp::kLayerNorm)
    return row_sum_of<true>(total, begin, end, fetched, [&](VF sums, std::int64_t i, int n) { return sums + x.at(first + i, n); });
  if (problem.op == FusedOp::kRmsNorm)
    return row_sum_of<true>(total, begin, end, fetched, [&](VF sums, std::int64_t i, int n) {
      const VF value = x.at(first + i, n);
      return multiply_add(value, value, sums);
    });
  return row_sum_of<false>(total, begin, end, nullptr, [&](VF sums, std::int64_t i, int n) {
    const VF value = store_rounded<kType>(problem.residual, second + i, x.at(first + i, n) + other.at(second + i, n), n);
    return multiply_add(value, value, sums);
  });
}

/// FirstPass::value of a row's sum.
inline float first_value(const FusedProblem& problem, double sum) {
  if (problem.op == FusedOp::kLayerNorm) return static_cast<float>(sum / static_cast<double>(problem.cols));
  return inverse_root(sum, problem.cols, problem.epsilon);
}

/// use(producer), producer(row, value) the function that gives the values (i, n) of a row of RMSNorm, whose first pass found `value`.
template <int kType, typename Use>
inline auto with_rms_norm(const FusedProblem& problem, const Use& use) {
  const bool adds = problem.op == FusedOp::kAddRmsNorm;
  const Values<kType> x{adds ? problem.residual : problem.x};  // in the caches still
  const std::int64_t stride = adds ? problem.other_stride : problem.x_stride;
  const auto weighted = [&](const auto& weight) {
    return use([=](std::int64_t row, float value) __attribute__((always_inline)) {
      const VF factor = splat(value);
      return [=](std::int64_t i, int n) __attribute__((always_inline)) { return (x.at(row * stride + i, n) * factor) * weight.at(i, n); };
    });
  };
  return problem.weight == nullptr ? weighted(Ones{}) : with_type(problem.weight_dtype, problem.weight, weighted);
}

/// The same for LayerNorm; the producer first runs the pass of the squares.
template <int kType, typename Use>
inline auto with_layer_norm(const FusedProblem& problem, const Use& use) {
  const Values<kType> x{problem.x};
  const std::int64_t cols = problem.cols, stride = problem.x_stride;
  const float epsilon = problem.epsilon;
  const auto finish = [&](const auto& weight, const auto& bias) {
    return use([=](std::int64_t row, float value) __attribute__((always_inline)) {
      const VF mean = splat(value);
      const VI lanes = lane_numbers();
      const double squares = row_sum_of<true>(0.0, 0, cols, nullptr, [=](VF sums, std::int64_t i, int n) {
        const VF difference = x.at(row * stride + i, n) - mean;
        const VF joined = multiply_add(difference, difference, sums);
        return n == kLanes ? joined : (lanes < n ? joined : sums);
      });
      const VF factor = splat(inverse_root(squares, cols, epsilon));
      return [=](std::int64_t i, int n) __attribute__((always_inline)) {
        return multiply_add((x.at(row * stride + i, n) - mean) * factor, weight.at(i, n), bias.at(i, n));
      };
    });
  };
  return with_type(problem.weight_dtype, problem.weight, [&](const auto& weight) {
    auto bias = weight;
    bias.data = problem.bias;
    if (problem.weight != nullptr && problem.bias != nullptr) return finish(weight, bias);
    if (problem.weight != nullptr) return finish(weight, Zeros{});
    if (problem.bias != nullptr) return finish(Ones{}, bias);
    return finish(Ones{}, Zeros{});
  });
}

template <int kType>
inline void fused_row(const FusedProblem& problem, std::int64_t row, float* y) {
  const std::int64_t first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  const auto write = [&](const auto& produce) {
    for_vectors(problem.cols, [&](std::int64_t i, int n) { finish_part(y + i, produce(i, n), n); });
  };
  const auto write_norm = [&](const auto& producer) {
    write(producer(row, first_value(problem, first_pass<kType>(problem, row, 0.0, 0, problem.cols))));
  };
  switch (problem.op) {
    case FusedOp::kIdentity: return write([&](std::int64_t i, int n) { return x.at(first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, write_norm);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, write_norm);
    case FusedOp::kSiluMul: return write([&](std::int64_t i, int n) { return silu_of(x.at(first + i, n)) * other.at(second + i, n); });
    case FusedOp::kGelu: return write([&](std::int64_t i, int n) { return gelu_of(x.at(first + i, n)); });
    case FusedOp::kGeluTanh: return write([&](std::int64_t i, int n) { return gelu_tanh_of(x.at(first + i, n)); });
  }
}

bool fused_accepts(const FusedProblem&) { return true; }

void fused_run(const FusedProblem& problem, std::int64_t row_begin, std::int64_t row_end, float* y) {
  for (std::int64_t row = row_begin; row < row_end; ++row, y += problem.cols) {
    switch (problem.dtype) {
      case DType::kF16: fused_row<1>(problem, row, y); break;
      case DType::kBf16: fused_row<2>(problem, row, y); break;
      default: fused_row<0>(problem, row, y); break;
    }
  }
}

/// 1 / s in two parts, whose product with y has the code of y / s (tests/format/division_test.cc).
struct Divisor {
  VF high, low;
  VF operator()(VF y) const { return multiply_add(y, high, y * low); }
};

/// The largest lane, in every lane.
template <int kDistance = kLanes / 2>
inline VI largest_lane(VI value) {
  if constexpr (kDistance == 0)
    return value;
  else
    return largest_lane<kDistance / 2>(larger(value, exchanged<kDistance>(value, std::make_integer_sequence<int, kLanes>())));
}

/// Codes of columns [begin, end), whose values value(i, n) share a scale; the scale was made from the values, so that none is beyond the
/// largest.
template <typename Run, typename Value>
[[gnu::always_inline]] inline void encode_block(std::uint8_t* to, bool streams, const FetchedRows fetched, const Run run,
                                                const Divisor divide, std::int64_t begin, std::int64_t end, const Value value_at) {
  const bool around_caches = streams && reinterpret_cast<std::uintptr_t>(to + begin) % 64 == 0;
  std::int64_t i = begin;
  for (; i + kRun <= end; i += kRun) {
    if (i % 64 == 0) fetched.while_encoding(i);
    VF value[4], quotient[4];
    for (int v = 0; v < 4; ++v) {
      value[v] = value_at(i + v * kLanes, kLanes);
      quotient[v] = divide(value[v]);
    }
    const VBytes codes = run(value, quotient);
    if (around_caches)
      stream(reinterpret_cast<float*>(to + i), (VF)codes);
    else
      store(to + i, codes);
  }
  if (i == end) return;
  VF value[4], quotient[4];
  for (int v = 0; v < 4; ++v) {
    const std::int64_t left = end - i - v * kLanes;
    value[v] = left > 0 ? value_at(i + v * kLanes, static_cast<int>(min_of<std::int64_t>(kLanes, left))) : splat(0.0f);
    quotient[v] = divide(value[v]);
  }
  const VBytes codes = run(value, quotient);
  __builtin_memcpy(to + i, &codes, static_cast<std::size_t>(end - i));
}

/// Writes y of columns [begin, end), where kStored, and returns the bits of its largest magnitude in every lane.
template <bool kStored, typename Produce>
[[gnu::always_inline]] inline VI produce_block(const FetchedRows fetched, float* y, std::int64_t begin, std::int64_t end,
                                               const Produce produce) {
  constexpr int kVectors = 64 / kLanes;
  VI largest[2] = {};
  std::int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    fetched.while_producing(i);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const VF value = produce(i + v * kLanes, kLanes);
      if constexpr (kStored) store(y + i + v * kLanes, value);
      largest[v % 2] = larger(largest[v % 2], magnitude_of(value));
    }
  }
  const VI lanes = lane_numbers();
  for (; i < end; i += kLanes) {
    const int n = static_cast<int>(min_of<std::int64_t>(kLanes, end - i));
    const VF value = produce(i, n);
    if constexpr (kStored) store_part(y + i, value, n);
    largest[0] = larger(largest[0], lanes < n ? magnitude_of(value) : splat(0));
  }
  return largest_lane(larger(largest[0], largest[1]));
}

/// The scales of some blocks from the bits of their largest magnitudes, and what divides by them. Magnitudes stay in registers: a vector
/// loaded from single stores would wait until all stores before, the whole of y, have reached the cache.
struct BlockScales {
  static constexpr int kMost = 16, kVectors = kMost / kLanes;
  VI amax[kVectors] = {};
  alignas(64) float scale[kMost], high[kMost], low[kMost];

  void take(int block, VI largest) {
    for (int v = 0; v < kVectors; ++v) amax[v] = lane_numbers() == block - v * kLanes ? largest : amax[v];
  }

  /// The scales s of lanes; returns which are unusual: a value is not finite or s beyond 2^-60 .. 2^60.
  static VI make(VI amax, float largest, VF& s, Divisor& divide) {
    s = amax == 0 ? splat(1.0f) : as_float(amax) / largest;
    const Reciprocal inverse = reciprocal_of(s);
    divide = {inverse.high, inverse.low};
    return (VI)(amax >= kInfinityBits) | (VI)(s < 0x1p-60f) | (VI)(s > 0x1p60f);
  }

  /// Of all blocks; false where one is unusual.
  bool make(float largest) {
    VI unusual = {};
    for (int v = 0; v < kVectors; ++v) {
      VF s;
      Divisor divide;
      unusual |= make(amax[v], largest, s, divide);
      store(scale + v * kLanes, s);
      store(high + v * kLanes, divide.high);
      store(low + v * kLanes, divide.low);
    }
    return !any_lane(unusual);
  }
};

/// Where a row's codes and scales go.
struct RowOutput {
  std::uint8_t* codes;
  float* scales;
  bool streams;  ///< around the caches
};

/// Produces a row of long blocks: largest magnitude, between(end) for whatever else there is to do for columns up to `end`, codes.
/// kTwice: y is not stored, a long block would only push the row out of the first-level cache. False where a block is unusual.
template <typename Run, bool kTwice, typename Produce, typename Between>
[[gnu::always_inline]] inline bool quantize_long_blocks(const FusedFinish& finish, const RowOutput out, const FetchedRows fetched, float* y,
                                                        const Produce produce, const Between& between) {
  const Run run(*finish.element);
  const std::int64_t cols = finish.cols, block = finish.block;
  const float largest = finish.largest;
  bool usual = true;
  for (std::int64_t begin = 0, i = 0; begin < cols; begin += block, ++i) {
    const std::int64_t end = min_of(cols, begin + block);
    const VI amax = produce_block<!kTwice>(fetched, y, begin, end, produce);
    between(end);
    VF scale;
    Divisor divide;
    usual = !any_lane(BlockScales::make(amax, largest, scale, divide)) && usual;
    out.scales[i] = scale[0];
    if (!usual) continue;
    if constexpr (kTwice)
      encode_block(out.codes, out.streams, fetched, run, divide, begin, end, produce);
    else
      encode_block(
          out.codes, out.streams, fetched, run, divide, begin,
          end, [y](std::int64_t at, int n) __attribute__((always_inline)) { return load_part<VF>(y + at, n); });
  }
  return usual;
}

/// The same for short blocks, a row of them at a time where it is not too long: y is stored.
template <typename Run, typename Produce, typename Between>
[[gnu::always_inline]] inline bool quantize_short_blocks(const FusedFinish& finish, const RowOutput out, const FetchedRows fetched,
                                                         float* y, const Produce produce, const Between& between) {
  constexpr int kGroups = 4;
  const Run run(*finish.element);
  const std::int64_t cols = finish.cols, block = finish.block;
  const float largest = finish.largest;
  const std::int64_t blocks = (cols + block - 1) / block;
  const auto end_of = [=](std::int64_t i) { return min_of(cols, (i + 1) * block); };
  bool usual = true;
  for (std::int64_t first = 0; first < blocks; first += kGroups * BlockScales::kMost) {
    const int count = static_cast<int>(min_of<std::int64_t>(blocks - first, kGroups * BlockScales::kMost));
    BlockScales scales[kGroups];
    for (int group = 0; group * BlockScales::kMost < count; ++group) {
      const int begin = group * BlockScales::kMost, end = min_of(count, begin + BlockScales::kMost);
      for (int i = begin; i < end; ++i)
        scales[group].take(i - begin, produce_block<true>(fetched, y, (first + i) * block, end_of(first + i), produce));
      usual = scales[group].make(largest) && usual;
    }
    between(end_of(first + count - 1));
    for (int i = 0; i < count; ++i) {
      const BlockScales& of = scales[i / BlockScales::kMost];
      const int at = i % BlockScales::kMost;
      out.scales[first + i] = of.scale[at];
      if (!usual) continue;
      const Divisor divide{splat(of.high[at]), splat(of.low[at])};
      encode_block(
          out.codes, out.streams, fetched, run, divide, (first + i) * block,
          end_of(first + i), [y](std::int64_t from, int n) __attribute__((always_inline)) { return load_part<VF>(y + from, n); });
    }
  }
  return usual;
}

/// One row, of long blocks (of more than 1024 columns) or short ones. False, with y complete and every NaN the same one, where a value is
/// not finite or a scale beyond 2^-60 .. 2^60.
template <typename Run, bool kLong, bool kTwice, typename Produce, typename Between>
[[gnu::always_inline]] inline bool quantize_produced(const FusedFinish& finish, const RowOutput out, const FetchedRows fetched, float* y,
                                                     const Produce produce, const Between& between) {
  bool usual;
  if constexpr (kLong)
    usual = quantize_long_blocks<Run, kTwice>(finish, out, fetched, y, produce, between);
  else
    usual = quantize_short_blocks<Run>(finish, out, fetched, y, produce, between);
  if (usual) return true;
  for_vectors(
      finish.cols, [=](std::int64_t i, int n) __attribute__((always_inline)) {
        finish_part(y + i, kTwice && kLong ? produce(i, n) : load_part<VF>(y + i, n), n);
      });
  return false;
}

/// Rows [begin, end) of a norm, one after the other. Their state stays in registers, for which all closures must be inlined: what is
/// stored between passes and loaded in other pieces waits for all of a row's stores. The first pass over the next row runs before this one
/// is encoded, unless rows are fp32: two of them and the weight are too much for the first-level cache. Returns `end`, or a row that the
/// general quantizer must do.
template <int kType, typename Run, bool kLong, bool kTwice, typename Producer>
inline std::int64_t quantize_norms(const FusedProblem& problem, std::int64_t begin, std::int64_t end, const FusedFinish& finish, float* y,
                                   const Producer& producer) {
  constexpr bool kRunsAhead = kType != 0;
  constexpr std::int64_t kBytes = kType == 0 ? 4 : 2;
  const std::int64_t cols = problem.cols, blocks = (cols + finish.block - 1) / finish.block;
  const bool adds = problem.op == FusedOp::kAddRmsNorm;
  float value = finish.first->value;
  bool found = finish.first->row == begin;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t fetched_row = min_of(row + (kRunsAhead ? 2 : 1), problem.rows - 1);
    const char* next_x = static_cast<const char*>(problem.x) + fetched_row * problem.x_stride * kBytes;
    const char* next_other = static_cast<const char*>(problem.other) + fetched_row * problem.other_stride * kBytes;
    // Of a row of fp32 a quarter is fetched while its sum is made. Residuals of fp32, four streams, are left to the hardware.
    const FetchedRows fetched{adds && kType == 0 ? nullptr : next_x,
                              adds && kType != 0 ? next_other : nullptr,
                              kType == 0 ? cols : 0,
                              kType == 0 ? 2 * cols : cols,
                              1,
                              kBytes / 2};
    if (!found) value = first_value(problem, first_pass<kType>(problem, row, 0.0, 0, cols, kType == 0 ? fetched.first : nullptr));
    found = kRunsAhead && row + 1 < finish.end;
    double sum = 0.0;
    std::int64_t done = 0;
    float next = 0.0f;
    const auto between = [&](std::int64_t columns) __attribute__((always_inline)) {
      const std::int64_t stop = columns >= cols ? cols : columns / 1024 * 1024;
      if (!found || stop <= done) return;
      sum = first_pass<kType>(problem, row + 1, sum, done, stop);
      done = stop;
      if (done == cols) next = first_value(problem, sum);
    };
    const RowOutput out{finish.codes + (row - begin) * cols, finish.scales + (row - begin) * blocks, finish.around_caches};
    const bool usual = quantize_produced<Run, kLong, kTwice>(finish, out, fetched, y, producer(row, value), between);
    value = next;
    if (usual) continue;
    *finish.first = {found ? row + 1 : -1, value};
    return row;
  }
  *finish.first = {found ? end : -1, value};
  return end;
}

/// The same for what is no norm; produce(row, i, n).
template <int kType, typename Run, bool kLong, typename Produce>
inline std::int64_t quantize_values(const FusedProblem& problem, std::int64_t begin, std::int64_t end, const FusedFinish& finish, float* y,
                                    const Produce& produce) {
  constexpr std::int64_t kBytes = kType == 0 ? 4 : 2;
  const std::int64_t cols = problem.cols, blocks = (cols + finish.block - 1) / finish.block;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t fetched_row = min_of(row + 1, problem.rows - 1);
    const char* next_x = static_cast<const char*>(problem.x) + fetched_row * problem.x_stride * kBytes;
    const char* next_other = static_cast<const char*>(problem.other) + fetched_row * problem.other_stride * kBytes;
    const FetchedRows fetched{next_x, problem.op == FusedOp::kSiluMul ? next_other : nullptr, 0, 0, kBytes, 0};
    const RowOutput out{finish.codes + (row - begin) * cols, finish.scales + (row - begin) * blocks, finish.around_caches};
    const auto of_row = [=](std::int64_t i, int n) __attribute__((always_inline)) { return produce(row, i, n); };
    if (!quantize_produced<Run, kLong, false>(finish, out, fetched, y, of_row, [](std::int64_t) {})) return row;
  }
  return end;
}

template <int kType, typename Run, bool kLong>
inline std::int64_t quantize_typed(const FusedProblem& problem, std::int64_t begin, std::int64_t end, const FusedFinish& finish, float* y) {
  const Values<kType> x{problem.x}, other{problem.other};
  const std::int64_t first = problem.x_stride, second = problem.other_stride;
  // Long blocks of fp32, and of RMSNorm to integers, are produced again rather than stored: other rows take more operations.
  constexpr bool kTwice = kType == 0 || std::is_same_v<Run, IntegerRun>;
  const auto rms_norms = [&](const auto& producer) {
    return quantize_norms<kType, Run, kLong, kTwice>(problem, begin, end, finish, y, producer);
  };
  const auto layer_norms = [&](const auto& producer) {
    return quantize_norms<kType, Run, kLong, kType == 0>(problem, begin, end, finish, y, producer);
  };
  const auto values = [&](const auto& produce) { return quantize_values<kType, Run, kLong>(problem, begin, end, finish, y, produce); };
  switch (problem.op) {
    case FusedOp::kIdentity: return values([=](std::int64_t row, std::int64_t i, int n) { return x.at(row * first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, layer_norms);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, rms_norms);
    case FusedOp::kSiluMul:
      return values(
          [=](std::int64_t row, std::int64_t i, int n) { return silu_of(x.at(row * first + i, n)) * other.at(row * second + i, n); });
    case FusedOp::kGelu: return values([=](std::int64_t row, std::int64_t i, int n) { return gelu_of(x.at(row * first + i, n)); });
    case FusedOp::kGeluTanh: return values([=](std::int64_t row, std::int64_t i, int n) { return gelu_tanh_of(x.at(row * first + i, n)); });
  }
  return begin;
}

std::int64_t fused_quantize_rows(const FusedProblem& problem, std::int64_t begin, std::int64_t end, const FusedFinish& finish, float* y) {
  const auto typed = [&]<typename Run, bool kLong>() {
    switch (problem.dtype) {
      case DType::kF16: return quantize_typed<1, Run, kLong>(problem, begin, end, finish, y);
      case DType::kBf16: return quantize_typed<2, Run, kLong>(problem, begin, end, finish, y);
      default: return quantize_typed<0, Run, kLong>(problem, begin, end, finish, y);
    }
  };
  const auto of_run = [&]<typename Run>() {
    return finish.block > 64 * BlockScales::kMost ? typed.template operator()<Run, true>() : typed.template operator()<Run, false>();
  };
  return finish.element->kind == ElementKind::kInteger ? of_run.template operator()<IntegerRun>() : of_run.template operator()<FloatRun>();
}
