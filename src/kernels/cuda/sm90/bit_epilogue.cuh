#pragma once
/// From popcounts in a warpgroup's registers to D: sums, scales, conversion, stores.

#include "kernels/cuda/product_finish.cuh"
#include "kernels/cuda/sm90/bit_tile.cuh"

namespace narrow::cuda::sm90 {

/// 1.5 * 2^23: an integer of magnitude below 2^22 added to its bits gives the float that is that much larger.
constexpr float kFloatOfInteger = 12582912.0f;
constexpr int kBitsOfFloat = 0x4B400000;

/// The terms of a thread's columns of a box, two neighbours every eight: read well before they are needed, since the tensor cores keep
/// shared memory busy.
template <int kSums>
struct ColumnTerms {
  int4 two[kSums / 4];  ///< {offset, scale, offset, scale}

  __device__ void load(const BitTerm* columns, int column) {
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) two[i] = *reinterpret_cast<const int4*>(columns + column + i * 8);
  }
};

/// The values of kSums of a thread's popcounts (as bits of int32 where D is that), of two rows.
///   value = float(4 popcount + offsets + k) * (scale_a * scale_b)
template <int kSums>
__device__ inline void finish_bits(const BitParams& p, const BitTerm (&rows)[2], const ColumnTerms<kSums>& columns, const int* popcounts,
                                   float (&v)[kSums]) {
  const bool integers = p.epilogue.out == DType::kI32;
  const int base = p.k + (integers ? 0 : kBitsOfFloat), offset[2] = {rows[0].offset + base, rows[1].offset + base};
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int4& two = columns.two[i / 4];
    const int sum = 4 * popcounts[i] + (offset[i / 2 % 2] + (i % 2 == 0 ? two.x : two.z));
    const float scale = __fmul_rn(rows[i / 2 % 2].scale, __int_as_float(i % 2 == 0 ? two.y : two.w));
    v[i] = integers ? __int_as_float(sum) : __fmul_rn(__fadd_rn(__int_as_float(sum), -kFloatOfInteger), scale);
  }
}

/// Where a warp's 16 rows and its warpgroup's columns begin in the tile.
template <class T>
__device__ inline int2 place_in_tile(int thread) {
  const int group = thread / 128;
  return {group % T::kGroupsM * 64 + thread % 128 / 32 * 16, group / T::kGroupsM * T::kGroupN};
}

/// A warp's part of a tile by tensor copies, box by box through the warp's staging memory, which the copy before may still be reading.
template <class T, int kElementBytes>
__device__ inline void store_boxes(const BitParams& p, const CUtensorMap& d, const BitShared<T>& shared, int slot,
                                   const int (&popcounts)[T::kCount], int row, int column) {
  constexpr int kSums = T::kBoxRowBytes / 2 / kElementBytes;
  const int thread = thread_here(), lane = thread % 32;
  const int2 inside = place_in_tile<T>(thread);
  std::byte* const box = shared.staging + thread / 32 * T::kBoxBytes;
  const BitTerm rows[2] = {shared.row_terms(slot)[inside.x + lane / 4], shared.row_terms(slot)[inside.x + lane / 4 + 8]};
  const BitTerm* const columns = shared.column_terms(slot) + inside.y + lane % 4 * 2;
  ColumnTerms<kSums> terms[2];
  terms[0].load(columns, 0);
#pragma unroll
  for (int from = 0; from < T::kCount; from += kSums) {
    if (from + kSums < T::kCount) terms[(from / kSums + 1) % 2].load(columns, (from + kSums) * 2);
    if (lane == 0) wait_stores_read<0>();
    __syncwarp();
    float v[kSums];
    finish_bits(p, rows, terms[from / kSums % 2], popcounts + from, v);
    fill_output_box<kElementBytes>(p.epilogue.out == DType::kF16, v, box);
    fence_shared_for_copies();
    __syncwarp();
    if (lane == 0) {
      copy_box_out(d, column + inside.y + from * 2, row + inside.x, box);
      commit_stores();
    }
  }
}

/// Any epilogue and alignment: popcounts through the warp's shared memory, then rows of 16 columns. The parts are a loop, so that its code
/// is there once.
template <class T>
__device__ inline void store_bits_any(const BitParams& p, const BitShared<T>& shared, int slot, const int (&popcounts)[T::kCount], int row,
                                      int column) {
  static_assert(T::kBoxBytes >= 16 * 16 * 4);
  const int thread = thread_here(), lane = thread % 32;
  const int2 inside = place_in_tile<T>(thread);
  int* const values = reinterpret_cast<int*>(shared.staging + thread / 32 * T::kBoxBytes);  // [16][16]
#pragma unroll 1
  for (int part = 0; part < T::kCount / 8; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kCount; ++i)
      if (i / 8 == part) values[(lane / 4 + i / 2 % 2 * 8) * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2] = popcounts[i];
    __syncwarp();
    const int of_tile = inside.y + part * 16 + lane % 16, c = column + of_tile;
    const BitTerm of_column = shared.column_terms(slot)[of_tile];
#pragma unroll 1
    for (int r = lane / 16; r < 16; r += 2) {
      const int d_row = row + inside.x + r;
      if (d_row >= p.m || c >= p.n) continue;
      const BitTerm of_row = shared.row_terms(slot)[inside.x + r];
      const int sum = 4 * values[r * 16 + lane % 16] + of_row.offset + of_column.offset + p.k;
      const std::int64_t at = d_row * p.pitch + c;
      if (p.epilogue.out == DType::kI32)
        static_cast<int*>(p.d)[at] = sum;
      else
        finish_product(p.epilogue, p.d, __fmul_rn(__int2float_rn(sum), __fmul_rn(of_row.scale, of_column.scale)), d_row, c, p.n, at);
    }
  }
  __syncwarp();
}

}  // namespace narrow::cuda::sm90
