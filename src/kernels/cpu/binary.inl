// int1 x int1 by XOR and popcount: reference/binary.cc, exactly. A leaf includes this file inside its own namespace, after
// vector.inl and
//   kRows, kVectors  the register tile: rows x vectors of kLanes outputs; a lane is an output, so no horizontal sum is needed
//   kBytewise        whether count() gives counts per byte (kept in bytes for 31 steps, then summed by sum_bytes) or per lane
//   count(VU) -> VU, and sum_bytes(VU) -> VU
//
// Mapping:  per word of k one broadcast per row, one load per vector of outputs, and an exclusive or, a count and an addition per
//           vector. A block of panels stays in the second-level cache for all rows.
// Bound:    arithmetic; 3 vector operations per 32 * kLanes products (AVX-512).

constexpr int kPanel = 64;
constexpr std::int64_t kBlockBytes = 256 * 1024;

template <int kTileRows>
using Counts = VU[kTileRows][kVectors];

/// The number of differing bits for kTileRows rows and kVectors vectors of outputs.
template <int kTileRows>
[[gnu::always_inline]] inline void count_tile(const std::uint32_t* a, std::int64_t stride, const std::uint32_t* w, std::int64_t words,
                                              Counts<kTileRows>& sums) {
  const auto step = [&](Counts<kTileRows>& into, std::int64_t word) {
    VU outputs[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) outputs[v] = load<VU>(w + word * kPanel + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      const VU bits = splat(a[row * stride + word]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) into[row][v] += count(bits ^ outputs[v]);
    }
  };
  if constexpr (kBytewise) {
    constexpr std::int64_t kSteps = 31;  // 31 * 8 = 248 fits into a byte: no carry, so 32-bit additions add bytes
    for (std::int64_t begin = 0; begin < words; begin += kSteps) {
      const std::int64_t end = min_of(begin + kSteps, words);
      Counts<kTileRows> bytes = {};
      for (std::int64_t word = begin; word < end; ++word) step(bytes, word);
      for (int row = 0; row < kTileRows; ++row)
        for (int v = 0; v < kVectors; ++v) sums[row][v] += sum_bytes(bytes[row][v]);
    }
  } else {
    for (std::int64_t word = 0; word < words; ++word) step(sums, word);
  }
}

/// kLanes results of a row, of which the first `bytes` are written.
[[gnu::always_inline]] inline void write_sums(const BinaryProblem& problem, VU counts, std::int64_t row, std::int64_t col,
                                              std::size_t bytes) {
  const VI sums = static_cast<std::int32_t>(problem.k) - 2 * (VI)counts;
  const std::int64_t index = row * problem.y_stride + col;
  if (problem.a_scales == nullptr) {
    __builtin_memcpy(static_cast<std::int32_t*>(problem.y) + index, &sums, bytes);
    return;
  }
  VF scales = {};
  __builtin_memcpy(&scales, problem.w_scales + col, bytes);
  const VF result = to_float(sums) * (problem.a_scales[row] * scales);
  __builtin_memcpy(static_cast<float*>(problem.y) + index, &result, bytes);
}

template <int kTileRows>
[[gnu::noinline]] void tile_row(const BinaryProblem& problem, std::int64_t row, std::int64_t panel_begin, std::int64_t panel_end) {
  for (std::int64_t col = panel_begin * kPanel; col < min_of(panel_end * kPanel, problem.n); col += kVectors * kLanes) {
    Counts<kTileRows> sums = {};
    const std::uint32_t* w = problem.w + col / kPanel * problem.words * kPanel + col % kPanel;
    count_tile<kTileRows>(problem.a + row * problem.a_stride, problem.a_stride, w, problem.words, sums);
    const std::int64_t cols = problem.n - col;
    if (cols >= kVectors * kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) write_sums(problem, sums[i][v], row + i, col + v * kLanes, sizeof(VF));
      continue;
    }
    for (int i = 0; i < kTileRows; ++i)
      for (int v = 0; v < kVectors && v * kLanes < cols; ++v)
        write_sums(problem, sums[i][v], row + i, col + v * kLanes,
                   static_cast<std::size_t>(min_of<std::int64_t>(cols - v * kLanes, kLanes)) * 4);
  }
}

bool binary_accepts(const BinaryProblem&) { return true; }

void binary_run(const BinaryProblem& problem, std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin,
                std::int64_t panel_end) {
  const std::int64_t block = max_of<std::int64_t>(kBlockBytes / (problem.words * kPanel * 4 + 1), 1);
  for (std::int64_t first = panel_begin; first < panel_end; first += block) {
    const std::int64_t last = min_of(first + block, panel_end);
    std::int64_t row = row_begin;
    for (; row + kRows <= row_end; row += kRows) tile_row<kRows>(problem, row, first, last);
    for (; row < row_end; ++row) tile_row<1>(problem, row, first, last);
  }
}
