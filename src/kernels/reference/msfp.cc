/// The meaning of MSFP products: one obvious loop. Never optimised.

#include "kernels/msfp.h"

#include <algorithm>

#include "kernels/panels.h"

namespace narrow::reference {
namespace {

/// +-k of a stored code, as a byte.
std::uint32_t mantissa_byte(const MsfpPanel& panel, std::uint32_t stored) {
  const std::uint32_t code = stored >> (panel.stored_bits - panel.magnitude_bits - 1), sign = code >> panel.magnitude_bits;
  const std::int32_t magnitude = static_cast<std::int32_t>(code & ((1u << panel.magnitude_bits) - 1u));
  return static_cast<std::uint8_t>(sign != 0 ? -magnitude : magnitude);
}

void unpack(const MsfpPanel& panel, std::uint32_t* w) {
  for (std::int64_t group = 0; group < panel.groups; ++group)
    for (int kk = 0; kk < 32; ++kk)
      for (std::int64_t n = 0; n < kMsfpOutputs; ++n) {
        const std::uint32_t stored = panels::read_stored(panel.lanes + group * panel.stored_bits * kMsfpOutputs + n, kk, panel.stored_bits);
        std::uint32_t& word = w[(group * 8 + kk / 4) * kMsfpOutputs + n];
        word = (kk % 4 == 0 ? 0u : word) | mantissa_byte(panel, stored) << (8 * (kk % 4));
      }
}

void run(const MsfpProblem& problem, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row)
    for (std::int64_t n = 0; n < kMsfpOutputs; ++n) {
      float total = 0.0f;
      for (std::int64_t box = 0; box < problem.boxes; ++box) {
        std::int32_t sum = 0;
        for (std::int64_t i = 0; i < kMsfpBox; ++i) {
          const std::int64_t k = box * kMsfpBox + i;
          const std::uint32_t word = problem.w[k / 4 * kMsfpOutputs + n];
          sum += std::int32_t{problem.a[row * problem.boxes * kMsfpBox + k]} * static_cast<std::int8_t>(word >> (8 * (k % 4)));
        }
        const float scale = std::min(problem.a_scales[row * problem.boxes + box] * problem.w_scales[box * kMsfpOutputs + n], 0x1p127f);
        total = total + static_cast<float>(sum) * scale;
      }
      problem.y[row * kMsfpOutputs + n] = total;
    }
}

}  // namespace

const MsfpKernel kMsfp{"ref_msfp", Isa::kScalar, unpack, run};

}  // namespace narrow::reference
