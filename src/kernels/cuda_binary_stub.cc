/// The products of bits in a build without CUDA.

#include "kernels/cuda/bit_conv.h"
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
int launch_bit_conv(const BitConvProblem&, Stream) { refuse(); }
int launch_spread_pixels(const std::uint8_t*, std::int64_t, std::int64_t, const BitConvShape&, std::uint32_t*, Stream) { refuse(); }
int launch_spread_conv_weights(const std::uint8_t*, std::int64_t, const float*, int, const BitConvShape&, std::uint32_t*, std::int32_t*,
                               std::int32_t*, float*, Stream) {
  refuse();
}

}  // namespace narrow::cuda
