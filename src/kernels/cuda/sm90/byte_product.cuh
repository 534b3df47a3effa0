#pragma once
/// The Hopper main loop of products of one-byte elements, D = epilogue(A * B^T), one kernel for all formats, scalings, groupings and tiles.
///
/// Mapping:  persistent thread blocks. Producer threads, one or two, copy k blocks of 128 of A and B (and their scales) by TMA into a ring
///           of stages; two consumer warpgroups multiply them by wgmma, each its own part of the tile, or each a tile of its own in turn
///           (kPingPong). In clusters of two the thread blocks lie side by side and each loads half of the operand they share for both.
///           A thread more, the storer, may start the stores.
/// Scales:   integers, and fp8 in the tensor cores' own sums, stay in the accumulators until all of k is added up. Else wgmma sums 128 of
///           k into fresh accumulators, which are then promoted, sum = fma(accumulator, factor, sum), into fp32 registers:
///           factor = scale of A's row * scale of B's block. Other products run meanwhile (TileForm, Loop).
/// Requires: compute capability 9.0; rows of A and B 16-byte aligned (checked in ops/).
/// Bound:    arithmetic beyond about 200 rows, else the bytes of B. Meaning: reference/matmul.cc; integers exactly, fp8 within the bound of
///           the numerics contract.

#include "kernels/cuda/sm90/byte_direct.cuh"

namespace narrow::cuda::sm90 {

template <class T>
__device__ TilePlace place_of(const ByteParams& p, const BytePiece& piece, int rank) {
  const int tiles_m = p.schedule.grouping == ByteGrouping::kNone || p.schedule.grouping == ByteGrouping::kDepth
                          ? p.schedule.tiles_m
                          : (piece.rows + p.schedule.tile_m - 1) / p.schedule.tile_m;
  const int2 tile = place_of_tile(piece.tile, tiles_m, p.schedule.tiles_n, p.schedule.band);
  TilePlace place{(tile.x * T::kClusterM + rank % T::kClusterM) * T::kTileM, (tile.y * T::kClusterN + rank / T::kClusterM) * T::kTileN};
  // The last tiles end where the matrix does: copies of rows outside of it take longer than those of rows. What two tiles have in common
  // both compute, and write the same.
  if (T::kMayOverlap && p.schedule.overlapping) {
    place.row = min(place.row, max(p.m - T::kTileM, 0));
    place.column = min(place.column, max(p.n - T::kTileN, 0));
  }
  return place;
}

/// The scheduler: one thread, which walks the tiles and notes them for the others, some tiles ahead, since their places take divisions.
template <class T>
__device__ void note_tiles(const ByteParams& p, const ByteShared<T>& shared, int worker, int rank) {
  RingPosition<T::kNotes> note;
  ByteWork work(p.schedule, p.m, worker);
  BytePiece piece{};
  int blocks_before = 0;
  const auto tell = [&](const TilePlace& place, bool last) {
    shared.read[note.stage].wait(note.parity ^ 1u);
    shared.notes[note.stage] = {piece, place, blocks_before, last};
    shared.noted[note.stage].arrive();
    note.advance();
  };
  if (p.schedule.grouping != ByteGrouping::kNone) wait_for_earlier_kernels();  // groups come from memory that they may write
  while (work.next(piece)) {
    tell(place_of<T>(p, piece, rank), false);
    blocks_before += piece.k_end - piece.k_begin;
  }
  tell({}, true);
  if (T::kPingPong) tell({}, true);  // each warpgroup's end
}

constexpr int kRowsOfShift = 4;

/// Producer number `which`: one thread, which fills every kProducers-th stage.
template <class T, Results kResults>
__device__ void produce(const ByteParams& p, const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& sa, const CUtensorMap& sb,
                        const CUtensorMap& sa4, const ByteShared<T>& shared, int rank, unsigned which) {
  RingPosition<T::kStages> at;
  RingPosition<T::kNotes> note;
  unsigned turn = 0;
  int copied = T::kCopiedBytes;  // of few rows those that exist
  if constexpr (T::kSwapped) copied -= (T::kTileN - min(p.n, T::kTileN)) * 128;
  if constexpr (T::kFewRowsOfA) copied -= (T::kTileM - min(p.m, T::kTileM)) * 128;
  wait_for_earlier_kernels();  // operands come from memory that they may write
  for (;; note.advance()) {
    shared.noted[note.stage].wait(note.parity);
    const bool last = shared.notes[note.stage].last;
    const BytePiece piece = shared.notes[note.stage].piece;
    const TilePlace place = shared.notes[note.stage].place;
    shared.read[note.stage].arrive();
    if (last) return;
    const bool by_rows = p.schedule.grouping == ByteGrouping::kRowOffsets || p.schedule.grouping == ByteGrouping::kRowCounts;
    const int row_a = piece.first_row + place.row, row_b = (by_rows ? piece.group * p.n : 0) + place.column;
    [[maybe_unused]] const int line_a = T::kCol32 ? row_a >> p.a_line_shift : 0;
    // Boxes of scales start at multiples of 16 bytes. A group's rows may not (any_row): then the box starts up to three scales early, and a
    // second one brings the last ones.
    const bool any_row = p.schedule.grouping == ByteGrouping::kRowOffsets;
    const bool counts = p.schedule.grouping == ByteGrouping::kRowCounts;
    const int scale_row_a = any_row ? row_a / 4 * 4 : (counts ? piece.group * static_cast<int>(round_up_to_4(p.m)) : 0) + place.row;
    const int scale_row_b = (by_rows ? piece.group * static_cast<int>(round_up_to_4(p.n)) : 0) + place.column;
    // Scales of B's 128x128 tiles: a tile touches one block of columns, or two.
    const int blocks = ((T::kSwapped ? p.m : p.n) + 127) / 128;
    const int first_block = min((T::kSwapped ? place.row : place.column) / 128, blocks - 1),
              second_block = min(first_block + 1, blocks - 1);
    const float* tile_scales = p.b_scales + static_cast<std::int64_t>(by_rows ? piece.group : 0) * blocks * p.k_blocks;
    const float* first_scale = tile_scales + static_cast<std::int64_t>(first_block) * p.k_blocks;
    const float* second_scale = tile_scales + static_cast<std::int64_t>(second_block) * p.k_blocks;
    // Of very few rows each tile begins at another k: else all thread blocks would ask for the same few lines of them at the same time.
    const int shift = T::kSwapped && p.n <= kRowsOfShift ? place.row / T::kTileM * 23 % (piece.k_end - piece.k_begin) : 0;
#pragma unroll 1
    for (int i = piece.k_begin; i < piece.k_end; ++i, at.advance()) {
      int block = i;
      if constexpr (T::kSwapped) block += i + shift < piece.k_end ? shift : shift - (piece.k_end - piece.k_begin);
      if (T::kProducers > 1 && turn++ % T::kProducers != which) continue;
      shared.empty[at.stage].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.stage];
      full.arrive_expecting(copied + (T::kScalesOfA && any_row ? 16 : 0));
      if constexpr (T::kCol32) {
        copy_stripes(shared.a(at.stage), a, line_a, block * 4, full);
      } else if constexpr (T::kClusterN > 1) {
        constexpr int kPart = T::kTileM / T::kClusterN;
        const int part = rank / T::kClusterM * kPart;
        copy_box_multicast(shared.a(at.stage) + part * 128, a, block * 128, row_a + part, full, 3);
      } else {
        copy_box(shared.a(at.stage), a, block * 128, row_a, full);
      }
      if constexpr (T::kClusterM > 1) {
        constexpr int kPart = T::kTileN / T::kClusterM;
        const int part = rank % T::kClusterM * kPart;
        copy_box_multicast(shared.b(at.stage) + part * 128, b, block * 128, row_b + part, full, 3);
      } else if constexpr (DirectOf<T, kResults>::kOn) {
        copy_spread<DirectOf<T, kResults>>(shared.b(at.stage), b, sb, block * 128, row_b, full);
      } else {
        copy_box(shared.b(at.stage), b, block * 128, row_b, full);
      }
      if constexpr (T::kScalesOfA) {
        copy_box(shared.a_scales(at.stage), sa, scale_row_a, block, full);
        if (any_row) copy_box(shared.a_scales(at.stage) + T::kTileM, sa4, scale_row_a + T::kTileM, block, full);
      }
      if constexpr (T::kScalesOfB) copy_box(shared.b_scales(at.stage), sb, scale_row_b, block, full);
      if constexpr (T::kTileScales) {
        copy_word(shared.tile_scales(at.stage), first_scale + block);
        if constexpr (T::kTileScaleWords > 1) copy_word(shared.tile_scales(at.stage) + 1, second_scale + block);
        arrive_after_words(full);
      }
    }
  }
}

/// A tile that was cut into parts, one per thread block of the cluster. The first part finishes the first warpgroup's sums, the second part
/// the second's: the other warpgroups send theirs there, to the same threads, and they are added up in the order of the parts. Says whether
/// the sums are this warpgroup's to finish.
template <class T>
__device__ bool gather_parts(const ByteShared<T>& shared, int part, int parts, ByteSums<T>& sums) {
  constexpr int kFours = T::kStrips * T::kCount / 4;
  const int here = thread_here(), group = here / 128, thread = here % 128;
  if (group != part) {  // the other thread block has set up its barrier: consume has waited for it
    const float4* const to = shared.sent_fours + (part < group ? part : part - 1) * kFours * 128 + thread;
#pragma unroll
    for (int four = 0; four < kFours; ++four)
      send_remote(to + four * 128, four_of(sums[four * 4 / T::kCount] + four * 4 % T::kCount), *shared.sent,
                  static_cast<std::uint32_t>(group));
    return false;
  }
  shared.sent->wait(0);
#pragma unroll 1
  for (int from = 0; from < parts - 1; ++from)
#pragma unroll
    for (int four = 0; four < kFours; ++four)
      add_four(sums[four * 4 / T::kCount] + four * 4 % T::kCount, shared.sent_fours[(from * kFours + four) * 128 + thread]);
  named_sync(2 + group, 128);  // all have read: the results are staged in the same place
  return true;
}

/// Where a warpgroup's part of a tile lies. Row and column scales: every group has its own rows of A, and its own matrix of B; groups along
/// k share them.
template <class T>
__device__ StripPlace place_of_group(const ByteParams& p, const BytePiece& piece, const TilePlace& place, int group) {
  const int row = place.row + (T::kGroupsM == 2 ? group : 0) * T::kGroupM,
            column = place.column + (T::kGroupsN == 2 ? group : 0) * T::kGroupN;
  const bool along_k = p.schedule.grouping == ByteGrouping::kDepth;
  return {(along_k ? piece.group * p.d_group_rows : piece.first_row) + row, piece.rows - row, column, std::int64_t{piece.first_row} + row,
          along_k ? 0 : static_cast<std::int64_t>(piece.group) * p.n};
}

__device__ constexpr int bytes_of(DType out) {
  return out == DType::kF32 || out == DType::kI32 ? 4 : (out == DType::kF16 || out == DType::kBf16 ? 2 : 1);
}

/// Whether this thread starts its warp's stores, the same one every time.
template <class T>
__device__ bool starts_stores(int lane) {
  return T::kSpacedCopies ? lane == 0 : is_elected();
}

/// How D's boxes lie in a warp's part of a tile: of at most 128 bytes in a row, kSums of a thread's sums each; several are staged before
/// one fence, and leave together.
template <class T, int kElementBytes>
struct BoxesOf {
  static constexpr int kSums = std::min(T::kCount, 64 / kElementBytes), kPerStrip = (T::kCount + kSums - 1) / kSums;
  static constexpr int kAll = T::kStrips * kPerStrip;
  static constexpr int kTogether = kAll <= T::kBoxes ? kAll : std::max(1, T::kBoxes / 2), kSlots = T::kBoxes / kTogether;
  static constexpr bool kWholeRows = kSums * 2 * kElementBytes == 128;
  /// The first of box i's sums: the last box of a strip may repeat some of the one before.
  static constexpr int first(int i) { return std::min(i % kPerStrip * kSums, T::kCount - kSums); }
  static_assert(kAll % kTogether == 0);
  static constexpr bool kStored = T::kStorer && kWholeRows && kAll <= T::kBoxes;  ///< the storer can take them: a whole tile is staged
};

/// Whether a box of D leaves by a tensor copy.
__device__ inline bool leaves_as_box(const ByteOutput& out, int rows) { return !out.col32 && (rows >= 16 || out.rows_end_with_d); }

/// The sums of a tile to D, box by box through the slots (`slots` used so far) of the warp's staging memory, which earlier stores may still
/// be reading.
template <class T, Results kResults>
__device__ void finish_tile(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared, const ByteSums<T>& sums,
                            const BytePiece& piece, const TilePlace& place, unsigned& slots) {
  const int here = thread_here(), lane = here % 32, warp = here % 128 / 32, group = here / 128;
  std::byte* const staging = shared.box(group * 4 + warp, 0);
  const StripPlace part = place_of_group<T>(p, piece, place, group);
  const auto first_of = [&](int strip) { return strip * 64 + warp * 16; };
  const FragmentRows<T::kCol32> rows_of(p.out.exchanged);
  if (kResults == Results::kAny && (T::kSwapped || !p.out.boxed)) {
#pragma unroll
    for (int strip = 0; strip < T::kStrips; ++strip) {
      const int first = first_of(strip), rows = part.rows - first;
      if constexpr (T::kSwapped)
        store_transposed<T::kOuter>(p.out, sums[strip], static_cast<int>(part.row) + first, rows, part.column, staging);
      else
        store_any<T::kOuter>(p.out, sums[strip], {part.row + first, rows, part.column, part.a + first, part.b}, rows_of, staging);
    }
    return;
  }
  if constexpr (!T::kSwapped) {
    const auto put = [&]<DType kOut, Ending kEnding>() {
      constexpr int kElementBytes = bytes_of(kOut);
      using Boxes = BoxesOf<T, kElementBytes>;
      constexpr int kSums = Boxes::kSums, kPerStrip = Boxes::kPerStrip, kAll = Boxes::kAll, kTogether = Boxes::kTogether;
      constexpr int kSlots = Boxes::kSlots;
      const bool stored = Boxes::kStored && p.out.storer;
      const bool copied = T::kPair != BytePair::kS8S8 || !p.out.col32;  // by tensor copies: else ordinary stores are done with the boxes
#pragma unroll
      for (int from = 0; from < kAll; from += kTogether) {
        const int first_box = (stored ? 0 : slots % kSlots) * kTogether;
        const auto box = [&](int i) { return shared.box(group * 4 + warp, first_box + i); };
        ++slots;
        if (stored)
          shared.stored[group].wait(slots);  // for the tile before; of the first one for the phase before the barrier's first
        else if (copied && starts_stores<T>(lane))
          wait_stores_read<kSlots - 1>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int strip = (from + i) / kPerStrip, at = Boxes::first(from + i);
          float v[kSums];
          const int rows[2] = {first_of(strip) + rows_of(lane / 4, 0), first_of(strip) + rows_of(lane / 4, 1)};
          finish_sums<kOut == DType::kI32, kEnding>(p.out, shared.terms(group), sums[strip] + at, v, rows, at * 2 + lane % 4 * 2);
          if constexpr (kElementBytes == 4)
            stage_32_bit<T::kLoop == Loop::kDirect>(v, rows_of, box(i));
          else if constexpr (kElementBytes == 2)
            stage_16_bit<kOut == DType::kF16>(v, rows_of, box(i));
          else
            stage_8_bit(p.out, v, rows_of, box(i));
        }
        if (copied && !stored) fence_shared_for_copies();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int strip = (from + i) / kPerStrip, column = part.column + Boxes::first(from + i) * 2;
          const int rows = part.rows - first_of(strip);
          if (!Boxes::kWholeRows || !leaves_as_box(p.out, rows))
            store_box<kElementBytes, kSums * 2>(p.out, part.row + first_of(strip), rows, column, box(i));
          else if (!stored && starts_stores<T>(lane))
            copy_box_out(d, column, static_cast<int>(part.row) + first_of(strip), box(i));
        }
        if (stored) {
          __syncwarp();
          if (lane == 0) shared.staged[group].arrive();
        } else if (copied && starts_stores<T>(lane)) {
          commit_stores();
        }
      }
    };
    const DType out = p.out.epilogue.out;
    const auto put_16_bit = [&]<Ending kEnding>() {
      if (out == DType::kBf16)
        put.template operator()<DType::kBf16, kEnding>();
      else
        put.template operator()<DType::kF16, kEnding>();
    };
    if constexpr (kResults == Results::kPlain) {
      put_16_bit.template operator()<Ending::kPlain>();
    } else {
      const auto choose = [&]<Ending kEnding>() {
        if (is_16_bit(out))
          put_16_bit.template operator()<kEnding>();
        else if (out == DType::kF32)
          put.template operator()<DType::kF32, Ending::kAny>();
        else if (out == DType::kI32) {
          if constexpr (std::is_same_v<typename T::Sum, int>) put.template operator()<DType::kI32, kEnding>();
        } else if constexpr (T::kByteBoxes)
          put.template operator()<DType::kI8, kEnding>();
      };
      if (!kHasDirect<T> && p.out.plain)
        choose.template operator()<Ending::kPlain>();
      else
        choose.template operator()<Ending::kAny>();
    }
  }
}

/// Whether the sums of a tile are staged under products, where the storer starts the stores: the last strip's under the next tile's first
/// ones, the others' under the tile's last ones. Of plain 16-bit results.
template <class T, Results kResults>
constexpr bool kStagesAhead = (kResults == Results::kPlain && T::kLoop == Loop::kFree && BoxesOf<T, 2>::kStored);
template <class T, Results kResults>
__device__ bool stages_ahead(const ByteParams& p) {
  return kStagesAhead<T, kResults> && p.out.storer && p.schedule.grouping != ByteGrouping::kDepth;  // whose tiles may have no products
}

/// Stages strips [kFrom, kTo) of a tile for the storer. There are few registers beside the accumulators.
template <class T, int kFrom, int kTo>
__device__ void stage_strips(const ByteParams& p, const ByteShared<T>& shared, const ByteSums<T>& sums, const PieceNote& told,
                             unsigned& slots) {
  using Boxes = BoxesOf<T, 2>;
  constexpr int kBegin = kFrom * Boxes::kPerStrip, kEnd = kTo * Boxes::kPerStrip;
  const unsigned here = static_cast<unsigned>(thread_here());  // whose parts take fewer instructions than those of a signed one
  const int lane = static_cast<int>(here % 32), warp = static_cast<int>(here % 128 / 32), group = static_cast<int>(here / 128);
  if constexpr (kFrom == 0) shared.stored[group].wait(++slots);  // the tile before has left its place
  const std::uint32_t place = place_in_box(shared.box(group * 4 + warp, 0), lane % 8 + lane / 8 % 2 * 8, lane / 16 * 16);
  const auto stage = [&]<bool kHalf>() {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i)
#pragma unroll
      for (int q = 0; q < Boxes::kSums / 8; ++q) {
        const float* const s = sums[i / Boxes::kPerStrip] + Boxes::first(i) + q * 8;
        store_matrices((place ^ (q * 32)) + i * kStagingBytes, pack16(kHalf, s[0], s[1]), pack16(kHalf, s[2], s[3]),
                       pack16(kHalf, s[4], s[5]), pack16(kHalf, s[6], s[7]));
      }
  };
  if (p.out.epilogue.out == DType::kF16)
    stage.template operator()<true>();
  else
    stage.template operator()<false>();
  __syncwarp();
  const auto rows_from = [&](int first) { return told.piece.rows - told.place.row - (T::kGroupsM == 2 ? group : 0) * T::kGroupM - first; };
  if (!p.out.rows_end_with_d && rows_from((kTo - 1) * 64 + warp * 16) < 16) {  // the rows of the next group must stay as they are
    const StripPlace part = place_of_group<T>(p, told.piece, told.place, group);
#pragma unroll 1
    for (int i = kBegin; i < kEnd; ++i) {
      const int first = i / Boxes::kPerStrip * 64 + warp * 16;
      if (!leaves_as_box(p.out, part.rows - first))
        store_box<2, Boxes::kSums * 2>(p.out, part.row + first, part.rows - first, part.column + Boxes::first(i) * 2,
                                       shared.box(group * 4 + warp, i));
    }
  }
  if constexpr (kTo == T::kStrips) {
    __syncwarp();
    if (lane == 0) shared.staged[group].arrive();
  }
}

/// The storer: one thread, which starts the stores of the tiles that the warpgroups have staged.
template <class T, int kElementBytes>
__device__ void store_tiles(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared) {
  using Boxes = BoxesOf<T, kElementBytes>;
  RingPosition<T::kNotes> note;
  wait_for_earlier_kernels();
  for (unsigned tile = 0;; ++tile, note.advance()) {
    shared.noted[note.stage].wait(note.parity);
    const PieceNote& told = shared.notes[note.stage];
    if (told.last) return;
#pragma unroll 1
    for (int group = 0; group < T::kConsumers; ++group) {
      const StripPlace part = place_of_group<T>(p, told.piece, told.place, group);
      shared.staged[group].wait(tile);
      fence_shared_for_copies();  // here it holds up one thread, and not the warpgroup that has staged
#pragma unroll 1
      for (int i = 0; i < 4 * Boxes::kAll; ++i) {  // the boxes of four warps
        const int box = i % Boxes::kAll, first = box / Boxes::kPerStrip * 64 + i / Boxes::kAll * 16;
        if (leaves_as_box(p.out, part.rows - first))
          copy_box_out(d, part.column + Boxes::first(box) * 2, static_cast<int>(part.row) + first,
                       shared.box(group * 4 + i / Boxes::kAll, box));
      }
      commit_stores();
    }
    shared.read[note.stage].arrive();
    wait_stores_read<0>();
    for (int group = 0; group < T::kConsumers; ++group) shared.stored[group].arrive();
  }
}

/// A consumer warpgroup's work.
template <class T, Results kResults>
__device__ void consume(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared) {
  Consumer<T> consumer(shared);
  const int lane = consumer.lane, group = consumer.group;
  if ((T::kLoop == Loop::kTurns || T::kPingPong) && group == 1 && lane == 0) shared.turn[0].arrive();
  RingPosition<T::kNotes> note;
  if (T::kPingPong && group == 1) note.advance();
  const bool needs_terms = !T::kSwapped && kResults != Results::kSums && p.out.boxed &&
                           (T::kOuter || (kResults == Results::kAny && p.out.epilogue.bias != nullptr));
  const int barrier = 2 + group;
  unsigned slots = 0;
  ByteSums<T> sums;
  wait_for_earlier_kernels();  // from here on scales are read and D is written; the producer has waited before the operands are read
  if (T::kParts && p.schedule.parts > 1) cluster_wait();  // the other parts have set up their barriers
  const auto finish_tile_before = [&](bool begin) {
    if constexpr (kStagesAhead<T, kResults>) {
      if (begin || !stages_ahead<T, kResults>(p)) return;
      const int before = (note.stage + T::kNotes - 1) % T::kNotes;
      stage_strips<T, T::kStrips - 1, T::kStrips>(p, shared, sums, shared.notes[before], slots);
      shared.read[before].arrive();  // every lane by itself, which racecheck understands
    }
  };
  for (bool begin = true;; begin = false) {
    shared.noted[note.stage].wait(note.parity);
    const PieceNote& told = shared.notes[note.stage];
    if (told.last) {
      finish_tile_before(begin);
      break;
    }
    const BytePiece& piece = told.piece;
    const TilePlace& place = told.place;
    if constexpr (!T::kSwapped) {
      if (needs_terms) {
        if (!begin) named_sync(barrier, 128);  // the terms of the tile before are read
        const StripPlace part = place_of_group<T>(p, piece, place, group);
        shared.terms(group).start(p.out, thread_here() % 128, part.column, part.a, part.rows, part.b + part.column);
      }
    }
    const ScalePlace scales{consumer.first_row + (p.schedule.grouping == ByteGrouping::kRowOffsets ? piece.first_row % 4 : 0),
                            128 - place.column % 128};
    const int blocks = piece.k_end - piece.k_begin;
    const auto clear_sums = [&] {
#pragma unroll
      for (int i = 0; i < T::kStrips * T::kCount; ++i) sums[i / T::kCount][i % T::kCount] = 0;
    };
    if constexpr (!kStagesAhead<T, kResults>) clear_sums();  // else the first block writes them
    bool moderate = false;
    [[maybe_unused]] SumPlaces<T, kResults> sum_places;
    const auto take_terms = [&] {
      if constexpr (DirectOf<T, kResults>::kOn && kResults == Results::kSums)
        sum_places.set(p.out, shared.terms(group), place_of_group<T>(p, piece, place, group));
      if (!needs_terms) return;
      wait_words();
      if constexpr (kResults == Results::kBytes) {
        const StripPlace part = place_of_group<T>(p, piece, place, group);
        moderate = named_sync_and(barrier, 128, shared.terms(group).are_moderate(p.out, thread_here() % 128, part.column, part.rows));
      } else {
        named_sync(barrier, 128);
      }
      if constexpr (DirectOf<T, kResults>::kOn && kResults != Results::kSums)
        sum_places.set(p.out, shared.terms(group), place_of_group<T>(p, piece, place, group));
    };
    if (blocks > 0) {
      if constexpr (T::kPingPong) {
        consumer.at = {told.blocks_before % T::kStages, static_cast<unsigned>(told.blocks_before / T::kStages)};
        shared.turn[group].wait(consumer.turns++);
      }
      if constexpr (T::kLone)
        consumer.multiply_direct(sums, blocks, take_terms);
      else if constexpr (T::kLoop == Loop::kDirect)
        consumer.multiply_direct(sums, blocks, [] {});
      else if constexpr (T::kLoop == Loop::kPipelined)
        consumer.template multiply_pipelined<1>(sums[0], blocks, scales);
      else if constexpr (T::kLoop == Loop::kAlternate)
        consumer.multiply_alternately(sums, blocks, scales);
      else
        consumer.template multiply_in_strips<kStagesAhead<T, kResults>>(
            sums, blocks, scales, [&] { finish_tile_before(begin); },
            [&] {
              if constexpr (T::kStrips > 1 && kStagesAhead<T, kResults>) {
                if (stages_ahead<T, kResults>(p)) stage_strips<T, 0, T::kStrips - 1>(p, shared, sums, told, slots);
              }
            });
    } else if constexpr (T::kPingPong) {
      shared.turn[group].wait(consumer.turns++);
      if (lane == 0) shared.turn[group ^ 1].arrive();
    } else if constexpr (T::kLone) {
      take_terms();
    } else if constexpr (kStagesAhead<T, kResults>) {
      clear_sums();  // here, and not before: there the compiler would make a selection of every sum of every tile
    }
    if (stages_ahead<T, kResults>(p)) {
      note.advance();
      continue;
    }
    bool mine = true;
    if constexpr (T::kParts) {
      if (p.schedule.parts > 1) mine = gather_parts<T>(shared, piece.part, p.schedule.parts, sums);
    }
    if (mine) {
      if (!T::kLone) take_terms();
      if constexpr (DirectOf<T, kResults>::kOn)
        finish_directly<T, kResults>(p.out, shared.terms(group), sums, place_of_group<T>(p, piece, place, group), sum_places, moderate);
      else
        finish_tile<T, kResults>(p, d, shared, sums, piece, place, slots);
    }
    shared.read[note.stage].arrive();  // every lane by itself, which racecheck understands
    note.advance(T::kPingPong ? 2 : 1);
  }
  if (!DirectOf<T, kResults>::kOn && starts_stores<T>(lane)) wait_stores_read<0>();
}

template <class T, Results kResults>
__global__ void __launch_bounds__(T::kThreads, 1)
    byte_product(const __grid_constant__ ByteParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ CUtensorMap sa, const __grid_constant__ CUtensorMap sb, const __grid_constant__ CUtensorMap sa4,
                 const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const ByteShared<T> shared(memory);
  constexpr bool kDirect = DirectOf<T, kResults>::kOn;
  const bool parted = T::kParts && p.schedule.parts > 1;
  const int rank = T::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int worker = static_cast<int>(blockIdx.x) / T::kCluster;
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const int element_bytes = kResults == Results::kAny ? bytes_of(p.out.epilogue.out) : DirectOf<T, kResults>::kElementBytes;
  const bool storer = p.out.storer && (element_bytes == 2   ? BoxesOf<T, 2>::kStored
                                       : element_bytes == 1 ? BoxesOf<T, 1>::kStored
                                                            : BoxesOf<T, 4>::kStored);
  if (warp == T::kConsumers * 4 && is_elected()) {  // before all else: the first copies would wait for them
    prefetch_map(a);
    prefetch_map(b);
    if constexpr (T::kScalesOfA) prefetch_map(sa);
    if constexpr (T::kScalesOfB || (kDirect && DirectOf<T, kResults>::kRest > 0)) prefetch_map(sb);
    if (!kDirect && p.out.boxed && !p.out.col32) prefetch_map(d);
  }
  if (warp == 0 && is_elected()) {
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(T::kTileScales ? 2 : 1);
      shared.empty[stage].init((T::kLoop == Loop::kAlternate ? 1 : T::kTileGroups) * 4 * T::kCluster);
    }
    for (int group = 0; group < T::kConsumers; ++group) {
      shared.turn[group].init(4);
      shared.staged[group].init(4);
      shared.stored[group].init(1);
    }
    for (int note = 0; note < T::kNotes; ++note) {
      shared.noted[note].init(1);
      shared.read[note].init(T::kTileGroups * 128 + static_cast<int>(T::kProducers) + (storer ? 1 : 0));
    }
    if (parted) {
      const int part = static_cast<int>(blockIdx.x) % p.schedule.parts;
      shared.sent->init(1);
      shared.sent->arrive_expecting(static_cast<std::uint32_t>(part < T::kConsumers ? (p.schedule.parts - 1) * T::kPartBytes : 0));
    }
    fence_barriers();
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) cluster_sync();
  if (parted) cluster_arrive_relaxed();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<40>();
    const unsigned thread = threadIdx.x - T::kConsumerThreads;
    if constexpr (T::kSpacedCopies) {
      if (thread == 0 || thread == 32) produce<T, kResults>(p, a, b, sa, sb, sa4, shared, rank, thread / 32);
    } else {
      if (warp == T::kConsumers * 4 && is_elected()) produce<T, kResults>(p, a, b, sa, sb, sa4, shared, rank, 0);
    }
    if (warp == T::kConsumers * 4 + 2 && is_elected()) note_tiles<T>(p, shared, worker, rank);
    if constexpr (T::kStorer) {
      if (storer && warp == T::kConsumers * 4 + 3 && is_elected()) {
        if (element_bytes == 2)
          store_tiles<T, 2>(p, d, shared);
        else
          store_tiles<T, 1>(p, d, shared);
      }
    }
  } else {
    take_registers<232>();
    consume<T, kResults>(p, d, shared);
  }
  if (parted && threadIdx.x >= T::kConsumerThreads) cluster_wait();  // consumers did; who gets sums from outside leaves after them
  if (T::kCluster > 1) cluster_sync();
}

}  // namespace narrow::cuda::sm90
