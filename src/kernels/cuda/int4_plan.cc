/// Which configuration multiplies int8 activations by int4 weights, and its launch.

#include <array>

#include "kernels/cuda/int4_kernels.h"

namespace narrow::cuda {
namespace {

constexpr std::array kConfigs = {
    Int4Config{"sm90_matmul_int8_int4_128x128", true, 128, 128},          Int4Config{"sm90_matmul_int8_int4_64x64", true, 64, 64},
    Int4Config{"mma_matmul_int8_int4_128x128", false, 128, 128},          Int4Config{"mma_matmul_int8_int4_64x64", false, 64, 64},
    Int4Config{"mma_matmul_int8_int4_few_rows", false, kFewInt4Rows, 32},
};
constexpr int kHopperLarge = 0, kHopperSmall = 1, kMmaLarge = 2, kMmaSmall = 3, kFewRows = 4;

std::int64_t tiles_of(int config, int m, int n) {
  const Int4Config& c = kConfigs[static_cast<std::size_t>(config)];
  return std::int64_t{(m + c.tile_m - 1) / c.tile_m} * ((n + c.tile_n - 1) / c.tile_n);
}

}  // namespace

std::span<const Int4Config> int4_configs() { return kConfigs; }

bool has_int4_config(const Int4View& w, int config) { return !kConfigs[static_cast<std::size_t>(config)].is_hopper || w.block % 128 == 0; }

int choose_int4_config(int m, const Int4View& w, bool is_hopper, int multiprocessors) {
  if (m <= kFewInt4Rows) return kFewRows;
  if (!is_hopper || !has_int4_config(w, kHopperLarge)) return tiles_of(kMmaLarge, m, w.n) >= multiprocessors ? kMmaLarge : kMmaSmall;
  // Of the small tiles two share a multiprocessor; such a pair takes about 4/5 of the time of a large one.
  const auto rounds = [&](int config, int places) { return (tiles_of(config, m, w.n) + places - 1) / places; };
  return 5 * rounds(kHopperLarge, multiprocessors) <= 4 * rounds(kHopperSmall, 2 * multiprocessors) ? kHopperLarge : kHopperSmall;
}

int launch_int4_product(const Int4Problem& p, int config, Stream stream) {
  if (p.m == 0 || p.w.n == 0) return 0;
  const Int4Config& c = kConfigs[static_cast<std::size_t>(config)];
  if (c.is_hopper) return launch_int4_hopper(p, c.tile_m, stream);
  return config == kFewRows ? launch_int4_few_rows(p, stream) : launch_int4_mma(p, c.tile_m, stream);
}

}  // namespace narrow::cuda
