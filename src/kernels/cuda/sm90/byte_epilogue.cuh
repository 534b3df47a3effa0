#pragma once
/// From sums in a warpgroup's registers to the output: zero points, scales, bias, activation, residual, conversion, stores.

#include <bit>

#include "kernels/cuda/byte_finish.cuh"
#include "kernels/cuda/divide.cuh"
#include "kernels/cuda/sm90/ptx.cuh"

namespace narrow::cuda::sm90 {

struct ByteOutput {
  ByteEpilogue epilogue;
  float inverse, inverse_rest;  ///< 1 / out_scale, and what is left of it, both rounded to nearest
  ByteOuter outer;              ///< of outer scales; of swapped operands a and b are exchanged
  void* d;
  std::int64_t pitch, residual_pitch;
  int n;                 ///< columns of D
  bool rows_end_with_d;  ///< no group's last rows are followed by another's
  bool boxed;            ///< boxes of 16 rows x 128 bytes of D leave by tensor copies; no residual, no activation but relu
  bool plain;            ///< boxed, and no bias, activation or zero points
  bool shifted;          ///< of integers: boxed, with a bias or zero points of A, and neither zero points of B nor an activation
  bool storer;           ///< the stores of whole tiles are started by a thread of its own: where thread blocks have several tiles
  bool col32;            ///< D lies in stripes of 32 columns
  bool exchanged;        ///< of A in stripes: its rows lie exchanged in shared memory (FragmentRows)
  std::int64_t d_rows;   ///< of col32
};

/// The place of an element in D.
__device__ inline std::int64_t place_in_d(const ByteOutput& out, std::int64_t row, int column) {
  return out.col32 ? (column / 32 * out.d_rows + row) * 32 + column % 32 : row * out.pitch + column;
}

/// One sum to its place; a and b are the rows of A and B that its scales belong to.
template <bool kOuter, class Sum>
__device__ inline void store_sum(const ByteOutput& out, Sum sum, std::int64_t row, int column, std::int64_t a, std::int64_t b) {
  const std::int64_t at = place_in_d(out, row, column), residual_at = row * out.residual_pitch + column;
  if constexpr (std::is_same_v<Sum, int>) {
    store_integer(out.epilogue, out.outer, out.d, sum, a, b, column, at, residual_at);
  } else {
    const float v = kOuter ? __fmul_rn(sum, outer_scale(out.outer, a, b)) : sum;
    store_converted(out.epilogue, out.d, finish_value(out.epilogue, out.d, v, column, at, residual_at), at);
  }
}

/// What a tile's end does: the common one in straight code, without jumps over what it does not do.
enum class Ending : std::uint8_t {
  kPlain,  ///< ByteOutput::plain
  kAny,
};

/// What the epilogue of a warpgroup's part of a tile, kRows x kColumns, needs of its rows and columns, in shared memory: copied there while
/// the products run. Of ByteOutput::shifted a missing bias is -0 and missing zero points are 0.
template <int kRows, int kColumns, bool kOuter, bool kInteger>
struct TileTerms {
  float bias[kColumns];
  float row_scale[kOuter ? kRows : 1], scale[kOuter ? kColumns : 1];
  int row_zero[kInteger ? kRows : 1], row_sum[kInteger ? kRows : 1], zero[kInteger ? kColumns : 1], sum[kInteger ? kColumns : 1];

  /// Starts the copies, by the 128 threads of a warpgroup. The part begins at `column` of D, row `a` of A (`rows` of them exist) and row
  /// `b` of B.
  __device__ void start(const ByteOutput& out, int thread, int column, std::int64_t a, int rows, std::int64_t b) {
    const ByteOuter& o = out.outer;
    for (int i = thread; i < kColumns; i += 128) {
      const int c = min(i, out.n - 1 - column);
      if (c < 0) break;
      if (out.epilogue.bias != nullptr)
        copy_word(bias + i, out.epilogue.bias + column + c);
      else if (kInteger && out.shifted)
        bias[i] = -0.0f;
      if constexpr (kOuter) copy_word(scale + i, o.b_scales + (b + c) * o.b_step);
      if (kInteger && o.b_zeros != nullptr) copy_word(zero + i, o.b_zeros + (b + c) * o.b_step);
      if (kInteger && o.a_zeros != nullptr)
        copy_word(sum + i, o.b_sums + b + c);
      else if (kInteger && out.shifted)
        sum[i] = 0;
    }
    for (int i = thread; kOuter && i < min(kRows, rows); i += 128) {
      copy_word(row_scale + i, o.a_scales + (a + i) * o.a_step);
      if (kInteger && o.a_zeros != nullptr)
        copy_word(row_zero + i, o.a_zeros + (a + i) * o.a_step);
      else if (kInteger && out.shifted)
        row_zero[i] = 0;
      if (kInteger && o.b_zeros != nullptr) copy_word(row_sum + i, o.a_sums + a + i);
    }
  }

  /// Whether the scales that this thread copied are at most 2^40, so that no sum times two of them is above 2^111 (or NaN).
  __device__ bool are_moderate(const ByteOutput& out, int thread, int column, int rows) const {
    bool moderate = true;
    for (int i = thread; i < min(kColumns, out.n - column); i += 128) moderate = moderate && fabsf(scale[i]) <= 0x1p40f;
    for (int i = thread; i < min(kRows, rows); i += 128) moderate = moderate && fabsf(row_scale[i]) <= 0x1p40f;
    return moderate;
  }
};

/// Which of a warp's 16 rows the fragments have as row + 8 * half, row < 8. Where A's stripes were copied in lines of four rows
/// (ByteOutput::exchanged), the fragments' row i is A's row i ^ (i / 8 % 4).
template <bool kMayExchange>
struct FragmentRows {
  int base = 0, mask = 0;

  __device__ explicit FragmentRows(bool exchanged) {
    if (kMayExchange && exchanged) base = thread_here() / 32 % 2 * 2, mask = 1;
  }
  __device__ int operator()(int row, int half) const { return (kMayExchange ? row ^ (base + (half & mask)) : row) + half * 8; }
};

/// The values of kSums of a thread's sums (as bits of int32 where D is that): rows `rows` of the warpgroup's part, columns from `column`
/// on, two neighbours every eight. kRaw: of int32, without scales.
template <bool kRaw, Ending kEnding, int kSums, class Sum, int kRows, int kColumns, bool kOuter, bool kInteger>
__device__ inline void finish_sums(const ByteOutput& out, const TileTerms<kRows, kColumns, kOuter, kInteger>& terms, const Sum* sums,
                                   float (&v)[kSums], const int (&rows)[2], int column) {
  const auto two = [&](const auto* values, int i) {
    return *reinterpret_cast<const int2*>(values + column + i * 2);
  };  // of sums i .. i + 3
  if constexpr (kInteger) {
    int t[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) t[i] = sums[i];
    const ByteOuter& o = out.outer;
    const bool has_zeros = kEnding == Ending::kAny && o.a_zeros != nullptr;
    const int zero[2] = {has_zeros ? terms.row_zero[rows[0]] : 0, has_zeros ? terms.row_zero[rows[1]] : 0};
    if (has_zeros) {
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const int2 sum = two(terms.sum, i);
#pragma unroll
        for (int j = 0; j < 4; ++j) t[i + j] -= zero[j / 2] * (j % 2 == 0 ? sum.x : sum.y);
      }
    }
    if (kEnding == Ending::kAny && o.b_zeros != nullptr) {
      const int rest[2] = {terms.row_sum[rows[0]] - o.k * zero[0], terms.row_sum[rows[1]] - o.k * zero[1]};
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const int2 other = two(terms.zero, i);
#pragma unroll
        for (int j = 0; j < 4; ++j) t[i + j] -= rest[j / 2] * (j % 2 == 0 ? other.x : other.y);
      }
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] = kRaw ? __int_as_float(t[i]) : __int2float_rn(t[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] = sums[i];
  }
  if constexpr (kOuter && !kRaw) {
    const float of_row[2] = {terms.row_scale[rows[0]], terms.row_scale[rows[1]]};
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const int2 scale = two(terms.scale, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i + j] = __fmul_rn(v[i + j], __fmul_rn(of_row[j / 2], __int_as_float(j % 2 == 0 ? scale.x : scale.y)));
    }
  }
  if (kEnding == Ending::kAny && !kRaw && out.epilogue.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const int2 bias = two(terms.bias, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i + j] = __fadd_rn(v[i + j], __int_as_float(j % 2 == 0 ? bias.x : bias.y));
    }
  }
  if (kEnding == Ending::kAny && !kRaw && out.epilogue.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] = fmaxf(v[i], 0.0f);
  }
}

/// Bytes of shared memory in which one warp puts a box: 16 rows x 128 bytes.
constexpr int kStagingBytes = 16 * 128;

/// The place of byte `byte` of row `r` of a box: chunks of 16 bytes are exchanged so that eight rows touch all banks.
__device__ inline std::uint32_t place_in_box(const std::byte* staging, int r, int byte) {
  return shared_address(staging) + r * 128 + (byte ^ (r % 8 * 16));
}

__device__ inline std::uint32_t pack16(bool half, float low, float high) {
  std::uint32_t result;
  if (half)
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

__device__ inline bool is_16_bit(DType type) { return type == DType::kBf16 || type == DType::kF16; }

/// 16 rows x kSums * 2 columns of 16-bit values: fp16 or bf16.
template <bool kHalf, int kSums, class Rows>
__device__ inline void stage_16_bit(const float (&v)[kSums], const Rows& rows, std::byte* staging) {
  const int lane = thread_here() % 32, r = rows(lane % 8, lane / 8 % 2);
#pragma unroll
  for (int q = 0; q < kSums / 8; ++q) {
    const float* s = v + q * 8;
    store_matrices(place_in_box(staging, r, q * 32 + lane / 16 * 16), pack16(kHalf, s[0], s[1]), pack16(kHalf, s[2], s[3]),
                   pack16(kHalf, s[4], s[5]), pack16(kHalf, s[6], s[7]));
  }
  if constexpr (kSums % 8 == 4) {  // eight columns more
    const float* s = v + kSums - 4;
    store_two_matrices(place_in_box(staging, r, kSums * 4 - 16), pack16(kHalf, s[0], s[1]), pack16(kHalf, s[2], s[3]));
  }
}

/// 16 rows x kSums * 2 columns of fp32 or int32. kInTwos: stores of two values tie neighbouring sums to pairs of registers. Where sums are
/// promoted that must not be: sum and accumulator would lie in the same bank, and every fma of the main loop wait for its operands.
template <bool kInTwos, int kSums, class Rows>
__device__ inline void stage_32_bit(const float (&v)[kSums], const Rows& rows, std::byte* staging) {
  const int lane = thread_here() % 32;
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i) {
    const std::uint32_t place = place_in_box(staging, rows(lane / 4, i % 2), i / 2 * 32 + lane % 4 * 8);
    if constexpr (kInTwos) {
      store_shared(place, v[i * 2], v[i * 2 + 1]);
    } else {
      store_shared(place, v[i * 2]);
      store_shared(place + 4, v[i * 2 + 1]);
    }
  }
}

/// v / divisor of any v, of which a code will be made: beyond the division's range the codes are the ends' all the same; of NaN int8 has 0.
__device__ inline float divide_any(const Divisor& divisor, float v) {
  return divide<DType::kF32>(v != v ? 0.0f : fminf(fmaxf(v, -0x1p80f), 0x1p80f), divisor);
}

/// Two values, neither NaN, to the nearest integers from -127 to 127, plus 128, one byte each, below `above`. 128 is added in units of
/// 2^-149, the last place of every result below 2^24 units: so the fma rounds to an integer, ties to even, which the result's bits are. (A
/// conversion takes a scheduler eight cycles.) Where the sum is negative, it is so as bits too.
__device__ inline std::uint32_t pack_int8_and_128(float low, float high, std::uint32_t above = 0) {
  const int a = max(__float_as_int(__fmaf_rn(low, 0x1p-149f, 0x1p-142f)), 1),
            b = max(__float_as_int(__fmaf_rn(high, 0x1p-149f, 0x1p-142f)), 1);
  std::uint32_t result;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(b), "r"(a), "r"(above));
  return result;
}

/// The same of one byte: the codes of v / out_scale, which is between 2^-40 and 2^40.
template <int kSums, class Rows>
__device__ inline void stage_8_bit(const ByteOutput& out, float (&v)[kSums], const Rows& rows, std::byte* staging) {
  const int lane = thread_here() % 32;
  const Divisor divisor = make_divisor(out.epilogue.out_scale);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(v[i])));
  if (!(largest <= 0x1p80f)) {  // beyond the division's range: the codes are the ends' all the same; of NaN int8 has 0
    const bool has_nan = out.epilogue.out != DType::kI8;
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] = v[i] != v[i] ? (has_nan ? v[i] : 0.0f) : fminf(fmaxf(v[i], -0x1p80f), 0x1p80f);
  }
#pragma unroll
  for (int i = 0; i < kSums / 2; ++i) {
    const float2 q = {divide<DType::kF32>(v[2 * i], divisor), divide<DType::kF32>(v[2 * i + 1], divisor)};
    std::uint32_t codes;
    if (out.epilogue.out == DType::kI8)
      codes = pack_int8_and_128(q.x, q.y) ^ 0x8080u;
    else
      codes = __nv_cvt_float2_to_fp8x2(q, __NV_SATFINITE, out.epilogue.out == DType::kF8E4m3 ? __NV_E4M3 : __NV_E5M2);
    store_shared(place_in_box(staging, rows(lane / 4, i % 2), i / 2 * 8 + lane % 4 * 2), static_cast<std::uint16_t>(codes));
  }
}

/// The first `rows` rows of a staged box of kColumns columns to D by ordinary stores, 16 bytes of a lane at a time: of a D in stripes, and
/// where the other rows belong to the next group.
template <int kElementBytes, int kColumns>
__device__ inline void store_box(const ByteOutput& out, std::int64_t row, int rows, int column, const std::byte* staging) {
  constexpr int kChunks = kElementBytes * kColumns / 16, kRowsAtOnce = std::bit_floor(32u / kChunks);
  const int lane = thread_here() % 32, c = column + lane % kChunks * (16 / kElementBytes);
  std::byte* const to = static_cast<std::byte*>(out.d) + place_in_d(out, row + lane / kChunks, c) * kElementBytes;
  if (kRowsAtOnce * kChunks < 32 && lane >= kRowsAtOnce * kChunks) return;
  const std::int64_t step = kRowsAtOnce * (out.col32 ? 32 : out.pitch) * kElementBytes;
  uint4 words[16 / kRowsAtOnce];
#pragma unroll
  for (int i = 0; i < 16 / kRowsAtOnce; ++i) {
    const int r = lane / kChunks + i * kRowsAtOnce;
    words[i] = *reinterpret_cast<const uint4*>(staging + r * 128 + ((lane % kChunks) ^ (r % 8)) * 16);
  }
#pragma unroll
  for (int i = 0; i < 16 / kRowsAtOnce; ++i)
    if (lane / kChunks + i * kRowsAtOnce < rows && c < out.n) *reinterpret_cast<uint4*>(to + i * step) = words[i];
}

/// Where the sums of a warp go: row `row` of D and on (`rows` of them exist), scales of rows from `a` on and of columns from `b` on.
struct StripPlace {
  std::int64_t row;
  int rows, column;
  std::int64_t a, b;
};

/// Any epilogue: sums through the warp's shared memory, then a row of 32 columns at a time. The parts are a loop, so that its code is there
/// once.
template <bool kOuter, int kCount, class Sum, class Rows>
__device__ inline void store_any(const ByteOutput& out, const Sum (&sums)[kCount], const StripPlace& place, const Rows& rows,
                                 std::byte* staging) {
  const int lane = thread_here() % 32;
  Sum* values = reinterpret_cast<Sum*>(staging);  // [16][32], columns exchanged against bank conflicts
#pragma unroll 1
  for (int part = 0; part < (kCount + 15) / 16; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = rows(lane / 4, i / 2 % 2), c = i / 4 % 4 * 8 + lane % 4 * 2 + i % 2;
      if (i / 16 == part) values[r * 32 + (c ^ (r % 8 * 4))] = sums[i];
    }
    __syncwarp();
    const int c = part * 32 + lane;
#pragma unroll 1
    for (int r = 0; r < min(place.rows, 16); ++r)
      if (c < kCount * 2 && place.column + c < out.n)
        store_sum<kOuter>(out, values[r * 32 + (lane ^ (r % 8 * 4))], place.row + r, place.column + c, place.a + r,
                          place.b + place.column + c);
  }
}

/// The sums of a product with swapped operands: one warp's 16 columns of D from `first` on (`real` of them exist), rows from `row` on.
/// Here out.n counts the rows of D.
template <bool kOuter, int kCount, class Sum>
__device__ inline void store_transposed(const ByteOutput& out, const Sum (&sums)[kCount], int first, int real, int row,
                                        std::byte* staging) {
  constexpr int kPart = kCount < 16 ? kCount : 16;  // sums of a thread at a time: at most 32 rows of D
  Sum* values = reinterpret_cast<Sum*>(staging);    // [row of D][16]
  const int lane = thread_here() % 32;
  constexpr bool kQuickOuter = kOuter && std::is_same_v<Sum, int>;
  [[maybe_unused]] const Divisor divisor = make_divisor(out.epilogue.out_scale);
  [[maybe_unused]] float of_columns[2] = {}, of_rows[kCount / 2] = {};  // scales of plain results, asked for all at once
  if constexpr (kQuickOuter) {
    const ByteOuter& o = out.outer;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (lane % 8 * 2 + j < real) of_columns[j] = __ldg(o.a_scales + (first + lane % 8 * 2 + j) * o.a_step);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      if (const int r = row + i * 4 + lane / 8; r < out.n) of_rows[i] = __ldg(o.b_scales + r * o.b_step);
  }
#pragma unroll
  for (int part = 0; part < kCount / kPart; ++part) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPart; ++i) values[(i / 4 * 8 + lane % 4 * 2 + i % 2) * 16 + lane / 4 + i / 2 % 2 * 8] = sums[part * kPart + i];
    __syncwarp();
    if (out.plain && (kQuickOuter || !kOuter) &&
        (is_16_bit(out.epilogue.out) || (kQuickOuter && out.epilogue.out == DType::kI8))) {  // neighbours in D's rows; n is even
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) {
        const int r = row + part * kPart * 2 + i * 4 + lane / 8, c = lane % 8 * 2;
        const Sum* two = values + (i * 4 + lane / 8) * 16 + c;
        float v[2] = {static_cast<float>(two[0]), static_cast<float>(two[1])};
        if constexpr (kQuickOuter)
          for (int j = 0; j < 2; ++j) v[j] = __fmul_rn(v[j], __fmul_rn(of_columns[j], of_rows[part * (kPart / 2) + i]));
        if (r >= out.n || c >= real) continue;
        const std::int64_t at = r * out.pitch + first + c;
        if (is_16_bit(out.epilogue.out))
          *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(out.d) + at) = pack16(out.epilogue.out == DType::kF16, v[0], v[1]);
        else if constexpr (kQuickOuter)
          *reinterpret_cast<std::uint16_t*>(static_cast<std::uint8_t*>(out.d) + at) =
              static_cast<std::uint16_t>(pack_int8_and_128(divide_any(divisor, v[0]), divide_any(divisor, v[1])) ^ 0x8080u);
      }
      continue;
    }
#pragma unroll 1
    for (int i = lane / 16; i < kPart * 2; i += 2) {
      const int r = row + part * kPart * 2 + i, c = first + lane % 16;
      if (r < out.n && lane % 16 < real) store_sum<kOuter>(out, values[i * 16 + lane % 16], r, c, c, r);
    }
  }
}

}  // namespace narrow::cuda::sm90
