// Panels x fp32: y[m, n] = sum_k x[m, k] * decode(w[n, k]), fp32 FMA, one lane per output. Included in a leaf's namespace after
// matmul_gemv.inl. Requires: the layout of kernels/panels.h, packed rows of fp32 padded with zeros to a multiple of 32 k.
//   up to 4 rows: matmul_gemv.inl; bound by the memory that holds the weight;
//   more rows:    256 k x 64 outputs are decoded once into the second-level cache, then 6 x 64 register tiles; bound by FMA;
//   in_fp64:      any number of rows as more rows, with sums in fp64.
// Meaning: reference/matmul.cc, within the bound of docs/numerics.md.

constexpr int kChunk = 256;  // k decoded at once: 256 x 64 fp32 = 64 KiB

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
    decode_group<Decoder, 1, kChunk / 32 * Decoder::kBits * kVectorBytes>(
        decoder, panel.codes + group * (Decoder::kBits * kVectorBytes),
        zeros, [&](auto constant, int, F value) __attribute__((always_inline)) {
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

/// The same in fp64, where products of fp32 are exact.
template <int kRows>
void tile(int rows, const float* const* x, std::int64_t offset, std::int64_t count, const float* w, double* sums) {
  if constexpr (kRows > 1)
    if (rows < kRows) return tile<kRows - 1>(rows, x, offset, count, w, sums);
  constexpr int kWide = 8;
  using Floats [[gnu::vector_size(kWide * 4)]] = float;
  using Doubles [[gnu::vector_size(kWide * 8)]] = double;
  for (int first = 0; first < kLanes; first += kWide) {
    Doubles sum[kRows];
    for (int r = 0; r < kRows; ++r) __builtin_memcpy(&sum[r], sums + r * kLanes + first, sizeof(Doubles));
    for (std::int64_t k = 0; k < count; ++k) {
      Floats values;
      __builtin_memcpy(&values, w + k * kLanes + first, sizeof(Floats));
      const Doubles wide = __builtin_convertvector(values, Doubles);
      for (int r = 0; r < kRows; ++r) sum[r] += static_cast<double>(x[r][offset + k]) * wide;
    }
    for (int r = 0; r < kRows; ++r) __builtin_memcpy(sums + r * kLanes + first, &sum[r], sizeof(Doubles));
  }
}

using DecodePart = void (*)(const cpu::FloatTask&, const FloatPanel&, std::int64_t begin, std::int64_t end, float* out);

/// sums[row][64] of all k, fp32 or fp64. x: the first row; chunk: room for kChunk decoded k.
template <typename Sum>
void multiply_many(const cpu::FloatTask& task, const FloatPanel& panel, DecodePart decode, const float* x, std::int64_t rows, float* chunk,
                   Sum* sums) {
  for (std::int64_t i = 0; i < rows * kLanes; ++i) sums[i] = Sum{0};
  for (std::int64_t begin = 0; begin < task.groups; begin += kChunk / 32) {
    const std::int64_t end = begin + kChunk / 32 < task.groups ? begin + kChunk / 32 : task.groups;
    for (int first = 0; first < kLanes; first += kPart)
      decode(task, {panel.codes + first * 4, panel.scales, panel.zero_points, panel.first_scale + first}, begin, end, chunk + first);
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const float* pointers[kTileRows];
      for (int r = 0; r < kTileRows; ++r) pointers[r] = x + (row + r < rows ? row + r : 0) * task.x_stride;
      const int count = static_cast<int>(rows - row < kTileRows ? rows - row : kTileRows);
      tile<kTileRows>(count, pointers, begin * 32, (end - begin) * 32, chunk, sums + row * kLanes);
    }
  }
}

// ---- a tile of y ----

constexpr std::int64_t kFloatRows = 240;  // of a tile of y: its sums take 60 KiB beside the decoded chunk

inline std::size_t float_scratch_bytes(const MatmulProblem& problem) {
  const std::int64_t rows = problem.m < kFloatRows ? problem.m : kFloatRows;
  return static_cast<std::size_t>((kChunk + (rows + kTileRows) * (problem.in_fp64 ? 2 : 1)) * kLanes * 4);
}

/// The panel of a tile of y.
inline FloatPanel panel_of(const MatmulProblem& problem, const cpu::FloatTask& task, const MatmulTile& part) {
  const std::int64_t index = part.n_begin / kLanes;
  return {reinterpret_cast<const std::byte*>(problem.w.codes) + index * task.panel_bytes, problem.w.scales, problem.w.zero_points,
          index * task.scales.blocks * kLanes};
}

/// sums[64] of the only row of a product, by the way that its packing allows.
template <typename Decoder>
void multiply_row(const cpu::FloatTask& task, const FloatPanel& panel, const std::byte* packed, float* sums) {
  constexpr bool kTables = Decoder::kBits <= 2 && !Decoder::kZero;
  constexpr bool kNarrow = Decoder::kBits >= (kByteSums ? 3 : 2) && Decoder::kBits <= 4;
  constexpr bool kDigits = kDigitRows && ((kNarrow && (Decoder::kBits >= 3 || !Decoder::kZero)) || std::is_same_v<Decoder, Int8Decoder>);
  constexpr bool kBytes = std::is_same_v<Decoder, FloatDecoder<8>>;
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  if constexpr (kDigits)
    if (task.has_digits) return gemv_by_digits(Decoder(task), task, panel, packed, sums);
  if constexpr (kByteSums && kTables)
    if (task.has_byte_sums) return gemv_by_byte_sums(Decoder(task), task, panel, packed, sums);
  if constexpr (kTables)
    if (task.tables_offset != 0)
      return gemv(task, panel, SumTables<Decoder::kBits>{reinterpret_cast<const float*>(packed + task.tables_offset)}, sums);
  if constexpr (kBytes && kByteRow)
    if (task.normalized && task.halves_per_block > 1) return gemv_of_bytes(Decoder(task), task, panel, x, sums);
  if constexpr (kBytes) {
    using Placed = FloatDecoder<8, false>;
    if (task.normalized) return gemv(task, panel, DecodedRows<Placed, 1>{Placed(task), {x}}, sums);
  }
  gemv(task, panel, DecodedRows<Decoder, 1>{Decoder(task), {x}}, sums);
}

/// Row m of a tile of y from its sums.
inline void finish_sums(const MatmulProblem& problem, const cpu::FloatTask& task, const MatmulTile& part, const std::byte* packed,
                        std::int64_t m, float* sums) {
  const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset);
  if (problem.x.quantized || task.normalized)
    for (int i = 0; i < kLanes; ++i) sums[i] = sums[i] * x_scales[m];
  finish_row(problem.epilogue, m, part.n_begin, static_cast<int>(part.n_end - part.n_begin), sums);
}

template <typename Decoder>
void float_run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::FloatTask*>(packed);
  const FloatPanel panel = panel_of(problem, task, part);
  const auto* x = reinterpret_cast<const float*>(packed + task.x_offset);
  float* sums = reinterpret_cast<float*>(scratch);
  double* wide_sums = reinterpret_cast<double*>(scratch);
  const std::int64_t rows = part.m_end - part.m_begin;
  float* chunk = sums + (rows + kTileRows) * kLanes * (problem.in_fp64 ? 2 : 1);
  const auto row_at = [&](std::int64_t row) { return x + (part.m_begin + (row < rows ? row : 0)) * task.x_stride; };

  if (problem.in_fp64) {
    multiply_many(task, panel, decode_part<Decoder>, row_at(0), rows, chunk, wide_sums);
  } else if (problem.m == 1) {
    multiply_row<Decoder>(task, panel, packed, sums);
  } else if (rows <= 2) {
    gemv(task, panel, DecodedRows<Decoder, 2>{Decoder(task), {row_at(0), row_at(1)}}, sums);
  } else if (rows <= 4) {
    gemv(task, panel, DecodedRows<Decoder, 4>{Decoder(task), {row_at(0), row_at(1), row_at(2), row_at(3)}}, sums);
  } else {
    multiply_many(task, panel, decode_part<Decoder>, row_at(0), rows, chunk, sums);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    float* values = problem.in_fp64 ? chunk : sums + row * kLanes;
    if (problem.in_fp64)
      for (int i = 0; i < kLanes; ++i) values[i] = static_cast<float>(wide_sums[row * kLanes + i]);
    finish_sums(problem, task, part, packed, part.m_begin + row, values);
  }
}

/// Of products with one row.
template <typename Decoder>
void row_run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::FloatTask*>(packed);
  float* sums = reinterpret_cast<float*>(scratch);
  multiply_row<Decoder>(task, panel_of(problem, task, part), packed, sums);
  finish_sums(problem, task, part, packed, 0, sums);
}
