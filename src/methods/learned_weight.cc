#include "methods/learned_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/float_environment.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

constexpr float kMeanDecay = 0.9f, kSquareDecay = 0.99f, kSmallest = 1e-20f;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Values that are no number count as zero: no element is placed there.
float value_of(const Scheme& scheme, std::uint32_t code, std::int32_t zero_point) {
  const float value = dequantize_element(scheme, code, 1.0f, zero_point);
  return std::isfinite(value) ? value : 0.0f;
}

/// Half the distance between a code's neighbours in value; at the ends, the distance to the only one.
std::vector<float> gaps_of(const Scheme& scheme) {
  const std::size_t count = std::size_t{1} << scheme.element.bits;
  std::vector<float> values(count), gaps(count, 1.0f);
  for (std::size_t code = 0; code < count; ++code) values[code] = value_of(scheme, static_cast<std::uint32_t>(code), 0);
  std::vector<float> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (std::size_t code = 0; code < count && sorted.size() > 1; ++code) {
    const std::size_t place = static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), values[code]) - sorted.begin());
    const std::size_t below = place > 0 ? place - 1 : 0, above = std::min(place + 1, sorted.size() - 1);
    gaps[code] = (sorted[above] - sorted[below]) / static_cast<float>(above - below);
  }
  return gaps;
}

}  // namespace

Adam::Step::Step(Adam& adam, std::int64_t step)
    : adam_(adam),
      mean_factor_(1.0f / (1.0f - std::pow(kMeanDecay, static_cast<float>(step)))),
      square_factor_(1.0f / (1.0f - std::pow(kSquareDecay, static_cast<float>(step)))) {}

float Adam::Step::operator()(std::size_t i, float gradient) const {
  float &mean = adam_.mean_[i], &square = adam_.square_[i];
  mean = kMeanDecay * mean + (1.0f - kMeanDecay) * gradient;
  square = kSquareDecay * square + (1.0f - kSquareDecay) * gradient * gradient;
  return mean * mean_factor_ / (std::sqrt(square * square_factor_) + kSmallest);
}

void Adam::visit_state(const std::string& name, const StateVisitor& visit) {
  visit(name + ".mean", std::as_writable_bytes(std::span(mean_)));
  visit(name + ".square", std::as_writable_bytes(std::span(square_)));
}

void LearnedWeight::visit_state(const std::string& name, const StateVisitor& visit) {
  visit(name + ".codes", {q_.codes.data(), q_.codes.size()});
  visit(name + ".places", std::as_writable_bytes(std::span(places_)));
  code_moments_.visit_state(name + ".places", visit);
  if (scales_.empty()) return;
  visit(name + ".stored_scales", {q_.scales.data(), q_.scales.size()});
  visit(name + ".scales", std::as_writable_bytes(std::span(scales_)));
  scale_moments_.visit_state(name + ".scales", visit);
}

LearnedWeight::LearnedWeight(QuantizedTensor q)
    : q_(std::move(q)),
      grid_(q_.grid()),
      n_(q_.shape[0]),
      k_(q_.shape[1]),
      gaps_(gaps_of(q_.scheme)),
      places_(at(n_ * k_)),
      scales_(q_.scheme.has_scales() ? at(grid_.count()) : 0),
      code_moments_(places_.size()),
      scale_moments_(scales_.size()) {
  const Scheme& scheme = q_.scheme;
  lowest_ = highest_ = 0.0f;
  for (std::uint32_t code = 0; code < gaps_.size(); ++code) {
    lowest_ = std::min(lowest_, value_of(scheme, code, 0));
    highest_ = std::max(highest_, value_of(scheme, code, 0));
  }
  for (std::size_t i = 0; i < scales_.size(); ++i)
    scales_[i] = effective_scale(scheme, load_scale_code(q_.scales.data(), scheme.scale, static_cast<std::int64_t>(i)), q_.outer_scale);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < n_; ++row) {
    const std::uint8_t* packed = q_.codes.as<std::uint8_t>() + at(row) * q_.row_bytes();
    for (std::int64_t col = 0; col < k_; ++col) {
      const std::int32_t zero =
          scheme.asymmetric ? q_.zero_points.as<std::uint8_t>()[grid_.grid_row(row) * grid_.cols + grid_.grid_col(col)] : 0;
      places_[at(row * k_ + col)] = value_of(scheme, read_code(packed, col, scheme.element.bits), zero);
    }
  }
}

void LearnedWeight::follow(const Tensor& gradient, std::int64_t step, float code_rate, float scale_rate) {
  const Adam::Step code_step(code_moments_, step), scale_step(scale_moments_, step);
  const std::int64_t rows = q_.scheme.has_scales() ? grid_.rows : n_;
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) follow_rows(row, gradient.as<float>(), code_step, scale_step, code_rate, scale_rate);
  }
}

/// All rows that share a row of scales, so that no two threads meet. The slope by log s is the sum of dw w over what s scales.
void LearnedWeight::follow_rows(std::int64_t grid_row, const float* gradient, const Adam::Step& code_step, const Adam::Step& scale_step,
                                float code_rate, float scale_rate) {
  const Scheme& scheme = q_.scheme;
  const bool scaled = scheme.has_scales();
  const std::int64_t height = !scaled ? 1 : grid_.whole_tensor ? n_ : grid_.tile_rows, cells = scaled ? grid_.cols : 1;
  const std::int64_t width = !scaled || grid_.whole_tensor ? k_ : grid_.tile_cols;
  const std::int64_t first_row = grid_row * height, last_row = std::min(n_, first_row + height);
  for (std::int64_t row = first_row; row < last_row; ++row) std::memset(q_.codes.data() + at(row) * q_.row_bytes(), 0, q_.row_bytes());
  for (std::int64_t block = 0; block < cells; ++block) {
    const std::int64_t cell = grid_row * cells + block, first = block * width, last = std::min(k_, first + width);
    const float scale = scaled ? effective_scale(scheme, load_scale_code(q_.scales.data(), scheme.scale, cell), q_.outer_scale) : 1.0f;
    const std::int32_t zero = scheme.asymmetric ? q_.zero_points.as<std::uint8_t>()[cell] : 0;
    const float low = scheme.asymmetric ? static_cast<float>(-zero) : lowest_,
                high = scheme.asymmetric ? static_cast<float>(static_cast<std::int32_t>(scheme.element.max_code()) - zero) : highest_;
    double slope = 0.0;
    for (std::int64_t row = first_row; row < last_row; ++row) {
      std::uint8_t* packed = q_.codes.as<std::uint8_t>() + at(row) * q_.row_bytes();
      for (std::int64_t col = first; col < last; ++col) {
        const std::size_t i = at(row * k_ + col);
        std::uint32_t code = quantize_element(scheme, places_[i], 1.0f, zero, Rounding::kNearestEven, Overflow::kSaturate, 0);
        slope += static_cast<double>(gradient[i] * value_of(scheme, code, zero));
        places_[i] = std::clamp(places_[i] - code_rate * gaps_[code] * code_step(i, gradient[i]), low, high);
        code = quantize_element(scheme, places_[i], 1.0f, zero, Rounding::kNearestEven, Overflow::kSaturate, 0);
        write_code(packed, col, scheme.element.bits, code);
      }
    }
    if (!scaled || !(scale > 0.0f)) continue;
    float& wanted = scales_[at(cell)];
    wanted *= std::exp(-scale_rate * scale_step(at(cell), static_cast<float>(slope) * scale));
    store_scale_code(q_.scales.data(), scheme.scale, cell, store_scale(scheme.scale, wanted / q_.outer_scale, q_.outer_scale).code);
  }
}

}  // namespace narrow
