/// The decoder's kernels in a build without CUDA.

#include "kernels/cuda/decoder/exact.h"
#include "kernels/cuda/decoder/experts.h"
#include "kernels/cuda/decoder/step.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

int launch_place_heads(const PlaceHeadsProblem&, Stream) { refuse(); }
int launch_attend_rows(const AttendProblem&, Stream) { refuse(); }
int launch_attend_tiles(const AttendProblem&, Stream) { refuse(); }
int launch_attend_exact(const AttendProblem&, Stream) { refuse(); }
int launch_split_rows(const float*, std::int64_t, std::int64_t, void*, Stream) { refuse(); }
int launch_join_rows(const JoinRowsProblem&, Stream) { refuse(); }
int launch_rms_norm_exact(const NormProblem&, Stream) { refuse(); }
int launch_exact_product(const ExactProductProblem&, Stream) { refuse(); }
int launch_embed(const std::int32_t*, std::int64_t, const void*, DType, std::int64_t, float*, Stream) { refuse(); }
int launch_rms_norm(const NormProblem&, Stream) { refuse(); }
int launch_gate(const void*, DType, std::int64_t, std::int64_t, void*, DType, Stream) { refuse(); }
std::optional<StepEncoding> step_encoding(const WeightView&, bool) { refuse(); }
StepShape step_shape(int, int, int) { refuse(); }
int most_parts(const StepShape&) { refuse(); }
bool has_step_cache(CacheKind) { refuse(); }
bool plan_step(StepParams&) { refuse(); }
int launch_step(const StepParams&, int, Stream) { refuse(); }
int launch_route(const RouteProblem&, Stream) { refuse(); }
int launch_order_routes(const RouteOrder&, Stream) { refuse(); }
int launch_gather_codes(const GatherCodes&, Stream) { refuse(); }
int launch_combine_experts(const CombineExperts&, Stream) { refuse(); }
int launch_sample(const SampleProblem&, Stream) { refuse(); }
int launch_score(const ScoreProblem&, Stream) { refuse(); }
int launch_random(void*, DType, std::int64_t, float, std::uint64_t, Stream) { refuse(); }
int launch_read(const void*, std::int64_t, std::uint32_t*, Stream) { refuse(); }

}  // namespace narrow::cuda
