// Panels x fp32: y[m, n] = sum_k x[m, k] * decode(w[n, k]), fp32 FMA, one lane per output. Included in a leaf's namespace after
// matmul_decode.inl. Requires: the layout of kernels/panels.h, packed rows of fp32 padded with zeros to a multiple of 32 k.
//   one row, codes of 1 or 2 bits: four bits of a lane choose among the 16 sums that 4 or 2 activations can give (packed with the row);
//   up to 4 rows: each group of 32 k is decoded in registers and meets all rows; bound by the memory that holds the weight;
//   more rows:    256 k x 64 outputs are decoded once into the second-level cache, then 6 x 64 register tiles; bound by FMA.
// Meaning: reference/matmul.cc, within the bound of docs/numerics.md.

constexpr int kChunk = 256;        // k decoded at once: 256 x 64 fp32 = 64 KiB

/// Where the codes, scales and zero points of a panel lie, from its first part on.
struct FloatPanel {
  const std::byte* codes;
  const void* scales;
  const std::uint8_t* zero_points;
  std::int64_t first_scale;
};

// ---- few rows ----

/// Adds a group to sums[row][part][half of the group]: decoded values times activations.
template <typename Decoder, int kRowCount>
struct DecodedRows {
  static constexpr int kBits = Decoder::kBits, kRows = kRowCount;
  using Zeros = Decoder;
  Decoder decoder;
  const float* x[kRowCount];

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&zeros)[kCount][2], F (&sums)[kRowCount][kCount][2]) const {
    const std::int64_t k = group * 32;
    decode_group<Decoder, kCount>(decoder, codes, zeros, [&](auto constant, int p, F value) __attribute__((always_inline)) {
      constexpr int kk = decltype(constant)::value;
      for (int r = 0; r < kRowCount; ++r) sums[r][p][kk / 16] = fma(value, broadcast(x[r] + k + kk), sums[r][p][kk / 16]);
    });
  }
};

/// The same for one row and codes of 1 or 2 bits: tables[group][vector][nibble of a lane][16] holds the sums (matmul_task.h).
template <int kWidth>
struct SumTables {
  static constexpr int kBits = kWidth, kRows = 1;
  using Zeros = TableDecoder<kWidth>;
  const float* tables;

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&)[kCount][2], F (&sums)[1][kCount][2]) const {
    unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
      constexpr int v = decltype(vector)::value;
      I lanes[kCount];
      for (int p = 0; p < kCount; ++p) lanes[p] = in_register(load_lanes(codes + v * kVectorBytes + p * kPart * 4));
      unroll<0, 8>([&](auto nibble) __attribute__((always_inline)) {
        constexpr int n = decltype(nibble)::value;
        const Table table = load_table16(tables + ((group * kBits + v) * 8 + n) * 16);
        // An addition; an FMA by 1 runs on units that shifts and look-ups leave free.
        for (int p = 0; p < kCount; ++p) sums[0][p][n / 4] = fma(look_up16(shift_right<4 * n>(lanes[p]), table), set(1.0f), sums[0][p][n / 4]);
      });
    });
  }
};

/// sums[row][64] of kCount parts.
template <int kCount, typename Source>
void gemv_parts(const cpu::FloatTask& task, const FloatPanel& panel, const Source& source, float* sums) {
  constexpr int kRows = Source::kRows;
  F block[kRows][kCount][2], total[kRows][kCount], zeros[kCount][2];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kCount; ++p) block[r][p][0] = block[r][p][1] = total[r][p] = set(0.0f);
  const bool small = task.halves_per_block == 1;  // a scale for each half of a group
  std::int64_t left = 0, scale = panel.first_scale;
  const auto begin_block = [&]() __attribute__((always_inline)) {
    left = small ? 1 : task.halves_per_block / 2;
    if constexpr (Source::Zeros::kZero)
      for (int p = 0; p < kCount; ++p) {
        zeros[p][0] = load_zeros<typename Source::Zeros>(task, panel.zero_points, scale + p * kPart);
        zeros[p][1] = small ? load_zeros<typename Source::Zeros>(task, panel.zero_points, scale + kLanes + p * kPart) : zeros[p][0];
      }
  };
  const auto end_block = [&]() __attribute__((always_inline)) {
    for (int p = 0; p < kCount; ++p) {
      const F factor = load_own_scales(task.scales, panel.scales, scale + p * kPart);
      const F second = small ? load_own_scales(task.scales, panel.scales, scale + kLanes + p * kPart) : factor;
      for (int r = 0; r < kRows; ++r) {
        total[r][p] = fma(block[r][p][1], second, fma(block[r][p][0], factor, total[r][p]));
        block[r][p][0] = block[r][p][1] = set(0.0f);
      }
    }
    scale += small ? 2 * kLanes : kLanes;
  };
  for (std::int64_t group = 0; group < task.groups; ++group) {
    const std::byte* codes = panel.codes + group * (Source::kBits * kVectorBytes);
    for (int line = 0; line < Source::kBits * kCount; ++line) __builtin_prefetch(codes + kPrefetchBytes + line * 64, 0, 2);
    if (left == 0) begin_block();
    source.add(group, codes, zeros, block);
    if (--left == 0) end_block();
  }
  if (left > 0) end_block();
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kCount; ++p) store(sums + r * kLanes + p * kPart, mul(total[r][p], set(task.scales.factor)));
}

template <typename Source>
void gemv(const cpu::FloatTask& task, const FloatPanel& panel, const Source& source, float* sums) {
  constexpr int kMost = kGemvSums / Source::kRows, kStep = kMost < kGemvParts ? kMost : kGemvParts;
  for (int first = 0; first < kParts; first += kStep) {
    const FloatPanel part{panel.codes + first * kPart * 4, panel.scales, panel.zero_points, panel.first_scale + first * kPart};
    gemv_parts<kStep>(task, part, source, sums + first * kPart);
  }
}

// ---- many rows ----

/// Groups [begin, end) of one part of a panel as fp32, scaled: out[k][64].
template <typename Decoder>
void decode_part(const cpu::FloatTask& task, const FloatPanel& panel, std::int64_t begin, std::int64_t end, float* out) {
  const Decoder decoder(task);
  F zeros[1][2], factors[2] = {set(1.0f), set(1.0f)};
  std::int64_t blocks[2] = {-1, -1};
  for (std::int64_t group = begin; group < end; ++group) {
    for (int half = 0; half < 2; ++half) {
      const std::int64_t block = (group * 2 + half) / task.halves_per_block;
      if (block == blocks[half]) continue;
      blocks[half] = block;
      factors[half] = load_scales(task.scales, panel.scales, panel.first_scale + block * kLanes);
      zeros[0][half] = load_zeros<Decoder>(task, panel.zero_points, panel.first_scale + block * kLanes);
    }
    float* rows = out + (group - begin) * 32 * kLanes;
    decode_group<Decoder, 1>(decoder, panel.codes + group * (Decoder::kBits * kVectorBytes), zeros, [&](auto constant, int, F value) __attribute__((always_inline)) {
      constexpr int kk = decltype(constant)::value;
      store(rows + kk * kLanes, mul(value, factors[kk / 16]));
    });
  }
}

/// sums[r][64] += x[r][0..count) * w[0..count)[64] for kRows rows and kTileParts parts.
template <int kRows>
void tile_parts(const float* const* x, std::int64_t offset, std::int64_t count, const float* w, float* sums) {
  F sum[kRows][kTileParts];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) sum[r][p] = load(sums + r * kLanes + p * kPart);
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = x[r] + offset;
  for (std::int64_t k = 0; k < count; ++k) {
    F values[kTileParts];
    for (int p = 0; p < kTileParts; ++p) values[p] = load(w + k * kLanes + p * kPart);
    for (int r = 0; r < kRows; ++r) {
      const F a = broadcast(rows[r] + k);
      for (int p = 0; p < kTileParts; ++p) sum[r][p] = fma(a, values[p], sum[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kTileParts; ++p) store(sums + r * kLanes + p * kPart, sum[r][p]);
}

template <int kRows>
void tile(int rows, const float* const* x, std::int64_t offset, std::int64_t count, const float* w, float* sums) {
  if constexpr (kRows > 1)
    if (rows < kRows) return tile<kRows - 1>(rows, x, offset, count, w, sums);
  for (int first = 0; first < kLanes; first += kTileParts * kPart) tile_parts<kRows>(x, offset, count, w + first, sums + first);
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
  const FloatPanel panel{reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes, problem.w.scales, problem.w.zero_points,
                         index * task.scales.blocks * kLanes};
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset);
  float* sums = reinterpret_cast<float*>(scratch);
  const std::int64_t rows = part.m_end - part.m_begin;
  const auto row_at = [&](std::int64_t row) { return x + (part.m_begin + (row < rows ? row : 0)) * task.x_stride; };

  if (rows <= 4) {
    constexpr bool kTables = Decoder::kBits <= 2 && !Decoder::kZero;
    if (kTables && task.tables_offset != 0) {
      if constexpr (kTables) gemv(task, panel, SumTables<Decoder::kBits>{reinterpret_cast<const float*>(packed + task.tables_offset)}, sums);
    } else if (rows == 1) {
      gemv(task, panel, DecodedRows<Decoder, 1>{Decoder(task), {row_at(0)}}, sums);
    } else if (rows == 2) {
      gemv(task, panel, DecodedRows<Decoder, 2>{Decoder(task), {row_at(0), row_at(1)}}, sums);
    } else {
      gemv(task, panel, DecodedRows<Decoder, 4>{Decoder(task), {row_at(0), row_at(1), row_at(2), row_at(3)}}, sums);
    }
  } else {
    float* chunk = sums + (rows + kTileRows) * kLanes;
    for (std::int64_t i = 0; i < rows * kLanes; ++i) sums[i] = 0.0f;
    for (std::int64_t begin = 0; begin < task.groups; begin += kChunk / 32) {
      const std::int64_t end = begin + kChunk / 32 < task.groups ? begin + kChunk / 32 : task.groups;
      for (int first = 0; first < kLanes; first += kPart)
        decode_part<Decoder>(task, {panel.codes + first * 4, panel.scales, panel.zero_points, panel.first_scale + first}, begin, end, chunk + first);
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
