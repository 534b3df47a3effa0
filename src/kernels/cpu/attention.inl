// Attention in register tiles of kTileRows queries x kTileVectors vectors. A leaf includes this file inside its own namespace,
// after vector.inl, kTileRows, kTileVectors and multiply_add(a, b, c) = a b + c with one rounding.
//
// Mapping:  keys are transposed once into blocks [head_dim][kKeys], so that a vector holds kKeys / kTileVectors neighbouring keys;
//           a tile of queries takes its scores over all its keys, the softmax of each row, then its sum over the values.
//           A single tile (one token) takes its scores by dot products instead: transposing would cost more than it saves.
// Bound:    FMA; 4 * head_dim operations per query head and key.   Meaning: reference/attention.cc, within fp32 rounding.

constexpr int kKeys = kTileVectors * kLanes;

inline bool attention_accepts(const AttentionProblem& problem) { return problem.head_dim % kLanes == 0; }

inline std::int64_t rounded_to_keys(std::int64_t count) { return (count + kKeys - 1) / kKeys * kKeys; }

/// Room for the transposed keys and for the scores of a tile.
inline std::size_t attention_scratch_bytes(const AttentionProblem& problem, std::int64_t begin, std::int64_t end) {
  const std::int64_t keys = rounded_to_keys(problem.end_key(end - 1) - problem.first_key(begin) / kKeys * kKeys);
  return static_cast<std::size_t>(keys * (problem.head_dim + kTileRows)) * sizeof(float);
}

inline VF exp_below_zero(VF x) {
  using C = ExpConstants;
  const VF shifted = multiply_add(x, splat(C::kLog2e), splat(C::kRound));
  const VF n = shifted - C::kRound;
  const VF r = (x - n * C::kLn2High) - n * C::kLn2Low;
  VF p = multiply_add(splat(C::kC4), r, splat(C::kC3));
  p = multiply_add(p, r, splat(C::kC2));
  p = multiply_add(p, r, splat(C::kC1));
  p = multiply_add(p, r, splat(C::kC0));
  const VF mantissa = multiply_add(r * r, p, r) + 1.0f;
  const VF result = as_float(as_bits(mantissa) + (as_bits(shifted) << 23));
  return x < C::kLowest ? splat(0.0f) : (x == x ? result : x);
}

template <typename Combine>
inline float fold(VF value, const Combine& combine) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + half]);
  return lanes[0];
}
inline float sum_of(VF value) {
  return fold(value, [](float a, float b) { return a + b; });
}

/// c[r][0 .. kVectors * kLanes) = sum over i < count of a[r][i] * b[i][..]
template <int kRows, int kVectors>
inline void tile_product(const float* const* a, const float* b, std::int64_t b_stride, std::int64_t count, float* const* c) {
  VF sums[kRows][kVectors] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    VF values[kVectors];
    for (int v = 0; v < kVectors; ++v) values[v] = load<VF>(b + i * b_stride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const VF factor = splat(a[r][i]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(factor, values[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(c[r] + v * kLanes, sums[r][v]);
}

template <int kVectors, int kRows = kTileRows>
inline void tile_product_of(int rows, const float* const* a, const float* b, std::int64_t b_stride, std::int64_t count, float* const* c) {
  if constexpr (kRows > 1)
    if (rows < kRows) return tile_product_of<kVectors, kRows - 1>(rows, a, b, b_stride, count, c);
  tile_product<kRows, kVectors>(a, b, b_stride, count, c);
}

/// The keys from `first` (a multiple of kKeys) to `end` as blocks [head_dim][kKeys]; missing keys are zero.
inline void transpose_keys(const AttentionProblem& problem, std::int64_t first, std::int64_t end, float* blocks) {
  for (std::int64_t key = first; key < end; key += kKeys, blocks += problem.head_dim * kKeys) {
    const int count = static_cast<int>(min_of<std::int64_t>(kKeys, end - key));
    const float* from = problem.k + key * problem.kv_stride;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      float* row = blocks + d * kKeys;
      for (int j = 0; j < count; ++j) row[j] = from[j * problem.kv_stride + d];
      for (int j = count; j < kKeys; ++j) row[j] = 0.0f;
    }
  }
}

/// A tile of query rows: row r is head r % heads of token r / heads.
struct QueryTile {
  int rows = 0;
  const float* q[kTileRows];
  float* scores[kTileRows];  ///< from key `first` on
  float* out[kTileRows];
  std::int64_t begin[kTileRows], end[kTileRows];  ///< keys that a row sees
  std::int64_t first = 0, last = 0;               ///< keys of all rows; first is a multiple of kKeys
};

inline QueryTile query_tile(const AttentionProblem& problem, std::int64_t first_row, std::int64_t end_row, float* scores,
                            std::int64_t stride) {
  QueryTile tile;
  tile.rows = static_cast<int>(min_of<std::int64_t>(kTileRows, end_row - first_row));
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t token = (first_row + r) / problem.heads, head = (first_row + r) % problem.heads;
    tile.q[r] = problem.q + token * problem.q_stride + head * problem.head_dim;
    tile.out[r] = problem.out + token * problem.out_stride + head * problem.head_dim;
    tile.scores[r] = scores + r * stride;
    tile.begin[r] = problem.first_key(token);
    tile.end[r] = problem.end_key(token);
  }
  tile.first = tile.begin[0] / kKeys * kKeys;
  tile.last = tile.end[tile.rows - 1];
  return tile;
}

inline void scores_by_blocks(const AttentionProblem& problem, const QueryTile& tile, const float* blocks, std::int64_t first_block_key) {
  for (std::int64_t key = tile.first; key < tile.last; key += kKeys) {
    float* c[kTileRows];
    for (int r = 0; r < tile.rows; ++r) c[r] = tile.scores[r] + (key - tile.first);
    tile_product_of<kTileVectors>(tile.rows, tile.q, blocks + (key - first_block_key) * problem.head_dim, kKeys, problem.head_dim, c);
  }
}

inline void scores_by_dots(const AttentionProblem& problem, const QueryTile& tile) {
  for (std::int64_t key = tile.first; key < tile.last; ++key) {
    const float* k = problem.k + key * problem.kv_stride;
    for (int r = 0; r < tile.rows; ++r) {
      VF sum = {};
      for (std::int64_t d = 0; d < problem.head_dim; d += kLanes) sum = multiply_add(load<VF>(tile.q[r] + d), load<VF>(k + d), sum);
      tile.scores[r][key - tile.first] = sum_of(sum);
    }
  }
}

/// Scores [begin, end) become exp(scale * (score - largest)), those around them up to whole vectors zero; gives 1 / their sum.
inline float softmax_row(float* scores, std::int64_t begin, std::int64_t end, float scale) {
  const std::int64_t stop = (end + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t j = 0; j < begin; ++j) scores[j] = -__builtin_inff();
  for (std::int64_t j = end; j < stop; ++j) scores[j] = -__builtin_inff();
  VF largest = splat(-__builtin_inff());
  for (std::int64_t j = 0; j < stop; j += kLanes) largest = larger(largest, load<VF>(scores + j));
  const float top = fold(largest, [](float a, float b) { return a > b ? a : b; });
  VF total = {};
  for (std::int64_t j = 0; j < stop; j += kLanes) {
    const VF value = exp_below_zero((load<VF>(scores + j) - top) * scale);
    store(scores + j, value);
    total += value;
  }
  return 1.0f / sum_of(total);
}

inline void weigh_values(const AttentionProblem& problem, const QueryTile& tile) {
  const float* v = problem.v + tile.first * problem.kv_stride;
  const std::int64_t count = tile.last - tile.first;
  std::int64_t d = 0;
  const auto columns = [&](auto product, int vectors) {
    for (; d + vectors * kLanes <= problem.head_dim; d += vectors * kLanes) {
      float* c[kTileRows];
      for (int r = 0; r < tile.rows; ++r) c[r] = tile.out[r] + d;
      product(tile.rows, tile.scores, v + d, problem.kv_stride, count, c);
    }
  };
  columns(tile_product_of<kTileVectors>, kTileVectors);
  columns(tile_product_of<1>, 1);
}

// The same with sums in fp64: products of two fp32 are exact there, and what the order of sums changes is far below fp32's last bit.

using VHalves [[gnu::vector_size(kLanes * 2)]] = float;  // kLanes / 2 lanes
inline VD wide(const float* from) { return __builtin_convertvector(load<VHalves>(from), VD); }

/// c[r][0 .. kWide * kLanes / 2) = (sum over i < count of a[r][i] * b[i][..]) / divisors[r]
template <int kRows, int kWide>
inline void tile_product_in_fp64(const float* const* a, const float* b, std::int64_t b_stride, std::int64_t count, const double* divisors,
                                 float* const* c) {
  VD sums[kRows][kWide] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    VD values[kWide];
    for (int v = 0; v < kWide; ++v) values[v] = wide(b + i * b_stride + v * (kLanes / 2));
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kWide; ++v) sums[r][v] += static_cast<double>(a[r][i]) * values[v];
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kWide; ++v) store(c[r] + v * (kLanes / 2), __builtin_convertvector(sums[r][v] / divisors[r], VHalves));
}

/// The same of up to kTileRows rows and any multiple of kLanes / 2 columns.
template <int kRows = kTileRows>
inline void columns_in_fp64(int rows, std::int64_t columns, const float* const* a, const float* b, std::int64_t b_stride,
                            std::int64_t count, const double* divisors, float* const* c) {
  if constexpr (kRows > 1)
    if (rows < kRows) return columns_in_fp64<kRows - 1>(rows, columns, a, b, b_stride, count, divisors, c);
  std::int64_t column = 0;
  const auto go = [&](auto product, std::int64_t step) {
    for (; column + step <= columns; column += step) {
      float* to[kTileRows];
      for (int r = 0; r < kRows; ++r) to[r] = c[r] + column;
      product(a, b + column, b_stride, count, divisors, to);
    }
  };
  go(tile_product_in_fp64<kRows, kTileVectors>, kTileVectors * kLanes / 2);
  go(tile_product_in_fp64<kRows, 1>, kLanes / 2);
}

inline void scores_in_fp64(const AttentionProblem& problem, const QueryTile& tile, const float* blocks, std::int64_t first_block_key) {
  double ones[kTileRows];
  for (double& one : ones) one = 1.0;
  for (std::int64_t key = tile.first; key < tile.last; key += kKeys) {
    float* c[kTileRows];
    for (int r = 0; r < tile.rows; ++r) c[r] = tile.scores[r] + (key - tile.first);
    columns_in_fp64(tile.rows, kKeys, tile.q, blocks + (key - first_block_key) * problem.head_dim, kKeys, problem.head_dim, ones, c);
  }
}

inline void weigh_values_in_fp64(const AttentionProblem& problem, const QueryTile& tile) {
  const std::int64_t count = tile.last - tile.first;
  double totals[kTileRows] = {};
  for (int r = 0; r < tile.rows; ++r)
    for (std::int64_t j = 0; j < count; ++j) totals[r] += static_cast<double>(tile.scores[r][j]);
  columns_in_fp64(tile.rows, problem.head_dim, tile.scores, problem.v + tile.first * problem.kv_stride, problem.kv_stride, count, totals,
                  tile.out);
}

inline void attention_run(const AttentionProblem& problem, std::int64_t begin, std::int64_t end, std::byte* scratch) {
  const std::int64_t first_key = problem.first_key(begin) / kKeys * kKeys, end_key = problem.end_key(end - 1);
  const std::int64_t stride = rounded_to_keys(end_key - first_key);
  float* scores = reinterpret_cast<float*>(scratch);
  float* blocks = scores + kTileRows * stride;
  const std::int64_t end_row = end * problem.heads;
  const bool single = (end - begin) * problem.heads <= kTileRows && !problem.in_fp64;
  if (!single) transpose_keys(problem, first_key, end_key, blocks);
  for (std::int64_t row = begin * problem.heads; row < end_row; row += kTileRows) {
    const QueryTile tile = query_tile(problem, row, end_row, scores, stride);
    if (problem.in_fp64)
      scores_in_fp64(problem, tile, blocks, first_key);
    else if (single)
      scores_by_dots(problem, tile);
    else
      scores_by_blocks(problem, tile, blocks, first_key);
    float factors[kTileRows];
    for (int r = 0; r < tile.rows; ++r) {
      factors[r] = softmax_row(tile.scores[r], tile.begin[r] - tile.first, tile.end[r] - tile.first, problem.scale);
      for (std::int64_t j = (tile.end[r] - tile.first + kLanes - 1) / kLanes * kLanes; j < tile.last - tile.first; ++j)
        tile.scores[r][j] = 0.0f;
    }
    if (problem.in_fp64) {
      weigh_values_in_fp64(problem, tile);
      continue;
    }
    weigh_values(problem, tile);
    for (int r = 0; r < tile.rows; ++r)
      for (std::int64_t d = 0; d < problem.head_dim; d += kLanes) store(tile.out[r] + d, load<VF>(tile.out[r] + d) * factors[r]);
  }
}
