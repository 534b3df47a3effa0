/// The CUDA half of the device layer in a build without CUDA.

#include "device/cuda/runtime.h"
#include "device/memory.h"
#include "narrow/error.h"

namespace narrow {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of narrow has no CUDA; configure it with the preset `cuda` where nvcc is installed");
}

}  // namespace

std::shared_ptr<void> allocate_cuda_memory(std::size_t, int) { refuse(); }

namespace cuda {

void check(int, std::string_view) { refuse(); }
int device_count() noexcept { return 0; }
void require_device(int) { refuse(); }
DeviceFacts device_facts(int) { refuse(); }
Versions versions() noexcept { return {}; }
DeviceGuard::DeviceGuard(int) { refuse(); }
DeviceGuard::~DeviceGuard() = default;
OwnedStream::OwnedStream(int) { refuse(); }
OwnedStream::~OwnedStream() = default;
void synchronize(Stream) { refuse(); }
void copy_bytes(void*, const void*, std::size_t, Stream) { refuse(); }
void set_bytes(void*, int, std::size_t, Stream) { refuse(); }
bool is_capturing(Stream) { refuse(); }
RelaxedCapture::RelaxedCapture() { refuse(); }
RelaxedCapture::~RelaxedCapture() = default;
DeviceMemory device_memory(int) { refuse(); }
Graph::Graph(Stream, const std::function<void()>&) { refuse(); }
Graph::~Graph() = default;
void Graph::launch(Stream) const { refuse(); }
Timer::Timer() { refuse(); }
Timer::~Timer() = default;
void Timer::start(Stream) { refuse(); }
void Timer::stop(Stream) { refuse(); }
double Timer::seconds() const { refuse(); }
Scratch::Scratch(std::size_t, Workspace, Stream) { refuse(); }
Scratch::~Scratch() = default;

}  // namespace cuda
}  // namespace narrow
