/// 8-bit activations x panels of integers for AMX (TDPBSUD, 64 k a step); epilogues are AVX-512's. A panel of 8-bit codes is read as it
/// lies, narrower ones are widened first, once for all rows of a tile. Bound: tile loads (amx_tiles.inl).

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
#include "kernels/cpu/matmul_integer.inl"

#include "kernels/cpu/x86/amx_tiles.inl"

/// Where the bytes of 32 outputs lie as B: in a panel, two of whose four lines for every k are theirs, or as tiles of their own.
struct InPanel {
  static constexpr std::int64_t kRow = kVectorBytes, kTile = 64, kStep = kStepBytes;
};
struct Spread {
  static constexpr std::int64_t kRow = 64, kTile = kTileBytes, kStep = 2 * kTileBytes;
};

// One step of 64 k for 32 or 16 rows and 32 outputs. Intrinsics take the numbers of tiles as literals. A is streamed: it does not push B,
// which the next rows meet as well, out of the first-level cache.
template <typename B>
inline void step_of_32(const std::int8_t* x0, const std::int8_t* x1, const std::byte* w) {
  _tile_stream_loadd(4, x0, 64);
  _tile_loadd(6, w, B::kRow);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, w + B::kTile, B::kRow);
  _tile_dpbsud(1, 4, 7);
  _tile_stream_loadd(5, x1, 64);
  _tile_dpbsud(2, 5, 6);
  _tile_dpbsud(3, 5, 7);
}
template <typename B>
inline void step_of_16(const std::int8_t* x, const std::byte* w) {
  _tile_stream_loadd(4, x, 64);
  _tile_loadd(6, w, B::kRow);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, w + B::kTile, B::kRow);
  _tile_dpbsud(1, 4, 7);
}

/// 32 rows x 32 outputs; sums are stored, and meet their ends as vectors.
template <typename B>
struct AmxTile {
  static constexpr int kRows = kBlockRows, kColumns = 32;
  static constexpr bool kEnds = true;
  static constexpr Widening kWidening = Widening::kAlways;
  static const std::int8_t* row(const cpu::IntegerTask& task, std::int64_t m) { return task.x + m / 16 * task.x_stride; }

  /// Rows [first, rows) of a stored segment, kCount at a time.
  template <int kCount>
  static int end_rows(int first, int rows, const std::int32_t* starts, const Segment& to) {
    constexpr int kWidth = kColumns / kPart;
    for (; first + kCount <= rows; first += kCount) {
      I sum[kCount][kWidth];
      for (int r = 0; r < kCount; ++r)
        for (int p = 0; p < kWidth; ++p)
          sum[r][p] = _mm512_add_epi32(load_lanes(to.sums + (first + r) * kColumns + p * kPart),
                                       set_lanes(static_cast<std::uint32_t>(starts[first + r])));
      Segment of = to;
      of.sums += first * kColumns;
      of.x_sums += first;
      of.x_scales += first;
      of.values += first;
      end_segment<kCount>(sum, of, 0);
    }
    return first;
  }

  /// Groups [begin, end) in pairs; of a panel the last one may be alone, and is padded with zeros. Meanwhile the lines of y are fetched
  /// that will be written, two rows a step.
  template <typename Step>
  static void multiply(int rows, const std::byte* w, std::int64_t begin, std::int64_t end, const Segment& to, const Step& step) {
    const Fetch& fetch = to.fetch;
    const std::int64_t steps = B::kRow == 64 ? (end - begin + 1) / 2 : (end - begin) / 2;
    const std::byte *here = w + begin / 2 * B::kStep, *line = fetch.from + begin / 2 * fetch.stride;
    for (std::int64_t i = 0; i < steps; ++i, here += B::kStep, line += fetch.stride) {
      for (int l = 0; l < fetch.lines; ++l) __builtin_prefetch(line + l * 64, 0, 2);
      if (to.values != nullptr && 2 * i < rows)
        for (int l = 0; l < 4; ++l) __builtin_prefetch(to.values[2 * i + l / 2] + l % 2 * 16, 1, 3);
      step(i, here);
    }
    if (steps * 2 >= end - begin) return;
    alignas(64) std::byte last[kStepBytes];
    __builtin_memcpy(last, here, kStepBytes / 2 - 128);  // not what lies behind the last panel
    __builtin_memset(last + kStepBytes / 2 - 128, 0, kStepBytes / 2 + 128);
    before_tile_loads();
    step(steps, last);
  }

  /// x[0] and x[16]: where rows 0..15 and 16..31 lie.
  template <int kBits>
  static void run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x,
                  const std::int32_t* starts, const Segment& to) {
    static_assert(kBits == 8);
    const std::int8_t *x0 = x[0] + begin / 2 * kTileBytes, *x1 = x[16] + begin / 2 * kTileBytes;
    before_tile_loads();
    _tile_zero(0);
    _tile_zero(1);
    if (rows > 16) {
      _tile_zero(2);
      _tile_zero(3);
      multiply(
          rows, panel, begin, end, to, [&](std::int64_t i, const std::byte* w) __attribute__((always_inline)) {
            step_of_32<B>(x0 + i * kTileBytes, x1 + i * kTileBytes, w);
          });
      _tile_stored(2, to.sums + 16 * kColumns, kColumns * 4);
      _tile_stored(3, to.sums + 16 * kColumns + 16, kColumns * 4);
    } else {
      multiply(
          rows, panel, begin, end,
          to, [&](std::int64_t i, const std::byte* w) __attribute__((always_inline)) { step_of_16<B>(x0 + i * kTileBytes, w); });
    }
    _tile_stored(0, to.sums, kColumns * 4);
    _tile_stored(1, to.sums + 16, kColumns * 4);
    if (to.task != nullptr) end_rows<1>(end_rows<4>(0, rows, starts, to), rows, starts, to);
  }
};

/// A panel as tiles: its first 32 outputs, then the others, [half][64 k][16 outputs][4 k][outputs x 4]; a last group alone is padded.
template <int kBits>
void spread_panel(const std::byte* panel, std::int64_t groups, std::byte* tiles) {
  const std::int64_t half_bytes = (groups + 1) / 2 * Spread::kStep;
  widen_panel<kBits, 64>(
      panel, groups, [&](std::int64_t group, int p) __attribute__((always_inline)) {
        return tiles + p / 2 * half_bytes + group / 2 * Spread::kStep + p % 2 * kTileBytes + group % 2 * (kTileBytes / 2);
      });
  if (groups % 2 == 0) return;
  for (int p = 0; p < kParts; ++p)
    __builtin_memset(tiles + p / 2 * half_bytes + groups / 2 * Spread::kStep + p % 2 * kTileBytes + kTileBytes / 2, 0, kTileBytes / 2);
}

/// Rows of x and 64 outputs, 32 of them at a time. codes: the first half's; the second's follow after half_bytes.
template <typename B>
void panel_product(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, const std::byte* codes,
                   std::int64_t half_bytes, Fetch fetch, std::byte* scratch) {
  using Tile = AmxTile<B>;
  const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
  auto* sums = reinterpret_cast<std::int32_t*>(scratch);
  auto* values = reinterpret_cast<float*>(scratch + Tile::kRows * Tile::kColumns * 4);
  const std::int64_t passes = (part.m_end - part.m_begin + Tile::kRows - 1) / Tile::kRows * 2;  // share what is fetched
  const int all_lines = static_cast<int>(fetch.stride / 64);
  fetch.lines = static_cast<int>((all_lines + passes - 1) / passes);
  int fetched = 0;
  for (int half = 0; half < 2; ++half) {
    MatmulTile columns = part;
    columns.n_begin += half * Tile::kColumns;
    if (columns.n_begin + Tile::kColumns < columns.n_end) columns.n_end = columns.n_begin + Tile::kColumns;
    if (columns.n_begin >= columns.n_end) return;
    IntegerRows<Tile, 8> rows{
        problem, columns, packed, codes + half * half_bytes, integer_panel(problem, task, part.n_begin / kLanes, half * Tile::kColumns), 0,
        sums,    values,  fetch};
    for (std::int64_t row = part.m_begin; row < part.m_end; row += Tile::kRows) {
      rows.run(row, static_cast<int>(row + Tile::kRows < part.m_end ? Tile::kRows : part.m_end - row));
      fetched += fetch.lines;
      rows.fetch.from += fetch.lines * 64;
      if (fetched >= all_lines) rows.fetch.lines = 0;
    }
    fetch = rows.fetch;
  }
}

/// Scratch: sums and values of 32 x 32, then a panel as tiles.
std::size_t scratch_bytes(const MatmulProblem& problem) {
  return static_cast<std::size_t>(kBlockRows * 32 * 8 + (problem.k + 63) / 64 * 2 * Spread::kStep);
}

constexpr std::int64_t kFewRows = 64;            // read a panel of bytes as it lies: memory is slower than its lines
constexpr std::int64_t kCachedRows = 5ll << 18;  // bytes of rows that stay in the second-level cache while the panels of a tile pass by

template <int kBits>
void run(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, std::byte* scratch) {
  const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
  const std::int64_t fitting = kCachedRows / problem.k / kBlockRows * kBlockRows, rows = fitting < kBlockRows ? kBlockRows : fitting;
  shape_tiles();
  for (std::int64_t m = part.m_begin; m < part.m_end; m += rows)
    for (std::int64_t n = part.n_begin; n < part.n_end; n += kLanes) {
      const MatmulTile here{m, m + rows < part.m_end ? m + rows : part.m_end, n, n + kLanes < part.n_end ? n + kLanes : part.n_end};
      const std::byte* codes = reinterpret_cast<const std::byte*>(problem.w.codes) + n / kLanes * task.panel_bytes;
      const Fetch next = n + kLanes < problem.n ? Fetch{codes + task.panel_bytes, 2 * kBits * kVectorBytes, 0} : Fetch{};
      if (kBits == 8 && here.m_end - here.m_begin <= kFewRows) {
        panel_product<InPanel>(problem, here, packed, codes, 2 * InPanel::kTile, next, scratch);
      } else {
        std::byte* tiles = scratch + kBlockRows * 32 * 8;
        spread_panel<kBits>(codes, task.groups, tiles);
        panel_product<Spread>(problem, here, packed, tiles, (task.groups + 1) / 2 * Spread::kStep, next, scratch);
      }
    }
  _tile_release();
}

}  // namespace

const cpu::AmxIntegerBodies kIntegers{run<8>, run<4>, run<3>, run<2>, run<1>, scratch_bytes, scratch_bytes};

}  // namespace narrow::amx
