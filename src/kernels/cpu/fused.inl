// The fused neighbours, kLanes elements at a time: reference/fused.cc, bit for bit. A leaf includes this file inside its own
// namespace, after vector.inl, quantize/encode.inl and its own
//   widen_half(VHalf) -> VF and narrow_half(VF) -> VHalf (nearest even, finite or NaN)
//   widen_bits(VHalf) -> VU and narrow_bits(VU) -> VHalf: words to lanes and back
//   multiply_add(a, b, c) = a b + c with one rounding
//   write_codes(to, VU (&codes)[64 / kLanes], around_caches): 64 bytes, the low ones of the lanes, and fence()
//
// Mapping:  rows one after the other; memory is read once per row, by the pass that sums (norms) or produces; later passes find the row
//           in the caches. fused_quantize_row also makes the codes, some blocks at a time; fused_run leaves that to a quantize kernel.
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
    if constexpr (kType == 2) return as_float(widen_bits(load_part<VHalf>(static_cast<const std::uint16_t*>(data) + index, n)) << 16);
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

template <bool kValue>
struct Constant {};

/// The row that is read next, or none: half of it is fetched while a norm sums, the other half while y is made. Not while codes are
/// written around the caches: fetches would take the buffers that gather them.
struct NextRow {
  const char* data = nullptr;
  std::int64_t half = 0;   ///< bytes
  std::int64_t bytes = 0;  ///< of a value
  /// Of the half's columns [i, i + kLanes).
  void fetch_first(std::int64_t i) const {
    if (data != nullptr) __builtin_prefetch(data + i * bytes / 2, 0, 2);
  }
  /// Of the half's columns [i, i + 64).
  void fetch_second(std::int64_t i) const {
    const char* at = data + half + i * bytes / 2;
    for (std::int64_t line = 0; data != nullptr && line < bytes / 2; ++line) __builtin_prefetch(at + line * 64, 0, 2);
  }
};

inline NextRow next_row(const FusedFinish& finish) {
  return {static_cast<const char*>(finish.next[0]), finish.cols * finish.next_bytes / 2, finish.next_bytes};
}

/// body(index, n) for vectors of kLanes and the rest.
template <typename Body>
inline void for_vectors(std::int64_t count, const Body& body) {
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
  if constexpr (kDistance == 0) return value[0];
  else return folded<kDistance / 2>(value + exchanged<kDistance>(value, std::make_integer_sequence<int, kLanes>()));
}

/// The sum of format/row_sum.h; join(sums, index, n) adds n summands to partial sums and leaves the others. Segments do not wait for each
/// other: kPairs takes two at a time, so that twice as many additions are under way. Not where join stores: what is loaded 4 KiB further
/// would wait for it.
template <bool kPairs, typename Join>
inline double row_sum_of(std::int64_t count, const Join& join) {
  constexpr int kParts = 32 / kLanes;
  const auto fold = [](VF (&sums)[kParts]) {
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int part = 0; part < half; ++part) sums[part] += sums[part + half];
    return static_cast<double>(folded(sums[0]));
  };
  double total = 0.0;
  std::int64_t begin = 0;
  for (; kPairs && begin + 2048 <= count; begin += 2048) {
    VF first[kParts] = {}, second[kParts] = {};
    for (std::int64_t i = begin; i < begin + 1024; i += 32)
      for (int part = 0; part < kParts; ++part) {
        first[part] = join(first[part], i + part * kLanes, kLanes);
        second[part] = join(second[part], i + 1024 + part * kLanes, kLanes);
      }
    total += fold(first);
    total += fold(second);
  }
  for (; begin < count; begin += 1024) {
    const std::int64_t end = min_of<std::int64_t>(begin + 1024, count);
    VF sums[kParts] = {};
    std::int64_t i = begin;
    for (; i + 32 <= end; i += 32)
      for (int part = 0; part < kParts; ++part) sums[part] = join(sums[part], i + part * kLanes, kLanes);
    for (int part = 0; part < kParts && i + part * kLanes < end; ++part)
      sums[part] = join(sums[part], i + part * kLanes, static_cast<int>(min_of<std::int64_t>(kLanes, end - i - part * kLanes)));
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

/// The first pass of RMSNorm over a row, which also stores the residual and keeps a 16-bit row as fp32 in y; then
/// use(produce, twice), produce(i, n) the normalized values, twice: whether they may be produced again once y is written over.
template <int kType, typename Use>
inline auto with_rms_norm(const FusedProblem& problem, std::int64_t row, float* y, const NextRow& next, const Use& use) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  const bool adds = problem.op == FusedOp::kAddRmsNorm;
  const double sum = adds ? row_sum_of<false>(cols, [&](VF sums, std::int64_t i, int n) {
    const VF value = store_rounded<kType>(problem.residual, second + i, x.at(first + i, n) + other.at(second + i, n), n);
    if constexpr (kType != 0) store_part(y + i, value, n);
    return multiply_add(value, value, sums);
  }) : row_sum_of<kType == 0>(cols, [&](VF sums, std::int64_t i, int n) {
    next.fetch_first(i);
    const VF value = x.at(first + i, n);
    if constexpr (kType != 0) store_part(y + i, value, n);
    return multiply_add(value, value, sums);
  });
  const VF factor = splat(inverse_root(sum, cols, problem.epsilon));
  const float* stored = adds ? static_cast<const float*>(problem.residual) + second : static_cast<const float*>(problem.x) + first;
  const Values<0> summed{kType != 0 ? y : stored};  // in the caches still
  const auto weighted = [&](const auto& weight) {
    return use([&](std::int64_t i, int n) { return (summed.at(i, n) * factor) * weight.at(i, n); }, Constant<kType == 0>{});
  };
  return problem.weight == nullptr ? weighted(Ones{}) : with_type(problem.weight_dtype, problem.weight, weighted);
}

/// The same for LayerNorm: two passes, of the mean and of the squares.
template <int kType, typename Use>
inline auto with_layer_norm(const FusedProblem& problem, std::int64_t row, float* y, const NextRow& next, const Use& use) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride;
  const Values<kType> from{problem.x};
  const double sum = row_sum_of<kType == 0>(cols, [&](VF sums, std::int64_t i, int n) {
    next.fetch_first(i);
    const VF value = from.at(first + i, n);
    if constexpr (kType != 0) store_part(y + i, value, n);
    return sums + value;
  });
  const Values<0> x{kType != 0 ? y : static_cast<const float*>(problem.x) + first};
  const VF mean = splat(static_cast<float>(sum / static_cast<double>(cols)));
  const VI lanes = lane_numbers();
  const double squares = row_sum_of<true>(cols, [&](VF sums, std::int64_t i, int n) {
    const VF difference = x.at(i, n) - mean;
    const VF joined = multiply_add(difference, difference, sums);
    return n == kLanes ? joined : (lanes < n ? joined : sums);
  });
  const VF factor = splat(inverse_root(squares, cols, problem.epsilon));
  const auto finish = [&](const auto& weight, const auto& bias) {
    const auto produce = [&](std::int64_t i, int n) { return multiply_add((x.at(i, n) - mean) * factor, weight.at(i, n), bias.at(i, n)); };
    return use(produce, Constant<kType == 0>{});
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
  const auto write = [&](const auto& produce, Constant<kType == 0> = {}) {
    for_vectors(problem.cols, [&](std::int64_t i, int n) { finish_part(y + i, produce(i, n), n); });
  };
  switch (problem.op) {
    case FusedOp::kIdentity: return write([&](std::int64_t i, int n) { return x.at(first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, row, y, NextRow{}, write);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, row, y, NextRow{}, write);
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
  float high, low;
  VF operator()(VF y) const { return multiply_add(y, splat(high), y * low); }
};

/// The codes are the low bytes; the scale was made from the values, so that none is beyond the largest.
struct Int8Codes {
  explicit Int8Codes(const ElementPlan&) {}
  VU operator()(VF, VF quotient) const { return as_bits(quotient + 12582912.0f); }  // 1.5 * 2^23: the low byte is the integer
};

/// As FloatRun of quantize/runs.inl: the sum of a binade and the quotient counts spacings.
struct Float8Codes {
  std::int32_t lowest;
  float up;
  int shift;
  std::uint32_t base;
  explicit Float8Codes(const ElementPlan& element)
      : lowest(element.format.lowest_field << 23), up(float_of(static_cast<std::uint32_t>(127 + element.format.shift) << 23)),
        shift(element.format.shift),
        base(static_cast<std::uint32_t>(element.format.lowest_field + element.format.shift) << element.format.mantissa_bits) {}
  VU operator()(VF y, VF quotient) const {
    const VI magnitude = magnitude_of(quotient);
    const VF binade = as_float(larger(magnitude & kInfinityBits, splat(lowest)));
    const VU sum = as_bits(multiply_add(binade, splat(up), as_float(magnitude)));
    return ((sum + (sum >> shift) - base) & 0x7Fu) | ((as_bits(y) >> 24) & 0x80u);
  }
};

/// The largest lane.
template <int kDistance = kLanes / 2>
inline std::int32_t largest_lane(VI value) {
  if constexpr (kDistance == 0) return value[0];
  else return largest_lane<kDistance / 2>(larger(value, exchanged<kDistance>(value, std::make_integer_sequence<int, kLanes>())));
}

/// Codes of columns [begin, end), whose values value(i, n) share a scale.
template <typename Codes, typename Value>
inline void encode_block(const FusedFinish& finish, const Codes& encode, const Divisor& divide, std::int64_t begin, std::int64_t end,
                         const Value& value_at) {
  constexpr int kVectors = 64 / kLanes;
  std::int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    VU codes[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const VF value = value_at(i + v * kLanes, kLanes);
      codes[v] = encode(value, divide(value));
    }
    write_codes(finish.codes + i, codes, finish.around_caches);
  }
  for (; i < end; i += kLanes) {
    const int n = static_cast<int>(min_of<std::int64_t>(kLanes, end - i));
    const VF value = value_at(i, n);
    store_part(finish.codes + i, __builtin_convertvector(encode(value, divide(value)), VByte), n);
  }
}

/// Writes y of columns [begin, end), where kStored, and returns the bits of its largest magnitude; fetches what is read next.
template <bool kStored, typename Produce>
inline std::int32_t produce_block(const FusedFinish& finish, bool norm, float* y, std::int64_t begin, std::int64_t end,
                                  const Produce& produce) {
  constexpr int kVectors = 64 / kLanes;
  const NextRow next = next_row(finish);
  VI largest[2] = {};
  std::int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    if (norm) {
      next.fetch_second(i);
    } else {
      for (const void* row : finish.next) {
        const char* at = static_cast<const char*>(row) + i * finish.next_bytes;
        for (std::int64_t line = 0; row != nullptr && line < finish.next_bytes; ++line) __builtin_prefetch(at + line * 64, 0, 2);
      }
    }
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

/// The scales of some blocks from the bits of their largest magnitudes, and what divides by them.
struct BlockScales {
  static constexpr int kMost = 16;
  alignas(64) std::int32_t amax[kMost] = {};
  alignas(64) float scale[kMost], high[kMost], low[kMost];

  /// False where a value is not finite or a scale beyond 2^-60 .. 2^60.
  bool make(int count, float largest) {
    bool usual = true;
    for (int i = 0; i < count; i += kLanes) {
      const VI bits = load<VI>(amax + i);
      const VF s = bits == 0 ? splat(1.0f) : as_float(bits) / largest;
      const VF inverse = 1.0f / s;
      store(scale + i, s);
      store(high + i, inverse);
      store(low + i, multiply_add(-s, inverse, splat(1.0f)) / s);
    }
    for (int i = 0; i < count; ++i) usual = usual && amax[i] < kInfinityBits && scale[i] >= 0x1p-60f && scale[i] <= 0x1p60f;
    return usual;
  }
};

/// Produces a row some blocks at a time: y and largest magnitudes, then, while y is in the first-level cache, codes; blocks do not wait
/// for their own scales that way. kTwice: y is not stored, long blocks would only push the row out of that cache. False, with y complete
/// and every NaN the same one, where a value is not finite or a scale beyond 2^-60 .. 2^60.
template <typename Codes, bool kTwice, typename Produce>
inline bool quantize_produced(const FusedFinish& finish, bool norm, float* y, const Produce& produce) {
  const Codes encode(*finish.element);
  const std::int64_t blocks = (finish.cols + finish.block - 1) / finish.block;
  const std::int64_t together = max_of<std::int64_t>(1, 64 * BlockScales::kMost / finish.block);
  const auto begin_of = [&](std::int64_t block) { return block * finish.block; };
  const auto end_of = [&](std::int64_t block) { return min_of(finish.cols, (block + 1) * finish.block); };
  bool usual = true;
  for (std::int64_t first = 0; first < blocks; first += together) {
    const int count = static_cast<int>(min_of(blocks - first, together));
    BlockScales scales;
    for (int i = 0; i < count; ++i)
      scales.amax[i] = produce_block<!kTwice>(finish, norm, y, begin_of(first + i), end_of(first + i), produce);
    usual = scales.make(count, finish.largest) && usual;
    for (int i = 0; i < count; ++i) {
      finish.scales[first + i] = scales.scale[i];
      if (!usual) continue;
      const Divisor divide{scales.high[i], scales.low[i]};
      const auto stored = [&](std::int64_t at, int n) { return load_part<VF>(y + at, n); };
      if constexpr (kTwice) encode_block(finish, encode, divide, begin_of(first + i), end_of(first + i), produce);
      else encode_block(finish, encode, divide, begin_of(first + i), end_of(first + i), stored);
    }
  }
  if (usual) return true;
  for_vectors(finish.cols, [&](std::int64_t i, int n) { finish_part(y + i, kTwice ? produce(i, n) : load_part<VF>(y + i, n), n); });
  return false;
}

/// quantize_produced with the element's encoder; twice: whether values may be produced again.
struct QuantizeRow {
  const FusedFinish& finish;
  float* y;
  bool norm;  ///< half of the next row is fetched already
  template <bool kTwice, typename Produce>
  bool run(const Produce& produce) const {
    if (finish.element->kind == ElementKind::kInteger) return quantize_produced<Int8Codes, kTwice>(finish, norm, y, produce);
    return quantize_produced<Float8Codes, kTwice>(finish, norm, y, produce);
  }
  template <typename Produce, bool kTwice = false>
  bool operator()(const Produce& produce, Constant<kTwice> = {}) const {
    if constexpr (kTwice)
      if (finish.block > 64 * BlockScales::kMost) return run<true>(produce);
    return run<false>(produce);
  }
};

template <int kType>
inline bool fused_quantize_typed(const FusedProblem& problem, std::int64_t row, const QuantizeRow& quantize) {
  const std::int64_t first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  switch (problem.op) {
    case FusedOp::kIdentity: return quantize([&](std::int64_t i, int n) { return x.at(first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, row, quantize.y, next_row(quantize.finish), quantize);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, row, quantize.y, next_row(quantize.finish), quantize);
    case FusedOp::kSiluMul: return quantize([&](std::int64_t i, int n) { return silu_of(x.at(first + i, n)) * other.at(second + i, n); });
    case FusedOp::kGelu: return quantize([&](std::int64_t i, int n) { return gelu_of(x.at(first + i, n)); });
    case FusedOp::kGeluTanh: return quantize([&](std::int64_t i, int n) { return gelu_tanh_of(x.at(first + i, n)); });
  }
  return false;
}

bool fused_quantize_row(const FusedProblem& problem, std::int64_t row, const FusedFinish& finish, float* y) {
  const bool norm = problem.op == FusedOp::kLayerNorm || problem.op == FusedOp::kRmsNorm;
  const QuantizeRow quantize{finish, y, norm};
  switch (problem.dtype) {
    case DType::kF16: return fused_quantize_typed<1>(problem, row, quantize);
    case DType::kBf16: return fused_quantize_typed<2>(problem, row, quantize);
    default: return fused_quantize_typed<0>(problem, row, quantize);
  }
}
