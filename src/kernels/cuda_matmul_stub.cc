/// The products of one-byte elements in a build without CUDA.

#include "kernels/cuda/byte_prepare.h"
#include "kernels/cuda/byte_product.h"
#include "kernels/cuda/int4_product.h"
#include "kernels/cuda/library_product.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const ByteConfig> byte_configs() { return {}; }
bool has_byte_config(const ByteProblem&, int) { return false; }
BytePlan make_byte_plan(const ByteProblem&, int, int, int) { refuse(); }
double estimate_byte_plan(const ByteProblem&, const BytePlan&) { refuse(); }
BytePlan choose_byte_plan(const ByteProblem&, int) { refuse(); }
int launch_byte_product(const ByteProblem&, const BytePlan&, Stream) { refuse(); }
int launch_fp8_product_mma(const ByteProblem&, Stream) { refuse(); }
int launch_fp8_product_any(const ByteProblem&, Stream) { refuse(); }
ByteDevice byte_device() { refuse(); }
int launch_int8_product_mma(const ByteProblem&, Stream) { refuse(); }
int launch_int8_product_any(const ByteProblem&, Stream) { refuse(); }
std::span<const Int4Config> int4_configs() { return {}; }
bool has_int4_config(const Int4View&, int) { return false; }
int choose_int4_config(int, const Int4View&, bool, int) { refuse(); }
int launch_int4_product(const Int4Problem&, int, Stream) { refuse(); }
int launch_int4_product_any(const Int4Problem&, Stream) { refuse(); }
int launch_prepare_int4(const Int4Canonical&, const Int4View&, Stream) { refuse(); }
int launch_unprepare_int4(const Int4View&, const Int4Canonical&, Stream) { refuse(); }
std::string_view library_refuses(const ByteProblem&) { refuse(); }
bool library_takes(const ByteProblem&) { refuse(); }
double estimate_library_product(const ByteProblem&) { refuse(); }
int launch_library_product(const ByteProblem&, Stream) { refuse(); }
int launch_pad_rows(const std::uint8_t*, std::int64_t, std::int64_t, std::uint8_t*, std::int64_t, std::uint8_t, Stream) { refuse(); }
int launch_row_sums(const std::int8_t*, std::int64_t, std::int64_t, std::int64_t, std::int32_t*, Stream) { refuse(); }
int launch_signed_zero_points(const std::uint8_t*, std::int64_t, std::int32_t*, Stream) { refuse(); }
int launch_transpose_scales(const float*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t, Stream) { refuse(); }

}  // namespace narrow::cuda
