/// The fused neighbours, layouts and training pieces in a build without CUDA.

#include "kernels/cuda/fused.h"
#include "kernels/cuda/training.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const FusedQuantizeKernel> fused_quantize_kernels() { return {}; }
int launch_transform(const TransformProblem&, Stream) { refuse(); }
int launch_fake_quantize_backward(const FakeQuantizeBackwardProblem&, Stream) { refuse(); }
int launch_unscale(const void*, DType, const float*, void*, DType, std::int64_t, std::uint32_t*, Stream) { refuse(); }
int launch_update_loss_scale(float*, std::uint32_t*, std::uint32_t*, const LossScaleOptions&, Stream) { refuse(); }
int launch_update_amax_history(float*, float*, float*, std::int64_t, int, const DelayedScalingOptions&, float, Stream) { refuse(); }

}  // namespace narrow::cuda
