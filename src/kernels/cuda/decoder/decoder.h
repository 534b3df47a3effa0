#pragma once
/// The kernels between a decoder's products: embedding, norm, RoPE with the cache's write, attention, the gate, sampling, random weights.
/// All compute in fp32. They need compute capability 9.0 and return CUDA's error code; positions and tokens are read on the device, so that
/// a captured step can be replayed.

#include <cstddef>
#include <cstdint>

#include "kernels/logits.h"
#include "narrow/cuda.h"

namespace narrow::cuda {

/// How a cache holds keys and values: values, or codes with one fp32 scale per row.
enum class CacheKind : std::uint8_t { kFp32, kFp16, kBf16, kE4m3, kInt8 };

constexpr int bytes_of(CacheKind kind) {
  return kind == CacheKind::kFp32 ? 4 : (kind == CacheKind::kFp16 || kind == CacheKind::kBf16 ? 2 : 1);
}
constexpr bool has_scales(CacheKind kind) { return kind == CacheKind::kE4m3 || kind == CacheKind::kInt8; }

/// Keys and values of one sequence: rows [layer][keys, values][kv head][position] of `pitch` elements, those beyond head_dim zero.
struct CacheView {
  std::byte* codes = nullptr;
  float* scales = nullptr;  ///< [layer][keys, values][kv head][position]
  std::int64_t capacity = 0;

  /// The row of a position.
  NARROW_HOST_DEVICE std::int64_t row(int layer, int which, int kv_heads, int head, std::int64_t position) const {
    return ((std::int64_t{layer} * 2 + which) * kv_heads + head) * capacity + position;
  }
};

/// What both halves of attention share.
struct HeadsShape {
  int rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int layer = 0;
  CacheKind kind = CacheKind::kFp16;
  const CacheView* caches = nullptr;        ///< one per sequence
  const std::int32_t* sequences = nullptr;  ///< of each row
  const std::int32_t* positions = nullptr;  ///< of each row

  /// Elements of a row of the cache and of q: whole 8 of them, the rest zeros.
  NARROW_HOST_DEVICE constexpr int pitch() const { return (head_dim + 7) / 8 * 8; }
};

/// The most that a head has.
constexpr int kMostHeadDim = 256;

/// Norms of q and k where the model has them, RoPE, and the cache's new rows.
struct PlaceHeadsProblem {
  HeadsShape shape;
  const void* qkv = nullptr;  ///< [rows][(heads + 2 kv_heads) * head_dim]
  DType type = DType::kF32;   ///< or kF16
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;  ///< [head_dim]
  float epsilon = 0.0f;
  const float* cosine = nullptr;  ///< [table rows][head_dim / 2]
  const float* sine = nullptr;
  const std::int32_t* table_rows = nullptr;  ///< of each row
  void* q = nullptr;                         ///< [rows][heads][pitch], qkv's type
};
int launch_place_heads(const PlaceHeadsProblem& problem, Stream stream);

/// 128 neighbouring rows of one sequence at most.
struct AttendTile {
  std::int32_t row = 0, rows = 0, position = 0, sequence = 0;
};
constexpr int kTileRows = 128, kTileHeadDim = 128;

/// out[row, head] = sum_j p_j v_j, p = softmax(scale * q . k_j) over the row's position and those before it, of a window `window` alone.
struct AttendProblem {
  HeadsShape shape;
  const void* q = nullptr;  ///< [rows][heads][pitch]
  DType q_type = DType::kF32;
  int window = 0;
  float scale = 1.0f;
  void* out = nullptr;  ///< [rows][heads * head_dim]
  DType out_type = DType::kF32;
  /// Of launch_attend_rows: q, k and v are those of place.qkv, as launch_place_heads would place them; every row is another sequence's.
  bool places = false;
  PlaceHeadsProblem place{};
  const AttendTile* tiles = nullptr;  ///< of launch_attend_tiles
  int tile_count = 0;
};
/// Few rows, any lengths: every row on its own, its keys split among the thread blocks of a cluster.
int launch_attend_rows(const AttendProblem& problem, Stream stream);
/// Many rows of q in fp16: tensor cores, keys and values rounded to fp16. head_dim up to kTileHeadDim.
int launch_attend_tiles(const AttendProblem& problem, Stream stream);

/// x[row] = embedding[tokens[row]].
int launch_embed(const std::int32_t* tokens, std::int64_t rows, const void* embedding, DType type, std::int64_t hidden, float* x,
                 Stream stream);

/// y = v * r * weight, r = 1 / sqrt(mean(v^2) + epsilon), of rows v of x, to which `delta` is added before.
struct NormProblem {
  std::int64_t rows = 0, cols = 0;
  float* x = nullptr;           ///< gets the sum where there is a delta and every row is read
  const void* delta = nullptr;  ///< [rows of x, cols] in fp32 or fp16, or null
  DType delta_type = DType::kF16;
  const std::int32_t* rows_of = nullptr;  ///< the rows of x that are read; null: all
  const float* weight = nullptr;
  float epsilon = 0.0f;
  void* y = nullptr;  ///< fp32, fp16 or bf16; saturates
  DType y_type = DType::kF16;
};
int launch_rms_norm(const NormProblem& problem, Stream stream);

/// y = silu(gate) * up of rows [gate, up] of 2 * cols; fp32 or fp16 in, fp32, fp16 or bf16 out, which saturates.
int launch_gate(const void* gate_up, DType type, std::int64_t rows, std::int64_t cols, void* y, DType y_type, Stream stream);

/// The next token of every row: the likeliest (the first of equals), or drawn as narrow::sample draws, with fixed-point sums.
struct SampleProblem {
  const float* logits = nullptr;  ///< [rows][vocabulary]
  int rows = 0;
  std::int64_t vocabulary = 0;
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::uint64_t seed = 0;
  std::int32_t* tokens = nullptr;     ///< [rows]
  std::int32_t* positions = nullptr;  ///< [rows], each one further; null: left alone
  std::int32_t* step = nullptr;       ///< [rows] draws so far, each one further
  std::int32_t* history = nullptr;    ///< [steps][rows], or null
  std::int32_t steps = 0;             ///< rows of history
};
int launch_sample(const SampleProblem& problem, Stream stream);

/// Of some rows of logits x the sums of kernels/logits.h, within fp32 rounding, and the logit of one token each.
struct ScoreProblem {
  const float* x = nullptr;  ///< [.., vocabulary]
  const float* y = nullptr;  ///< of the same shape, or null
  std::int64_t vocabulary = 0;
  std::int64_t rows = 0;
  const std::int32_t* rows_of = nullptr;  ///< [rows]: which they are
  const std::int32_t* tokens = nullptr;   ///< [rows]
  LogitSums* sums = nullptr;              ///< [rows]
  float* logits = nullptr;                ///< [rows]
};
int launch_score(const ScoreProblem& problem, Stream stream);

/// Independent values of a bell shape (the sum of four uniform ones), mean 0, of the given deviation; fp32, fp16 or bf16.
int launch_random(void* y, DType type, std::int64_t count, float deviation, std::uint64_t seed, Stream stream);

/// Reads all of a buffer, a multiple of 16 bytes, and writes next to nothing: what memory gives to a reader.
int launch_read(const void* data, std::int64_t bytes, std::uint32_t* sink, Stream stream);

}  // namespace narrow::cuda
