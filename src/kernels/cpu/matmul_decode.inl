// The decoders of panels: b-bit codes of kernels/panels.h to fp32, one lane per output. Included in a leaf's namespace after its vector
// type. A weight format enters a product here and nowhere else. A decoder has
//   kBits, kZero (whether it subtracts a zero point) and
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
template <int kWidth, bool kAsymmetric = false>
struct TableDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = kAsymmetric, kPairs = false;
  Table table;
  explicit TableDecoder(const cpu::FloatTask& task) : table(load_table(task.table)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    const I index = shift_right<kShift>(lane);
    F value;
    if constexpr (kBits == 5)
      value = look_up32(index, table);
    else
      value = look_up16(index, table);
    return kZero ? sub(value, zero) : value;
  }
};

/// Symmetric integers of 3 or 4 bits without a look-up. A code at bits kShift of the low word needs no shift: in the mantissa of
/// 2^(23 - kShift) its unit is 1.
template <int kWidth>
struct IntDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = false, kPairs = true;
  explicit IntDecoder(const cpu::FloatTask&) {}
  template <int kShift>
  [[gnu::always_inline]] F in_place(I lane) const {
    constexpr std::uint32_t kMask = ((1u << kBits) - 1u) << kShift, kMagic = (127u + 23u - kShift) << 23;
    return sub(as_float(and_or(lane, set_lanes(kMask), set_lanes(kMagic))),
               set(static_cast<float>((1 << (23 - kShift)) + (1 << (kBits - 1)))));
  }
  template <int kShift>
  [[gnu::always_inline]] void decode_pair(I lane, const F (&)[2], F (&values)[2]) const {
    values[0] = in_place<kShift>(lane);
    values[1] = in_place<kShift>(shift_right<16>(lane));
  }
};
template <int kBits>
using SymmetricDecoder = std::conditional_t<kCheapLookUp, TableDecoder<kBits>, IntDecoder<kBits>>;

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

/// The codes of a group of at most 6 bits whose bits lie apart, gathered into the low bits of both words of a lane. A vector is taken
/// at a time; ready<v>() says how many codes it completes, code(n) is the n-th of them.
template <int kBits>
struct SpareCodes {
  I first, second;
  template <int v>
  [[gnu::always_inline]] void take(I lane) {
    if constexpr (kBits == 3 || kBits == 5) {
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
  static constexpr int ready(int v) { return (kBits == 3 || kBits == 5) && v == kBits - 1 ? 1 : (kBits == 6 && v % 3 == 2 ? 2 : 0); }
  static constexpr int first_k(int v) { return kBits == 6 ? 12 + v / 3 * 2 : 15; }
};

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
  constexpr int kPer = (kBits < 8 ? 16 : 32) / kBits;
  [[maybe_unused]] SpareCodes<kBits> spare[kCount];
  unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
    constexpr int v = decltype(vector)::value;
    I lanes[kCount];
    for (int p = 0; p < kCount; ++p) lanes[p] = in_register(load_part<kAhead>(codes + v * kVectorBytes, p));
    unroll<0, kPer>([&](auto slot) __attribute__((always_inline)) {
      constexpr int j = decltype(slot)::value, kk = v * kPer + j;
      for (int p = 0; p < kCount; ++p) {
        if constexpr (kBits >= 8) {
          meet(Constant<kk>{}, p, decoder.template decode<kBits * j>(lanes[p], zeros[p][kk / 16]));
        } else {
          F values[2];
          decode_pair<kBits * j>(decoder, lanes[p], zeros[p], values);
          meet(Constant<kk>{}, p, values[0]);
          meet(Constant<kk + 16>{}, p, values[1]);
        }
      }
    });
    if constexpr (kBits < 8) {
      for (int p = 0; p < kCount; ++p) spare[p].template take<v>(lanes[p]);
      unroll<0, SpareCodes<kBits>::ready(v)>([&](auto number) __attribute__((always_inline)) {
        constexpr int kk = SpareCodes<kBits>::first_k(v) + decltype(number)::value;
        for (int p = 0; p < kCount; ++p) {
          F values[2];
          decode_pair<0>(decoder, decltype(number)::value == 0 ? spare[p].first : spare[p].second, zeros[p], values);
          meet(Constant<kk>{}, p, values[0]);
          meet(Constant<kk + 16>{}, p, values[1]);
        }
      });
    }
  });
}

// ---- scales ----

/// Narrow floats in fp32's places, their sign on top: other tools' scales may be negative. The factor mends the exponent.
template <int kLeft>
inline F signed_scales(I codes, std::uint32_t right, std::uint32_t mask, float factor) {
  return mul(as_float(bit_and(shift_right_signed(shift_left<kLeft>(codes), set_lanes(right)), set_lanes(mask))), set(factor));
}

/// 16 scales from element `index` on, without the factor that all of them share.
inline F load_own_scales(const cpu::PanelScales& scales, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(data) + index * scales.bytes;
  const auto* words = reinterpret_cast<const std::uint16_t*>(bytes);
  switch (scales.kind) {
    case cpu::ScaleKind::kFp32: return load(reinterpret_cast<const float*>(bytes));
    case cpu::ScaleKind::kBf16: return as_float(shift_left<16>(widen_words(words)));
    case cpu::ScaleKind::kFp16: return signed_scales<16>(widen_words(words), 3, 0x8FFFE000u, 0x1p112f);
    case cpu::ScaleKind::kE8m0: return as_float(larger(shift_left<23>(widen_bytes(bytes)), set_lanes(0x400000u)));
    case cpu::ScaleKind::kFp8E4m3: return signed_scales<24>(widen_bytes(bytes), 4, 0x87F00000u, 0x1p120f);
    case cpu::ScaleKind::kNone: break;
  }
  return set(1.0f);
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
