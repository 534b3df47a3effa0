#pragma once
/// The Hopper main loop of products of one-byte elements, D = epilogue(A * B^T), one kernel for all formats, scalings, groupings and tiles.
///
/// Mapping:  persistent thread blocks. One producer warp copies k blocks of 128 of A and B (and their scales) by TMA into a ring of
///           stages; two consumer warpgroups multiply them by wgmma, each its own part of the tile. In clusters of two the thread blocks
///           lie side by side and each loads half of the operand they share for both.
/// Scales:   integers, and fp8 in the tensor cores' own sums, stay in the accumulators until all of k is added up. Else wgmma sums 128 of
///           k into fresh accumulators, which are then promoted, sum = fma(accumulator, factor, sum), into fp32 registers:
///           factor = scale of A's row * scale of B's block. Other products run meanwhile (TileForm, Loop).
/// Requires: compute capability 9.0; rows of A and B 16-byte aligned (checked in ops/).
/// Bound:    arithmetic beyond about 200 rows, else the bytes of B. Meaning: reference/matmul.cc; integers exactly, fp8 within the bound of
///           the numerics contract.

#include "kernels/cuda/sm90/byte_multiply.cuh"

namespace narrow::cuda::sm90 {

template <class T>
__device__ TilePlace place_of(const ByteParams& p, const BytePiece& piece, int rank) {
  const int tiles_m = p.schedule.grouping == ByteGrouping::kNone || p.schedule.grouping == ByteGrouping::kDepth
                          ? p.schedule.tiles_m
                          : (piece.rows + p.schedule.tile_m - 1) / p.schedule.tile_m;
  const int2 place = place_of_tile(piece.tile, tiles_m, p.schedule.tiles_n, p.schedule.band);
  const int along_m = T::kShare == Share::kB ? 2 : 1, along_n = T::kShare == Share::kA ? 2 : 1;
  return {(place.x * along_m + (T::kShare == Share::kB ? rank : 0)) * T::kTileM,
          (place.y * along_n + (T::kShare == Share::kA ? rank : 0)) * T::kTileN};
}

/// The producer: one thread.
template <class T>
__device__ void produce(const ByteParams& p, const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& sa, const CUtensorMap& sb,
                        const CUtensorMap& sa4, const ByteShared<T>& shared, int worker, int rank) {
  RingPosition<T::kStages> at;
  RingPosition<T::kNotes> note;
  ByteWork work(p.schedule, p.m, worker);
  BytePiece piece{};
  // Groups come from memory that earlier kernels may write. Else the first piece is known, and its weights can already come into the
  // second-level cache, while those kernels run.
  const bool grouped = p.schedule.grouping != ByteGrouping::kNone;
  if (grouped) wait_for_earlier_kernels();
  for (bool more = true, first = !grouped; more; note.advance()) {
    more = work.next(piece);
    const TilePlace place = more ? place_of<T>(p, piece, rank) : TilePlace{};
    shared.read[note.stage].wait(note.parity ^ 1u);
    shared.notes[note.stage] = {piece, place, !more};
    shared.noted[note.stage].arrive();
    if (first) {
      for (int block = piece.k_begin; more && block < min(piece.k_begin + T::kStages, piece.k_end); ++block)
        prefetch_box(T::kSwapped ? a : b, block * 128,
                     T::kSwapped ? place.row : place.column + (T::kShare == Share::kB ? rank * T::kTileN / 2 : 0));
      wait_for_earlier_kernels();
      first = false;
    }
    if (!more) break;
    const bool by_rows = p.schedule.grouping == ByteGrouping::kRowOffsets || p.schedule.grouping == ByteGrouping::kRowCounts;
    const int row_a = piece.first_row + place.row, row_b = (by_rows ? piece.group * p.n : 0) + place.column;
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
#pragma unroll 1
    for (int block = piece.k_begin; block < piece.k_end; ++block) {
      shared.empty[at.stage].wait(at.parity ^ 1u);
      Barrier& full = shared.full[at.stage];
      full.arrive_expecting(T::kCopiedBytes + (T::kScalesOfA && any_row ? 16 : 0));
      if constexpr (T::kCol32) {
        static_assert(T::kShare != Share::kA);
        copy_stripes(shared.a(at.stage), a, row_a, block * 4, full);
      } else if constexpr (T::kShare == Share::kA) {
        constexpr int kHalf = T::kTileM / 2;
        copy_box_multicast(shared.a(at.stage) + rank * kHalf * 128, a, block * 128, row_a + rank * kHalf, full, 3);
      } else {
        copy_box(shared.a(at.stage), a, block * 128, row_a, full);
      }
      if constexpr (T::kShare == Share::kB) {
        constexpr int kHalf = T::kTileN / 2;
        copy_box_multicast(shared.b(at.stage) + rank * kHalf * 128, b, block * 128, row_b + rank * kHalf, full, 3);
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
        if constexpr (T::kTileN > 128) copy_word(shared.tile_scales(at.stage) + 1, second_scale + block);
        arrive_after_words(full);
      }
      at.advance();
    }
  }
}

/// A tile that was cut into parts: the thread blocks of the cluster lay their sums into shared memory, as rows of D, and each adds up, in
/// the order of the parts, and finishes its share of the rows.
template <class T>
__device__ void finish_share(const ByteParams& p, const BytePiece& piece, const TilePlace& place, const ByteSums<T>& sums,
                             typename T::Sum* tile) {
  constexpr int kRows = T::kSwapped ? T::kTileN : T::kTileM, kColumns = T::kSwapped ? T::kTileM : T::kTileN, kPitch = kColumns + 4;
  static_assert(kRows * kPitch * 4 <= T::kStages * T::kStageBytes);
  const int thread = thread_here(), lane = thread % 32, warp = thread % 128 / 32, group = thread / 128, parts = p.schedule.parts;
  const int left = (T::kGroupsM == 2 ? group : 0) * T::kGroupM + warp * 16 + lane / 4,
            right = (T::kGroupsN == 2 ? group : 0) * T::kGroupN + lane % 4 * 2;
  named_sync(1, T::kConsumerThreads);  // the stages are not read any more
#pragma unroll
  for (int i = 0; i < T::kStrips * T::kCount; ++i) {
    const int strip = i / T::kCount, at = i % T::kCount, l = left + strip * 64 + at / 2 % 2 * 8, r = right + at / 4 * 8 + at % 2;
    tile[T::kSwapped ? r * kPitch + l : l * kPitch + r] = sums[strip][at];
  }
  cluster_sync();
  const int first = kRows * piece.part / parts, last = kRows * (piece.part + 1) / parts;
  const int rows = T::kSwapped ? p.n - place.column : piece.rows - place.row, columns = T::kSwapped ? p.m - place.row : p.n - place.column;
  const std::int64_t d_row = T::kSwapped ? place.column : place.row;
  const int d_column = T::kSwapped ? place.row : place.column;
  for (int i = first * (kColumns / 4) + thread; i < last * (kColumns / 4); i += T::kConsumerThreads) {
    const int r = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
    typename T::Sum total[4] = {};
    for (int part = 0; part < parts; ++part) {
      const float4 more = load_remote(tile + r * kPitch + c, static_cast<std::uint32_t>(part));
      if constexpr (std::is_same_v<typename T::Sum, int>) {
        total[0] += __float_as_int(more.x), total[1] += __float_as_int(more.y);
        total[2] += __float_as_int(more.z), total[3] += __float_as_int(more.w);
      } else {
        total[0] += more.x, total[1] += more.y, total[2] += more.z, total[3] += more.w;
      }
    }
    if (r < rows && c < columns) store_four<T::kSwapped, T::kOuter>(p.out, total, d_row + r, d_column + c, columns - c);
  }
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

/// The sums of a tile to D, box by box (`boxes` so far) through the warp's staging memory, which earlier stores may still be reading.
template <class T>
__device__ void finish_tile(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared, const ByteSums<T>& sums,
                            const BytePiece& piece, const TilePlace& place, unsigned& boxes) {
  const int here = thread_here(), lane = here % 32, warp = here % 128 / 32, group = here / 128;
  std::byte* const staging = shared.staging + (group * 4 + warp) * T::kBoxes * kStagingBytes;
  const StripPlace part = place_of_group<T>(p, piece, place, group);
#pragma unroll
  for (int strip = 0; strip < T::kStrips; ++strip) {
    const int first = strip * 64 + warp * 16, rows = part.rows - first;
    if constexpr (T::kSwapped) {
      store_transposed<T::kOuter>(p.out, sums[strip], static_cast<int>(part.row) + first, rows, part.column, staging);
    } else if (!p.out.boxed) {
      store_any<T::kOuter>(p.out, sums[strip], {part.row + first, rows, part.column, part.a + first, part.b}, staging);
    } else {
      // Boxes of at most 128 bytes in a row, kSums of a thread's sums at a time.
      const auto put = [&]<int kElementBytes>(std::integral_constant<int, kElementBytes>) {
        constexpr int kSums = std::min(T::kCount, 64 / kElementBytes);
        const bool copied = kSums * 2 * kElementBytes == 128 && !p.out.col32 && (rows >= 16 || p.out.rows_end_with_d);
#pragma unroll
        for (int from = 0; from < T::kCount; from += kSums) {
          std::byte* const box = staging + boxes++ % T::kBoxes * kStagingBytes;
          const int column = part.column + from * 2;
          float v[kSums];
          finish_sums(p.out, shared.terms(group), sums[strip] + from, v, first + lane / 4, from * 2 + lane % 4 * 2);
          if (lane == 0) wait_stores_read<T::kBoxes - 1>();
          __syncwarp();
          if constexpr (kElementBytes == 4)
            stage_32_bit(v, box);
          else if constexpr (kElementBytes == 2)
            stage_16_bit(p.out, v, box);
          else
            stage_8_bit(p.out, v, box);
          if (copied) fence_shared_for_copies();
          __syncwarp();
          if (!copied)
            store_box<kElementBytes, kSums * 2>(p.out, part.row + first, rows, column, box);
          else if (lane == 0)
            copy_box_out(d, column, static_cast<int>(part.row) + first, box);
          if (lane == 0) commit_stores();
        }
      };
      const DType out = p.out.epilogue.out;
      if (out == DType::kF16 || out == DType::kBf16)
        put(std::integral_constant<int, 2>());
      else if (out == DType::kF32 || out == DType::kI32)
        put(std::integral_constant<int, 4>());
      else if constexpr (T::kCount % 64 == 0)
        put(std::integral_constant<int, 1>());
    }
  }
}

/// A consumer warpgroup's work.
template <class T>
__device__ void consume(const ByteParams& p, const CUtensorMap& d, const ByteShared<T>& shared) {
  Consumer<T> consumer(shared);
  const int lane = consumer.lane, group = consumer.group;
  if (T::kLoop == Loop::kTurns && group == 1 && lane == 0) shared.turn[0].arrive();
  RingPosition<T::kNotes> note;
  const bool needs_terms = !T::kSwapped && p.out.boxed && p.schedule.parts == 1 && (T::kOuter || p.out.epilogue.bias != nullptr);
  const int barrier = 2 + group;
  unsigned boxes = 0;
  wait_for_earlier_kernels();  // from here on scales are read and D is written; the producer has waited before the operands are read
  for (bool begin = true;; begin = false) {
    shared.noted[note.stage].wait(note.parity);
    const PieceNote& told = shared.notes[note.stage];
    if (told.last) break;
    const BytePiece& piece = told.piece;
    const TilePlace& place = told.place;
    if constexpr (!T::kSwapped) {
      if (needs_terms) {
        if (!begin) named_sync(barrier, 128);  // the terms of the tile before are read
        const StripPlace part = place_of_group<T>(p, piece, place, group);
        shared.terms(group).start(p.out, thread_here() % 128, part.column, part.a, part.rows, part.b + part.column);
      }
    }
    const int scale_row = consumer.first_row + (p.schedule.grouping == ByteGrouping::kRowOffsets ? piece.first_row % 4 : 0);
    const bool early = T::kTileN == 192 && place.column % 128 != 0;  // the second block of columns begins at column 64, not 128
    const int blocks = piece.k_end - piece.k_begin;
    ByteSums<T> sums;
#pragma unroll
    for (int i = 0; i < T::kStrips * T::kCount; ++i) sums[i / T::kCount][i % T::kCount] = 0;
    if (blocks > 0) {
      if constexpr (T::kLoop == Loop::kDirect)
        consumer.multiply_direct(sums, blocks);
      else if constexpr (T::kLoop == Loop::kPipelined)
        consumer.multiply_pipelined(sums, blocks, scale_row, early);
      else if constexpr (T::kLoop == Loop::kRegisters)
        consumer.multiply_from_registers(sums, blocks, scale_row, early, begin);
      else
        consumer.multiply_in_strips(sums, blocks, scale_row, early);
    }
    if (T::kCluster == 1 && p.schedule.parts > 1) {
      finish_share<T>(p, piece, place, sums, reinterpret_cast<typename T::Sum*>(shared.tiles));
    } else {
      if (needs_terms) {
        wait_words();
        named_sync(barrier, 128);
      }
      finish_tile<T>(p, d, shared, sums, piece, place, boxes);
    }
    __syncwarp();  // the note is read
    if (lane == 0) shared.read[note.stage].arrive();
    note.advance();
  }
  if (lane == 0) wait_stores_read<0>();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    byte_product(const __grid_constant__ ByteParams p, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ CUtensorMap sa, const __grid_constant__ CUtensorMap sb, const __grid_constant__ CUtensorMap sa4,
                 const __grid_constant__ CUtensorMap d) {
  extern __shared__ std::byte memory[];
  const ByteShared<T> shared(memory);
  const bool parted = T::kCluster == 1 && p.schedule.parts > 1;
  const int rank = T::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int worker = static_cast<int>(blockIdx.x) / T::kCluster;
  if (threadIdx.x == 0) {
    prefetch_map(a);
    prefetch_map(b);
    if constexpr (T::kScalesOfA) prefetch_map(sa);
    if constexpr (T::kScalesOfB) prefetch_map(sb);
    if (p.out.boxed) prefetch_map(d);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].init(T::kTileScales ? 2 : 1);
      shared.empty[stage].init(T::kConsumers * 4 * T::kCluster);
    }
    for (int group = 0; group < T::kConsumers; ++group) shared.turn[group].init(4);
    for (int note = 0; note < T::kNotes; ++note) {
      shared.noted[note].init(1);
      shared.read[note].init(T::kConsumers * 4);
    }
    fence_barriers();
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) cluster_sync();
  let_next_kernel_start();

  if (threadIdx.x >= T::kConsumerThreads) {
    give_registers<40>();
    if (threadIdx.x == T::kConsumerThreads) produce<T>(p, a, b, sa, sb, sa4, shared, worker, rank);
  } else {
    take_registers<232>();
    consume<T>(p, d, shared);
  }
  if (parted && threadIdx.x >= T::kConsumerThreads) cluster_sync();  // the consumers are in finish_share
  if (T::kCluster > 1 || parted) cluster_sync();                     // nobody leaves while its shared memory may still be used from outside
}

}  // namespace narrow::cuda::sm90
