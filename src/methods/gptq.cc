#include "methods/gptq.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/float_environment.h"
#include "format/packing.h"
#include "format/scale_rule.h"
#include "kernels/storage.h"
#include "methods/clip_search.h"

namespace narrow {
namespace {

/// Columns whose errors are applied to the columns after them in one product.
constexpr std::int64_t kBlock = 128;

class Columns {
 public:
  Columns(const Tensor& w, const Scheme& scheme, const HessianFactor* factor, bool clip, std::span<const double> importance)
      : n_(w.shape()[0]),
        k_(w.shape()[1]),
        factor_(factor),
        clip_(clip),
        importance_(importance.begin(), importance.end()),
        q_(allocate_quantized(scheme, w.shape())),
        grid_(q_.grid()),
        work_(static_cast<std::size_t>(n_ * k_)),
        codes_(work_.size()) {
    q_.outer_scale = scheme.has_outer_scale ? quantize(w, scheme).outer_scale : 1.0f;
    order_.resize(static_cast<std::size_t>(k_));
    for (std::int64_t c = 0; c < k_; ++c)
      order_[static_cast<std::size_t>(c)] = factor != nullptr ? factor->order[static_cast<std::size_t>(c)] : c;
    in_order_ = std::is_sorted(order_.begin(), order_.end());
    if (factor != nullptr) {
      importance_.resize(static_cast<std::size_t>(k_));
      for (std::int64_t c = 0; c < k_; ++c) {
        const double diagonal = static_cast<double>(upper(c, c));
        importance_[static_cast<std::size_t>(order_[static_cast<std::size_t>(c)])] = 1.0 / (diagonal * diagonal);
      }
    }
    is_static_ = grid_.whole_tensor || !clip_ || (!in_order_ && tile() < k_);
    if (is_static_)
      for (std::int64_t col = 0; col < k_; col += tile()) make_scales(w.as<float>(), col);
    for (std::int64_t row = 0; row < n_; ++row)
      for (std::int64_t c = 0; c < k_; ++c) value(row, c) = w.as<float>()[row * k_ + order_[static_cast<std::size_t>(c)]];
  }

  QuantizedTensor run() {
    for (std::int64_t begin = 0; begin < k_;) {
      const std::int64_t end = block_end(begin);
      errors_ = Tensor::empty(DType::kF32, {n_, end - begin});
      for (std::int64_t first = begin; first < end;) {
        const std::int64_t last = std::min(end, in_order_ ? (first / tile() + 1) * tile() : end);
        if (!is_static_ && first % tile() == 0) make_scales(work_.data(), first);
        round_columns(first, last, begin, end);
        first = last;
      }
      if (factor_ != nullptr && end < k_) update_rest(begin, end);
      begin = end;
    }
    pack();
    return std::move(q_);
  }

 private:
  float& value(std::int64_t row, std::int64_t c) { return work_[static_cast<std::size_t>(row * k_ + c)]; }
  float upper(std::int64_t i, std::int64_t j) const { return factor_->upper[static_cast<std::size_t>(i * k_ + j)]; }
  /// Columns that share a scale.
  std::int64_t tile() const { return !q_.scheme.has_scales() || grid_.whole_tensor ? k_ : grid_.tile_cols; }

  /// Blocks hold whole scale tiles, or lie within one: where a tile starts, all its columns are up to date.
  std::int64_t block_end(std::int64_t begin) const {
    if (!in_order_) return std::min(k_, begin + kBlock);
    const std::int64_t tile = this->tile();
    if (tile <= kBlock) return std::min(k_, begin + kBlock / tile * tile);
    return std::min({k_, begin + kBlock, (begin / tile + 1) * tile});
  }

  void make_scales(const float* values, std::int64_t col) {
    if (!q_.scheme.has_scales()) return;
    const std::int64_t width = std::min(tile(), k_ - col), grid_col = grid_.grid_col(col);
    set_scales(values + col, width, k_, q_, grid_col);
    if (!clip_) return;
    if (factor_ != nullptr && !is_static_ && grid_.tile_rows == 1) return search_by_rounding(col, width);
    std::span<const double> importance(importance_);
    if (!importance.empty()) importance = importance.subspan(static_cast<std::size_t>(col), static_cast<std::size_t>(width));
    search_scales(values + col, width, k_, importance, q_, grid_col);
  }

  /// The sum of squared errors e of a rectangle's columns is what they add to the loss once the columns after them have made good what they
  /// can. It is found for each candidate by rounding the rectangle with it; the least wins, ties go to the rule's own scale.
  void search_by_rounding(std::int64_t first, std::int64_t width) {
    const Scheme& scheme = q_.scheme;
    const std::int64_t grid_col = grid_.grid_col(first);
#pragma omp parallel
    {
      const FloatEnvironment environment;
      std::vector<ScaleAndZero> candidates;
      std::vector<float> values(static_cast<std::size_t>(width));
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < n_; ++row) {
        const float* from = work_.data() + row * k_ + first;
        const auto loss_of = [&](float scale, std::int32_t zero_point, double bound) {
          std::copy_n(from, width, values.data());
          double loss = 0.0;
          for (std::int64_t c = 0; c < width && loss < bound; ++c) {
            const float* u = factor_->upper.data() + (first + c) * k_ + first;
            float* v = values.data();
            const std::uint32_t code = quantize_element(scheme, v[c], scale, zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
            const float error = (v[c] - dequantize_element(scheme, code, scale, zero_point)) / u[c];
            loss += static_cast<double>(error) * static_cast<double>(error);
            for (std::int64_t j = c + 1; j < width; ++j) v[j] -= error * u[j];
          }
          return loss;
        };
        Extremes extremes;
        for (std::int64_t c = 0; c < width; ++c) {
          extremes.lowest = std::min(extremes.lowest, from[c]);
          extremes.highest = std::max(extremes.highest, from[c]);
          extremes.mean += std::fabs(static_cast<double>(from[c])) / static_cast<double>(width);
        }
        scale_candidates(scheme, extremes, q_.outer_scale, candidates);
        const std::int64_t cell = row * grid_.cols + grid_col;
        std::uint8_t* zero_point = scheme.asymmetric ? q_.zero_points.as<std::uint8_t>() + cell : nullptr;
        double least = loss_of(effective_scale(scheme, load_scale_code(q_.scales.data(), scheme.scale, cell), q_.outer_scale),
                               zero_point != nullptr ? *zero_point : 0, HUGE_VAL);
        for (const ScaleAndZero& made : candidates) {
          const double loss = loss_of(effective_scale(scheme, made.scale.code, q_.outer_scale), made.zero_point, least);
          if (loss >= least) continue;
          least = loss;
          store_scale_code(q_.scales.data(), scheme.scale, cell, made.scale.code);
          if (zero_point != nullptr) *zero_point = made.zero_point;
        }
      }
    }
  }

  /// w_c is rounded, e = (w_c - q_c) / U_cc, and w_j -= e U_cj for the columns j of the block after c.
  void round_columns(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
    const Scheme& scheme = q_.scheme;
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < n_; ++row) {
      const FloatEnvironment environment;
      float* v = work_.data() + row * k_;
      for (std::int64_t c = first; c < last; ++c) {
        const std::int64_t col = order_[static_cast<std::size_t>(c)];
        const std::int64_t cell = scheme.has_scales() ? grid_.grid_row(row) * grid_.cols + grid_.grid_col(col) : 0;
        const float scale =
            scheme.has_scales() ? effective_scale(scheme, load_scale_code(q_.scales.data(), scheme.scale, cell), q_.outer_scale) : 1.0f;
        const std::int32_t zero_point = scheme.asymmetric ? q_.zero_points.as<std::uint8_t>()[cell] : 0;
        const std::uint32_t code = quantize_element(scheme, v[c], scale, zero_point, Rounding::kNearestEven, Overflow::kSaturate, 0);
        codes_[static_cast<std::size_t>(row * k_ + col)] = code;
        if (factor_ == nullptr) continue;
        const float* u = factor_->upper.data() + c * k_;
        const float error = (v[c] - dequantize_element(scheme, code, scale, zero_point)) / u[c];
        for (std::int64_t j = c + 1; j < end; ++j) v[j] -= error * u[j];
        errors_.as<float>()[row * (end - begin) + c - begin] = error;
      }
    }
  }

  /// w_j -= sum over the block's columns c of e_c U_cj, for all j after the block.
  void update_rest(std::int64_t begin, std::int64_t end) {
    const Tensor part =
        Tensor::borrow(static_cast<const void*>(factor_->upper.data() + begin * k_ + end), DType::kF32, {k_ - end, end - begin}, {1, k_});
    const Tensor change = matmul(errors_, prepare(part));
    const float* from = change.as<float>();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < n_; ++row)
      for (std::int64_t j = end; j < k_; ++j) value(row, j) -= from[row * (k_ - end) + j - end];
  }

  void pack() {
    std::memset(q_.codes.data(), 0, q_.codes.size());
    const std::size_t row_bytes = q_.row_bytes();
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < n_; ++row)
      for (std::int64_t col = 0; col < k_; ++col)
        write_code(q_.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * row_bytes, col, q_.scheme.element.bits,
                   codes_[static_cast<std::size_t>(row * k_ + col)]);
  }

  std::int64_t n_, k_;
  const HessianFactor* factor_;
  bool clip_, in_order_ = true;
  bool is_static_ = false;          ///< all scales come from the weight beforehand
  std::vector<double> importance_;  ///< by the weight's columns
  QuantizedTensor q_;
  ScaleGrid grid_;
  std::vector<float> work_;           ///< the weight in the factor's order, errors made good so far
  std::vector<std::uint32_t> codes_;  ///< in the weight's order
  std::vector<std::int64_t> order_;
  Tensor errors_;  ///< of the block at hand, [n, columns]
};

}  // namespace

QuantizedTensor quantize_columns(const Tensor& w, const Scheme& scheme, const HessianFactor* factor, bool clip,
                                 std::span<const double> importance) {
  return Columns(w, scheme, factor, clip, importance).run();
}

}  // namespace narrow
