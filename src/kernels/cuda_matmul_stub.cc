/// The fp8 products in a build without CUDA.

#include "kernels/cuda/fp8_prepare.h"
#include "kernels/cuda/fp8_product.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const Fp8Config> fp8_configs() { return {}; }
bool has_fp8_config(const Fp8Problem&, int) { return false; }
Fp8Plan make_fp8_plan(const Fp8Problem&, int, int, int) { refuse(); }
double estimate_fp8_plan(const Fp8Problem&, const Fp8Plan&) { refuse(); }
Fp8Plan choose_fp8_plan(const Fp8Problem&, int) { refuse(); }
int launch_fp8_product(const Fp8Problem&, const Fp8Plan&, Stream) { refuse(); }
int launch_fp8_product_any(const Fp8Problem&, Stream) { refuse(); }
Fp8Device fp8_device() { refuse(); }
int launch_pad_rows(const std::uint8_t*, std::int64_t, std::int64_t, std::uint8_t*, std::int64_t, Stream) { refuse(); }
int launch_transpose_scales(const float*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t, Stream) { refuse(); }

}  // namespace narrow::cuda
