// MSFP x MSFP: reference/msfp.cc, bit for bit. A leaf includes this file inside its own namespace, after vector.inl and
//   kRows, kVectors  the register tile: rows x vectors of kLanes outputs
//   kOffset          what ready(w) adds to every mantissa (0, or 128 where the dot product takes unsigned bytes)
//   ready(VU) -> VU  four mantissas per lane in the form that dot4 takes
//   dot4(VI sums, VU w, std::uint32_t a) -> VI   adds the four products of every lane with four broadcast mantissas
//
// Mapping:  lane = output. Per box four dot products per vector and row, one conversion, two multiplications, one addition.
// Bound:    arithmetic; 9 vector operations per 16 * kLanes products.

template <int kTileRows>
[[gnu::always_inline]] inline void msfp_tile(const MsfpProblem& problem, std::int64_t row, int first) {
  VF totals[kTileRows][kVectors] = {};
  const std::int64_t boxes = problem.boxes;
  for (std::int64_t box = 0; box < boxes; ++box) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int lane = first + v * kLanes;
      VU w[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) w[i] = ready(load<VU>(problem.w + (box * 4 + i) * 64 + lane));
      const VF w_scale = load<VF>(problem.w_scales + box * 64 + lane);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const std::int64_t cell = (row + r) * boxes + box;
        VI sums = splat(-kOffset * problem.a_sums[cell]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          std::uint32_t a;
          __builtin_memcpy(&a, problem.a + cell * 16 + i * 4, 4);
          sums = dot4(sums, w[i], a);
        }
        const VF scale = smaller(problem.a_scales[cell] * w_scale, splat(0x1p127f));
        totals[r][v] = totals[r][v] + to_float(sums) * scale;
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(problem.y + (row + r) * 64 + first + v * kLanes, totals[r][v]);
}

void msfp_run(const MsfpProblem& problem, std::int64_t row_begin, std::int64_t row_end) {
  std::int64_t row = row_begin;
  for (; row + kRows <= row_end; row += kRows)
    for (int first = 0; first < 64; first += kVectors * kLanes) msfp_tile<kRows>(problem, row, first);
  for (; row < row_end; ++row)
    for (int first = 0; first < 64; first += kVectors * kLanes) msfp_tile<1>(problem, row, first);
}

/// kk-th code of a group in every lane, as kernels/panels.h stores it; `lanes` is [stored bits][64].
inline VU msfp_stored(const std::uint32_t* lanes, int kk, int bits) {
  const auto at = [&](int vector, int bit, std::uint32_t mask) {
    return (load<VU>(lanes + vector * 64) >> static_cast<std::uint32_t>(bit)) & mask;
  };
  const std::uint32_t mask = (1u << bits) - 1u;
  if (bits == 8) return at(kk / 4, 8 * (kk % 4), mask);
  if (bits == 4) return at(kk / 8, 8 * (kk % 4) + 4 * (kk % 8 / 4), mask);
  const int word = kk / 16 * 16, i = kk % 16, per = 16 / bits;
  if (bits == 3) {
    const int bit = word + 8 * (i % 4 / 2) + 3 * (i % 2);
    if (i < 12) return at(i / 4, bit, mask);
    return ((at(0, 6, ~0u) ^ at(1, 4, ~0u) ^ at(2, 2, ~0u)) >> static_cast<std::uint32_t>(bit)) & mask;
  }
  if (i < per * bits) return at(i / per, word + bits * (i % per), mask);
  if (bits == 6) {
    const int first = (i - 12) / 2 * 3, second = i % 2;
    return at(first + 2 * second, word + 12, 15u) | at(first + 1, word + 12 + 2 * second, 3u) << 4u;
  }
  VU stored = {};
  for (int bit = 0; bit < bits; ++bit) stored |= at(bit, word + 15, 1u) << static_cast<std::uint32_t>(bit);
  return stored;
}

void msfp_unpack(const MsfpPanel& panel, std::uint32_t* w) {
  const int bits = panel.stored_bits, m = panel.magnitude_bits;
  const std::uint32_t shift = static_cast<std::uint32_t>(bits - m - 1), mask = (1u << m) - 1u;
  for (std::int64_t group = 0; group < panel.groups; ++group)
    for (int quad = 0; quad < 8; ++quad)
      for (int lane = 0; lane < 64; lane += kLanes) {
        VU word = {};
        for (int i = 0; i < 4; ++i) {
          const VU code = msfp_stored(panel.lanes + group * bits * 64 + lane, quad * 4 + i, bits) >> shift;
          const VU sign = (VU)(-(VI)(code >> static_cast<std::uint32_t>(m))), magnitude = code & mask;
          word |= (((magnitude ^ sign) - sign) & 255u) << static_cast<std::uint32_t>(8 * i);
        }
        store(w + (group * 8 + quad) * 64 + lane, word);
      }
}
