#pragma once
/// From popcounts in a warpgroup's registers to D: sums, scales, conversion, stores.

#include "kernels/cuda/product_finish.cuh"
#include "kernels/cuda/sm90/bit_tile.cuh"

namespace narrow::cuda::sm90 {

/// 1.5 * 2^23: an integer of magnitude below 2^22 added to its bits gives the float that is that much larger.
constexpr float kFloatOfInteger = 12582912.0f;
constexpr int kBitsOfFloat = 0x4B400000;

/// The terms of a thread's columns of a box, two neighbours every eight: read well before they are needed, since the tensor cores keep shared
/// memory busy.
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

/// A warp's part of a tile by tensor copies, box by box (`boxes` so far) through the warp's staging memory, which earlier copies may still
/// be reading.
template <class T, int kElementBytes>
__device__ inline void store_boxes(const BitParams& p, const CUtensorMap& d, const BitShared<T>& shared, int slot,
                                   const int (&popcounts)[T::kCount], int row, int column, unsigned& boxes) {
  constexpr int kSums = 64 / kElementBytes;
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32;
  std::byte* const staging = shared.staging + warp * T::kBoxes * kOutputBoxBytes;
  const BitTerm rows[2] = {shared.row_terms(slot)[warp * 16 + lane / 4], shared.row_terms(slot)[warp * 16 + lane / 4 + 8]};
  const BitTerm* const columns = shared.column_terms(slot) + lane % 4 * 2;
  ColumnTerms<kSums> terms[2];
  terms[0].load(columns, 0);
#pragma unroll
  for (int from = 0; from < T::kCount; from += kSums) {
    std::byte* const box = staging + boxes++ % T::kBoxes * kOutputBoxBytes;
    if (from + kSums < T::kCount) terms[(from / kSums + 1) % 2].load(columns, (from + kSums) * 2);
    if (lane == 0) wait_stores_read<T::kBoxes - 1>();
    __syncwarp();
    float v[kSums];
    finish_bits(p, rows, terms[from / kSums % 2], popcounts + from, v);
    fill_output_box<kElementBytes>(p.epilogue.out == DType::kF16, v, box);
    fence_shared_for_copies();
    __syncwarp();
    if (lane == 0) {
      copy_box_out(d, column + from * 2, row + warp * 16, box);
      commit_stores();
    }
  }
}

/// Any epilogue and alignment: popcounts through the warp's shared memory, then a row of 32 columns at a time. The parts are a loop, so that
/// its code is there once.
template <class T>
__device__ inline void store_bits_any(const BitParams& p, const BitShared<T>& shared, int slot, const int (&popcounts)[T::kCount], int row,
                                      int column) {
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32;
  int* const values = reinterpret_cast<int*>(shared.staging + warp * T::kBoxes * kOutputBoxBytes);  // [16][32], columns exchanged
#pragma unroll 1
  for (int part = 0; part < T::kCount / 16; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kCount; ++i) {
      const int r = lane / 4 + i / 2 % 2 * 8, c = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
      if (i / 16 == part) values[r * 32 + (c ^ (r % 8 * 4))] = popcounts[i];
    }
    __syncwarp();
    const int inside = part * 32 + lane, c = column + inside;
    const BitTerm of_column = shared.column_terms(slot)[inside];
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int d_row = row + warp * 16 + r;
      if (d_row >= p.m || c >= p.n) continue;
      const BitTerm of_row = shared.row_terms(slot)[warp * 16 + r];
      const int sum = 4 * values[r * 32 + (lane ^ (r % 8 * 4))] + of_row.offset + of_column.offset + p.k;
      const std::int64_t at = d_row * p.pitch + c;
      if (p.epilogue.out == DType::kI32) {
        static_cast<int*>(p.d)[at] = sum;
      } else {
        const float v = __fmul_rn(__int2float_rn(sum), __fmul_rn(of_row.scale, of_column.scale));
        finish_product(p.epilogue, p.d, v, d_row, c, p.n, at);
      }
    }
  }
  __syncwarp();
}

}  // namespace narrow::cuda::sm90
