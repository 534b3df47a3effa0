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
int launch_subtract_product(const float*, int, int, const float*, int, std::int64_t, float*, Stream) { refuse(); }
int launch_damped(const double*, std::int64_t, double, double, float*, Stream) { refuse(); }
int launch_put_scales(const ScaleSearch&, const void*, const std::uint8_t*, Stream) { refuse(); }
std::size_t search_scratch(std::int64_t, int) { refuse(); }
int launch_search_by_rounding(const ScaleSearch&, const float*, float*, Stream) { refuse(); }
std::size_t rectangle_scratch(const ScaleGrid&, std::int64_t, int) { refuse(); }
int launch_search_rectangles(const ScaleSearch&, const double*, void*, Stream) { refuse(); }
int launch_importance(const float*, std::int64_t, const std::int32_t*, double*, Stream) { refuse(); }
std::size_t refine_scratch(std::int64_t, std::int64_t) { refuse(); }
int launch_refine(const RefineProblem&, Stream) { refuse(); }
int launch_turned_errors(const CodesInProgress&, const float*, float*, Stream) { refuse(); }
int launch_unpack_codes(const std::uint8_t*, std::int64_t, std::int64_t, int, std::size_t, std::uint16_t*, Stream) { refuse(); }
int launch_pack_codes(const std::uint16_t*, std::int64_t, std::int64_t, int, std::size_t, std::uint8_t*, Stream) { refuse(); }
int launch_subtract(const float*, std::int64_t, float*, Stream) { refuse(); }
bool has_solver() { return false; }
bool invert_factor(double*, std::int64_t, Device, Stream) { refuse(); }

}  // namespace narrow::cuda
