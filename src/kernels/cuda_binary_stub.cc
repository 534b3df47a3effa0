/// The products of bits in a build without CUDA.

#include "kernels/cuda/bit_product.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const BitConfig> bit_configs() { return {}; }
int choose_bit_config(const BitProblem&, int) { refuse(); }
double estimate_bit_config(const BitProblem&, int, int) { refuse(); }
int launch_bit_product(const BitProblem&, int, Stream) { refuse(); }
int launch_bit_product_any(const BitProblem&, Stream) { refuse(); }
int launch_prepare_bits(const BitRows&, Stream) { refuse(); }
int launch_unprepare_bits(const BitCanonical&, Stream) { refuse(); }
int launch_pack_bits(const BitSource&, Stream) { refuse(); }

}  // namespace narrow::cuda
