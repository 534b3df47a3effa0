#include "methods/refine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "device/float_environment.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"

namespace narrow {
namespace {

/// One row of the weight: q = s (c - z), the errors e = w - q and their gradient g = e H.
class Row {
 public:
  Row(const std::vector<float>& h, std::int64_t k) : h_(h), k_(k), codes_(size()), values_(size()), gradient_(size()), pull_(size()) {}

  void load(const QuantizedTensor& q, const ScaleGrid& grid, std::int64_t row, const float* w) {
    const Scheme& scheme = q.scheme;
    tile_ = !scheme.has_scales() || grid.whole_tensor ? k_ : grid.tile_cols;
    const std::int64_t first = grid.whole_tensor ? 0 : grid.grid_row(row) * grid.cols, cells = (k_ + tile_ - 1) / tile_;
    scales_.assign(static_cast<std::size_t>(cells), 1.0f);
    zeros_.assign(static_cast<std::size_t>(cells), 0);
    for (std::int64_t b = 0; b < cells && scheme.has_scales(); ++b) {
      scales_[at(b)] = effective_scale(scheme, load_scale_code(q.scales.data(), scheme.scale, first + b), q.outer_scale);
      if (scheme.asymmetric) zeros_[at(b)] = q.zero_points.as<std::uint8_t>()[first + b];
    }
    const std::uint8_t* packed = q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes();
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (std::int64_t c = 0; c < k_; ++c) {
      codes_[at(c)] = read_code(packed, c, scheme.element.bits);
      values_[at(c)] = dequantize_element(scheme, codes_[at(c)], scales_[at(c / tile_)], zeros_[at(c / tile_)]);
      add_row(w[c] - values_[at(c)], c, gradient_.data());
    }
  }

  /// Each code becomes the nearest to q_c + g_c / H_cc, the best value given all others. Returns how many changed.
  std::int64_t round_codes(const Scheme& scheme) {
    std::int64_t changed = 0;
    for (std::int64_t c = 0; c < k_; ++c) {
      const float diagonal = h_[at(c * k_ + c)];
      if (!(diagonal > 0.0f)) continue;
      const float best = values_[at(c)] + gradient_[at(c)] / diagonal;
      const float scale = scales_[at(c / tile_)];
      const std::int32_t zero = zeros_[at(c / tile_)];
      const std::uint32_t code = quantize_element(scheme, best, scale, zero, Rounding::kNearestEven, Overflow::kSaturate, 0);
      const float value = dequantize_element(scheme, code, scale, zero), step = value - values_[at(c)];
      if (step == 0.0f || step * step * diagonal - 2.0f * step * gradient_[at(c)] >= 0.0f) continue;
      codes_[at(c)] = code;
      values_[at(c)] = value;
      add_row(-step, c, gradient_.data());
      ++changed;
    }
    return changed;
  }

  /// For a block with q = s u the best s is s + (g u) / (u H u); the nearest that can be stored is taken if the loss falls.
  /// A zero point that moves by one moves the whole block by s.
  std::int64_t fit_scales(QuantizedTensor& q, const ScaleGrid& grid, std::int64_t row) {
    const Scheme& scheme = q.scheme;
    std::int64_t changed = 0;
    for (std::int64_t b = 0; b < grid.cols; ++b) {
      const std::int64_t first = b * tile_, last = std::min(k_, first + tile_), cell = grid.grid_row(row) * grid.cols + b;
      const float scale = scales_[at(b)];
      if (scale <= 0.0f) continue;
      const auto move_by = [&](const auto& unit, const auto& steps) {
        std::fill(pull_.begin(), pull_.end(), 0.0f);
        double slope = 0.0, curvature = 0.0;
        for (std::int64_t c = first; c < last; ++c) {
          add_row(unit(c), c, pull_.data());
          slope += static_cast<double>(unit(c)) * static_cast<double>(gradient_[at(c)]);
        }
        for (std::int64_t c = first; c < last; ++c) curvature += static_cast<double>(unit(c)) * static_cast<double>(pull_[at(c)]);
        const double step = curvature > 0.0 ? steps(slope / curvature) : 0.0;
        if (step == 0.0 || step * step * curvature - 2.0 * step * slope >= 0.0) return false;
        for (std::int64_t j = 0; j < k_; ++j) gradient_[at(j)] -= static_cast<float>(step) * pull_[at(j)];
        return true;
      };
      ScaleCode stored;
      if (move_by([&](std::int64_t c) { return values_[at(c)] / scale; },
                  [&](double best) {
                    const float wanted = static_cast<float>((static_cast<double>(scale) + best) / static_cast<double>(q.outer_scale));
                    if (!(wanted > 0.0f)) return 0.0;
                    stored = store_scale(scheme.scale, wanted, q.outer_scale);
                    return static_cast<double>(stored.effective) - static_cast<double>(scale);
                  })) {
        store_scale_code(q.scales.data(), scheme.scale, cell, stored.code);
        scales_[at(b)] = stored.effective;
        ++changed;
      }
      const std::int32_t highest = static_cast<std::int32_t>(scheme.element.max_code());
      std::int32_t shift = 0;
      if (scheme.asymmetric && move_by([&](std::int64_t) { return scales_[at(b)]; },
                                       [&](double best) {
                                         shift = static_cast<std::int32_t>(std::lround(std::clamp(best, -1.0, 1.0)));
                                         if (zeros_[at(b)] - shift < 0 || zeros_[at(b)] - shift > highest) shift = 0;
                                         return static_cast<double>(shift);
                                       })) {
        zeros_[at(b)] -= shift;
        q.zero_points.as<std::uint8_t>()[cell] = static_cast<std::uint8_t>(zeros_[at(b)]);
        ++changed;
      }
      for (std::int64_t c = first; c < last; ++c) values_[at(c)] = dequantize_element(scheme, codes_[at(c)], scales_[at(b)], zeros_[at(b)]);
    }
    return changed;
  }

  void store(QuantizedTensor& q, std::int64_t row) const {
    std::uint8_t* packed = q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes();
    std::memset(packed, 0, q.row_bytes());
    for (std::int64_t c = 0; c < k_; ++c) write_code(packed, c, q.scheme.element.bits, codes_[at(c)]);
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::size_t size() const { return at(k_); }
  void add_row(float factor, std::int64_t c, float* to) const {
    const float* row = h_.data() + c * k_;
    for (std::int64_t j = 0; j < k_; ++j) to[j] += factor * row[j];
  }

  const std::vector<float>& h_;
  std::int64_t k_, tile_ = 1;
  std::vector<std::uint32_t> codes_;
  std::vector<float> values_, gradient_, pull_;
  std::vector<float> scales_;
  std::vector<std::int32_t> zeros_;
};

}  // namespace

void refine(const Tensor& w, const Hessian& hessian, double damping, int sweeps, QuantizedTensor& q) {
  const std::int64_t n = w.shape()[0], k = w.shape()[1];
  const std::vector<float> h = hessian.damped(damping);
  const ScaleGrid grid = q.grid();
  const bool fits = q.scheme.has_scales() && !grid.whole_tensor && grid.tile_rows == 1;
#pragma omp parallel
  {
    const FloatEnvironment environment;
    Row row(h, k);
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < n; ++r) {
      row.load(q, grid, r, w.as<float>() + r * k);
      for (int sweep = 0; sweep < sweeps; ++sweep) {
        std::int64_t changed = row.round_codes(q.scheme);
        if (fits) changed += row.fit_scales(q, grid, r);
        if (changed == 0) break;
      }
      if (fits) row.round_codes(q.scheme);
      row.store(q, r);
    }
  }
}

}  // namespace narrow
