// The tile registers of AMX as every product here uses them: all eight are 16 rows of 64 bytes. Included in a leaf's namespace after
// matmul_decode.inl.
//   A: 16 activations x 64 bytes of k (64 bytes or 32 bf16), 1 KiB one after the other, as cpu::PackedRows::kTiles lies;
//   B: 64 bytes of k x 16 outputs: 16 rows of 4 bytes, kVectorBytes apart, as a panel of 8- or 16-bit codes lies;
//   C: 16 activations x 16 outputs of 4 bytes.
// A and B change places 16 lines at a time: 9 cycles from the first-level cache, 23 from the second, where a product takes 16 to 19. So
// 32 rows x 32 outputs share two of each: 4 loads for 4 products.

constexpr int kTileBytes = 1024;
constexpr std::int64_t kStepBytes = 16 * kVectorBytes;  // of a panel, for one tile of k
constexpr int kBlockRows = 32;                          // of activations that meet a panel at once

/// The layout of LDTILECFG's operand, palette 1.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void shape_tiles() {
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}

/// What was stored by other instructions is in memory before tiles are loaded: the compiler's intrinsics do not say that they read it.
inline void before_tile_loads() { asm volatile("" ::: "memory"); }
