/// The GPU kernels in a build without CUDA: tables without rows, and launches that refuse.

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/quantize.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::span<const QuantizeKernel> quantize_kernels() { return {}; }
std::span<const DequantizeKernel> dequantize_kernels() { return {}; }
int launch_observe_range(const void*, DType, std::int64_t, std::uint32_t*, Stream) { refuse(); }
int launch_observe_histogram(const void*, DType, std::int64_t, unsigned long long*, int, float, Stream) { refuse(); }
int launch_convert(const void*, DType, void*, DType, std::int64_t, Overflow, Stream) { refuse(); }

}  // namespace narrow::cuda
