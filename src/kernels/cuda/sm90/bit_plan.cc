/// Which Hopper kernel a product of bits takes: a model of its time.
///   cycles = rounds of tiles * max(products, stores of D) + start
/// A tile of 128 x n takes 128 * n / 32768 cycles per bit of k; its results leave at some 16 bytes a cycle under the next tile's products.

#include <algorithm>

#include "kernels/cuda/bit_product.h"

namespace narrow::cuda {
namespace {

constexpr BitConfig kConfigs[] = {{"128x256_cluster_2x1_four", 128, 256, 2},
                                  {"128x256_four", 128, 256, 1},
                                  {"128x256_cluster_2x1", 128, 256, 2},
                                  {"128x256", 128, 256, 1},
                                  {"128x128", 128, 128, 1},
                                  {"128x64", 128, 64, 1}};

constexpr double kMegahertz = 1755.0, kStart = 4000.0, kStoreBytes = 16.0;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::span<const BitConfig> bit_configs() { return kConfigs; }

double estimate_bit_config(const BitProblem& problem, int config, int multiprocessors) {
  const BitConfig& c = kConfigs[config];
  const std::int64_t tiles = ceil_div(problem.m, c.tile_m * c.cluster) * ceil_div(problem.n, c.tile_n);
  const double rounds = static_cast<double>(ceil_div(tiles, multiprocessors / c.cluster));
  const double blocks = static_cast<double>(ceil_div(problem.k, 1024)), area = static_cast<double>(c.tile_m * c.tile_n);
  const double products = blocks * std::max(area / 32.0, 400.0);  // narrow tiles wait for their operands
  const double stores = area * (problem.epilogue.out == DType::kF32 || problem.epilogue.out == DType::kI32 ? 4.0 : 2.0) / kStoreBytes;
  return (rounds * std::max(products, stores) + std::min(products, stores) + kStart) / kMegahertz;
}

int choose_bit_config(const BitProblem& problem, int multiprocessors) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(bit_configs().size()); ++i)
    if (estimate_bit_config(problem, i, multiprocessors) < estimate_bit_config(problem, best, multiprocessors)) best = i;
  return best;
}

}  // namespace narrow::cuda
