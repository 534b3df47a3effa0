/// Attention of many rows on tensor cores: prompts.
/// Mapping:  a thread block per tile of 128 rows of one sequence and query head; each of its eight warps has 16 rows. Keys and values come
///           in tiles of 64 positions, fp16, into swizzled shared memory; those of an fp16 cache by cp.async, one tile ahead. Scores and
///           softmax stay in registers (Dao's FlashAttention-2, on mma.sync m16n8k16), weights are rounded to fp16.
/// Requires: q in fp16; head_dim <= kHeadDim, columns beyond it are zeros.
/// Bound:    tensor cores, 4 * rows * keys / 2 * head_dim operations per head. Meaning: kernels/reference/attention.cc.

#include "kernels/cuda/decoder/values.cuh"

namespace narrow::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kKeys = 64;
constexpr float kLog2e = 1.44269504f, kLowest = -1e30f;
static_assert(kWarps * 16 == kTileRows);

/// A tile [rows][kHeadDim] of fp16; 16-byte pieces of a row change places by its number, so that eight rows lie in different banks.
template <int kHeadDim>
struct Tile {
  static constexpr int kPieces = kHeadDim / 8;
  __half* data;
  __device__ __half* piece(int row, int column_piece) const { return data + row * kHeadDim + (column_piece ^ (row & 7)) * 8; }
  __device__ std::uint32_t address(int row, int column_piece) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(piece(row, column_piece)));
  }
};

__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline std::uint32_t pair_of(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// 16 bytes, or zeros.
__device__ inline void copy_or_clear(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

template <CacheKind kKind, int kHeadDim>
class TileAttention {
 public:
  __device__ TileAttention(const AttendProblem& p, __half* memory, AttendTile tile, int head)
      : p_(p),
        shape_(p.shape),
        tile_(tile),
        head_(head),
        cache_(p.shape.caches[tile.sequence]),
        q_{memory},
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32) {
    const int kv = head / (shape_.heads / shape_.kv_heads);
    key_row_ = cache_.row(shape_.layer, 0, shape_.kv_heads, kv, 0);
    value_row_ = cache_.row(shape_.layer, 1, shape_.kv_heads, kv, 0);
    end_ = tile.position + tile.rows;
    first_ = p.window > 0 ? max(0, tile.position + 1 - p.window) : 0;
  }

  __device__ void run() {
    load_queries();
    const int begin = first_ / kKeys * kKeys;
    load(begin, 0);
    int buffer = 0;
    for (int base = begin; base < end_; base += kKeys, buffer ^= 1) {
      if (base + kKeys < end_) {
        load(base + kKeys, buffer ^ 1);
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();
      step(base, buffer);
      __syncthreads();  // before the buffer is written again
    }
    store();
  }

 private:
  // Two buffers of keys and values lie behind the queries.
  __device__ Tile<kHeadDim> keys(int buffer) const { return {q_.data + (kTileRows + 2 * buffer * kKeys) * kHeadDim}; }
  __device__ Tile<kHeadDim> values(int buffer) const { return {q_.data + (kTileRows + (2 * buffer + 1) * kKeys) * kHeadDim}; }

  __device__ void load_queries() const {
    const int pitch = shape_.pitch(), pieces = pitch / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * Tile<kHeadDim>::kPieces; i += kThreads) {
      const int row = i / Tile<kHeadDim>::kPieces, piece = i % Tile<kHeadDim>::kPieces;
      const bool there = row < tile_.rows && piece < pieces;
      const std::int64_t from = (std::int64_t{tile_.row + (there ? row : 0)} * shape_.heads + head_) * pitch + (there ? piece : 0) * 8;
      copy_or_clear(q_.address(row, piece), static_cast<const __half*>(p_.q) + from, there);
    }
    commit_copies();
  }

  __device__ void load(int base, int buffer) const {
    load_half(keys(buffer), key_row_, base);
    load_half(values(buffer), value_row_, base);
    commit_copies();
  }

  __device__ void load_half(const Tile<kHeadDim>& to, std::int64_t first_row, int base) const {
    const int pitch = shape_.pitch(), pieces = pitch / 8;
#pragma unroll
    for (int j = 0; j < kKeys * Tile<kHeadDim>::kPieces / kThreads; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads, row = i / Tile<kHeadDim>::kPieces, piece = i % Tile<kHeadDim>::kPieces;
      const bool there = base + row < end_ && piece < pieces;
      const std::int64_t from_row = first_row + (there ? base + row : 0), element = from_row * pitch + (there ? piece : 0) * 8;
      if constexpr (kKind == CacheKind::kFp16) {
        copy_or_clear(to.address(row, piece), cache_.codes + element * 2, there);
      } else {
        float x[8] = {};
        if (there) Eight<kKind>::load(cache_.codes, element).unpack(x);
        const float scale = has_scales(kKind) && there ? cache_.scales[from_row] : 1.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = saturated_f16(x[e] * scale);
        *reinterpret_cast<uint4*>(to.piece(row, piece)) = {pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]),
                                                           pair_of(x[6], x[7])};
      }
    }
  }

  /// Scores of 64 keys, their softmax, and the values that they weigh.
  __device__ void step(int base, int buffer) {
    float s[kKeys / 8][4] = {};
    const int matrix = lane_ / 8, in_matrix = lane_ % 8;
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      std::uint32_t a[4];
      load_matrices(a, q_.address(warp_ * 16 + matrix % 2 * 8 + in_matrix, d * 2 + matrix / 2));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        std::uint32_t b[4];
        load_matrices(b, keys(buffer).address(n * 16 + matrix / 2 * 8 + in_matrix, d * 2 + matrix % 2));
        multiply(s[2 * n], a, b[0], b[1]);
        multiply(s[2 * n + 1], a, b[2], b[3]);
      }
    }
    const int position = tile_.position + warp_ * 16 + lane_ / 4;  // of the first of this lane's two rows
    const bool whole = base + kKeys <= tile_.position + warp_ * 16 + 1 && p_.window == 0;
    const float factor = p_.scale * kLog2e;
    float largest[2] = {largest_[0], largest_[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = base + n * 8 + lane_ % 4 * 2 + i % 2, own = position + i / 2 * 8;
        const bool seen = whole || (key <= own && (p_.window == 0 || key > own - p_.window));
        s[n][i] = seen ? s[n][i] * factor : -INFINITY;
        largest[i / 2] = fmaxf(largest[i / 2], s[n][i]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xFFFFFFFFu, largest[r], 1));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xFFFFFFFFu, largest[r], 2));
      const float scale = exp2f(largest_[r] - largest[r]);
      largest_[r] = largest[r];
      total_[r] *= scale;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) sums_[n][2 * r] *= scale, sums_[n][2 * r + 1] *= scale;
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2f(s[n][i] - largest[i / 2]);
        total_[i / 2] += s[n][i];
      }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const std::uint32_t a[4] = {pair_of(s[2 * k][0], s[2 * k][1]), pair_of(s[2 * k][2], s[2 * k][3]),
                                  pair_of(s[2 * k + 1][0], s[2 * k + 1][1]), pair_of(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        std::uint32_t b[4];
        load_transposed(b, values(buffer).address(k * 16 + matrix % 2 * 8 + in_matrix, n * 2 + matrix / 2));
        multiply(sums_[2 * n], a, b[0], b[1]);
        multiply(sums_[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = total_[r];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      const int row = warp_ * 16 + lane_ / 4 + r * 8;
      if (row >= tile_.rows) continue;
      const std::int64_t to = (std::int64_t{tile_.row + row} * shape_.heads + head_) * shape_.head_dim;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
        if (const int d = n * 8 + lane_ % 4 * 2; d < shape_.head_dim)
          store_pair(p_.out, p_.out_type, to + d, sums_[n][2 * r] / total, sums_[n][2 * r + 1] / total);
    }
  }

  const AttendProblem& p_;
  const HeadsShape& shape_;
  const AttendTile tile_;
  const int head_;
  const CacheView cache_;
  const Tile<kHeadDim> q_;
  const int lane_, warp_;
  std::int64_t key_row_, value_row_;
  int first_, end_;
  float sums_[kHeadDim / 8][4] = {}, largest_[2] = {kLowest, kLowest}, total_[2] = {};
};

template <CacheKind kKind, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kHeadDim <= 64 ? 2 : 1) attend_tiles(const __grid_constant__ AttendProblem p) {
  extern __shared__ __align__(128) __half memory[];
  begin_after_earlier_kernels();
  // The last tiles of a sequence have the most keys: they go first.
  const int tile = p.tile_count - 1 - static_cast<int>(blockIdx.x) / p.shape.heads, head = static_cast<int>(blockIdx.x) % p.shape.heads;
  TileAttention<kKind, kHeadDim>(p, memory, p.tiles[tile], head).run();
}

template <int kHeadDim>
int launch(const AttendProblem& problem, Stream stream) {
  constexpr int kBytes = (kTileRows + 4 * kKeys) * kHeadDim * 2;
  const auto run = [&](auto kernel) -> int {
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)) return error;
    return launch_chained(kernel, std::int64_t{problem.tile_count} * problem.shape.heads, kThreads, kBytes, 1, stream, problem);
  };
  switch (problem.shape.kind) {
    case CacheKind::kFp32: return run(attend_tiles<CacheKind::kFp32, kHeadDim>);
    case CacheKind::kFp16: return run(attend_tiles<CacheKind::kFp16, kHeadDim>);
    case CacheKind::kBf16: return run(attend_tiles<CacheKind::kBf16, kHeadDim>);
    case CacheKind::kE4m3: return run(attend_tiles<CacheKind::kE4m3, kHeadDim>);
    case CacheKind::kInt8: return run(attend_tiles<CacheKind::kInt8, kHeadDim>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int launch_attend_tiles(const AttendProblem& problem, Stream stream) {
  if (problem.shape.head_dim > kTileHeadDim || problem.q_type != DType::kF16) return cudaErrorInvalidValue;
  return problem.shape.head_dim <= 64 ? launch<64>(problem, stream) : launch<128>(problem, stream);
}

}  // namespace narrow::cuda
