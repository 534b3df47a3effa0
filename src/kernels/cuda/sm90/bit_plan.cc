/// Which Hopper kernel a product of bits takes: a model of its time on an H200, fitted to measurements of fp16 results.
///   us = start + first + first_block * blocks + (rounds - 1) * (next + next_block * blocks)
/// A round is one tile on every multiprocessor, a block 1024 bits along k. Later tiles hide a part of their stores.

#include "kernels/cuda/bit_product.h"

namespace narrow::cuda {
namespace {

constexpr BitConfig kConfigs[] = {{"128x256", 128, 256, 1, 2.25, 0.58, 2.9, 0.60},
                                  {"128x256_cluster_2x1", 128, 256, 2, 2.60, 0.62, 3.3, 0.62},
                                  {"128x128", 128, 128, 1, 1.45, 0.31, 1.3, 0.40},
                                  {"128x64", 128, 64, 1, 1.10, 0.24, 0.8, 0.25}};

constexpr double kStart = 1.3, kWide = 1.6;  // kWide: the fixed part of a tile of 32-bit results

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::span<const BitConfig> bit_configs() { return kConfigs; }

double estimate_bit_config(const BitProblem& problem, int config, int multiprocessors) {
  const BitConfig& c = kConfigs[config];
  const std::int64_t tiles = ceil_div(problem.m, c.tile_m * c.cluster) * ceil_div(problem.n, c.tile_n);
  const double rounds = static_cast<double>(ceil_div(tiles, multiprocessors / c.cluster));
  const double blocks = static_cast<double>(ceil_div(problem.k, 1024));
  const double wide = problem.epilogue.out == DType::kF32 || problem.epilogue.out == DType::kI32 ? kWide : 1.0;
  return kStart + wide * c.first + c.first_block * blocks + (rounds - 1.0) * (wide * c.next + c.next_block * blocks);
}

int choose_bit_config(const BitProblem& problem, int multiprocessors) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(bit_configs().size()); ++i)
    if (estimate_bit_config(problem, i, multiprocessors) < estimate_bit_config(problem, best, multiprocessors)) best = i;
  return best;
}

}  // namespace narrow::cuda
