#pragma once
/// The sums behind ErrorMetrics, for tensors that pass in pieces.

#include <cstdint>

#include "narrow/quantize.h"

namespace narrow {

/// Adds pieces of two tensors in order; the metrics are those of narrow::compare on the whole, bit for bit, however it
/// is cut and whatever the number of threads: sums run over chunks of 16384 elements and then over the chunks in order.
class ErrorAccumulator {
 public:
  /// The next elements of both: float tensors, contiguous, of one size.
  void add(const Tensor& x, const Tensor& y);
  ErrorMetrics metrics() const;

  /// sum x^2 and sum (x - y)^2 so far.
  double signal() const;
  double noise() const;

 private:
  struct Sums {
    double absolute = 0.0, squared = 0.0, xx = 0.0, yy = 0.0, xy = 0.0, largest = 0.0;
    void add_elements(const Tensor& x, const Tensor& y, std::int64_t begin, std::int64_t end);
    void add(const Sums& other);
  };
  Sums total() const;

  Sums whole_;  ///< of the chunks that are complete
  Sums open_;   ///< of the chunk that is not
  std::int64_t count_ = 0;
};

}  // namespace narrow
