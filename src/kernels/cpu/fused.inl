// The fused neighbours, kLanes elements at a time: reference/fused.cc, bit for bit. A leaf includes this file inside its own
// namespace, after vector.inl, quantize/encode.inl and its own
//   widen_half(VHalf) -> VF and narrow_half(VF) -> VHalf (nearest even, finite or NaN)
//   multiply_add(a, b, c) = a b + c and subtract_product(a, b, c) = c - a b, each with one rounding
//   write_codes(to, VU (&codes)[64 / kLanes], around_caches): 64 bytes, and fence()
//
// Mapping:  rows one after the other; x is read once and kept as fp32 in y (first-level cache), where the later passes run.
// Bound:    memory; 2 or 4 bytes read per element and operand, 0 written here (the quantizer writes the codes).

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
    if constexpr (kType == 2) return as_float(__builtin_convertvector(load_part<VHalf>(static_cast<const std::uint16_t*>(data) + index, n), VU) << 16);
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
    half = __builtin_convertvector(value == value ? rounded : bits >> 16, VHalf);
  }
  store_part(static_cast<std::uint16_t*>(data) + index, half, n);
  if constexpr (kType == 1) return widen_half(half);
  return as_float(__builtin_convertvector(half, VU) << 16);
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
inline void with_type(DType dtype, const void* data, const Work& work) {
  switch (dtype) {
    case DType::kF16: return work(Values<1>{data});
    case DType::kBf16: return work(Values<2>{data});
    default: return work(Values<0>{data});
  }
}

template <int kType>
inline void rms_norm_row(const FusedProblem& problem, std::int64_t row, float* y) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  const bool adds = problem.op == FusedOp::kAddRmsNorm;
  const auto value_at = [&](std::int64_t i, int n) {
    if (!adds) return x.at(first + i, n);
    return store_rounded<kType>(problem.residual, second + i, x.at(first + i, n) + other.at(second + i, n), n);
  };
  const double sum = row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF value = value_at(i, n);
    store_part(y + i, value, n);
    return multiply_add(value, value, sums);
  });
  const float factor = inverse_root(sum, cols, problem.epsilon);
  const auto scale_by = [&](const auto& weight) {
    for_vectors(cols, [&](std::int64_t i, int n) { finish_part(y + i, (load_part<VF>(y + i, n) * factor) * weight.at(i, n), n); });
  };
  if (problem.weight == nullptr) return scale_by(Ones{});
  with_type(problem.weight_dtype, problem.weight, scale_by);
}

template <int kType>
inline void layer_norm_row(const FusedProblem& problem, std::int64_t row, float* y) {
  const std::int64_t cols = problem.cols, first = row * problem.x_stride;
  const Values<kType> x{problem.x};
  const double sum = row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF value = x.at(first + i, n);
    store_part(y + i, value, n);
    return sums + value;
  });
  const float mean = static_cast<float>(sum / static_cast<double>(cols));
  const VI lanes = lane_numbers();
  const double squares = row_sum_of(cols, [&](VF sums, std::int64_t i, int n) {
    const VF difference = load_part<VF>(y + i, n) - mean;
    const VF joined = multiply_add(difference, difference, sums);
    return n == kLanes ? joined : (lanes < n ? joined : sums);
  });
  const float factor = inverse_root(squares, cols, problem.epsilon);
  const auto finish = [&](const auto& weight, const auto& bias) {
    for_vectors(cols, [&](std::int64_t i, int n) {
      finish_part(y + i, multiply_add((load_part<VF>(y + i, n) - mean) * factor, weight.at(i, n), bias.at(i, n)), n);
    });
  };
  with_type(problem.weight_dtype, problem.weight, [&](const auto& weight) {
    auto bias = weight;
    bias.data = problem.bias;
    if (problem.weight != nullptr && problem.bias != nullptr) return finish(weight, bias);
    if (problem.weight != nullptr) return finish(weight, Zeros{});
    if (problem.bias != nullptr) return finish(Ones{}, bias);
    finish(Ones{}, Zeros{});
  });
}

template <int kType>
inline void fused_row(const FusedProblem& problem, std::int64_t row, float* y) {
  const std::int64_t first = row * problem.x_stride, second = row * problem.other_stride;
  const Values<kType> x{problem.x}, other{problem.other};
  const auto map = [&](const auto& function) {
    for_vectors(problem.cols, [&](std::int64_t i, int n) { finish_part(y + i, function(x.at(first + i, n), i, n), n); });
  };
  switch (problem.op) {
    case FusedOp::kIdentity: return map([](VF v, std::int64_t, int) { return v; });
    case FusedOp::kLayerNorm: return layer_norm_row<kType>(problem, row, y);
    case FusedOp::kRmsNorm:
    case FusedOp::kAddRmsNorm: return rms_norm_row<kType>(problem, row, y);
    case FusedOp::kSiluMul: return map([&](VF v, std::int64_t i, int n) { return silu_of(v) * other.at(second + i, n); });
    case FusedOp::kGelu: return map([](VF v, std::int64_t, int) { return gelu_of(v); });
    case FusedOp::kGeluTanh: return map([](VF v, std::int64_t, int) { return gelu_tanh_of(v); });
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

inline std::int32_t largest_of(const float* y, std::int64_t count) {
  VI a = splat(0), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = larger(a, magnitude_of(load<VF>(y + i)));
    b = larger(b, magnitude_of(load<VF>(y + i + kLanes)));
    c = larger(c, magnitude_of(load<VF>(y + i + 2 * kLanes)));
    d = larger(d, magnitude_of(load<VF>(y + i + 3 * kLanes)));
  }
  for (; i < count; i += kLanes) a = larger(a, magnitude_of(load_part<VF>(y + i, static_cast<int>(min_of<std::int64_t>(kLanes, count - i)))));
  a = larger(larger(a, b), larger(c, d));
  std::int32_t lanes[kLanes], result = 0;
  store(lanes, a);
  for (int lane = 0; lane < kLanes; ++lane) result = max_of(result, lanes[lane]);
  return result;
}

template <typename Codes>
inline bool finish_row_as(const FusedFinish& finish, const float* y) {
  constexpr int kVectors = 64 / kLanes;
  const Codes encode(*finish.element);
  const char *next = static_cast<const char*>(finish.next[0]), *other = static_cast<const char*>(finish.next[1]);
  for (std::int64_t begin = 0, block = 0; begin < finish.cols; begin += finish.block, ++block) {
    const std::int64_t end = min_of(finish.cols, begin + finish.block);
    const std::int32_t amax = largest_of(y + begin, end - begin);
    if (amax >= kInfinityBits) return false;
    const float scale = amax == 0 ? 1.0f : __builtin_bit_cast(float, amax) / finish.largest;
    if (!(scale >= 0x1p-60f && scale <= 0x1p60f)) return false;
    finish.scales[block] = scale;
    const Divisor divide(scale);
    std::int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
      if (next != nullptr)
        for (std::int64_t line = 0; line < finish.next_bytes; ++line) __builtin_prefetch(next + i * finish.next_bytes + line * 64);
      if (other != nullptr)
        for (std::int64_t line = 0; line < finish.next_bytes; ++line) __builtin_prefetch(other + i * finish.next_bytes + line * 64);
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
  return true;
}

bool fused_finish(const FusedFinish& finish, const float* y) {
  return finish.element->kind == ElementKind::kInteger ? finish_row_as<Int8Codes>(finish, y) : finish_row_as<Float8Codes>(finish, y);
}
