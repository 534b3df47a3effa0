#pragma once
/// What a model answers to some windows, and how far another one is from it.

#include <cmath>
#include <filesystem>
#include <vector>

#include "narrow/model.h"

namespace narrow::test {

using Windows = std::vector<std::vector<std::int32_t>>;

inline std::vector<float> answers(const std::filesystem::path& path, const Windows& windows) {
  const Model model = open_model(path);
  std::vector<float> all;
  for (const auto& window : windows) {
    KvCache cache = model.make_cache();
    const Sequence sequence{window, &cache};
    const Tensor y = model.forward({&sequence, 1});
    all.insert(all.end(), y.as<float>(), y.as<float>() + y.size());
  }
  return all;
}

/// The relative squared error of the logits.
inline double answer_error(const std::filesystem::path& base, const std::filesystem::path& path, const Windows& windows) {
  const std::vector<float> x = answers(base, windows), y = answers(path, windows);
  double noise = 0.0, signal = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    noise += std::pow(static_cast<double>(x[i] - y[i]), 2);
    signal += std::pow(static_cast<double>(x[i]), 2);
  }
  return noise / signal;
}

}  // namespace narrow::test
