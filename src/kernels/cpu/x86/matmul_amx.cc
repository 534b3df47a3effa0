/// int8 x int8 for AMX: 16 rows x 64 outputs as four tiles of int32, 64 k a step (TDPBSUD). Epilogues are AVX-512's.
/// A panel of 8-bit codes is a tile of B as it lies: 16 rows of 4 k, 256 bytes apart, 16 outputs wide.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics headers
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::amx {
namespace {

constexpr std::int64_t kPrefetchBytes = 16384;  // into the second-level cache: the first level has few misses in flight to spare
constexpr std::int64_t kTilePrefetchBytes = 0;

#include "kernels/cpu/x86/vec_avx512.inl"
#include "kernels/cpu/matmul_epilogue.inl"
#include "kernels/cpu/matmul_decode.inl"
#include "kernels/cpu/x86/dot_loop.inl"
#include "kernels/cpu/matmul_integer.inl"

/// The layout of LDTILECFG's operand, palette 1.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Tiles 0..3: sums; 4 and 5: 64 k of x and w; 6 and 7: the last 32 k where their number of groups is odd.
inline void shape_tiles(int rows) {
  TileShapes shapes;
  const auto set = [&](int tile, int row_count, int bytes) {
    shapes.rows[tile] = static_cast<std::uint8_t>(row_count);
    shapes.row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  };
  for (int tile = 0; tile < 4; ++tile) set(tile, rows, 64);
  set(4, rows, 64);
  set(5, 16, 64);
  set(6, rows, 32);
  set(7, 8, 64);
  _tile_loadconfig(&shapes);
}

/// 16 rows; the zero-point terms are taken off the stored sums.
struct AmxTile {
  static constexpr int kRows = 16;
  static constexpr bool kEnds = false;

  template <int kBits>
  static void run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, const std::int32_t*,
                  const Segment& to);
};

template <int kBits>
void AmxTile::run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x, const std::int32_t*,
                  const Segment& to) {
  std::int32_t* sums = to.sums;
  constexpr std::int64_t kGroupBytes = 8 * kVectorBytes;
  const std::int64_t stride = rows > 1 ? x[1] - x[0] : 64;
  shape_tiles(rows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  std::int64_t group = begin;
  for (; group + 2 <= end; group += 2) {
    const std::byte* w = panel + group * kGroupBytes;
    _tile_loadd(4, x[0] + group * 32, stride);
    _tile_loadd(5, w, kVectorBytes);
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(5, w + 64, kVectorBytes);
    _tile_dpbsud(1, 4, 5);
    _tile_loadd(5, w + 128, kVectorBytes);
    _tile_dpbsud(2, 4, 5);
    _tile_loadd(5, w + 192, kVectorBytes);
    _tile_dpbsud(3, 4, 5);
  }
  if (group < end) {
    const std::byte* w = panel + group * kGroupBytes;
    _tile_loadd(6, x[0] + group * 32, stride);
    _tile_loadd(7, w, kVectorBytes);
    _tile_dpbsud(0, 6, 7);
    _tile_loadd(7, w + 64, kVectorBytes);
    _tile_dpbsud(1, 6, 7);
    _tile_loadd(7, w + 128, kVectorBytes);
    _tile_dpbsud(2, 6, 7);
    _tile_loadd(7, w + 192, kVectorBytes);
    _tile_dpbsud(3, 6, 7);
  }
  _tile_stored(0, sums, kLanes * 4);
  _tile_stored(1, sums + 16, kLanes * 4);
  _tile_stored(2, sums + 32, kLanes * 4);
  _tile_stored(3, sums + 48, kLanes * 4);
  _tile_release();
}

}  // namespace

const cpu::MatmulRun kDot8 = integer_run<AmxTile, 8>;
const cpu::MatmulScratch kDot8Scratch = integer_scratch_bytes<AmxTile, 8>;
const std::int64_t kDot8Rows = kIntegerRows;

}  // namespace narrow::amx
