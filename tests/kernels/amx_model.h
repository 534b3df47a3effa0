#pragma once
/// AMX's tiles in plain C++, in place of the intrinsics of the leaf that is compiled after this (kernels/cpu/x86/matmul_amx.cc, as
/// narrow::amx_model): its rows are tested on every processor with AVX-512.

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace narrow::amx_model_tiles {

struct State {
  bool configured = false;
  std::uint8_t rows[8] = {};
  std::uint16_t row_bytes[8] = {};
  std::uint8_t tiles[8][16][64] = {};
};
inline thread_local State state;

/// What the processor would fault on ends the test program.
inline void require(bool condition) {
  if (!condition) std::abort();
}
inline void configure(const void* shapes) {  // LDTILECFG's operand, palette 1
  const auto* bytes = static_cast<const std::uint8_t*>(shapes);
  require(bytes[0] == 1 && bytes[1] == 0);
  state = State{};
  state.configured = true;
  std::memcpy(state.row_bytes, bytes + 16, sizeof state.row_bytes);
  std::memcpy(state.rows, bytes + 48, sizeof state.rows);
  for (int tile = 0; tile < 8; ++tile) require(state.rows[tile] <= 16 && state.row_bytes[tile] <= 64 && state.row_bytes[tile] % 4 == 0);
}
inline void release() { state = State{}; }
inline void zero(int tile) {
  require(state.configured);
  std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
}
inline void load(int tile, const void* from, std::int64_t stride) {
  zero(tile);
  for (int row = 0; row < state.rows[tile]; ++row)
    std::memcpy(state.tiles[tile][row], static_cast<const std::uint8_t*>(from) + row * stride, state.row_bytes[tile]);
}
inline void store(int tile, void* to, std::int64_t stride) {
  require(state.configured);
  for (int row = 0; row < state.rows[tile]; ++row)
    std::memcpy(static_cast<std::uint8_t*>(to) + row * stride, state.tiles[tile][row], state.row_bytes[tile]);
}
/// TDPBSUD: c += a b, a of signed bytes, b of unsigned ones in groups of four rows of k.
inline void multiply_signed_unsigned(int c, int a, int b) {
  require(state.configured && c != a && c != b && a != b);
  require(state.rows[c] == state.rows[a] && state.row_bytes[c] == state.row_bytes[b] && state.row_bytes[a] == 4 * state.rows[b]);
  for (int m = 0; m < state.rows[c]; ++m)
    for (int n = 0; n < state.row_bytes[c] / 4; ++n) {
      std::uint32_t sum;
      std::memcpy(&sum, &state.tiles[c][m][4 * n], 4);
      for (int k = 0; k < state.row_bytes[a]; ++k)
        sum += static_cast<std::uint32_t>(static_cast<std::int8_t>(state.tiles[a][m][k]) * state.tiles[b][k / 4][4 * n + k % 4]);
      std::memcpy(&state.tiles[c][m][4 * n], &sum, 4);
    }
}

}  // namespace narrow::amx_model_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig narrow::amx_model_tiles::configure
#define _tile_release narrow::amx_model_tiles::release
#define _tile_zero narrow::amx_model_tiles::zero
#define _tile_loadd narrow::amx_model_tiles::load
#define _tile_stream_loadd narrow::amx_model_tiles::load
#define _tile_stored narrow::amx_model_tiles::store
#define _tile_dpbsud narrow::amx_model_tiles::multiply_signed_unsigned
