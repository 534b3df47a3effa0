#pragma once
/// Results of integers from registers to D, without shared memory in between.
///
/// wgmma gives a thread, t = lane % 4, two neighbouring columns, 2t and 2t + 1, of every eight. Which rows of B these are is for its copies
/// to say: of a block of 8 * kSpan rows, row kSpan * p + i is copied to place 8 * i + p, by a tensor map that takes them for a matrix of 8
/// x kSpan and walks through its columns. Column 8 * i + p of the product is then column kSpan * p + i of D, and a thread has the 2 * kSpan
/// neighbours from 2 * kSpan * t on: 16 bytes of D, four threads 64 bytes of a row.
///
/// A tile of 176 or 240 columns is no multiple of 32: its whole blocks begin where D's do, 16 columns later in every other tile, and the
/// 16 columns before or behind them are a block of half the span, the tile's last in shared memory.

#include "kernels/cuda/sm90/byte_multiply.cuh"
#include "kernels/cuda/sm90/output_box.cuh"

namespace narrow::cuda::sm90 {

/// The results that a kernel is compiled for. The code of all others would take the main loop's registers, and keep the compiler from
/// seeing that a warp's threads stay together, so that descriptors would not be counted in uniform registers: of promoted tiles a seventh
/// more time.
enum class Results : std::uint8_t {
  kAny,
  kPlain,    ///< 16 bits, ByteOutput::plain
  kShifted,  ///< 16 bits, ByteOutput::shifted
  kBytes,    ///< int8, plain
  kSums,     ///< int32, plain
};

/// How many neighbours in D every second column of a thread has: of large tiles of integers, whose columns come in blocks of 8 * span.
constexpr int span_of(int element_bytes, int tile_n) { return element_bytes == 4 ? 2 : element_bytes == 2 || tile_n % 64 != 0 ? 4 : 8; }

/// Tiles whose common results have kernels that store directly.
template <class T>
constexpr bool kHasDirect = T::kPair == BytePair::kS8S8 && (T::kPingPong || T::kLone);

template <class T, Results kResults>
struct DirectOf {
  /// Plain results of 128x128 go through shared memory, as the other warp group's products hide it: 6 % less for a norm with its product.
  static constexpr bool kStaged =
      kResults == Results::kAny || (kResults == Results::kPlain && T::kPingPong && T::kTileN == 128 && !T::kCol32);
  static constexpr bool kOn = kHasDirect<T> && !kStaged;
  static constexpr int kElementBytes = kResults == Results::kBytes ? 1 : kResults == Results::kSums ? 4 : 2;
  static constexpr int kSpan = span_of(kElementBytes, T::kTileN), kColumns = 8 * kSpan;
  static constexpr int kBlocks = T::kTileN / kColumns, kRest = T::kTileN % kColumns;
  static_assert(kRest == 0 || (kRest == 16 && kColumns == 32));
};

/// A box of a tensor of four dimensions, from (column, 0, 0, block) on.
__device__ inline void copy_block(void* to, const CUtensorMap& map, int column, int block, Barrier& barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %4, %5}], [%2];" ::"r"(
                   shared_address(to)),
               "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier.address()), "r"(column), "r"(0), "r"(block)
               : "memory");
}

/// The rows of B from `row` on, columns from `column` on, to a stage of the ring.
template <class Direct>
__device__ void copy_spread(std::byte* to, const CUtensorMap& b, const CUtensorMap& rest, int column, int row, Barrier& full) {
  const int before = Direct::kRest > 0 ? row % Direct::kColumns : 0;
  copy_block(to, b, column, (row + before) / Direct::kColumns, full);
  if constexpr (Direct::kRest > 0)
    copy_block(to + Direct::kBlocks * Direct::kColumns * 128, rest, column,
               (before > 0 ? row : row + Direct::kBlocks * Direct::kColumns) / Direct::kRest, full);
}

__device__ inline void store_words(void* to, const std::uint32_t (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
}
__device__ inline void store_words(void* to, const std::uint32_t (&w)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]));
}
__device__ inline void store_words(void* to, const std::uint32_t (&w)[1]) { asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(w[0])); }

/// v / out_scale, where |v| <= 2^111: the division in two operations gives every code (tests/format/division_test.cc,
/// TwoOperationsNeverMoveACode); what overflows in it has the code of an end.
__device__ inline float divide_moderate(const ByteOutput& out, float v) {
  return __fmaf_rn(v, out.inverse, __fmul_rn(v, out.inverse_rest));
}
/// kCount terms of neighbouring columns.
template <int kCount, class Term>
__device__ inline void load_terms(const Term* from, Term (&to)[kCount]) {
  static_assert(sizeof(Term) == 4);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) *reinterpret_cast<int4*>(to + i) = *reinterpret_cast<const int4*>(from + i);
}

/// Where a thread's sums of a tile go, and what belongs to their rows: known before the sums are.
template <class T, Results kResults>
struct SumPlaces {
  using Direct = DirectOf<T, kResults>;
  static constexpr bool kStripes = T::kCol32;  ///< of D too

  int before;  ///< columns of the part in front of its whole blocks
  int row[T::kStrips][2], minus_zero[T::kStrips][2];
  float row_scale[T::kStrips][2];
  std::byte* at[T::kStrips][2];  ///< the first block's; of stripes its row's

  __device__ void set(const ByteOutput& out, const typename T::Terms& terms, const StripPlace& part) {
    const unsigned here = static_cast<unsigned>(thread_here());  // whose parts take fewer instructions than those of a signed one
    const int lane = static_cast<int>(here % 32), warp = static_cast<int>(here % 128 / 32);
    const FragmentRows<T::kCol32> rows_of(out.exchanged);
    before = Direct::kRest > 0 ? part.column % Direct::kColumns : 0;
    const int column = kStripes ? 0 : part.column + before + lane % 4 * 2 * Direct::kSpan;
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = strip * 64 + warp * 16 + rows_of(lane / 4, half);
        row[strip][half] = r;
        if constexpr (kResults != Results::kSums) row_scale[strip][half] = terms.row_scale[r];
        if constexpr (kResults == Results::kShifted) minus_zero[strip][half] = -terms.row_zero[r];
        std::byte* to = static_cast<std::byte*>(out.d) + ((part.row + r) * (kStripes ? 32 : out.pitch) + column) * Direct::kElementBytes;
        asm volatile("" : "+l"(to));  // added up here, not at every store
        at[strip][half] = to;
      }
  }
};

/// Puts a thread's sums of a tile into D. kModerate: of bytes, TileTerms::are_moderate.
template <class T, Results kResults, DType kOut, bool kModerate>
struct SumsToD {
  using Direct = DirectOf<T, kResults>;
  using Places = SumPlaces<T, kResults>;
  static constexpr int kBytes = Direct::kElementBytes;
  static constexpr bool kScaled = kResults != Results::kSums, kShifted = kResults == Results::kShifted;

  const ByteOutput& out;
  const typename T::Terms& terms;
  const StripPlace& part;
  const Places& places;
  Divisor divisor;

  __device__ SumsToD(const ByteOutput& output, const typename T::Terms& its_terms, const StripPlace& place, const Places& its_places)
      : out(output), terms(its_terms), part(place), places(its_places), divisor(make_divisor(output.epilogue.out_scale)) {}

  /// The block of 8 * kSpan columns from `column` behind the first whole block on, a thread's sums from `first` on.
  template <int kSpan>
  __device__ void put(const ByteSums<T>& sums, int column, int first) const {
    constexpr int kCount = 2 * kSpan;
    const int from = places.before + column + thread_here() % 4 * kCount, in_d = part.column + from;
    const std::int64_t offset =
        Places::kStripes ? (in_d / 32 * (out.d_rows * 32) + in_d % 32) * kBytes
                         : std::int64_t{column + (kSpan == Direct::kSpan ? 0 : thread_here() % 4 * (kCount - 2 * Direct::kSpan))} * kBytes;
    alignas(16) float scale[kCount], bias[kCount];
    alignas(16) int sum[kCount];
    if constexpr (kScaled) load_terms(terms.scale + from, scale);
    if constexpr (kShifted) {
      load_terms(terms.bias + from, bias);
      load_terms(terms.sum + from, sum);
    }
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int s[kCount];
        float v[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          s[i] = sums[strip][first + i % kSpan * 4 + half * 2 + i / kSpan];
          if constexpr (kShifted) s[i] += places.minus_zero[strip][half] * sum[i];
          if constexpr (kScaled) v[i] = __fmul_rn(__int2float_rn(s[i]), __fmul_rn(places.row_scale[strip][half], scale[i]));
          if constexpr (kShifted) v[i] = __fadd_rn(v[i], bias[i]);
          if constexpr (kBytes == 1) v[i] = kModerate ? divide_moderate(out, v[i]) : divide_any(divisor, v[i]);
        }
        std::uint32_t words[kCount * kBytes / 4];
#pragma unroll
        for (int i = 0; i < kCount * kBytes / 4; ++i) {
          if constexpr (kBytes == 4)
            words[i] = static_cast<std::uint32_t>(s[i]);
          else if constexpr (kBytes == 2)
            words[i] = pack_two(kOut == DType::kF16, v[2 * i], v[2 * i + 1]);
          else
            words[i] = pack_int8_and_128(v[4 * i], v[4 * i + 1], pack_int8_and_128(v[4 * i + 2], v[4 * i + 3])) ^ 0x80808080u;
        }
        if (places.row[strip][half] < part.rows && part.column + places.before + column < out.n)
          store_words(places.at[strip][half] + offset, words);
      }
  }

  __device__ void put_all(const ByteSums<T>& sums) const {
#pragma unroll
    for (int block = 0; block < Direct::kBlocks; ++block) put<Direct::kSpan>(sums, block * Direct::kColumns, block * Direct::kSpan * 4);
    if constexpr (Direct::kRest > 0)
      put<Direct::kSpan / 2>(sums, places.before > 0 ? -places.before : Direct::kBlocks * Direct::kColumns,
                             Direct::kBlocks * Direct::kSpan * 4);
  }
};

template <class T, Results kResults, DType kOut, bool kModerate = true>
__device__ void store_sums(const ByteOutput& out, const typename T::Terms& terms, const ByteSums<T>& sums, const StripPlace& part,
                           const SumPlaces<T, kResults>& places) {
  SumsToD<T, kResults, kOut, kModerate>(out, terms, part, places).put_all(sums);
}

template <class T, Results kResults>
__device__ void finish_directly(const ByteOutput& out, const typename T::Terms& terms, const ByteSums<T>& sums, const StripPlace& part,
                                const SumPlaces<T, kResults>& places, bool moderate) {
  if constexpr (kResults == Results::kSums) {
    store_sums<T, kResults, DType::kI32>(out, terms, sums, part, places);
  } else if constexpr (kResults == Results::kBytes) {
    if (moderate)
      store_sums<T, kResults, DType::kI8>(out, terms, sums, part, places);
    else
      store_sums<T, kResults, DType::kI8, false>(out, terms, sums, part, places);
  } else {
    if (out.epilogue.out == DType::kBf16)
      store_sums<T, kResults, DType::kBf16>(out, terms, sums, part, places);
    else
      store_sums<T, kResults, DType::kF16>(out, terms, sums, part, places);
  }
}

}  // namespace narrow::cuda::sm90
