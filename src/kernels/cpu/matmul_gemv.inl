// At most 4 rows against a panel: y[m, n] = sum_k x[m, k] * decode(w[n, k]). A Source adds a group of 32 k to sums in registers; scales
// and fetches its codes kAhead bytes ahead (load_part); scales are applied once per block. Included in a leaf's namespace after
// matmul_decode.inl. Bound: the memory that holds the weight, where a source keeps up with it.

/// Where the codes, scales and zero points of a panel lie, from its first part on.
struct FloatPanel {
  const std::byte* codes;
  const void* scales;
  const std::uint8_t* zero_points;
  std::int64_t first_scale;
};

/// Adds a group to sums[row][part][half of the group]: decoded values times activations.
template <typename Decoder, int kRowCount>
struct DecodedRows {
  static constexpr int kBits = Decoder::kBits, kRows = kRowCount;
  static constexpr std::int64_t kAhead = kBits >= 16 ? kPrefetchBytes / 2 : kPrefetchBytes;
  using Zeros = Decoder;
  Decoder decoder;
  const float* x[kRowCount];

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&zeros)[kCount][2],
                                  F (&sums)[kRowCount][kCount][2]) const {
    const std::int64_t k = group * 32;
    decode_group<Decoder, kCount, kAhead>(
        decoder, codes, zeros, [&](auto constant, int p, F value) __attribute__((always_inline)) {
          constexpr int kk = decltype(constant)::value;
          for (int r = 0; r < kRowCount; ++r) sums[r][p][kk / 16] = fma(value, broadcast(x[r] + k + kk), sums[r][p][kk / 16]);
        });
  }
};

/// The same for one row and codes of 1 or 2 bits: tables[group][vector][nibble of a lane][16] holds the sums (matmul_task.h).
template <int kWidth>
struct SumTables {
  static constexpr int kBits = kWidth, kRows = 1;
  static constexpr std::int64_t kAhead = kPrefetchBytes;
  using Zeros = TableDecoder<kWidth>;
  const float* tables;

  template <int kCount>
  [[gnu::always_inline]] void add(std::int64_t group, const std::byte* codes, const F (&)[kCount][2], F (&sums)[1][kCount][2]) const {
    unroll<0, kBits>([&](auto vector) __attribute__((always_inline)) {
      constexpr int v = decltype(vector)::value;
      I lanes[kCount];
      for (int p = 0; p < kCount; ++p) lanes[p] = in_register(load_part<kAhead>(codes + v * kVectorBytes, p));
      unroll<0, 8>([&](auto nibble) __attribute__((always_inline)) {
        constexpr int n = decltype(nibble)::value;
        const Table table = load_table16(tables + ((group * kBits + v) * 8 + n) * 16);
        // An addition; an FMA by 1 runs on units that shifts and look-ups leave free.
        for (int p = 0; p < kCount; ++p)
          sums[0][p][n / 4] = fma(look_up16(shift_right<4 * n>(lanes[p]), table), set(1.0f), sums[0][p][n / 4]);
      });
    });
  }
};

/// sums[row][64] of kCount parts.
template <int kCount, typename Source>
void gemv_parts(const cpu::FloatTask& task, const FloatPanel& panel, const Source& source, float* sums) {
  constexpr int kRows = Source::kRows;
  F total[kRows][kCount];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kCount; ++p) total[r][p] = set(0.0f);
  const bool small = task.halves_per_block == 1;  // a scale for each half of a group
  const std::int64_t block_groups = small ? 1 : task.halves_per_block / 2, step = small ? 2 * kLanes : kLanes;
  const std::byte* codes = panel.codes;
  for (std::int64_t group = 0, scale = panel.first_scale; group < task.groups; scale += step) {
    F block[kRows][kCount][2], zeros[kCount][2];
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < kCount; ++p) block[r][p][0] = block[r][p][1] = set(0.0f);
    if constexpr (Source::Zeros::kZero)
      for (int p = 0; p < kCount; ++p) {
        zeros[p][0] = load_zeros<typename Source::Zeros>(task, panel.zero_points, scale + p * kPart);
        zeros[p][1] = small ? load_zeros<typename Source::Zeros>(task, panel.zero_points, scale + kLanes + p * kPart) : zeros[p][0];
      }
    const std::int64_t end = group + block_groups < task.groups ? group + block_groups : task.groups;
    for (; group < end; ++group, codes += Source::kBits * kVectorBytes) source.add(group, codes, zeros, block);
    F factors[2][kCount];
    load_own_scales(task.scales, panel.scales, scale, factors[0]);
    if (small) load_own_scales(task.scales, panel.scales, scale + kLanes, factors[1]);
    for (int p = 0; p < kCount; ++p) {
      const F second = small ? factors[1][p] : factors[0][p];
      for (int r = 0; r < kRows; ++r) total[r][p] = fma(block[r][p][1], second, fma(block[r][p][0], factors[0][p], total[r][p]));
    }
  }
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
