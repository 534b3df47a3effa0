/// cuSOLVER, loaded with dlopen; only the functions and constants that are used are declared here.

#include "kernels/cuda/gptq/solver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "narrow/error.h"

namespace narrow::cuda {
namespace {

// Of cublas_api.h and library_types.h. The library counts by columns: what is upper to it is lower by rows.
constexpr int kUpper = 1, kNonUnit = 0, kReal64F = 1;

/// The library's functions; `found` says whether all are there.
struct Library {
  int (*create)(void**) = nullptr;
  int (*set_stream)(void*, Stream) = nullptr;
  int (*potrf_size)(void*, int, int, double*, int, int*) = nullptr;
  int (*potrf)(void*, int, int, double*, int, double*, int, int*) = nullptr;
  int (*trtri_size)(void*, int, int, std::int64_t, int, void*, std::int64_t, std::size_t*, std::size_t*) = nullptr;
  int (*trtri)(void*, int, int, std::int64_t, int, void*, std::int64_t, void*, std::size_t, void*, std::size_t, int*) = nullptr;
  bool found = false;

  Library() {
    void* file = nullptr;
    for (const char* name : {"libcusolver.so.12", "libcusolver.so.11"})
      if (file == nullptr) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
      return function != nullptr;
    };
    found = load(create, "cusolverDnCreate") && load(set_stream, "cusolverDnSetStream") &&
            load(potrf_size, "cusolverDnDpotrf_bufferSize") && load(potrf, "cusolverDnDpotrf") &&
            load(trtri_size, "cusolverDnXtrtri_bufferSize") && load(trtri, "cusolverDnXtrtri");
  }
};
const Library& library() {
  static const Library one;
  return one;
}

/// Throws naming the step that failed.
void require(int status, const char* step) {
  if (status != 0) throw Unsupported(fmt::format("cuSOLVER's {} failed with status {}", step, status));
}

/// The library's handle of a device; it is made once, since that takes a while.
void* handle_of(int device) {
  static std::map<int, void*> handles;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  void*& handle = handles[device];
  if (handle == nullptr) require(library().create(&handle), "cusolverDnCreate");
  return handle;
}

/// What a step says of its matrix: 0, or where it stopped.
int read_info(const Buffer& info, Stream stream) {
  int value = 0;
  copy_bytes(&value, info.data(), sizeof value, stream);
  synchronize(stream);
  return value;
}

}  // namespace

bool has_solver() { return library().found; }

bool invert_factor(double* matrix, std::int64_t k, Device device, Stream stream) {
  const Library& solver = library();
  if (!solver.found) throw Unsupported("cuSOLVER is not installed: libcusolver.so.12 or .11 is not found");
  const DeviceGuard guard(device.index);
  void* handle = handle_of(device.index);
  require(solver.set_stream(handle, stream), "cusolverDnSetStream");
  const int n = static_cast<int>(k);
  const Buffer info = Buffer::allocate(sizeof(int), device);
  int numbers = 0;
  require(solver.potrf_size(handle, kUpper, n, matrix, n, &numbers), "cusolverDnDpotrf_bufferSize");
  {
    const Buffer work = Buffer::allocate(static_cast<std::size_t>(numbers) * sizeof(double), device);
    require(solver.potrf(handle, kUpper, n, matrix, n, work.as<double>(), numbers, info.as<int>()), "cusolverDnDpotrf");
    if (read_info(info, stream) != 0) return false;
  }
  std::size_t on_device = 0, on_host = 0;
  require(solver.trtri_size(handle, kUpper, kNonUnit, k, kReal64F, matrix, k, &on_device, &on_host), "cusolverDnXtrtri_bufferSize");
  const Buffer work = Buffer::allocate(on_device, device);
  std::vector<std::byte> host(on_host);
  require(solver.trtri(handle, kUpper, kNonUnit, k, kReal64F, matrix, k, work.data(), on_device, host.data(), on_host, info.as<int>()),
          "cusolverDnXtrtri");
  return read_info(info, stream) == 0;
}

}  // namespace narrow::cuda
