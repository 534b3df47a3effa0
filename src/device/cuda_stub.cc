/// The CUDA half in a build without CUDA: the device layer, and tables without rows.

#include "device/cuda/runtime.h"
#include "device/memory.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/quantize.h"
#include "narrow/error.h"

namespace narrow {
namespace {

[[noreturn]] void refuse() { throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed"); }

}  // namespace

std::shared_ptr<void> allocate_cuda_memory(std::size_t, int) { refuse(); }

namespace cuda {

void check(int, std::string_view) { refuse(); }
int device_count() noexcept { return 0; }
void require_device(int) { refuse(); }
DeviceGuard::DeviceGuard(int) { refuse(); }
DeviceGuard::~DeviceGuard() = default;
OwnedStream::OwnedStream(int) { refuse(); }
OwnedStream::~OwnedStream() = default;
void synchronize(Stream) { refuse(); }
void copy_bytes(void*, const void*, std::size_t, Stream) { refuse(); }
void set_bytes(void*, int, std::size_t, Stream) { refuse(); }
Scratch::Scratch(std::size_t, Workspace, Stream) { refuse(); }
Scratch::~Scratch() = default;

std::span<const QuantizeKernel> quantize_kernels() { return {}; }
std::span<const DequantizeKernel> dequantize_kernels() { return {}; }
int launch_observe_range(const void*, DType, std::int64_t, std::uint32_t*, Stream) { refuse(); }
int launch_observe_histogram(const void*, DType, std::int64_t, unsigned long long*, int, float, Stream) { refuse(); }
int launch_convert(const void*, DType, void*, DType, std::int64_t, Overflow, Stream) { refuse(); }

}  // namespace cuda
}  // namespace narrow
