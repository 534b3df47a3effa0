// The fused neighbours, kLanes elements at a time: reference/fused.cc, bit for bit. A leaf includes this file inside its own
// namespace, after vector.inl, quantize/encode.inl and its own
//   widen_half(VHalf) -> VF and narrow_half(VF) -> VHalf (nearest even, finite or NaN)
//   widen_bits(VHalf) -> VU and narrow_bits(VU) -> VHalf: words to lanes and back
//   multiply_add(a, b, c) = a b + c and subtract_product(a, b, c) = c - a b, each with one rounding
//   write_codes(to, VU (&codes)[64 / kLanes], around_caches): 64 bytes, and fence()
//
// Mapping:  rows one after the other; memory is read once per row, by the pass that sums (norms) or produces; later passes find the row
//           in the caches. fused_quantize_row also makes the codes, block by block; fused_run leaves that to a quantize kernel.
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
  const VF quiet = as_float((as_bits(value) & 0x80000000u) | 0x7FC00000u);
  const float largest = kType == 1 ? 65504.0f : 3.3895313892515355e38f;
  const VF clamped = smaller(larger(value, splat(-largest)), splat(largest));
  const VF finite = value == value ? clamped : quiet;
  VHalf half;
  if constexpr (kType == 1) {
    half = narrow_half(finite);
  } else {
    const VU bits = as_bits(finite);
    const VU rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    half = narrow_bits(value == value ? rounded : bits >> 16);
  }
  store_part(static_cast<std::uint16_t*>(data) + index, half, n);
  if constexpr (kType == 1) return widen_half(half);
  return as_float(widen_bits(half) << 16);
}

/// Writes a finished value; every NaN becomes the same one.
inline void finish_part(float* y, VF value, int n) { store_part(y, value == value ? value : as_float(splat(0x7FC00000)), n); }

/// body(index, n) for vectors of kLanes and the rest.
template <typename Body>
inline void for_vectors(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

/// The sum of format/row_sum.h; join(sums, index, n) adds n summands to partial sums and leaves the others.
template <typename Join>
inline double row_sum_of(std::int64_t count, const Join& join) {
  constexpr int kParts = 32 / kLanes;
  double total = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += 1024) {
    const std::int64_t end = min_of<std::int64_t>(begin + 1024, count);
    VF sums[kParts] = {};
    std::int64_t i = begin;
    for (; i + 32 <= end; i += 32)
      for (int part = 0; part < kParts; ++part) sums[part] = join(sums[part], i + part * kLanes, kLanes);
    for (int part = 0; part < kParts && i + part * kLanes < end; ++part)
      sums[part] = join(sums[part], i + part * kLanes, static_cast<int>(min_of<std::int64_t>(kLanes, end - i - part * kLanes)));
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int part = 0; part < half; ++part) sums[part] += sums[part + half];
    float lanes[kLanes];
    store(lanes, sums[0]);
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    total += static_cast<double>(lanes[0]);
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

/// The first pass of RMSNorm over a row, which also stores the residual; then use(produce), produce(i, n) the normalized values.
template <int kType, typename Use>
inline auto with_rms_norm(const FusedProblem& problem, std::int64_t row, const Use& use) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  const bool adds = problem.op == FusedOp::kAddRmsNorm;
  const double sum = adds ? row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF value = store_rounded<kType>(problem.residual, second + i, x.at(first + i, n) + other.at(second + i, n), n);
    return multiply_add(value, value, sums);
  }) : row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF value = x.at(first + i, n);
    return multiply_add(value, value, sums);
  });
  const VF factor = splat(inverse_root(sum, cols, problem.epsilon));
  const Values<kType> summed{adds ? problem.residual : problem.x};  // in the caches still
  const std::int64_t begin = adds ? second : first;
  const auto weighted = [&](const auto& weight) {
    return use([&](std::int64_t i, int n) { return (summed.at(begin + i, n) * factor) * weight.at(i, n); });
  };
  return problem.weight == nullptr ? weighted(Ones{}) : with_type(problem.weight_dtype, problem.weight, weighted);
}

/// The same for LayerNorm: two passes, of the mean and of the squares.
template <int kType, typename Use>
inline auto with_layer_norm(const FusedProblem& problem, std::int64_t row, const Use& use) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride;
  const Values<kType> x{problem.x};
  const double sum = row_sum_of(cols, [&](VF sums, std::int64_t i, int n) { return sums + x.at(first + i, n); });
  const VF mean = splat(static_cast<float>(sum / static_cast<double>(cols)));
  const VI lanes = lane_numbers();
  const double squares = row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF difference = x.at(first + i, n) - mean;
    const VF joined = multiply_add(difference, difference, sums);
    return n == kLanes ? joined : (lanes < n ? joined : sums);
  });
  const VF factor = splat(inverse_root(squares, cols, problem.epsilon));
  const auto finish = [&](const auto& weight, const auto& bias) {
    return use([&](std::int64_t i, int n) { return multiply_add((x.at(first + i, n) - mean) * factor, weight.at(i, n), bias.at(i, n)); });
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
  const auto write = [&](const auto& produce) { for_vectors(problem.cols, [&](std::int64_t i, int n) { finish_part(y + i, produce(i, n), n); }); };
  switch (problem.op) {
    case FusedOp::kIdentity: return write([&](std::int64_t i, int n) { return x.at(first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, row, write);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, row, write);
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

/// y / s from r = 1 / s rounded to nearest: the remainder of y * r is exact, and adding its quotient rounds as the division does
/// (Markstein 1990), as long as nothing under- or overflows. Smaller values than that have the code of +-0 all the same.
struct Divisor {
  VF s, r;
  explicit Divisor(float scale) : s(splat(scale)), r(splat(1.0f / scale)) {}
  VF operator()(VF y) const {
    const VF q = y * r;
    const VF exact = multiply_add(subtract_product(q, s, y), r, q);
    return as_float((as_bits(exact) & kMagnitude) | (as_bits(y) & ~kMagnitude));
  }
};

struct Int8Codes {
  explicit Int8Codes(const ElementPlan&) {}
  VU operator()(VF quotient) const { return as_bits(quotient + 12582912.0f); }  // 1.5 * 2^23: the low byte is the integer
};

struct Float8Codes {
  FloatEncoder<Rounding::kNearestEven> encoder;
  explicit Float8Codes(const ElementPlan& element) : encoder{element.format} {}
  VU operator()(VF quotient) const {
    const VU bits = as_bits(quotient);
    return (VU)encoder.nearest((VI)(bits & kMagnitude)) | ((bits >> encoder.f.sign_shift) & encoder.f.sign_bit);
  }
};

template <int kDistance, int... kLane>
inline VI exchanged(VI value, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(value, value, (kLane ^ kDistance)...);
}

/// The largest lane.
template <int kDistance = kLanes / 2>
inline std::int32_t largest_lane(VI value) {
  if constexpr (kDistance == 0) return value[0];
  else return largest_lane<kDistance / 2>(larger(value, exchanged<kDistance>(value, std::make_integer_sequence<int, kLanes>())));
}

/// Codes of columns [begin, end) of y, which share a scale.
template <typename Codes>
inline void encode_block(const FusedFinish& finish, const Codes& encode, const float* y, std::int64_t begin, std::int64_t end, float scale) {
  constexpr int kVectors = 64 / kLanes;
  const Divisor divide(scale);
  std::int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    VU codes[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) codes[v] = encode(divide(load<VF>(y + i + v * kLanes)));
    write_codes(finish.codes + i, codes, finish.around_caches);
  }
  for (; i < end; i += kLanes) {
    const int n = static_cast<int>(min_of<std::int64_t>(kLanes, end - i));
    store_part(finish.codes + i, __builtin_convertvector(encode(divide(load_part<VF>(y + i, n))), VByte), n);
  }
}

/// Produces a row block by block: y and its largest magnitude, then, while y is in the first-level cache, its codes. False, with y
/// complete and every NaN the same one, where a value is not finite or a scale beyond 2^-60 .. 2^60.
template <typename Codes, typename Produce>
inline bool quantize_produced(const FusedFinish& finish, float* y, const Produce& produce) {
  constexpr int kVectors = 64 / kLanes;
  const Codes encode(*finish.element);
  const char *next = static_cast<const char*>(finish.next[0]), *other = static_cast<const char*>(finish.next[1]);
  bool usual = true;
  for (std::int64_t begin = 0, block = 0; begin < finish.cols; begin += finish.block, ++block) {
    const std::int64_t end = min_of(finish.cols, begin + finish.block);
    VI largest[2] = {};
    std::int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
      if (next != nullptr)
        for (std::int64_t line = 0; line < finish.next_bytes; ++line) __builtin_prefetch(next + i * finish.next_bytes + line * 64);
      if (other != nullptr)
        for (std::int64_t line = 0; line < finish.next_bytes; ++line) __builtin_prefetch(other + i * finish.next_bytes + line * 64);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const VF value = produce(i + v * kLanes, kLanes);
        store(y + i + v * kLanes, value);
        largest[v % 2] = larger(largest[v % 2], magnitude_of(value));
      }
    }
    const VI lanes = lane_numbers();
    for (; i < end; i += kLanes) {
      const int n = static_cast<int>(min_of<std::int64_t>(kLanes, end - i));
      const VF value = produce(i, n);
      store_part(y + i, value, n);
      largest[0] = larger(largest[0], lanes < n ? magnitude_of(value) : splat(0));
    }
    const std::int32_t amax = largest_lane(larger(largest[0], largest[1]));
    const float scale = amax == 0 ? 1.0f : __builtin_bit_cast(float, amax) / finish.largest;
    usual = usual && amax < kInfinityBits && scale >= 0x1p-60f && scale <= 0x1p60f;
    finish.scales[block] = scale;
    if (usual) encode_block(finish, encode, y, begin, end, scale);
  }
  if (!usual) for_vectors(finish.cols, [&](std::int64_t i, int n) { finish_part(y + i, load_part<VF>(y + i, n), n); });
  return usual;
}

/// quantize_produced with the element's encoder.
struct QuantizeRow {
  const FusedFinish& finish;
  float* y;
  template <typename Produce>
  bool operator()(const Produce& produce) const {
    return finish.element->kind == ElementKind::kInteger ? quantize_produced<Int8Codes>(finish, y, produce) : quantize_produced<Float8Codes>(finish, y, produce);
  }
};

template <int kType>
inline bool fused_quantize_typed(const FusedProblem& problem, std::int64_t row, const QuantizeRow& quantize) {
  const std::int64_t first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  switch (problem.op) {
    case FusedOp::kIdentity: return quantize([&](std::int64_t i, int n) { return x.at(first + i, n); });
    case FusedOp::kLayerNorm: return with_layer_norm<kType>(problem, row, quantize);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return with_rms_norm<kType>(problem, row, quantize);
    case FusedOp::kSiluMul: return quantize([&](std::int64_t i, int n) { return silu_of(x.at(first + i, n)) * other.at(second + i, n); });
    case FusedOp::kGelu: return quantize([&](std::int64_t i, int n) { return gelu_of(x.at(first + i, n)); });
    case FusedOp::kGeluTanh: return quantize([&](std::int64_t i, int n) { return gelu_tanh_of(x.at(first + i, n)); });
  }
  return false;
}

bool fused_quantize_row(const FusedProblem& problem, std::int64_t row, const FusedFinish& finish, float* y) {
  const QuantizeRow quantize{finish, y};
  switch (problem.dtype) {
    case DType::kF16: return fused_quantize_typed<1>(problem, row, quantize);
    case DType::kBf16: return fused_quantize_typed<2>(problem, row, quantize);
    default: return fused_quantize_typed<0>(problem, row, quantize);
  }
}
