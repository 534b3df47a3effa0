/// The MSFP products in a build without CUDA.

#include "kernels/cuda/msfp_product.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

int launch_prepare_msfp(const MsfpCanonical&, const MsfpView&, Stream) { refuse(); }
int launch_unprepare_msfp(const MsfpView&, const MsfpCanonical&, Stream) { refuse(); }
int launch_msfp_product(const MsfpProblem&, void*, Stream) { refuse(); }
int launch_msfp_product_any(const MsfpProblem&, Stream) { refuse(); }

}  // namespace narrow::cuda
