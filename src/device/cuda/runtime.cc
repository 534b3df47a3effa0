/// The CUDA half of the device layer: memory, streams, errors. The runtime is linked statically, so that a machine
/// without a driver loads this library and gets Unsupported where it asks for a device.

#include "device/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/memory.h"
#include "narrow/error.h"

namespace narrow::cuda {

void check(int code, std::string_view call) {
  if (code == cudaSuccess) return;
  const cudaError_t error = static_cast<cudaError_t>(code);
  throw CudaError(fmt::format("{} failed with {}: {}", call, cudaGetErrorName(error), cudaGetErrorString(error)));
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // a missing driver is an answer, not an error of the next call
  return 0;
}

void require_device(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Unsupported(fmt::format("CUDA device {} was asked for, but CUDA answers {} ({}); use the CPU or install a driver", index,
                                  cudaGetErrorName(error), cudaGetErrorString(error)));
  }
  if (index < 0 || index >= count)
    throw Unsupported(fmt::format("CUDA device {} was asked for, but there are {}; use a lower index or the CPU", index, count));
}

DeviceFacts device_facts(int index) {
  require_device(index);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return {properties.name, properties.major, properties.minor, properties.multiProcessorCount, properties.totalGlobalMem};
}

Versions versions() noexcept {
  Versions found;
  if (cudaRuntimeGetVersion(&found.runtime) != cudaSuccess) found.runtime = 0;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  return found;
}

DeviceGuard::DeviceGuard(int index) {
  require_device(index);
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == index) return;
  check(cudaSetDevice(index), "cudaSetDevice");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

OwnedStream::OwnedStream(int device) : device_(device) {
  const DeviceGuard guard(device);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

OwnedStream::~OwnedStream() { cudaStreamDestroy(stream_); }

void synchronize(Stream stream) { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

void copy_bytes(void* to, const void* from, std::size_t size, Stream stream) {
  if (size > 0) check(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void set_bytes(void* data, int value, std::size_t size, Stream stream) {
  if (size > 0) check(cudaMemsetAsync(data, value, size, stream), "cudaMemsetAsync");
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

RelaxedCapture::RelaxedCapture() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  previous_ = mode;
}
RelaxedCapture::~RelaxedCapture() {
  cudaStreamCaptureMode mode = static_cast<cudaStreamCaptureMode>(previous_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

DeviceMemory device_memory(int index) {
  const DeviceGuard guard(index);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {total, total - free};
}

Graph::Graph(Stream stream, const std::function<void()>& record) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    record();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  executable_ = executable;
}

Graph::~Graph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }
void Graph::launch(Stream stream) const { check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream), "cudaGraphLaunch"); }

Timer::Timer() {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  begin_ = begin;
  check(cudaEventCreate(&end), "cudaEventCreate");
  end_ = end;
}
Timer::~Timer() {
  for (void* event : {begin_, end_}) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}
void Timer::start(Stream stream) { check(cudaEventRecord(static_cast<cudaEvent_t>(begin_), stream), "cudaEventRecord"); }
void Timer::stop(Stream stream) { check(cudaEventRecord(static_cast<cudaEvent_t>(end_), stream), "cudaEventRecord"); }
double Timer::seconds() const {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(end_)), "cudaEventSynchronize");
  float milliseconds = 0.0f;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin_), static_cast<cudaEvent_t>(end_)), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

Scratch::Scratch(std::size_t size, Workspace given, Stream stream) : stream_(stream) {
  if (size == 0) return;
  if (given.data != nullptr) {
    if (given.size < size) throw InvalidArgument(fmt::format("the workspace has {} bytes, the call needs {}", given.size, size));
    data_ = given.data;
    return;
  }
  check(cudaMallocAsync(&data_, size, stream), "cudaMallocAsync");
  owned_ = true;
}

Scratch::~Scratch() {
  if (owned_) cudaFreeAsync(data_, stream_);
}

}  // namespace narrow::cuda

namespace narrow {

std::shared_ptr<void> allocate_cuda_memory(std::size_t size, int index) {
  const cuda::DeviceGuard guard(index);
  const cuda::RelaxedCapture relaxed;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size == 0 ? 1 : size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw InvalidArgument(fmt::format("cannot allocate {} bytes on CUDA device {}", size, index));
  }
  cuda::check(error, "cudaMalloc");
  return {data, [](void* memory) {
            const cuda::RelaxedCapture while_freeing;
            cudaFree(memory);
          }};
}

}  // namespace narrow
