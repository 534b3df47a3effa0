/// The products with prepared weights in a build without CUDA.

#include "kernels/cuda/weight_product.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const WeightConfig> weight_configs() { return {}; }
bool has_weight_config(const WeightProblem&, int) { return false; }
std::size_t most_even_workspace(std::int64_t, int) { return 0; }
WeightPlan make_even_plan(const WeightProblem&, int, int) { refuse(); }
WeightPlan make_weight_plan(const WeightProblem&, int, int, int) { refuse(); }
double estimate_weight_plan(const WeightProblem&, const WeightPlan&) { refuse(); }
WeightPlan choose_weight_plan(const WeightProblem&, int) { refuse(); }
int launch_weight_product(const WeightProblem&, const WeightPlan&, Stream) { refuse(); }
int launch_weight_product_any(const WeightProblem&, Stream) { refuse(); }
int launch_prepare_weight(const WeightView&, std::uint8_t*, float*, Stream) { refuse(); }
int launch_unprepare_weight(const WeightView&, std::uint8_t*, void*, std::uint8_t*, Stream) { refuse(); }
int launch_arrange_columns(const WeightProblem&, void*, std::int64_t, Stream) { refuse(); }

}  // namespace narrow::cuda
