// Panels x fp32: y[m, n] = sum_k x[m, k] * decode(w[n, k]), fp32 FMA, one lane per output. Included in a leaf's namespace after its
// vector type. Requires: the layout of kernels/panels.h, packed rows of fp32 padded with zeros to a multiple of 32 k.
//   up to 4 rows: each group of 32 k is decoded in registers and meets all rows; bound by the memory that holds the weight.
//   more rows:    256 k x 64 outputs are decoded once into the second-level cache, then 6 x 64 register tiles; bound by FMA.
// A weight format enters in one function, its decoder. Meaning: reference/matmul.cc, within the bound of docs/numerics.md.

constexpr int kLanes = 64;
constexpr int kPart = 16;          // outputs per vector
constexpr int kParts = kLanes / kPart;
constexpr int kChunk = 256;        // k decoded at once: 256 x 64 fp32 = 64 KiB
constexpr int kVectorBytes = kLanes * 4;

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

// ---- decoders: the code at bit kShift of a lane, as fp32 ----

/// Any format of at most 5 bits: a look-up; bits above the code do not matter, the table repeats.
template <int kWidth, bool kAsymmetric = false>
struct TableDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = kAsymmetric;
  Table table;
  explicit TableDecoder(const cpu::FloatTask& task) : table(load_table(task.table)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    const I index = shift_right<kShift>(lane);
    F value;
    if constexpr (kBits == 5) value = look_up32(index, table); else value = look_up16(index, table);
    return kZero ? sub(value, zero) : value;
  }
};

/// Floats of 6, 7, 8 and 9..16 bits: sign, exponent and mantissa move to fp32's places; a product with 2^(127 - bias) mends
/// the exponent, of subnormals too.
template <int kWidth>
struct FloatDecoder {
  static constexpr int kBits = kWidth;
  static constexpr bool kZero = false;
  I mask, right;
  F factor;
  explicit FloatDecoder(const cpu::FloatTask& task) : mask(set_lanes(task.mask)), right(set_lanes(task.right_shift)), factor(set(task.factor)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F) const {
    const I top = shift_left<32 - kBits - kShift>(lane);
    return mul(as_float(bit_and(shift_right_signed(top, right), mask)), factor);
  }
};

/// 8-bit integers in offset binary: 2^23 + code is an fp32 by bits alone; `zero` holds 2^23 + zero point.
struct Int8Decoder {
  static constexpr int kBits = 8;
  static constexpr bool kZero = true;
  I mask, magic;
  explicit Int8Decoder(const cpu::FloatTask&) : mask(set_lanes(0xFF)), magic(set_lanes(0x4B000000u)) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F zero) const {
    return sub(as_float(and_or(shift_right<kShift>(lane), mask, magic)), zero);
  }
};

struct Fp32Decoder {
  static constexpr int kBits = 32;
  static constexpr bool kZero = false;
  explicit Fp32Decoder(const cpu::FloatTask&) {}
  template <int kShift>
  [[gnu::always_inline]] F decode(I lane, F) const { return as_float(lane); }
};

// ---- scales ----

/// 16 scales from element `index` on.
inline F load_scales(const cpu::PanelScales& scales, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(data) + index * scales.bytes;
  const auto* words = reinterpret_cast<const std::uint16_t*>(bytes);
  const F factor = set(scales.factor);
  switch (scales.kind) {
    case cpu::ScaleKind::kFp32: return mul(load(reinterpret_cast<const float*>(bytes)), factor);
    case cpu::ScaleKind::kBf16: return mul(as_float(shift_left<16>(widen_words(words))), factor);
    case cpu::ScaleKind::kFp16: return mul(mul(as_float(shift_left<13>(widen_words(words))), set(0x1p112f)), factor);
    case cpu::ScaleKind::kE8m0: return mul(as_float(larger(shift_left<23>(widen_bytes(bytes)), set_lanes(0x400000u))), factor);
    case cpu::ScaleKind::kFp8E4m3: return mul(mul(as_float(shift_left<20>(widen_bytes(bytes))), set(0x1p120f)), factor);
    case cpu::ScaleKind::kNone: break;
  }
  return factor;
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

// ---- the codes of a group, in order of k ----

/// Calls meet(Constant<kk>, part, value) for kk in [kBegin, kEnd) of one group; tops collects the codes 30 and 31.
template <typename Decoder, int kFirstPart, int kPartCount, int kBegin, int kEnd, typename Meet>
[[gnu::always_inline]] inline void decode_half(const Decoder& decoder, const std::byte* group, const F* zeros, I* tops, const Meet& meet) {
  constexpr int kBits = Decoder::kBits;
  constexpr bool kSpare = kBits == 3 || kBits == 5 || kBits == 6;
  constexpr int kPer = kSpare ? 30 / kBits : 32 / kBits;
  I lanes[kPartCount];
  unroll<kBegin, kEnd>([&](auto constant) __attribute__((always_inline)) {
    constexpr int kk = decltype(constant)::value;
    constexpr bool kLeft = kSpare && kk >= 30;
    if constexpr (!kLeft && (kk % kPer == 0 || kk == kBegin)) {
      for (int p = 0; p < kPartCount; ++p) lanes[p] = load_lanes(group + kk / kPer * kVectorBytes + (kFirstPart + p) * kPart * 4);
      if constexpr (kSpare && kk % kPer == 0)
        for (int p = 0; p < kPartCount; ++p) tops[p] = append_top_bits(tops[p], lanes[p]);
    }
    for (int p = 0; p < kPartCount; ++p) {
      if constexpr (kLeft) {
        meet(constant, p, decoder.template decode<(kk - 30) * kBits>(tops[p], zeros[p]));
      } else {
        meet(constant, p, decoder.template decode<kk % kPer * kBits>(lanes[p], zeros[p]));
      }
    }
  });
}

// ---- few rows ----

/// sums[row][64] for kRows rows and the parts from kFirstPart on.
template <typename Decoder, int kRows, int kFirstPart, int kPartCount>
void gemv_parts(const cpu::FloatTask& task, const std::byte* panel, const void* scales, const std::uint8_t* zero_points, std::int64_t first_scale,
                const float* const* x, float* sums) {
  const Decoder decoder(task);
  F block[kRows][kPartCount], total[kRows][kPartCount], zeros[kPartCount];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPartCount; ++p) block[r][p] = total[r][p] = set(0.0f);
  std::int64_t left = 0, scale = first_scale + kFirstPart * kPart;
  const auto begin_block = [&]() __attribute__((always_inline)) {
    left = task.halves_per_block;
    for (int p = 0; p < kPartCount; ++p) zeros[p] = load_zeros<Decoder>(task, zero_points, scale + p * kPart);
  };
  const auto end_half = [&]() __attribute__((always_inline)) {
    if (--left > 0) return;
    for (int p = 0; p < kPartCount; ++p) {
      const F factor = load_scales(task.scales, scales, scale + p * kPart);
      for (int r = 0; r < kRows; ++r) {
        total[r][p] = fma(block[r][p], factor, total[r][p]);
        block[r][p] = set(0.0f);
      }
    }
    scale += kLanes;
  };
  for (std::int64_t group = 0; group < task.groups; ++group) {
    const std::byte* codes = panel + group * (Decoder::kBits * kVectorBytes);
    for (int line = 0; line < Decoder::kBits * kPartCount; ++line) __builtin_prefetch(codes + kPrefetchBytes + line * 64);
    const std::int64_t k = group * 32;
    I tops[kPartCount];
    for (int p = 0; p < kPartCount; ++p) tops[p] = set_lanes(0);
    const auto meet = [&](auto constant, int p, F value) __attribute__((always_inline)) {
      constexpr int kk = decltype(constant)::value;
      for (int r = 0; r < kRows; ++r) block[r][p] = fma(value, broadcast(x[r] + k + kk), block[r][p]);
    };
    if (left == 0) begin_block();
    decode_half<Decoder, kFirstPart, kPartCount, 0, 16>(decoder, codes, zeros, tops, meet);
    end_half();
    if (left == 0) begin_block();
    decode_half<Decoder, kFirstPart, kPartCount, 16, 32>(decoder, codes, zeros, tops, meet);
    end_half();
  }
  if (left > 0) {
    left = 1;
    end_half();
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPartCount; ++p) store(sums + r * kLanes + (kFirstPart + p) * kPart, total[r][p]);
}

template <typename Decoder, int kRows>
void gemv(const cpu::FloatTask& task, const std::byte* panel, const void* scales, const std::uint8_t* zero_points, std::int64_t first_scale,
          const float* const* x, float* sums) {
  constexpr int kStep = kRows > 1 && kGemvParts * kRows > 16 ? 16 / kRows : kGemvParts;
  unroll<0, kParts / kStep>([&](auto constant) {
    constexpr int kFirst = decltype(constant)::value * kStep;
    gemv_parts<Decoder, kRows, kFirst, kStep>(task, panel, scales, zero_points, first_scale, x, sums);
  });
}

// ---- many rows ----

/// Groups [begin, end) of a panel as fp32, scaled: out[k][64].
template <typename Decoder, int kFirstPart>
void decode_part(const cpu::FloatTask& task, const std::byte* panel, const void* scales, const std::uint8_t* zero_points, std::int64_t first_scale,
                 std::int64_t begin, std::int64_t end, float* out) {
  const Decoder decoder(task);
  F zero[1], factor = set(1.0f);
  std::int64_t block = -1;
  const auto enter_half = [&](std::int64_t half) __attribute__((always_inline)) {
    if (half / task.halves_per_block == block) return;
    block = half / task.halves_per_block;
    const std::int64_t scale = first_scale + block * kLanes + kFirstPart * kPart;
    factor = load_scales(task.scales, scales, scale);
    zero[0] = load_zeros<Decoder>(task, zero_points, scale);
  };
  for (std::int64_t group = begin; group < end; ++group) {
    const std::byte* codes = panel + group * (Decoder::kBits * kVectorBytes);
    float* rows = out + (group - begin) * 32 * kLanes + kFirstPart * kPart;
    I top[1] = {set_lanes(0)};
    const auto meet = [&](auto constant, int, F value) __attribute__((always_inline)) {
      store(rows + decltype(constant)::value * kLanes, mul(value, factor));
    };
    enter_half(group * 2);
    decode_half<Decoder, kFirstPart, 1, 0, 16>(decoder, codes, zero, top, meet);
    enter_half(group * 2 + 1);
    decode_half<Decoder, kFirstPart, 1, 16, 32>(decoder, codes, zero, top, meet);
  }
}

/// sums[r][64] += x[r][0..count) * w[0..count)[64] for kRows rows and kTileParts parts.
template <int kRows, int kFirstPart>
void tile_parts(const float* const* x, std::int64_t offset, std::int64_t count, const float* w, float* sums) {
  F sum[kRows][kTileParts];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) sum[r][p] = load(sums + r * kLanes + (kFirstPart + p) * kPart);
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = x[r] + offset;
  for (std::int64_t k = 0; k < count; ++k) {
    F values[kTileParts];
    for (int p = 0; p < kTileParts; ++p) values[p] = load(w + k * kLanes + (kFirstPart + p) * kPart);
    for (int r = 0; r < kRows; ++r) {
      const F a = broadcast(rows[r] + k);
      for (int p = 0; p < kTileParts; ++p) sum[r][p] = fma(a, values[p], sum[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) store(sums + r * kLanes + (kFirstPart + p) * kPart, sum[r][p]);
}

template <int kRows>
void tile(int rows, const float* const* x, std::int64_t offset, std::int64_t count, const float* w, float* sums) {
  if constexpr (kRows > 1)
    if (rows < kRows) return tile<kRows - 1>(rows, x, offset, count, w, sums);
  unroll<0, kParts / kTileParts>([&](auto constant) { tile_parts<kRows, decltype(constant)::value * kTileParts>(x, offset, count, w, sums); });
}

// ---- a tile of y ----

constexpr std::int64_t kFloatRows = 240;  // of a tile of y: its sums take 60 KiB beside the decoded chunk

inline std::size_t float_scratch_bytes(const MatmulProblem& problem) {
  const std::int64_t rows = problem.m < kFloatRows ? problem.m : kFloatRows;
  return static_cast<std::size_t>((kChunk + rows + kTileRows) * kLanes * 4);
}

template <typename Decoder>
void float_run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::FloatTask*>(packed);
  const std::int64_t index = part.n_begin / kLanes;
  const std::byte* panel = reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes;
  const std::int64_t first_scale = index * task.scales.blocks * kLanes;
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset);
  float* sums = reinterpret_cast<float*>(scratch);
  const std::int64_t rows = part.m_end - part.m_begin;
  const auto row_at = [&](std::int64_t row) { return x + (part.m_begin + (row < rows ? row : 0)) * task.x_stride; };

  if (rows <= 4) {
    const float* pointers[4] = {row_at(0), row_at(1), row_at(2), row_at(3)};
    const auto run = rows == 1 ? gemv<Decoder, 1> : (rows == 2 ? gemv<Decoder, 2> : gemv<Decoder, 4>);
    run(task, panel, problem.w.scales, problem.w.zero_points, first_scale, pointers, sums);
  } else {
    float* chunk = sums + (rows + kTileRows) * kLanes;
    for (std::int64_t i = 0; i < rows * kLanes; ++i) sums[i] = 0.0f;
    for (std::int64_t begin = 0; begin < task.groups; begin += kChunk / 32) {
      const std::int64_t end = begin + kChunk / 32 < task.groups ? begin + kChunk / 32 : task.groups;
      unroll<0, kParts>([&](auto constant) {
        decode_part<Decoder, decltype(constant)::value>(task, panel, problem.w.scales, problem.w.zero_points, first_scale, begin, end, chunk);
      });
      for (std::int64_t row = 0; row < rows; row += kTileRows) {
        const float* pointers[kTileRows];
        for (int r = 0; r < kTileRows; ++r) pointers[r] = row_at(row + r);
        const int count = static_cast<int>(rows - row < kTileRows ? rows - row : kTileRows);
        tile<kTileRows>(count, pointers, begin * 32, (end - begin) * 32, chunk, sums + row * kLanes);
      }
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    float* values = sums + row * kLanes;
    const std::int64_t m = part.m_begin + row;
    if (problem.x.quantized)
      for (int i = 0; i < kLanes; ++i) values[i] = values[i] * x_scales[m];
    finish_row(problem.epilogue, m, part.n_begin, static_cast<int>(part.n_end - part.n_begin), values);
  }
}
