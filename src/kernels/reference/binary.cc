/// The meaning of int1 products: one obvious loop. Never optimised.

#include "kernels/binary.h"

#include <algorithm>
#include <bit>

namespace narrow::reference {
namespace {

bool accepts(const BinaryProblem&) { return true; }

void run(const BinaryProblem& problem, std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row)
    for (std::int64_t col = panel_begin * kBinaryPanel; col < std::min(problem.n, panel_end * kBinaryPanel); ++col) {
      std::int64_t different = 0;
      for (std::int64_t word = 0; word < problem.words; ++word)
        different += std::popcount(problem.a[row * problem.a_stride + word] ^
                                   problem.w[(col / kBinaryPanel * problem.words + word) * kBinaryPanel + col % kBinaryPanel]);
      const std::int32_t sum = static_cast<std::int32_t>(problem.k - 2 * different);
      const std::int64_t index = row * problem.y_stride + col;
      if (problem.a_scales == nullptr) {
        static_cast<std::int32_t*>(problem.y)[index] = sum;
      } else {
        static_cast<float*>(problem.y)[index] = static_cast<float>(sum) * (problem.a_scales[row] * problem.w_scales[col]);
      }
    }
}

}  // namespace

const BinaryKernel kBinary{"ref_binary", Isa::kScalar, accepts, run};

}  // namespace narrow::reference
