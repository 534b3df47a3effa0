// Codes of at most 4 bits x bytes of activations for AVX2: exact int32 by sums of 16 bits. Included in a leaf's namespace after
// matmul_integer.inl. A product of two pairs (vpmaddubsw) is at most 2 * 15 * 128, so the eight of a group of 32 k fit a word; then pairs
// of words are added to the sums of 32 bits: 17 operations for 256 products, where bytes that meet words take 32.

struct CodeTile {
  static constexpr int kColumns = kLanes;
  static constexpr int kRows = 4;  // x 16 outputs: 8 registers of words; the sums of 32 bits wait in the cache
  static constexpr bool kEnds = true;
  static constexpr Widening kWidening = Widening::kNever;
  static constexpr bool kHasPlainRows = false;
  static const std::int8_t* row(const cpu::IntegerTask& task, std::int64_t m) { return task.x + m * task.x_stride; }
  static std::int64_t next(std::int64_t left) { return left <= kRows ? left : (left <= kRows + 2 ? (left + 1) / 2 : kRows); }

  template <int kBits, int kCount>
  static void parts(const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, const std::int32_t* starts,
                    const Segment& to, int first) {
    constexpr int kSteps = 8 / kBits;
    constexpr std::int64_t kAhead = kCount <= 2 ? kNearBytes : 0;  // few rows are bound by memory
    const __m256i ones = _mm256_set1_epi16(1);
    I sum[kCount][kTileParts];
    const std::int8_t* rows[kCount];
    for (int r = 0; r < kCount; ++r) {
      rows[r] = x[r] + begin * 32;
      sum[r][0] = set_lanes(static_cast<std::uint32_t>(starts[r]));
    }
    const std::byte* codes = panel + begin * (kBits * kVectorBytes) + first * 4;
    for (std::int64_t group = begin; group < end; ++group, codes += kBits * kVectorBytes) {
      __m256i words[kCount][2];
      SpareCodes<kBits> spare;
      unroll<0, kByteVectors<kBits>>([&](auto vector) __attribute__((always_inline)) {
        constexpr int v = decltype(vector)::value;
        const I lanes = in_register(load_bytes<v, kAhead>(codes, 0, spare));
        unroll<0, kSteps>([&](auto step) __attribute__((always_inline)) {
          constexpr int j = decltype(step)::value, kWord = v * kSteps + j;
          const I w = code_bytes<kBits, j>(lanes);
          for (int r = 0; r < kCount; ++r) {
            const __m256i a = broadcast_word(rows[r] + kWord * 4);
            for (int h = 0; h < 2; ++h) {
              const __m256i pairs = _mm256_maddubs_epi16(w.v[h], a);
              words[r][h] = kWord == 0 ? pairs : _mm256_add_epi16(words[r][h], pairs);
            }
          }
        });
      });
      for (int r = 0; r < kCount; ++r) {
        for (int h = 0; h < 2; ++h) sum[r][0].v[h] = _mm256_add_epi32(sum[r][0].v[h], _mm256_madd_epi16(words[r][h], ones));
        rows[r] += 32;
      }
    }
    end_segment<kCount>(sum, to, first);
  }

  /// As VectorTile::run; 8 bits are codes that were widened to bytes.
  template <int kBits, int kCount = kRows>
  static void run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x,
                  const std::int32_t* starts, const Segment& to) {
    static_assert(kTileParts == 1);
    if constexpr (kCount > 1)
      if (rows < kCount) return run<kBits, kCount - 1>(rows, panel, begin, end, x, starts, to);
    for (int first = 0; first < kLanes; first += kPart) parts<kBits, kCount>(panel, begin, end, x, starts, to, first);
  }
};
