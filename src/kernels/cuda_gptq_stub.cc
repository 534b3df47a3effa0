/// GPTQ's kernels in a build without CUDA.

#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/gptq/solver.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

int launch_add_moment(const float*, int, int, double*, Stream) { refuse(); }
std::int64_t energy_parts(int) { refuse(); }
int launch_energy(const float*, int, int, const double*, double*, Stream) { refuse(); }
int launch_diagonal(const double*, std::int64_t, double*, Stream) { refuse(); }
int launch_backwards(const double*, std::int64_t, const std::int32_t*, double, double, double*, Stream) { refuse(); }
int launch_take_upper(const double*, std::int64_t, float*, std::int32_t*, Stream) { refuse(); }
int launch_permute(const float*, std::int64_t, std::int64_t, const std::int32_t*, float*, Stream) { refuse(); }
int launch_round_columns(const ColumnsProblem&, Stream) { refuse(); }
int launch_carry_errors(const float*, int, const float*, int, int, float*, Stream) { refuse(); }
int launch_pack_codes(const std::uint16_t*, std::int64_t, std::int64_t, int, std::size_t, std::uint8_t*, Stream) { refuse(); }
int launch_subtract(const float*, std::int64_t, float*, Stream) { refuse(); }
bool has_solver() { return false; }
bool invert_factor(double*, std::int64_t, Device, Stream) { refuse(); }

}  // namespace narrow::cuda
