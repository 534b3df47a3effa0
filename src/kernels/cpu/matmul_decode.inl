// The decoders of panels: b-bit codes of kernels/panels.h to fp32, one lane per output. Included in a leaf's namespace after its vector
// type. A weight format enters a product here and nowhere else. A decoder has
//   kBits, kZero (whether it subtracts a zero point), kLookUp (whether codes are no numbers by themselves) and
//   decode<kShift>(lane, zero)                  the code at bit kShift of every lane, or, where one look-up serves both halves of a lane,
//   decode_pair<kShift>(lane, zeros, values)    the codes at bits kShift and kShift + 16.

constexpr int kLanes = 64;
constexpr int kPart = 16;  // outputs per vector
constexpr int kParts = kLanes / kPart;
constexpr int kVectorBytes = kLanes * 4;

// What is fetched lies kPrefetchBytes ahead where arithmetic is the limit, half of that where it outruns memory, as fetches that find no
// free miss buffer are dropped here and there. A loop of so few operations per line that its own loads are far ahead fetches near them.
constexpr std::int64_t kNearBytes = 1024;

/// Part `part` of a vector. Fetches the line kAhead bytes further, none where that is 0: one fetch for every line that is read, since
/// most of a burst would be dropped.
template <std::int64_t kAhead>
[[gnu::always_inline]] inline I load_part(const std::byte* vector, int part) {
  const std::byte* from = vector + part * kPart * 4;
  if constexpr (kAhead > 0)
    return load_and_fetch(from, from + kAhead);
  else
    return load_lanes(from);
}

template <int kIndex>
struct Constant {
  static constexpr int value = kIndex;
};

template <int kBegin, int kEnd, typename Work>
[[gnu::always_inline]] inline void unroll(const Work& work) {
  if constexpr (kBegin < kEnd) {
    work(Constant<kBegin>{});
    unroll<kBegin + 1, kEnd>(work);
  }
}

/// Any format of at most 5 bits: a look-up; bits above the code do not matter, the table repeats.
template <int kWidth, bool kAsymmetric = false, bool kNumbers = false>
struct TableDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = kAsymmetric, kPairs = false, kLookUp = !kNumbers;
  Table table;
  explicit TableDecoder(const cpu::FloatTask& task) : table(load_table(task.table)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    const I index = shift_right<kShift>(lane);
    F value;
    if constexpr (kBits == 5)
      value = look_up32(index, table);
    else if constexpr (kBits <= 3)
      value = look_up8(index, table);
    else
      value = look_up16(index, table);
    return kZero ? sub(value, zero) : value;
  }
};

/// Symmetric integers of 3 or 4 bits without a look-up. A code at bits kShift of the lower 23 needs no shift: in the mantissa of
/// 2^(23 - kShift) its unit is 1.
template <int kWidth>
struct IntDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = false, kPairs = false, kLookUp = false;
  explicit IntDecoder(const cpu::FloatTask&) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    if constexpr (kShift + kBits > 23) {
      return decode<kShift - 16>(shift_right<16>(lane), zero);
    } else {
      constexpr std::uint32_t kMask = ((1u << kBits) - 1u) << kShift, kMagic = (127u + 23u - kShift) << 23;
      return sub(as_float(and_or(lane, set_lanes(kMask), set_lanes(kMagic))),
                 set(static_cast<float>((1 << (23 - kShift)) + (1 << (kBits - 1)))));
    }
  }
};
template <int kBits>
using SymmetricDecoder = std::conditional_t<(1 << kBits <= kCheapTable), TableDecoder<kBits, false, true>, IntDecoder<kBits>>;

/// Floats of 6, 7, 8 and 9..16 bits: sign, exponent and mantissa move to fp32's places; a product with 2^(127 - bias) mends
/// the exponent, of subnormals too. kScaled = false leaves that product to the rows, which are large enough then (FloatTask::normalized).
template <int kWidth, bool kScaled = true>
struct FloatDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = false, kPairs = false;
  I mask, right;
  F factor;
  explicit FloatDecoder(const cpu::FloatTask& task)
      : mask(set_lanes(task.mask)), right(set_lanes(task.right_shift)), factor(set(task.factor)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F) const {
    const I top = shift_left<32 - kBits - kShift>(lane);
    const F placed = as_float(bit_and(shift_right_signed(top, right), mask));
    return kScaled ? mul(placed, factor) : placed;
  }
};

/// 8-bit integers in offset binary: 2^23 + code is an fp32 by bits alone; `zero` holds 2^23 + zero point.
struct Int8Decoder {
  static constexpr int kBits = 8;
  static constexpr bool kZero = true, kPairs = false;
  I mask, magic;
  explicit Int8Decoder(const cpu::FloatTask&) : mask(set_lanes(0xFF)), magic(set_lanes(0x4B000000u)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    return sub(as_float(and_or(shift_right<kShift>(lane), mask, magic)), zero);
  }
};

struct Fp32Decoder {
  static constexpr int kBits = 32;
  static constexpr bool kZero = false, kPairs = false;
  explicit Fp32Decoder(const cpu::FloatTask&) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F) const {
    return as_float(lane);
  }
};

// ---- the codes of a group ----

/// The bit of a word, or of a lane where codes are not in words, at which the j-th of a vector's codes lies, and how many of them there
/// are.
constexpr int bit_of_code(int bits, int j) {
  if (bits == 3) return j / 2 * 8 + j % 2 * 3;
  return bits == 4 ? j % 4 * 8 + j / 4 * 4 : bits * j;
}
/// Whether the halves of a lane are codes k and k + 16: those of a vector are of one half of a group otherwise.
constexpr bool has_words(int bits) { return bits < 8 && bits != 4; }
constexpr int codes_of_vector(int bits) { return bits == 3 ? 4 : (has_words(bits) ? 16 : 32) / bits; }

/// The codes of a group of at most 6 bits whose bits lie apart, gathered side by side in both words of a lane, with any bits above
/// them. A vector is taken at a time; ready(v) says how many codes it completes, the n-th of them lies at bit(n) of code<n>().
template <int kBits>
struct SpareCodes {
  I first, second;
  template <int v>
  [[gnu::always_inline]] void take(I lane) {
    if constexpr (kBits == 3) {  // a fourth vector
      if constexpr (v == 0) first = shift_right<6>(lane);
      if constexpr (v == 1) second = shift_right<4>(lane);
      if constexpr (v == 2) first = odd_bits(shift_right<2>(lane), first, second);
    } else if constexpr (kBits == 5) {
      const I bit = shift_right<15 - v>(lane), mask = set_lanes(0x00010001u << v);
      if constexpr (v == 0)
        first = bit_and(bit, mask);
      else
        first = and_or(bit, mask, first);
    } else if constexpr (kBits == 6) {
      const I low = set_lanes(0x000F000Fu), high = set_lanes(0x00300030u);
      if constexpr (v % 3 == 0) first = bit_and(shift_right<12>(lane), low);
      if constexpr (v % 3 == 1) {
        first = and_or(shift_right<8>(lane), high, first);
        second = bit_and(shift_right<10>(lane), high);
      }
      if constexpr (v % 3 == 2) second = and_or(shift_right<12>(lane), low, second);
    }
  }
  /// Of the codes that vector v completes: how many, and the k of the first.
  static constexpr int ready(int v) {
    if (kBits == 6) return v % 3 == 2 ? 2 : 0;
    return (kBits == 3 || kBits == 5) && v == kBits - 1 ? (kBits == 3 ? 4 : 1) : 0;
  }
  static constexpr int first_k(int v) { return kBits == 6 ? 12 + v / 3 * 2 : (kBits == 3 ? 12 : 15); }
  static constexpr int bit(int n) { return kBits == 3 ? bit_of_code(3, n) : 0; }
  template <int n>
  [[gnu::always_inline]] I code() const {
    return kBits == 6 && n == 1 ? second : first;
  }
};

/// Vectors whose bytes hold 8 / b whole codes at bits b * j, for widths of 1, 2, 3, 4 and 8 bits; of 3 bits the fourth are spare codes.
template <int kBits>
constexpr int kByteVectors = kBits == 3 ? 4 : kBits;

/// Vector v of them; load() gives that of a panel. Vectors are taken in order.
template <int v, int kBits, typename Load>
[[gnu::always_inline]] inline I byte_vector(SpareCodes<kBits>& spare, const Load& load) {
  if constexpr (v == kBits) {
    return spare.first;
  } else {
    const I lanes = load();
    spare.template take<v>(lanes);
    return lanes;
  }
}

/// The same of part `part`, fetched as load_part does.
template <int v, std::int64_t kAhead, int kBits>
[[gnu::always_inline]] inline I load_bytes(const std::byte* codes, int part, SpareCodes<kBits>& spare) {
  return byte_vector<v>(
      spare, [&]() __attribute__((always_inline)) { return load_part<kAhead>(codes + v * kVectorBytes, part); });
}

template <int kShift, typename Decoder>
[[gnu::always_inline]] inline void decode_pair(const Decoder& decoder, I lane, const F (&zeros)[2], F (&values)[2]) {
  if constexpr (Decoder::kPairs) {
    decoder.template decode_pair<kShift>(lane, zeros, values);
  } else {
    values[0] = decoder.template decode<kShift>(lane, zeros[0]);
    values[1] = decoder.template decode<kShift + 16>(lane, zeros[1]);
  }
}

/// Calls meet(Constant<kk>, part, value) for kk = 0..31 of one group, in the order in which they lie, for kCount parts. `codes` points at
/// the first part's lanes, zeros[part] at the zero points of the first and last 16 k. kAhead: of load_part.
template <typename Decoder, int kCount, std::int64_t kAhead, typename Meet>
[[gnu::always_inline]] inline void decode_group(const Decoder& decoder, const std::byte* codes, const F (&zeros)[kCount][2],
                                                const Meet& meet) {
  constexpr int kBits = Decoder::kBits;
  constexpr int kPer = codes_of_vector(kBits);
  [[maybe_unused]] SpareCodes<kBits> spare[kCount];
  unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
    constexpr int v = decltype(vector)::value;
    I lanes[kCount];
    for (int p = 0; p < kCount; ++p) lanes[p] = in_register(load_part<kAhead>(codes + v * kVectorBytes, p));
    if constexpr (has_words(kBits))
      for (int p = 0; p < kCount; ++p) spare[p].template take<v>(lanes[p]);
    unroll<0, kPer>([&](auto slot) __attribute__((always_inline)) {
      constexpr int j = decltype(slot)::value, kk = v * kPer + j;
      for (int p = 0; p < kCount; ++p) {
        if constexpr (!has_words(kBits)) {
          meet(Constant<kk>{}, p, decoder.template decode<bit_of_code(kBits, j)>(lanes[p], zeros[p][kk / 16]));
        } else {
          F values[2];
          decode_pair<bit_of_code(kBits, j)>(decoder, lanes[p], zeros[p], values);
          meet(Constant<kk>{}, p, values[0]);
          meet(Constant<kk + 16>{}, p, values[1]);
        }
      }
    });
    if constexpr (has_words(kBits)) {
      unroll<0, SpareCodes<kBits>::ready(v)>([&](auto number) __attribute__((always_inline)) {
        constexpr int n = decltype(number)::value, kk = SpareCodes<kBits>::first_k(v) + n;
        for (int p = 0; p < kCount; ++p) {
          F values[2];
          decode_pair<SpareCodes<kBits>::bit(n)>(decoder, spare[p].template code<n>(), zeros[p], values);
          meet(Constant<kk>{}, p, values[0]);
          meet(Constant<kk + 16>{}, p, values[1]);
        }
      });
    }
  });
}

// ---- scales ----

/// Calls work with the kind as a constant.
template <typename Work>
[[gnu::always_inline]] inline void with_kind(cpu::ScaleKind kind, const Work& work) {
  using cpu::ScaleKind;
  switch (kind) {
    case ScaleKind::kFp32: return work(std::integral_constant<ScaleKind, ScaleKind::kFp32>{});
    case ScaleKind::kBf16: return work(std::integral_constant<ScaleKind, ScaleKind::kBf16>{});
    case ScaleKind::kFp16: return work(std::integral_constant<ScaleKind, ScaleKind::kFp16>{});
    case ScaleKind::kE8m0: return work(std::integral_constant<ScaleKind, ScaleKind::kE8m0>{});
    case ScaleKind::kFp8E4m3: return work(std::integral_constant<ScaleKind, ScaleKind::kFp8E4m3>{});
    case ScaleKind::kNone: return work(std::integral_constant<ScaleKind, ScaleKind::kNone>{});
  }
}

/// Narrow floats in fp32's places, their sign on top: other tools' scales may be negative. What that leaves out is scale_power.
inline F placed_floats(I top, std::uint32_t right, std::uint32_t mask) {
  return as_float(bit_and(shift_right_signed(top, set_lanes(right)), set_lanes(mask)));
}

/// 16 scales from `data` on, without scale_power(kKind) and without the factor that all of a weight share.
template <cpu::ScaleKind kKind>
[[gnu::always_inline]] inline F placed_scales(const std::uint8_t* data) {
  using cpu::ScaleKind;
  [[maybe_unused]] const auto* words = reinterpret_cast<const std::uint16_t*>(data);
  if constexpr (kKind == ScaleKind::kFp32) return load(reinterpret_cast<const float*>(data));
  if constexpr (kKind == ScaleKind::kBf16) return as_float(shift_left<16>(widen_words(words)));
  if constexpr (kKind == ScaleKind::kFp16) return placed_floats(shift_left<16>(widen_words(words)), 3, 0x8FFFE000u);
  if constexpr (kKind == ScaleKind::kE8m0) return as_float(larger(shift_left<23>(widen_bytes(data)), set_lanes(0x400000u)));
  if constexpr (kKind == ScaleKind::kFp8E4m3) return placed_floats(top_bytes(data), 4, 0x87F00000u);
  return set(1.0f);
}
constexpr float scale_power(cpu::ScaleKind kind) {
  return kind == cpu::ScaleKind::kFp16 ? 0x1p112f : (kind == cpu::ScaleKind::kFp8E4m3 ? 0x1p120f : 1.0f);
}

/// 16 scales for each of kCount parts from element `index` on, without the factor that all of them share. One branch for all parts.
template <int kCount>
[[gnu::always_inline]] inline void load_own_scales(const cpu::PanelScales& scales, const void* data, std::int64_t index, F (&own)[kCount]) {
  using cpu::ScaleKind;
  const auto* bytes = static_cast<const std::uint8_t*>(data) + index * scales.bytes;
  const auto each = [&](auto kind) __attribute__((always_inline)) {
    constexpr ScaleKind kKind = decltype(kind)::value;
    for (int p = 0; p < kCount; ++p) {
      own[p] = placed_scales<kKind>(bytes + p * kPart * scales.bytes);
      if constexpr (scale_power(kKind) != 1.0f) own[p] = mul(own[p], set(scale_power(kKind)));
    }
  };
  return with_kind(scales.kind, each);
}
inline F load_own_scales(const cpu::PanelScales& scales, const void* data, std::int64_t index) {
  F own[1];
  load_own_scales(scales, data, index, own);
  return own[0];
}
inline F load_scales(const cpu::PanelScales& scales, const void* data, std::int64_t index) {
  return mul(load_own_scales(scales, data, index), set(scales.factor));
}

template <typename Decoder>
inline F load_zeros(const cpu::FloatTask& task, const std::uint8_t* zero_points, std::int64_t index) {
  if constexpr (!Decoder::kZero) {
    return set(0.0f);
  } else {
    const F zero = task.has_zero_points ? to_float(widen_bytes(zero_points + index)) : set(task.zero);
    if constexpr (Decoder::kBits == 8) return sub(zero, set(-0x1p23f));
    return zero;
  }
}
