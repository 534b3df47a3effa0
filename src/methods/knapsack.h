#pragma once
/// One choice for each layer, at least cost within a budget of bytes.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace narrow {

struct LayerChoice {
  std::uint64_t bytes = 0;
  double cost = 0.0;
};

struct Assignment {
  std::vector<std::size_t> choices;  ///< one per layer
  std::uint64_t bytes = 0;
  double cost = 0.0;
};

/// Dynamic programming over bytes, counted in the greatest common divisor of all differences: the best of all assignments. Where there are
/// more than 2^18 such units, differences are rounded up to a larger unit, so that a budget is never exceeded.
class Knapsack {
 public:
  /// layers: the choices of each; none is empty.
  explicit Knapsack(std::vector<std::vector<LayerChoice>> layers);

  std::uint64_t least_bytes() const { return least_; }
  /// The cheapest assignment of at most so many bytes; nothing where even the smallest choices take more.
  std::optional<Assignment> within(std::uint64_t bytes) const;
  /// The smallest assignment of at most that cost; nothing where there is none.
  std::optional<Assignment> below(double cost) const;
  /// Smallest and largest, and at most `points` between them.
  std::vector<Assignment> curve(std::size_t points) const;

 private:
  Assignment at(std::size_t state) const;

  std::vector<std::vector<LayerChoice>> layers_;
  std::vector<std::vector<std::size_t>> units_;  ///< of each choice, over the layer's smallest
  std::uint64_t least_ = 0, unit_ = 1;
  std::vector<std::vector<std::uint16_t>> chosen_;  ///< by layer and state
  std::vector<double> best_;                        ///< by state: units over the least
};

}  // namespace narrow
