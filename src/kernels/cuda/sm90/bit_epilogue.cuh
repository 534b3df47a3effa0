#pragma once
/// From popcounts in a warpgroup's registers to D: sums, scales, conversion, stores.

#include "kernels/cuda/product_finish.cuh"
#include "kernels/cuda/sm90/bit_tile.cuh"

namespace narrow::cuda::sm90 {

/// The bits of 1.5 * 2^23: an integer of magnitude up to 2^22 added to them gives the float that is that much larger.
constexpr int kBitsOfFloat = 0x4B400000;

/// What becomes of a thread's popcounts, of two rows and pairs of neighbouring columns. With the row's offset and 1.5 * 2^23 a popcount is
/// the bits of a float, from which k, the column's offset and 1.5 * 2^23 are taken again: one integer and one float operation, both exact.
///   value = float(4 popcount + offsets + k) * (scale_a * scale_b);   of int32 results the sum, as bits
template <DType kOut>
struct BitFinish {
  static constexpr bool kIntegers = kOut == DType::kI32;
  int offsets[2], minus;
  float scales[2];

  __device__ BitFinish(const BitTerm& upper, const BitTerm& lower, int k)
      : offsets{upper.offset + (kIntegers ? 0 : kBitsOfFloat), lower.offset + (kIntegers ? 0 : kBitsOfFloat)},
        minus((kIntegers ? 0 : static_cast<int>(0x80000000u | kBitsOfFloat)) - k),
        scales{upper.scale, lower.scale} {}

  /// Four popcounts, two of the upper and two of the lower row; `columns` is {offset, scale, offset, scale}.
  __device__ void finish(const int* popcounts, const int4& columns, float* v) const {
    const int less[2] = {minus - columns.x, minus - columns.z};
    const float column_scales[2] = {__int_as_float(columns.y), __int_as_float(columns.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, column = i % 2, moved = 4 * popcounts[i] + offsets[row];
      v[i] = kIntegers
                 ? __int_as_float(moved - less[column])
                 : __fmul_rn(__fadd_rn(__int_as_float(moved), __int_as_float(less[column])), __fmul_rn(scales[row], column_scales[column]));
    }
  }
};

/// copy_box_out of what will not be read again soon: the second-level cache lets it go before the operands.
__device__ inline void copy_box_out_once(const CUtensorMap& map, int column, int row, const void* from) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(
                   reinterpret_cast<std::uint64_t>(&map)),
               "r"(shared_address(from)), "r"(column), "r"(row), "l"(policy)
               : "memory");
}

/// A warp's part of a tile by tensor copies, box by box through the warp's staging memory, which the copy before may still be reading. The
/// terms of columns are read kAhead pairs before they are needed: the tensor cores keep shared memory busy.
template <class T, DType kOut>
__device__ inline void store_boxes(const BitParams& p, const CUtensorMap& d, const BitShared<T>& shared, int slot,
                                   const int (&popcounts)[T::kCount], int row, int column) {
  constexpr int kElementBytes = kOut == DType::kF16 || kOut == DType::kBf16 ? 2 : 4, kSums = 64 / kElementBytes, kAhead = 8;
  const int thread = thread_here(), lane = thread % 32, first = thread / 32 * 16;
  std::byte* const box = shared.staging + thread / 32 * T::kBoxBytes;
  const BitFinish<kOut> sums(shared.row_terms(slot)[first + lane / 4], shared.row_terms(slot)[first + lane / 4 + 8], p.k);
  const int4* const columns = reinterpret_cast<const int4*>(shared.column_terms(slot) + lane % 4 * 2);  // every fourth one
  int4 terms[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) terms[i] = columns[i * 4];
#pragma unroll
  for (int from = 0; from < T::kCount; from += kSums) {
    float v[kSums];
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const int pair = (from + i) / 4;
      sums.finish(popcounts + from + i, terms[pair % kAhead], v + i);
      if (pair + kAhead < T::kCount / 4) terms[pair % kAhead] = columns[(pair + kAhead) * 4];
    }
    if (lane == 0) wait_stores_read<0>();
    __syncwarp();
    fill_output_box<kElementBytes>(kOut == DType::kF16, v, box);
    fence_shared_for_copies();
    __syncwarp();
    if (lane == 0) {
      copy_box_out_once(d, column + from * 2, row + first, box);
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
  const int thread = thread_here(), lane = thread % 32, first = thread / 32 * 16;
  int* const values = reinterpret_cast<int*>(shared.staging + thread / 32 * T::kBoxBytes);  // [16][16]
#pragma unroll 1
  for (int part = 0; part < T::kCount / 8; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kCount; ++i)
      if (i / 8 == part) values[(lane / 4 + i / 2 % 2 * 8) * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2] = popcounts[i];
    __syncwarp();
    const int of_tile = part * 16 + lane % 16, c = column + of_tile;
    const BitTerm of_column = shared.column_terms(slot)[of_tile];
#pragma unroll 1
    for (int r = lane / 16; r < 16; r += 2) {
      const int d_row = row + first + r;
      if (d_row >= p.m || c >= p.n) continue;
      const BitTerm of_row = shared.row_terms(slot)[first + r];
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
