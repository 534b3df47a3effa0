#include "methods/knapsack.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace narrow {
namespace {

constexpr std::uint64_t kMostStates = std::uint64_t{1} << 18;

}  // namespace

Knapsack::Knapsack(std::vector<std::vector<LayerChoice>> layers) : layers_(std::move(layers)) {
  std::uint64_t divisor = 0, range = 0;
  std::vector<std::uint64_t> smallest;
  for (const auto& choices : layers_) {
    const auto [low, high] =
        std::minmax_element(choices.begin(), choices.end(), [](const LayerChoice& a, const LayerChoice& b) { return a.bytes < b.bytes; });
    smallest.push_back(low->bytes);
    least_ += low->bytes;
    range += high->bytes - low->bytes;
    for (const LayerChoice& choice : choices) divisor = std::gcd(divisor, choice.bytes - low->bytes);
  }
  unit_ = std::max<std::uint64_t>(1, divisor);
  if (range / unit_ > kMostStates) unit_ = range / kMostStates + 1;
  std::size_t states = 1;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    std::vector<std::size_t>& units = units_.emplace_back();
    for (const LayerChoice& choice : layers_[layer])
      units.push_back(static_cast<std::size_t>((choice.bytes - smallest[layer] + unit_ - 1) / unit_));
    states += *std::max_element(units.begin(), units.end());
  }
  best_.assign(states, 0.0);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    std::vector<double> next(states, HUGE_VAL);
    std::vector<std::uint16_t>& chosen = chosen_.emplace_back(states, std::uint16_t{0});
    for (std::size_t c = 0; c < layers_[layer].size(); ++c)
      for (std::size_t s = units_[layer][c]; s < states; ++s) {
        const double cost = best_[s - units_[layer][c]] + layers_[layer][c].cost;
        if (cost >= next[s]) continue;
        next[s] = cost;
        chosen[s] = static_cast<std::uint16_t>(c);
      }
    best_ = std::move(next);
  }
}

Assignment Knapsack::at(std::size_t state) const {
  Assignment result;
  result.choices.resize(layers_.size());
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    const std::size_t choice = chosen_[layer][state];
    result.choices[layer] = choice;
    state -= units_[layer][choice];
    result.bytes += layers_[layer][choice].bytes;
    result.cost += layers_[layer][choice].cost;
  }
  return result;
}

std::optional<Assignment> Knapsack::within(std::uint64_t bytes) const {
  if (bytes < least_) return std::nullopt;
  return at(std::min(best_.size() - 1, static_cast<std::size_t>((bytes - least_) / unit_)));
}

std::optional<Assignment> Knapsack::below(double cost) const {
  // Costs fall with the budget.
  const auto found = std::partition_point(best_.begin(), best_.end(), [&](double best) { return best > cost; });
  if (found == best_.end()) return std::nullopt;
  return at(static_cast<std::size_t>(found - best_.begin()));
}

std::vector<Assignment> Knapsack::curve(std::size_t points) const {
  std::vector<Assignment> result;
  for (std::size_t i = 0; i <= points + 1; ++i) {
    Assignment next = at((best_.size() - 1) * i / (points + 1));
    if (result.empty() || next.bytes != result.back().bytes) result.push_back(std::move(next));
  }
  return result;
}

}  // namespace narrow
