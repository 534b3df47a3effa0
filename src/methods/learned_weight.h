#pragma once
/// A quantized weight whose codes and scales follow gradients.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "narrow/quantize.h"

namespace narrow {

/// Sees the bytes that a learned thing consists of, each under a name of its own, to save or to restore them.
using StateVisitor = std::function<void(const std::string& name, std::span<std::byte> bytes)>;

/// Adam's rule: the direction is the gradient's running mean over the root of its running square, both corrected for their start at zero.
class Adam {
 public:
  explicit Adam(std::size_t count) : mean_(count, 0.0f), square_(count, 0.0f) {}
  /// What the step number `step` (from 1 on) gives for entry i: about -1 .. 1, along the gradient.
  class Step {
   public:
    Step(Adam& adam, std::int64_t step);
    float operator()(std::size_t i, float gradient) const;

   private:
    Adam& adam_;
    float mean_factor_, square_factor_;
  };
  void visit_state(const std::string& name, const StateVisitor& visit);

 private:
  std::vector<float> mean_, square_;
};

/// w = s u: every element has a place on the axis of codes' values u and takes the nearest code; every scale has a logarithm and takes the
/// nearest that can be stored. Gradients pass through both roundings as if they were not there. Zero points stay.
class LearnedWeight {
 public:
  explicit LearnedWeight(QuantizedTensor q);

  const QuantizedTensor& quantized() const { return q_; }
  Tensor values() const { return dequantize(q_); }
  /// Moves against the gradient [n, k] of the values: places by at most about code_rate times the distance to the next codes, scales by
  /// scale_rate of themselves.
  void follow(const Tensor& gradient, std::int64_t step, float code_rate, float scale_rate);
  void visit_state(const std::string& name, const StateVisitor& visit);

 private:
  void follow_rows(std::int64_t grid_row, const float* gradient, const Adam::Step& code_step, const Adam::Step& scale_step, float code_rate,
                   float scale_rate);

  QuantizedTensor q_;
  ScaleGrid grid_;
  std::int64_t n_, k_;
  std::vector<float> gaps_;    ///< of each code: half the distance between its neighbours
  float lowest_, highest_;     ///< values of codes, zero point apart
  std::vector<float> places_;  ///< of the elements, in units of their scale
  std::vector<float> scales_;  ///< effective, as they would be if all could be stored
  Adam code_moments_, scale_moments_;
};

}  // namespace narrow
