// Panels of integers of 8, 4, 3, 2 or 1 bits x 8-bit activations: exact int32. Included in a leaf's namespace after matmul_decode.inl.
//   sum (x - zx)(w - zw) = sum x w - zw sum x - zx sum w + k zx zw
// with x signed bytes and w the stored, unsigned codes (twice the bit of int1, whose zw is 1): the first sum is the dot product, sum x
// comes with the packed row, sum w with the prepared weight. A leaf whose dot product takes signed weights subtracts kDotOffset from
// them, and from zw. Sums start at -zw sum x where zw is one number. int32 may wrap on the way; the corrected sum fits (accepts_integer).
//   up to four tiles of rows: codes are widened to bytes in registers; bound by the memory that holds the weight.
//   more rows:                a panel is widened once into the second-level cache (Widening); bound by the dot product instruction.
// Meaning: reference/matmul.cc, bit for bit.

constexpr std::int64_t kIntegerRows = 384;  // of a tile of y

/// What becomes of the sums of a segment of k.
enum class DotEnd {
  kStore,       // sums[r] = sum
  kAccumulate,  // values[r] = fma(float(sum), varying scales, values[r])
  kFinish,      // values[r] = float(sum) * (x scale * w scale) + bias
};

/// Lines that will be wanted soon, fetched while codes are multiplied: `lines` of them for each 64 k.
struct Fetch {
  const std::byte* from = nullptr;
  std::int64_t stride = 0;  // bytes from those of 64 k to the next ones
  int lines = 0;
};

/// The places that a segment's sums meet; zero_points where every column has its own, bias where there is one.
struct Segment {
  DotEnd end = DotEnd::kStore;
  const cpu::IntegerTask* task = nullptr;
  const void* scales = nullptr;
  std::int64_t first_scale = 0;
  const std::uint8_t* zero_points = nullptr;
  const std::int32_t* const* x_sums = nullptr;
  const float* const* x_scales = nullptr;
  const float* bias = nullptr;
  std::int32_t* sums = nullptr;  // [r][columns]
  int columns = kLanes;
  float* const* values = nullptr;  // [r]: columns
  std::int64_t ahead = 0;          // bytes from a line of codes to one that is wanted soon
  Fetch fetch;                     // of tiles that have no use for `ahead`
};

template <int kRows, int kWidth>
[[gnu::always_inline]] inline void end_segment(I (&sum)[kRows][kWidth], const Segment& to, int first) {
  unroll<0, kWidth>([&](auto part) __attribute__((always_inline)) {  // sums stay in registers
    constexpr int p = decltype(part)::value;
    const int column = first + p * kPart;
    if (to.zero_points != nullptr) {
      const I zero = minus_product(widen_bytes(to.zero_points + column), set_lanes(1), static_cast<std::int32_t>(kDotOffset));
      for (int r = 0; r < kRows; ++r) sum[r][p] = minus_product(sum[r][p], zero, *to.x_sums[r]);
    }
    if (to.end == DotEnd::kStore) {
      for (int r = 0; r < kRows; ++r) store_lanes(to.sums + r * to.columns + column, sum[r][p]);
    } else if (to.end == DotEnd::kAccumulate) {
      const F scale = to.task->w_varies ? load_scales(to.task->scales, to.scales, to.first_scale + column) : set(1.0f);
      for (int r = 0; r < kRows; ++r) {
        const F factor = to.task->x_varies ? mul(scale, broadcast(to.x_scales[r])) : scale;
        store(to.values[r] + column, fma(to_float(sum[r][p]), factor, load(to.values[r] + column)));
      }
    } else {
      const F scale = load_scales(to.task->scales, to.scales, to.first_scale + column);
      for (int r = 0; r < kRows; ++r) {
        const F value = mul(to_float(sum[r][p]), mul(broadcast(to.x_scales[r]), scale));
        store(to.values[r] + column, to.bias != nullptr ? plus(value, load(to.bias + column)) : value);
      }
    }
  });
}

/// The codes of step j of a lane as bytes; twice the bit where codes have one.
template <int kBits, int j>
[[gnu::always_inline]] inline I code_bytes(I lanes) {
  if constexpr (kBits == 8) return lanes;
  const I mask = set_lanes(kBits == 1 ? 0x02020202u : 0x01010101u * ((1u << kBits) - 1u));
  if constexpr (kBits > 1) return bit_and(shift_right<kBits * j>(lanes), mask);
  if constexpr (j == 0) return bit_and(shift_left<1>(lanes), mask);
  return bit_and(shift_right<(j > 0 ? j - 1 : 0)>(lanes), mask);
}

/// Whether a panel's codes of 4 and fewer bits are widened to bytes before rows meet it.
enum class Widening { kNever, kForManyRows, kAlways };

/// Register tiles of vectors: kTileParts x kDotRows; a packed activation has kDotBytes.
struct VectorTile {
  static constexpr int kRows = kDotRows, kColumns = kLanes;
  static constexpr bool kEnds = true;  // takes a segment to any end
  static constexpr Widening kWidening = Widening::kForManyRows;
  static constexpr bool kHasPlainRows = false;  // a way of its own for plain tiles of bytes (x86/dot_loop.inl)
  static const std::int8_t* row(const cpu::IntegerTask& task, std::int64_t m) { return task.x + m * task.x_stride; }
  /// Of `left` rows; a tile and one or two rows more are better as halves: each reads the whole panel.
  static std::int64_t next(std::int64_t left) { return left <= kRows ? left : (left <= kRows + 2 ? (left + 1) / 2 : kRows); }

  /// Parts that as many registers hold for fewer rows: a pass over a panel reads so many of its four lines.
  static constexpr int width(int rows) {
    return rows * kParts <= kDotRows * kTileParts ? kParts : (rows * 2 <= kDotRows ? 2 : 1) * kTileParts;
  }

  template <int kBits, int kCount, int kWidth>
  static void parts(const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, const std::int32_t* starts,
                    const Segment& to, int first) {
    constexpr int kSteps = 8 / kBits;
    I sum[kCount][kWidth];
    const std::int8_t* rows[kCount];
    for (int r = 0; r < kCount; ++r) {
      rows[r] = x[r];
      for (int p = 0; p < kWidth; ++p) sum[r][p] = set_lanes(static_cast<std::uint32_t>(starts[r]));
    }
    for (std::int64_t group = begin; group < end; ++group) {
      const std::byte* codes = panel + group * (kBits * kVectorBytes) + first * 4;
      const std::int64_t k = group * 32;
      constexpr bool kMemoryBound = kCount <= 2;
      constexpr std::int64_t kAhead = kMemoryBound ? kNearBytes : 0;
      if constexpr (!kMemoryBound && kTilePrefetchBytes > 0)
        for (int line = 0; line < kBits * kWidth; ++line) __builtin_prefetch(codes + kTilePrefetchBytes + line * 64, 0, 3);
      SpareCodes<kBits> spare[kWidth];
      unroll<0, kByteVectors<kBits>>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value;
        if constexpr (!kMemoryBound && kWidth < kParts && v < kBits) __builtin_prefetch(codes + v * kVectorBytes + to.ahead, 0, 2);
        I lanes[kWidth];
        for (int p = 0; p < kWidth; ++p) lanes[p] = load_bytes<v, kAhead>(codes, p, spare[p]);
        unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
          constexpr int j = decltype(step)::value;
          const std::int64_t at = kDotBytes * (k + (v * kSteps + j) * 4);
          if constexpr (kWidth > kTileParts) {  // rows are few: their activations wait in registers
            DotActivation a[kCount];
            for (int r = 0; r < kCount; ++r) a[r] = dot_activation(rows[r] + at);
            for (int p = 0; p < kWidth; ++p) {
              const DotWeight w = dot_weight(code_bytes<kBits, j>(lanes[p]));
              for (int r = 0; r < kCount; ++r) sum[r][p] = dot(sum[r][p], w, a[r]);
            }
          } else {
            DotWeight w[kWidth];
            for (int p = 0; p < kWidth; ++p) w[p] = dot_weight(code_bytes<kBits, j>(lanes[p]));
            for (int r = 0; r < kCount; ++r) {
              const DotActivation a = dot_activation(rows[r] + at);
              for (int p = 0; p < kWidth; ++p) sum[r][p] = dot(sum[r][p], w[p], a);
            }
          }
        });
      });
    }
    end_segment<kCount>(sum, to, first);
  }

  /// Over groups [begin, end) for `rows` rows, whose sums start at `starts`.
  template <int kBits, int kCount = kRows>
  static void run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x,
                  const std::int32_t* starts, const Segment& to) {
    if constexpr (kCount > 1)
      if (rows < kCount) return run<kBits, kCount - 1>(rows, panel, begin, end, x, starts, to);
    constexpr int kWidth = width(kCount);
    for (int first = 0; first < kLanes; first += kWidth * kPart) parts<kBits, kCount, kWidth>(panel, begin, end, x, starts, to, first);
  }
};

/// Where the rows of a tile find what belongs to segments, from the first segment on.
struct SegmentedRows {
  const cpu::IntegerTask& task;
  const void* scales;
  std::int64_t first_scale;
  const std::int32_t* x_sums[kDotRows];
  std::int64_t ahead;  // as Segment's
  bool finishes;       // where values are y's own: they take the row's scale and, where there is one, the bias
  float x_scales[kDotRows];
  const float* bias;  // of the first column
};
/// Whether only the scales of a weight without zero points vary along k: then values stay in registers.
inline bool is_plainly_segmented(const cpu::IntegerTask& task) {
  return kSegmentParts > 0 && task.w_varies && !task.w_has_zeros && !task.x_varies && !task.x_has_zeros;
}

/// values[r] = sum over segments of float(sum) * scale, for kCount rows: as DotEnd::kAccumulate, with sums and values in registers. What
/// goes straight to y is finished there, too.
template <int kBits, int kWidth, int kCount>
void accumulate_segments(const SegmentedRows& from, const std::byte* panel, const std::int8_t* const* x, float* const* values) {
  constexpr int kSteps = 8 / kBits;
  const cpu::IntegerTask& task = from.task;
  for (int first = 0; first < kLanes; first += kWidth * kPart) {
    F total[kCount][kWidth];
    const std::int8_t* rows[kCount];
    for (int r = 0; r < kCount; ++r) {
      rows[r] = x[r];
      for (int p = 0; p < kWidth; ++p) total[r][p] = set(0.0f);
    }
    const std::byte* codes = panel + first * 4;
    const std::int64_t ahead = first == 0 ? from.ahead : 0;
    for (std::int64_t segment = 0, group = 0; segment < task.segments; ++segment) {
      I sum[kCount][kWidth];
      const std::uint32_t per_sum = kDotOffset - static_cast<std::uint32_t>(task.w_zero);
      for (int r = 0; r < kCount; ++r)
        for (int p = 0; p < kWidth; ++p) sum[r][p] = set_lanes(per_sum * static_cast<std::uint32_t>(from.x_sums[r][segment]));
      const std::int64_t end = group + task.segment_groups < task.groups ? group + task.segment_groups : task.groups;
      for (; group < end; ++group, codes += kBits * kVectorBytes) {
        SpareCodes<kBits> spare[kWidth];
        unroll<0, kByteVectors<kBits>>([&](auto vector) __attribute__((always_inline)) {
          constexpr int v = decltype(vector)::value;
          I lanes[kWidth];
          for (int p = 0; p < kWidth; ++p) {
            const std::byte* line = codes + v * kVectorBytes + p * kPart * 4;
            lanes[p] = byte_vector<v>(
                spare[p], [&]() __attribute__((always_inline)) { return load_and_fetch(line, line + ahead); });
            if constexpr (kWidth < kParts && v < kBits) __builtin_prefetch(line + ahead + (ahead != 0 ? 128 : 0), 0, 2);
          }
          unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
            constexpr int j = decltype(step)::value;
            DotWeight w[kWidth];
            for (int p = 0; p < kWidth; ++p) w[p] = dot_weight(code_bytes<kBits, j>(lanes[p]));
            for (int r = 0; r < kCount; ++r) {
              const DotActivation a = dot_activation(rows[r] + kDotBytes * ((v * kSteps + j) * 4));
              for (int p = 0; p < kWidth; ++p) sum[r][p] = dot(sum[r][p], w[p], a);
            }
          });
        });
        for (int r = 0; r < kCount; ++r) rows[r] += 32 * kDotBytes;
      }
      for (int p = 0; p < kWidth; ++p) {
        const F scale = load_scales(task.scales, from.scales, from.first_scale + segment * kLanes + first + p * kPart);
        for (int r = 0; r < kCount; ++r) total[r][p] = fma(to_float(sum[r][p]), scale, total[r][p]);
      }
    }
    for (int r = 0; r < kCount; ++r)
      for (int p = 0; p < kWidth; ++p) {
        const int column = first + p * kPart;
        F value = total[r][p];
        if (from.finishes) value = mul(value, set(from.x_scales[r]));
        if (from.bias != nullptr) value = plus(value, load(from.bias + column));
        store(values[r] + column, value);
      }
  }
}

/// For 3 rows or more, kWidth parts at a time; fewer are bound by memory, and read whole vectors of a panel.
template <int kBits, int kWidth, int kCount = kDotRows>
void accumulate_rows(int rows, const SegmentedRows& from, const std::byte* panel, const std::int8_t* const* x, float* const* values) {
  if constexpr (kCount > 3)
    if (rows < kCount) return accumulate_rows<kBits, kWidth, kCount - 1>(rows, from, panel, x, values);
  accumulate_segments<kBits, kWidth, kCount>(from, panel, x, values);
}

/// A panel's codes as bytes, in the order of the packed activations: vector t (0..7) of a group and part is stored at place(group, part) +
/// t * kStride.
template <int kBits, int kStride, typename Place>
void widen_panel(const std::byte* panel, std::int64_t groups, const Place& place) {
  for (std::int64_t group = 0; group < groups; ++group)
    for (int p = 0; p < kParts; ++p) {
      const std::byte* from = panel + group * (kBits * kVectorBytes) + p * kPart * 4;
      std::byte* to = place(group, p);
      SpareCodes<kBits> spare;
      unroll<0, kByteVectors<kBits>>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value, kSteps = 8 / kBits;
        const I lanes = load_bytes<v, 0>(from, 0, spare);
        unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
          constexpr int j = decltype(step)::value;
          store_lanes(to + (v * kSteps + j) * kStride, code_bytes<kBits, j>(lanes));
        });
      });
    }
}

/// The constants of a panel's columns.
struct IntegerPanel {
  const std::uint8_t* zero_points = nullptr;  // [w block][64]
  const std::int32_t* sums = nullptr;         // [w block][64]
  std::int64_t first_scale = 0;
};

/// Those of the columns from `first` on, of panel `index`.
inline IntegerPanel integer_panel(const MatmulProblem& problem, const cpu::IntegerTask& task, std::int64_t index, int first) {
  IntegerPanel panel;
  panel.first_scale = index * task.scales.blocks * kLanes + first;
  panel.zero_points = problem.w.zero_points + (task.w_has_zeros ? panel.first_scale : 0);
  panel.sums = problem.w.sums + panel.first_scale;
  return panel;
}

/// Takes the zero-point terms off the sums of one row and segment.
template <int kColumns>
void correct_row(const cpu::IntegerTask& task, const IntegerPanel& panel, std::int64_t segment, std::int32_t x_sum, std::int32_t x_zero,
                 std::int32_t* sums) {
  const std::int64_t block = segment / task.segments_per_w_block * kLanes;
  const std::int64_t begin = segment * task.segment_groups * 32;
  const std::int64_t end = begin + task.segment_groups * 32 < task.k ? begin + task.segment_groups * 32 : task.k;
  const auto count = static_cast<std::uint32_t>(end - begin), ux = static_cast<std::uint32_t>(x_sum),
             uz = static_cast<std::uint32_t>(x_zero);
  auto* out = reinterpret_cast<std::uint32_t*>(sums);
  if (!task.w_has_zeros) {
    const std::uint32_t zero = static_cast<std::uint32_t>(task.w_zero), both = (zero - kDotOffset) * ux - count * uz * zero;
    if (!task.x_has_zeros) {
      for (int i = 0; i < kColumns; ++i) out[i] -= both;
    } else {
      for (int i = 0; i < kColumns; ++i) out[i] -= both + uz * static_cast<std::uint32_t>(panel.sums[block + i]);
    }
    return;
  }
  const std::uint32_t per_zero = ux - count * uz, shifted = std::uint32_t{kDotOffset} * ux;
  for (int i = 0; i < kColumns; ++i) {
    const std::uint32_t zero = panel.zero_points[block + i];
    out[i] -= zero * per_zero - shifted + uz * static_cast<std::uint32_t>(panel.sums[block + i]);
  }
}

/// values = fma(float(sums), varying scales, values)
template <int kColumns>
void promote_row(const cpu::IntegerTask& task, const void* scales, const IntegerPanel& panel, std::int64_t segment, float x_scale,
                 const std::int32_t* sums, float* values) {
  const std::int64_t block = segment / task.segments_per_w_block * kLanes;
  for (int p = 0; p < kColumns / kPart; ++p) {
    F scale = set(task.x_varies ? x_scale : 1.0f);
    if (task.w_varies) scale = mul(scale, load_scales(task.scales, scales, panel.first_scale + block + p * kPart));
    store(values + p * kPart, fma(to_float(load_lanes(sums + p * kPart)), scale, load(values + p * kPart)));
  }
}

/// values *= the scales that do not vary along k
template <int kColumns>
void scale_row(const cpu::IntegerTask& task, const void* scales, const IntegerPanel& panel, float x_scale, float* values) {
  for (int p = 0; p < kColumns / kPart; ++p) {
    F scale = set(task.x_varies ? 1.0f : x_scale);
    if (!task.w_varies) scale = mul(scale, load_scales(task.scales, scales, panel.first_scale + p * kPart));
    store(values + p * kPart, mul(load(values + p * kPart), scale));
  }
}

inline void store_sums(const MatmulEpilogue& epilogue, std::int64_t m, const MatmulTile& part, const std::int32_t* sums) {
  std::int32_t* y = static_cast<std::int32_t*>(epilogue.y) + m * epilogue.y_stride + part.n_begin;
  for (std::int64_t i = 0; i < part.n_end - part.n_begin; ++i) y[i] = sums[i];
}

/// Whether y is the scaled sum and a bias: such rows of whole columns are written where they are made.
inline bool is_scaled_sum(const MatmulEpilogue& epilogue) {
  return epilogue.out == DType::kF32 && epilogue.activation == Activation::kNone && epilogue.residual == nullptr;
}

/// Scratch: sums and values of a tile of rows, then the widened panel.
template <typename Tile, int kBits>
std::size_t integer_scratch_bytes(const MatmulProblem& problem) {
  const std::size_t sums = Tile::kRows * Tile::kColumns * 8;
  return sums + (kBits == 8 ? 0 : static_cast<std::size_t>((problem.k + 31) / 32 * 32 * kLanes));
}

/// Rows of packed activations and of y for one tile of rows against one panel.
template <typename Tile, int kCodeBits>
struct IntegerRows {
  const MatmulProblem& problem;
  const MatmulTile& part;
  const std::byte* packed;
  const std::byte* codes;  // kCodeBits wide
  IntegerPanel panel;
  std::int64_t next_panel;  // bytes from these codes to the next panel's
  std::int32_t* sums;       // [kRows][kColumns]
  float* values;            // [kRows][kColumns]
  Fetch fetch = {};

  void run(std::int64_t first_row, int rows) const {
    // The next panel is most often the next to be multiplied: of its four lines each of the first four tiles fetches one, or the first tile
    // each line where it reads that of this panel.
    const std::int64_t tile = (first_row - part.m_begin) / Tile::kRows;
    const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
    const auto* x_sums = reinterpret_cast<const std::int32_t*>(packed + task.sums_offset);
    const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset);
    const auto* x_zeros = reinterpret_cast<const std::int32_t*>(packed + task.x_zeros_offset);
    const bool varies = task.x_varies || task.w_varies, as_sums = problem.epilogue.out == DType::kI32;
    const bool ends = Tile::kEnds && !task.x_has_zeros;  // else rows are corrected one by one
    bool segmented = false;                              // multiplied by accumulate_rows
    if constexpr (kSegmentParts > 0 && Tile::kWidening != Widening::kAlways) segmented = rows > 2 && is_plainly_segmented(task);
    const bool direct = ends && (segmented || !varies) && is_scaled_sum(problem.epilogue) && part.n_end - part.n_begin == Tile::kColumns;
    const std::int8_t* pointers[Tile::kRows];
    const std::int32_t* row_sums[Tile::kRows];
    const float* row_scales[Tile::kRows];
    float* row_values[Tile::kRows];
    std::int32_t starts[Tile::kRows];
    const auto row_of = [&](int r) { return first_row + (r < rows ? r : 0); };
    for (int r = 0; r < Tile::kRows; ++r) {
      pointers[r] = Tile::row(task, row_of(r));
      starts[r] = 0;
      row_values[r] = direct ? static_cast<float*>(problem.epilogue.y) + row_of(r) * problem.epilogue.y_stride + part.n_begin
                             : values + r * Tile::kColumns;
    }
    const float* bias = direct && problem.epilogue.bias != nullptr ? problem.epilogue.bias + part.n_begin : nullptr;
    if (varies && !segmented)
      for (int i = 0; i < rows * Tile::kColumns; ++i) values[i] = 0.0f;

    if constexpr (kSegmentParts > 0 && Tile::kWidening != Widening::kAlways)
      if (segmented) {
        SegmentedRows from{task, problem.w.scales, panel.first_scale, {}, tile == 0 ? 4096 : 0, direct, {}, bias};
        for (int r = 0; r < Tile::kRows; ++r) {
          from.x_sums[r] = x_sums + row_of(r) * task.segments;
          from.x_scales[r] = x_scales[row_of(r)];
        }
        accumulate_rows<kCodeBits, kSegmentParts>(rows, from, codes, pointers, row_values);
      }
    for (std::int64_t segment = 0; segment < task.segments && !segmented; ++segment) {
      const std::int64_t begin = segment * task.segment_groups;
      const std::int64_t end = begin + task.segment_groups < task.groups ? begin + task.segment_groups : task.groups;
      const std::int64_t block = segment / task.segments_per_w_block * kLanes;
      Segment to;
      to.sums = sums;
      to.columns = Tile::kColumns;
      to.fetch = fetch;
      to.ahead = kTileParts == kParts ? (tile < 4 ? next_panel + tile * 64 : 0) : (tile == 0 ? next_panel : 0);
      if (ends) {
        for (int r = 0; r < Tile::kRows; ++r) {
          row_sums[r] = x_sums + row_of(r) * task.segments + segment;
          row_scales[r] = x_scales + row_of(r) * task.x_blocks + segment / task.segments_per_x_block;
          if (!task.w_has_zeros)
            starts[r] = static_cast<std::int32_t>((kDotOffset - static_cast<std::uint32_t>(task.w_zero)) *
                                                  static_cast<std::uint32_t>(*row_sums[r]));
        }
        to.end = as_sums ? DotEnd::kStore : (varies ? DotEnd::kAccumulate : DotEnd::kFinish);
        to.task = &task;
        to.scales = problem.w.scales;
        to.first_scale = panel.first_scale + block;
        to.zero_points = task.w_has_zeros ? panel.zero_points + block : nullptr;
        to.x_sums = row_sums;
        to.x_scales = row_scales;
        to.bias = bias;
        to.values = row_values;
      }
      Tile::template run<kCodeBits>(rows, codes, begin, end, pointers, starts, to);
      if (ends) continue;
      for (int r = 0; r < rows; ++r) {
        const std::int64_t m = first_row + r, x_block = m * task.x_blocks + segment / task.segments_per_x_block;
        correct_row<Tile::kColumns>(task, panel, segment, x_sums[m * task.segments + segment], x_zeros[x_block], sums + r * Tile::kColumns);
        if (varies)
          promote_row<Tile::kColumns>(task, problem.w.scales, panel, segment, x_scales[x_block], sums + r * Tile::kColumns,
                                      values + r * Tile::kColumns);
      }
    }
    if (direct) return;
    for (int r = 0; r < rows; ++r) {
      const std::int64_t m = first_row + r;
      float* row = values + r * Tile::kColumns;
      if (as_sums) {
        store_sums(problem.epilogue, m, part, sums + r * Tile::kColumns);
        continue;
      }
      if (!varies && !ends)
        for (int p = 0; p < Tile::kColumns / kPart; ++p)
          store(row + p * kPart, to_float(load_lanes(sums + r * Tile::kColumns + p * kPart)));
      if (varies || !ends) scale_row<Tile::kColumns>(task, problem.w.scales, panel, x_scales[m * task.x_blocks], row);
      finish_row(problem.epilogue, m, part.n_begin, static_cast<int>(part.n_end - part.n_begin), row);
    }
  }
};

template <typename Tile, int kBits>
void integer_run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
  const std::int64_t index = part.n_begin / kLanes;
  const std::byte* codes = reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes;
  const IntegerPanel panel = integer_panel(problem, task, index, 0);
  auto* sums = reinterpret_cast<std::int32_t*>(scratch);
  auto* values = reinterpret_cast<float*>(scratch + Tile::kRows * Tile::kColumns * 4);
  const auto run_rows = [&](const auto& rows, const std::byte* bytes) {
    std::int64_t row = part.m_begin;
    if constexpr (Tile::kHasPlainRows)
      if (bytes != nullptr) row = Tile::plain_rows(problem, part, packed, bytes, codes + task.panel_bytes - bytes, panel);
    while (row < part.m_end) {
      const std::int64_t count = Tile::next(part.m_end - row);
      rows.run(row, static_cast<int>(count));
      row += count;
    }
  };
  constexpr bool kCanWiden = kBits < 8 && Tile::kWidening != Widening::kNever;
  constexpr bool kMustWiden = kBits < 8 && Tile::kWidening == Widening::kAlways;
  if constexpr (kCanWiden)
    if (kMustWiden || (part.m_end - part.m_begin > 4 * Tile::kRows && !is_plainly_segmented(task))) {
      std::byte* bytes = scratch + Tile::kRows * Tile::kColumns * 8;
      widen_panel<kBits, kVectorBytes>(
          codes, task.groups, [bytes](std::int64_t group, int p) __attribute__((always_inline)) {
            return bytes + group * (8 * kVectorBytes) + p * kPart * 4;
          });
      return run_rows(IntegerRows<Tile, 8>{problem, part, packed, bytes, panel, codes + task.panel_bytes - bytes, sums, values}, bytes);
    }
  if constexpr (!kMustWiden)
    run_rows(IntegerRows<Tile, kBits>{problem, part, packed, codes, panel, task.panel_bytes, sums, values}, kBits == 8 ? codes : nullptr);
}
