#pragma once
/// How a consumer warpgroup multiplies the k blocks of a tile: one loop for each of Loop.

#include <array>

#include "kernels/cuda/sm90/byte_tile.cuh"

namespace narrow::cuda::sm90 {

/// Where the scales of a tile's k blocks lie.
struct ScalePlace {
  int row;   ///< of this thread's first sum in a stage's scales of A
  int edge;  ///< columns of the tile that lie in its first block of 128
};

/// The weights' scale of columns [c * kScaleStep, (c + 1) * kScaleStep) of a tile that touches one or two blocks of 128.
template <class T>
__device__ float tile_scale(const float (&words)[T::kTileScaleWords], int c, int edge) {
  const int before = c * T::kScaleStep;
  return before == 0 || (before < 128 && before < edge) ? words[0] : words[T::kTileScaleWords - 1];
}

/// The scales of one k block, read while the products of the block before it run.
template <class T>
struct BlockScales {
  float row[T::kStrips][2], words[T::kTileScaleWords];  ///< of rows t / 4 and t / 4 + 8 of each strip; of the columns

  __device__ void load(const ByteShared<T>& shared, int stage, int first_row, int group_n = 0) {
#pragma unroll
    for (int i = 0; i < T::kStrips * 2; ++i)
      row[i / 2][i % 2] = T::kScalesOfA ? shared.a_scales(stage)[first_row + i / 2 * 64 + i % 2 * 8] : 1.0f;
      // Of two warpgroups side by side each has one word, but where both multiply all columns.
#pragma unroll
    for (int i = 0; i < T::kTileScaleWords; ++i)
      words[i] = T::kTileScales ? shared.tile_scales(stage)[T::kGroupsN == 2 && !T::kDeep ? group_n : i] : 1.0f;
  }
};

/// Their products, the factors of a strip's sums.
template <class T>
struct StripFactors {
  float of[2][T::kScaleColumns];

  __device__ void multiply(const BlockScales<T>& scales, int strip, int edge) {
#pragma unroll
    for (int i = 0; i < 2 * T::kScaleColumns; ++i) of[i % 2][i / 2] = scales.row[strip][i % 2] * tile_scale<T>(scales.words, i / 2, edge);
  }
};

/// Four sums that another thread gets, and adds.
__device__ inline float4 four_of(const float* s) { return {s[0], s[1], s[2], s[3]}; }
__device__ inline float4 four_of(const int* s) {
  return {__int_as_float(s[0]), __int_as_float(s[1]), __int_as_float(s[2]), __int_as_float(s[3])};
}
__device__ inline void add_four(float* sums, float4 more) { sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w; }
__device__ inline void add_four(int* sums, float4 more) {
  sums[0] += __float_as_int(more.x), sums[1] += __float_as_int(more.y), sums[2] += __float_as_int(more.z),
      sums[3] += __float_as_int(more.w);
}

/// A consumer warpgroup.
template <class T>
struct Consumer {
  using Sum = typename T::Sum;
  using Sums = ByteSums<T>;
  using Position = RingPosition<T::kStages>;
  static constexpr int kRowBytesA = T::kCol32 ? 32 : 128;  ///< of stripes of kTileM rows, one after the other

  const ByteShared<T>& shared;
  int lane, warp, group;
  int group_m, group_n;
  int first_row;                   ///< of this thread in the tile
  std::uint32_t first_a, first_b;  ///< words of the operands' descriptors in stage 0
  Position at{};
  unsigned turns = 0;  ///< taken so far; an mbarrier, since the compiler would move a bar.sync above the promotion

  __device__ explicit Consumer(const ByteShared<T>& memory) : shared(memory) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % 32;
    warp = thread % 128 / 32;
    group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // the same in all lanes, and known to be
    group_m = T::kGroupsM == 2 ? group : 0;
    group_n = T::kGroupsN == 2 ? group : 0;
    first_row = group_m * T::kGroupM + warp * 16 + lane / 4;
    first_a = operand_word(shared_address(shared.a(0)) + group_m * T::kGroupM * kRowBytesA);
    first_b = operand_word(shared_address(shared.b(0)) + (T::kLoop == Loop::kAlternate ? 0 : group_n) * T::kGroupN * 128);
  }

  __device__ void release(int stage) const {
    __syncwarp();  // all lanes have read their scales
    if (lane >= T::kCluster) return;
    if constexpr (T::kCluster == 1)
      shared.empty[stage].arrive();
    else
      arrive_remote(shared.empty[stage], static_cast<std::uint32_t>(lane));
  }
  /// Of a stage in descriptors. The same in all lanes, and known to be: descriptors are then computed in uniform registers.
  static __device__ std::uint32_t offset_of(int stage) {
    return __shfl_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(stage * (T::kStageBytes / 16)), 0);
  }
  /// Four products of a strip, 128 along k; `add` says whether the first adds to what is there.
  template <int kCount>
  __device__ void multiply_strip(Sum (&into)[kCount], std::uint32_t offset, int strip, bool add) const {
    const std::uint32_t a = first_a + offset + strip * (64 * kRowBytesA / 16), b = first_b + offset;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t left = T::kCol32 ? stripe_operand(a + step * (T::kTileM * 32 / 16)) : operand(a + step * 2);
      wgmma<T::kPair>(into, left, operand(b + step * 2), add || step > 0);
    }
  }
  template <int kCount>
  __device__ void issue(Sum (&into)[kCount], std::uint32_t offset, int strip, bool add) const {
    wgmma_fence();
    multiply_strip(into, offset, strip, add);
    wgmma_commit();
  }
  /// The same of all strips.
  __device__ void issue_all(Sums& sums, int stage, bool add) const {
    const std::uint32_t offset = offset_of(stage);
    wgmma_fence();
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip) multiply_strip(sums[strip], offset, strip, add);
    wgmma_commit();
  }
  static __device__ void pin_all(Sums& sums) {
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip) pin(sums[strip]);
  }

  /// The sum that is promoted as the j-th: those of one row, then those of the other. Neighbouring instructions then have the same factor,
  /// and every other one takes it from the operand that the one before kept: registers are what they and the tensor cores compete for.
  template <int kCount>
  static constexpr int promoted(int j) {
    return j % (kCount / 2) / 2 * 4 + j / (kCount / 2) * 2 + j % 2;
  }

  /// `under_last` runs under the last products.
  template <class Last>
  __device__ void multiply_direct(Sums& sums, int blocks, const Last& under_last) {
    shared.full[at.stage].wait(at.parity);
    pin_all(sums);
    issue_all(sums, at.stage, false);
    const auto multiply = [&](int block, int end) {
      for (; block < end; ++block) {
        Position next = at;
        next.advance();
        shared.full[next.stage].wait(next.parity);
        issue_all(sums, next.stage, true);
        wgmma_wait<1>();
        release(at.stage);
        at = next;
      }
    };
    if constexpr (T::kLone) {
      // A turn is taken only where the tile goes round the ring: so that the first warpgroup cannot be two tiles ahead of the other.
      const bool behind = blocks > T::kStages;
      const int together = behind ? blocks - T::kBehind : blocks;
      multiply(1, together);
      if (behind && group == 1) shared.turn[1].wait(turns++);
      multiply(together, blocks);
      if (behind && group == 0 && lane == 0) shared.turn[1].arrive();
    } else {
      multiply(1, blocks);
    }
    if (T::kPingPong && lane == 0) shared.turn[group ^ 1].arrive();  // what is issued keeps the tensor cores busy until the other's is
    under_last();
    wgmma_wait<0>();
    pin_all(sums);
    release(at.stage);
    at.advance();
  }

  /// Two sets of accumulators. `sums` are those of `blocks` blocks, each kStep after the one before.
  // Issue and wait stand in straight lines, without conditions: else the compiler serialises the products.
  template <int kStep, int kCount>
  __device__ void multiply_pipelined(Sum (&sums)[kCount], int blocks, const ScalePlace& place) {
    float accumulators[2][kCount];
    BlockScales<T> scales[2];
    const auto start = [&](float(&into)[kCount], BlockScales<T>& its, const Position& where) {
      const std::uint32_t offset = offset_of(where.stage);
      shared.full[where.stage].wait(where.parity);
      pin(into);
      issue(into, offset, 0, false);
      its.load(shared, where.stage, place.row);
    };
    const auto promote = [&](float(&from)[kCount], const BlockScales<T>& its) {
      pin(from);
      StripFactors<T> factors;  // multiplied here: where the scales are read, the block's other products would wait behind them
      factors.multiply(its, 0, place.edge);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int i = promoted<kCount>(j);
        sums[i] = T::kOuter ? sums[i] + from[i] : __fmaf_rn(from[i], factors.of[i / 2 % 2][i * 2 / T::kScaleStep], sums[i]);
      }
    };
    const auto step = [&](float(&now)[kCount], const BlockScales<T>& its, float(&then)[kCount], BlockScales<T>& next_its) {
      Position next = at;
      next.advance(kStep);
      start(then, next_its, next);
      wgmma_wait<1>();
      release(at.stage);
      promote(now, its);
      at = next;
    };
    const auto finish = [&](float(&now)[kCount], const BlockScales<T>& its) {
      wgmma_wait<0>();
      release(at.stage);
      promote(now, its);
      at.advance(kStep);
    };
    start(accumulators[0], scales[0], at);
    for (; blocks > 2; blocks -= 2) {
      step(accumulators[0], scales[0], accumulators[1], scales[1]);
      step(accumulators[1], scales[1], accumulators[0], scales[0]);
    }
    if (blocks == 2) {
      step(accumulators[0], scales[0], accumulators[1], scales[1]);
      finish(accumulators[1], scales[1]);
    } else {
      finish(accumulators[0], scales[0]);
    }
  }

  /// The same of swapped operands: one set, since copies set the pace, and a factor for every column.
  template <int kStep, int kCount>
  __device__ void multiply_swapped(Sum (&sums)[kCount], int blocks) {
    float accumulators[kCount];
#pragma unroll 1
    for (; blocks > 0; --blocks, at.advance(kStep)) {
      const std::uint32_t offset = offset_of(at.stage);
      shared.full[at.stage].wait(at.parity);
      pin(accumulators);
      issue(accumulators, offset, 0, false);
      const float tile = T::kTileScales ? shared.tile_scales(at.stage)[0] : 1.0f;
      float2 columns[kCount / 4]{};
      if constexpr (T::kScalesOfB) {
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i)
          columns[i] = *reinterpret_cast<const float2*>(shared.b_scales(at.stage) + i * 8 + lane % 4 * 2);
      }
      wgmma_wait<0>();
      pin(accumulators);
      release(at.stage);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        sums[i] = T::kOuter ? sums[i] + accumulators[i]
                            : __fmaf_rn(accumulators[i], tile * (i % 2 == 0 ? columns[i / 4].x : columns[i / 4].y), sums[i]);
    }
  }

  /// The same of integers: the accumulators are the sums.
  template <int kStep, int kCount>
  __device__ void multiply_integers(int (&sums)[kCount], int blocks) {
    shared.full[at.stage].wait(at.parity);
    pin(sums);
    issue(sums, offset_of(at.stage), 0, false);
#pragma unroll 1
    for (; blocks > 1; --blocks) {
      Position next = at;
      next.advance(kStep);
      shared.full[next.stage].wait(next.parity);
      issue(sums, offset_of(next.stage), 0, true);
      wgmma_wait<1>();
      release(at.stage);
      at = next;
    }
    wgmma_wait<0>();
    pin(sums);
    release(at.stage);
    at.advance(kStep);
  }

  /// Each warpgroup takes every other block and all columns; then each gives the other the sums of the half that is not its own.
  __device__ void multiply_alternately(Sums& sums, int blocks, const ScalePlace& place) {
    constexpr int kCount = T::kCount, kFours = kCount / 4;
    Sum wide[2 * kCount] = {};
    const int mine = (blocks + 1 - group) / 2;
    Position end = at;
    end.advance_far(blocks);
    if (group == 1) at.advance();
    if (mine > 0) {
      if constexpr (std::is_same_v<Sum, int>)
        multiply_integers<2>(wide, mine);
      else if constexpr (T::kSwapped)
        multiply_swapped<2>(wide, mine);
      else
        multiply_pipelined<2>(wide, mine, place);
    }
    at = end;
    float4* const fours = shared.exchange + threadIdx.x % 128;  // [warpgroup that sends][four][thread]
    named_sync(1, T::kConsumerThreads);                         // the exchange before is over
#pragma unroll
    for (int i = 0; i < kCount; i += 4) fours[(group * kFours + i / 4) * 128] = group == 0 ? four_of(wide + kCount + i) : four_of(wide + i);
    named_sync(1, T::kConsumerThreads);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[0][i + j] = group == 0 ? wide[i + j] : wide[kCount + i + j];
      add_four(sums[0] + i, fours[((group ^ 1) * kFours + i / 4) * 128]);
    }
  }

  /// One set of accumulators; adds to the sums. kHooks: `under_first` runs under the first products, `under_last` under the last ones, when
  /// the sums of the other strips are complete; the first block writes the sums.
  template <bool kHooks, class First, class Last>
  __device__ void multiply_in_strips(Sums& sums, int blocks, const ScalePlace& place, const First& under_first, const Last& under_last) {
    BlockScales<T> scales;
    std::array<StripFactors<T>, T::kStrips> factors;
    [[maybe_unused]] const auto multiply_scales = [&](const BlockScales<T>& its, std::array<StripFactors<T>, T::kStrips>& into) {
#pragma unroll
      for (int strip = 0; strip < T::kStrips; ++strip) into[strip].multiply(its, strip, place.edge);
    };
    shared.full[at.stage].wait(at.parity);
    scales.load(shared, at.stage, place.row, group_n);
    if constexpr (!T::kLateFactors) multiply_scales(scales, factors);
    const auto multiply_block = [&]<bool kFirst>(bool more) {
      Position next = at;
      next.advance();
      BlockScales<T> next_scales = scales;
      [[maybe_unused]] std::array<StripFactors<T>, T::kStrips> next_factors = factors;
      const std::uint32_t offset = offset_of(at.stage);
#pragma unroll
      for (int strip = 0; strip < T::kStrips; ++strip) {
        const bool is_last_strip = strip == T::kStrips - 1;
        float accumulators[T::kCount];
        if constexpr (T::kLoop == Loop::kTurns) shared.turn[group].wait(turns++);
        pin(accumulators);
        issue(accumulators, offset, strip, false);
        if constexpr (T::kLateFactors) factors[strip].multiply(scales, strip, place.edge);
        if (T::kLoop == Loop::kTurns && lane == 0) shared.turn[group ^ 1].arrive();
        if constexpr (kHooks && kFirst) {
          if (strip == 0) under_first();
        }

        [[maybe_unused]] float column_scale[T::kScalesOfB ? T::kCount / 2 : 1];
        if constexpr (T::kScalesOfB) {
#pragma unroll
          for (int i = 0; i < T::kCount / 4; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(shared.b_scales(at.stage) + group_n * T::kGroupN + i * 8 + lane % 4 * 2);
            column_scale[2 * i] = two.x;
            column_scale[2 * i + 1] = two.y;
          }
        }
        if (is_last_strip && more) {
          shared.full[next.stage].wait(next.parity);
          next_scales.load(shared, next.stage, place.row, group_n);
          if constexpr (!T::kLateFactors) multiply_scales(next_scales, next_factors);
        }
        if constexpr (kHooks) {
          if (is_last_strip && !more) under_last();
        }
        wgmma_wait<0>();
        pin(accumulators);
        if (is_last_strip) release(at.stage);
#pragma unroll
        for (int j = 0; j < T::kCount; ++j) {  // promotion
          const int i = promoted<T::kCount>(j);
          const float factor = factors[strip].of[i / 2 % 2][i * 2 / T::kScaleStep];
          const float sum = kFirst ? 0.0f : sums[strip][i];
          if constexpr (T::kOuter)
            sums[strip][i] = sum + accumulators[i];
          else if constexpr (T::kScalesOfB)
            sums[strip][i] = __fmaf_rn(accumulators[i], factor * column_scale[i / 4 * 2 + i % 2], sum);
          else
            sums[strip][i] = __fmaf_rn(accumulators[i], factor, sum);
        }
      }
      scales = next_scales;
      if constexpr (!T::kLateFactors) factors = next_factors;
      at = next;
    };
    if constexpr (kHooks) {
      if (blocks == 1) {
        multiply_block.template operator()<true>(false);
        return;
      }
      multiply_block.template operator()<true>(true);
      for (; T::kBlocksTogether > 1 && blocks > T::kBlocksTogether + 1; blocks -= T::kBlocksTogether) {
#pragma unroll
        for (int i = 0; i < T::kBlocksTogether; ++i) multiply_block.template operator()<false>(true);
      }
#pragma unroll 1
      for (; blocks > 2; --blocks) multiply_block.template operator()<false>(true);
      multiply_block.template operator()<false>(false);
    } else {
#pragma unroll 1
      for (; blocks > 0; --blocks) multiply_block.template operator()<false>(blocks > 1);
    }
  }
};

}  // namespace narrow::cuda::sm90
