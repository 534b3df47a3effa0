// Panels of 8-, 4- or 2-bit integers x 8-bit activations: exact int32. Included in a leaf's namespace after matmul_float.inl.
//   sum (x - zx)(w - zw) = sum x w - zw sum x - zx sum w + k zx zw
// with x signed bytes and w the stored, unsigned codes: the first sum is the dot product, sum x comes with the packed row, sum w with
// the prepared weight; a leaf whose dot product takes signed weights subtracts kDotOffset from them, and zw with it. int32 may wrap on the way; the corrected sum fits (accepts_integer), so it is exact.
//   up to four tiles of rows: codes are widened to bytes in registers; bound by the memory that holds the weight.
//   more rows:              a panel is widened once into the second-level cache; bound by the dot product instruction.
// Meaning: reference/matmul.cc, bit for bit.

constexpr std::int64_t kIntegerRows = 384;  // of a tile of y

/// What a segment's sums become where scales vary along k and activations have no zero point:
///   values[r] = fma(float(sums[r] - zero * x_sums[r]), scale * x_scales[r], values[r])
struct Promotion {
  const cpu::IntegerTask* task;
  const void* scales;
  const std::uint8_t* zero_points;  // of this segment's block, or null: task->w_zero
  std::int64_t first_scale;
  const std::int32_t* const* x_sums;
  const float* const* x_scales;
  float* values;
};

template <int kRows, int kFirstPart>
[[gnu::always_inline]] inline void promote(const I (&sum)[kRows][kTileParts], const Promotion& to) {
  for (int p = 0; p < kTileParts; ++p) {
    const int column = (kFirstPart + p) * kPart;
    const F scale = to.task->w_varies ? load_scales(to.task->scales, to.scales, to.first_scale + column) : set(1.0f);
    const I stored = to.zero_points != nullptr ? widen_bytes(to.zero_points + column) : set_lanes(static_cast<std::uint32_t>(to.task->w_zero));
    const I zero = kDotOffset == 0 ? stored : minus_product(stored, set_lanes(1), kDotOffset);
    for (int r = 0; r < kRows; ++r) {
      const F factor = to.task->x_varies ? mul(scale, broadcast(to.x_scales[r])) : scale;
      float* value = to.values + r * kLanes + column;
      store(value, fma(to_float(minus_product(sum[r][p], zero, *to.x_sums[r])), factor, load(value)));
    }
  }
}

#ifndef NARROW_OWN_DOT_TILE
/// Over groups [begin, end) for kRows rows: sums[r][part], or their promotion where it is asked for.
template <int kBits, int kRows, int kFirstPart>
void dot_parts(const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, std::int32_t* sums, const Promotion* to) {
  constexpr int kSteps = 8 / kBits;
  I sum[kRows][kTileParts];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) sum[r][p] = set_lanes(0);
  const I mask = set_lanes(kBits == 8 ? ~0u : (kBits == 4 ? 0x0F0F0F0Fu : 0x03030303u));
  const std::int8_t* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = x[r];
  for (std::int64_t group = begin; group < end; ++group) {
    const std::byte* codes = panel + group * (kBits * kVectorBytes) + kFirstPart * kPart * 4;
    const std::int64_t k = group * 32;
    if constexpr (kRows <= 2)
      for (int line = 0; line < kBits * kTileParts; ++line) __builtin_prefetch(codes + kPrefetchBytes + line * 64);
    unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
      constexpr int v = decltype(vector)::value;
      I lanes[kTileParts];
      for (int p = 0; p < kTileParts; ++p) lanes[p] = load_lanes(codes + v * kVectorBytes + p * kPart * 4);
      unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
        constexpr int j = decltype(step)::value;
        DotWeight w[kTileParts];
        for (int p = 0; p < kTileParts; ++p) w[p] = dot_weight(kBits == 8 ? lanes[p] : bit_and(shift_right<kBits * j>(lanes[p]), mask));
        for (int r = 0; r < kRows; ++r) {
          const DotActivation a = dot_activation(rows[r] + k + (v * kSteps + j) * 4);
          for (int p = 0; p < kTileParts; ++p) sum[r][p] = dot(sum[r][p], w[p], a);
        }
      });
    });
  }
  if (to != nullptr) return promote<kRows, kFirstPart>(sum, *to);
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) store_lanes(sums + r * kLanes + (kFirstPart + p) * kPart, sum[r][p]);
}

template <int kBits, int kRows>
void dot_tile(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, std::int32_t* sums,
              const Promotion* to) {
  if constexpr (kRows > 1)
    if (rows < kRows) return dot_tile<kBits, kRows - 1>(rows, panel, begin, end, x, sums, to);
  unroll<0, kParts / kTileParts>([&](auto part) { dot_parts<kBits, kRows, decltype(part)::value * kTileParts>(panel, begin, end, x, sums, to); });
}
#endif

/// A panel's codes as bytes, in the order of the packed activations.
template <int kBits>
void widen_panel(const std::byte* panel, std::int64_t groups, std::byte* bytes) {
  constexpr int kSteps = 8 / kBits;
  const I mask = set_lanes(kBits == 4 ? 0x0F0F0F0Fu : 0x03030303u);
  for (std::int64_t vector = 0; vector < groups * kBits; ++vector)
    for (int p = 0; p < kParts; ++p) {
      const I lanes = load_lanes(panel + vector * kVectorBytes + p * kPart * 4);
      unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
        constexpr int j = decltype(step)::value;
        store_lanes(bytes + (vector * kSteps + j) * kVectorBytes + p * kPart * 4, bit_and(shift_right<kBits * j>(lanes), mask));
      });
    }
}

/// The places of one panel, and the constants of its columns.
struct IntegerPanel {
  const std::uint8_t* zero_points = nullptr;  // [w block][64]
  const std::int32_t* sums = nullptr;         // [w block][64]
  std::int64_t first_scale = 0;
};

/// Takes the zero-point terms off the sums of one row and segment.
inline void correct_row(const cpu::IntegerTask& task, const IntegerPanel& panel, std::int64_t segment, std::int32_t x_sum, std::int32_t x_zero,
                        std::int32_t* sums) {
  const std::int64_t block = segment / task.segments_per_w_block * kLanes;
  const std::int64_t begin = segment * task.segment_groups * 32;
  const std::int64_t end = begin + task.segment_groups * 32 < task.k ? begin + task.segment_groups * 32 : task.k;
  const auto count = static_cast<std::uint32_t>(end - begin), ux = static_cast<std::uint32_t>(x_sum), uz = static_cast<std::uint32_t>(x_zero);
  auto* out = reinterpret_cast<std::uint32_t*>(sums);
  if (!task.w_has_zeros) {
    const std::uint32_t zero = static_cast<std::uint32_t>(task.w_zero), both = (zero - kDotOffset) * ux - count * uz * zero;
    if (!task.x_has_zeros) {
      for (int i = 0; i < kLanes; ++i) out[i] -= both;
    } else {
      for (int i = 0; i < kLanes; ++i) out[i] -= both + uz * static_cast<std::uint32_t>(panel.sums[block + i]);
    }
    return;
  }
  const std::uint32_t per_zero = ux - count * uz, shifted = std::uint32_t{kDotOffset} * ux;
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t zero = panel.zero_points[block + i];
    out[i] -= zero * per_zero - shifted + uz * static_cast<std::uint32_t>(panel.sums[block + i]);
  }
}

/// values = fma(float(sums), varying scales, values)
inline void promote_row(const cpu::IntegerTask& task, const void* scales, const IntegerPanel& panel, std::int64_t segment, float x_scale,
                        const std::int32_t* sums, float* values) {
  const std::int64_t block = segment / task.segments_per_w_block * kLanes;
  for (int p = 0; p < kParts; ++p) {
    F scale = set(task.x_varies ? x_scale : 1.0f);
    if (task.w_varies) scale = mul(scale, load_scales(task.scales, scales, panel.first_scale + block + p * kPart));
    store(values + p * kPart, fma(to_float(load_lanes(sums + p * kPart)), scale, load(values + p * kPart)));
  }
}

/// values *= the scales that do not vary along k
inline void scale_row(const cpu::IntegerTask& task, const void* scales, const IntegerPanel& panel, float x_scale, float* values) {
  for (int p = 0; p < kParts; ++p) {
    F scale = set(task.x_varies ? 1.0f : x_scale);
    if (!task.w_varies) scale = mul(scale, load_scales(task.scales, scales, panel.first_scale + p * kPart));
    store(values + p * kPart, mul(load(values + p * kPart), scale));
  }
}

inline void store_sums(const MatmulEpilogue& epilogue, std::int64_t m, const MatmulTile& part, const std::int32_t* sums) {
  std::int32_t* y = static_cast<std::int32_t*>(epilogue.y) + m * epilogue.y_stride + part.n_begin;
  for (std::int64_t i = 0; i < part.n_end - part.n_begin; ++i) y[i] = sums[i];
}

template <int kBits>
std::size_t integer_scratch_bytes(const MatmulProblem& problem) {
  const std::size_t sums = kDotRows * kLanes * 8;
  return sums + (kBits == 8 ? 0 : static_cast<std::size_t>((problem.k + 31) / 32 * 32 * kLanes));
}

/// One tile of rows against one panel, whose codes are kCodeBits wide.
template <int kCodeBits>
void integer_rows(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, const std::byte* codes, const IntegerPanel& panel,
                  std::int64_t first_row, int rows, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
  const auto* x = reinterpret_cast<const std::int8_t*>(packed + task.x_offset);
  const auto* x_sums = reinterpret_cast<const std::int32_t*>(packed + task.sums_offset);
  const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset);
  const auto* x_zeros = reinterpret_cast<const std::int32_t*>(packed + task.x_zeros_offset);
  auto* sums = reinterpret_cast<std::int32_t*>(scratch);
  auto* values = reinterpret_cast<float*>(scratch + kDotRows * kLanes * 4);
  const bool varies = task.x_varies || task.w_varies;
  const std::int8_t* pointers[kDotRows];
  for (int r = 0; r < kDotRows; ++r) pointers[r] = x + (first_row + (r < rows ? r : 0)) * task.x_stride;
  if (varies)
    for (int i = 0; i < rows * kLanes; ++i) values[i] = 0.0f;

  for (std::int64_t segment = 0; segment < task.segments; ++segment) {
    const std::int64_t begin = segment * task.segment_groups;
    const std::int64_t end = begin + task.segment_groups < task.groups ? begin + task.segment_groups : task.groups;
    if (varies && !task.x_has_zeros) {
      const std::int32_t* row_sums[kDotRows];
      const float* row_scales[kDotRows];
      for (int r = 0; r < kDotRows; ++r) {
        const std::int64_t m = first_row + (r < rows ? r : 0);
        row_sums[r] = x_sums + m * task.segments + segment;
        row_scales[r] = x_scales + m * task.x_blocks + segment / task.segments_per_x_block;
      }
      const std::int64_t block = segment / task.segments_per_w_block * kLanes;
      const Promotion to{&task, problem.w.scales, task.w_has_zeros ? panel.zero_points + block : nullptr, panel.first_scale + block, row_sums, row_scales, values};
      dot_tile<kCodeBits, kDotRows>(rows, codes, begin, end, pointers, sums, &to);
      continue;
    }
    dot_tile<kCodeBits, kDotRows>(rows, codes, begin, end, pointers, sums, nullptr);
    for (int r = 0; r < rows; ++r) {
      const std::int64_t m = first_row + r, x_block = m * task.x_blocks + segment / task.segments_per_x_block;
      correct_row(task, panel, segment, x_sums[m * task.segments + segment], x_zeros[x_block], sums + r * kLanes);
      if (varies) promote_row(task, problem.w.scales, panel, segment, x_scales[x_block], sums + r * kLanes, values + r * kLanes);
    }
  }
  for (int r = 0; r < rows; ++r) {
    const std::int64_t m = first_row + r;
    if (problem.epilogue.out == DType::kI32) {
      store_sums(problem.epilogue, m, part, sums + r * kLanes);
      continue;
    }
    float* row = values + r * kLanes;
    if (!varies)
      for (int p = 0; p < kParts; ++p) store(row + p * kPart, to_float(load_lanes(sums + r * kLanes + p * kPart)));
    scale_row(task, problem.w.scales, panel, x_scales[m * task.x_blocks], row);
    finish_row(problem.epilogue, m, part.n_begin, static_cast<int>(part.n_end - part.n_begin), row);
  }
}

template <int kBits>
void integer_run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
  const std::int64_t index = part.n_begin / kLanes;
  const std::byte* codes = reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes;
  IntegerPanel panel;
  panel.first_scale = index * task.scales.blocks * kLanes;
  panel.zero_points = problem.w.zero_points + (task.w_has_zeros ? panel.first_scale : 0);
  panel.sums = problem.w.sums + panel.first_scale;
  const bool widened = kBits < 8 && part.m_end - part.m_begin > 4 * kDotRows;
  if constexpr (kBits < 8)
    if (widened) {
      std::byte* bytes = scratch + kDotRows * kLanes * 8;
      widen_panel<kBits>(codes, task.groups, bytes);
      codes = bytes;
    }
  for (std::int64_t row = part.m_begin; row < part.m_end; row += kDotRows) {
    const int rows = static_cast<int>(part.m_end - row < kDotRows ? part.m_end - row : kDotRows);
    if (widened) {
      integer_rows<8>(problem, part, packed, codes, panel, row, rows, scratch);
    } else {
      integer_rows<kBits>(problem, part, packed, codes, panel, row, rows, scratch);
    }
  }
}
