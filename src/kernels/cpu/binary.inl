// int1 x int1 by XOR and popcount: reference/binary.cc, exactly. A leaf includes this file inside its own namespace, after
//   kWords    64-bit lanes of a vector; a lane is a column of the panel, so that no horizontal sum is needed
//   kRows     rows of the register tile
//   kBytewise whether count() gives counts per byte (kept in bytes for 31 steps, then summed by sum_bytes) or per lane
//   count(VW) -> VW, and sum_bytes(VW) -> VW
//
// Mapping:  kRows rows x 16 columns in registers; per word of k one broadcast per row, one load per vector of columns, and an
//           exclusive or, a count and an addition per vector. Panels of about half a second-level cache stay there for all rows.
// Bound:    arithmetic; 3 vector operations per 64 * kWords products (AVX-512).

using VW [[gnu::vector_size(kWords * 8)]] = std::uint64_t;

constexpr int kVectors = 16 / kWords;
constexpr std::int64_t kBlockBytes = 256 * 1024;

inline VW load_words(const std::uint64_t* from) {
  VW value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

using VN [[gnu::vector_size(kWords * 4)]] = std::int32_t;
using VS [[gnu::vector_size(kWords * 4)]] = float;

/// sums[row][v]: the number of differing bits for kTileRows rows and one panel.
template <int kTileRows>
[[gnu::always_inline]] inline void count_tile(const std::uint64_t* a, std::int64_t stride, const std::uint64_t* w, std::int64_t words,
                                              VW (&sums)[kTileRows][kVectors]) {
  const auto step = [&](VW (&into)[kTileRows][kVectors], std::int64_t word) {
    VW columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load_words(w + word * 16 + v * kWords);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      const VW bits = a[row * stride + word] - VW{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) into[row][v] += count(bits ^ columns[v]);
    }
  };
  if constexpr (kBytewise) {
    constexpr std::int64_t kSteps = 31;  // 31 * 8 = 248 fits into a byte: no carry, so 64-bit additions add bytes
    for (std::int64_t begin = 0; begin < words; begin += kSteps) {
      const std::int64_t end = begin + kSteps < words ? begin + kSteps : words;
      VW bytes[kTileRows][kVectors] = {};
      for (std::int64_t word = begin; word < end; ++word) step(bytes, word);
      for (int row = 0; row < kTileRows; ++row)
        for (int v = 0; v < kVectors; ++v) sums[row][v] += sum_bytes(bytes[row][v]);
    }
  } else {
    for (std::int64_t word = 0; word < words; ++word) step(sums, word);
  }
}

/// kWords results of a row, of which the first `bytes` are written.
[[gnu::always_inline]] inline void write_sums(const BinaryProblem& problem, VW counts, std::int64_t row, std::int64_t col, std::size_t bytes) {
  const VN sums = static_cast<std::int32_t>(problem.k) - 2 * __builtin_convertvector(counts, VN);
  const std::int64_t index = row * problem.y_stride + col;
  if (problem.a_scales == nullptr) {
    __builtin_memcpy(static_cast<std::int32_t*>(problem.y) + index, &sums, bytes);
    return;
  }
  VS scales = {};
  __builtin_memcpy(&scales, problem.w_scales + col, bytes);
  const VS result = (problem.a_scales[row] * scales) * __builtin_convertvector(sums, VS);
  __builtin_memcpy(static_cast<float*>(problem.y) + index, &result, bytes);
}

template <int kTileRows>
[[gnu::noinline]] void tile_row(const BinaryProblem& problem, std::int64_t row, std::int64_t panel_begin, std::int64_t panel_end) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    VW sums[kTileRows][kVectors] = {};
    count_tile<kTileRows>(problem.a + row * problem.a_stride, problem.a_stride, problem.w + panel * problem.words * 16, problem.words, sums);
    const std::int64_t col = panel * 16, cols = problem.n - col;
    if (cols >= 16) {
#pragma GCC unroll 16
      for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) write_sums(problem, sums[i][v], row + i, col + v * kWords, sizeof(VN));
    } else {
      for (int i = 0; i < kTileRows; ++i)
        for (int v = 0; v * kWords < cols; ++v) {
          const std::int64_t rest = cols - v * kWords < kWords ? cols - v * kWords : kWords;
          write_sums(problem, sums[i][v], row + i, col + v * kWords, static_cast<std::size_t>(rest) * 4);
        }
    }
  }
}

bool binary_accepts(const BinaryProblem&) { return true; }

void binary_run(const BinaryProblem& problem, std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end) {
  const std::int64_t panel_bytes = problem.words * 128 + 1, block = kBlockBytes / panel_bytes > 0 ? kBlockBytes / panel_bytes : 1;
  for (std::int64_t first = panel_begin; first < panel_end; first += block) {
    const std::int64_t last = first + block < panel_end ? first + block : panel_end;
    std::int64_t row = row_begin;
    for (; row + kRows <= row_end; row += kRows) tile_row<kRows>(problem, row, first, last);
    for (; row < row_end; ++row) tile_row<1>(problem, row, first, last);
  }
}
