#pragma once
/// What the device layer offers to the layers above it, without CUDA's headers. In a build without CUDA the stub answers.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "narrow/cuda.h"

namespace narrow::cuda {

/// Throws CudaError with CUDA's name and sentence for the code of a failed call.
void check(int code, std::string_view call);
/// Throws Unsupported where the device cannot be used: no CUDA build, no driver, no such device.
void require_device(int index);

/// What a device is, for people.
struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t memory = 0;
};
DeviceFacts device_facts(int index);

/// CUDA's versions as it counts them, 13000 for 13.0: of the runtime in this build and of the driver; 0 where there is none.
struct Versions {
  int runtime = 0, driver = 0;
};
Versions versions() noexcept;

/// Enqueues a copy of bytes; the direction follows from the pointers.
void copy_bytes(void* to, const void* from, std::size_t size, Stream stream);
void set_bytes(void* data, int value, std::size_t size, Stream stream);

/// Whether what is enqueued on the stream is recorded into a graph, and not run.
bool is_capturing(Stream stream);

/// While it lives, this thread may allocate and load code although it records a stream: such calls act at once and are not recorded.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  [[maybe_unused]] int previous_ = 0;
};

/// Bytes of a device's memory, and of those the ones that are taken, by whomever.
struct DeviceMemory {
  std::size_t total = 0, used = 0;
};
DeviceMemory device_memory(int index);

/// Work that is recorded once and then replayed by one call.
class Graph {
 public:
  /// Records what `record` enqueues on the stream, which must not be the default one; nothing of it runs.
  Graph(Stream stream, const std::function<void()>& record);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(Stream stream) const;

 private:
  [[maybe_unused]] void* executable_ = nullptr;
};

/// The device's time between two places in a stream.
class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void start(Stream stream);
  void stop(Stream stream);
  /// Waits for the second place.
  double seconds() const;

 private:
  [[maybe_unused]] void* begin_ = nullptr;
  [[maybe_unused]] void* end_ = nullptr;
};

/// Scratch memory for one call on a stream: the caller's, or the pool's, given back in stream order.
class Scratch {
 public:
  Scratch(std::size_t size, Workspace given, Stream stream);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  [[maybe_unused]] Stream stream_ = nullptr;
  [[maybe_unused]] bool owned_ = false;
};

}  // namespace narrow::cuda
