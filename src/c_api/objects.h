#pragma once
/// What the files of the interface in C share: the objects behind its pointers, and the way from exceptions to a status and a sentence of
/// the thread.

#include <exception>
#include <filesystem>
#include <new>
#include <string>

#include <fmt/format.h>

#include "narrow/c.h"
#include "narrow/error.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"

struct narrow_tensor {
  narrow::Tensor value;
  std::string dtype;
};
struct narrow_quantized {
  narrow::QuantizedTensor value;
  std::string scheme;
};
struct narrow_weight {
  narrow::PreparedWeight value;
};

namespace narrow::c_api {

/// A callback asked to end.
struct Cancelled {};

/// Keeps the sentence of the thread's last failure, and gives the status back.
narrow_status failed(narrow_status status, const char* sentence) noexcept;

template <typename Work>
narrow_status guarded(const Work& work) noexcept {
  try {
    work();
    return NARROW_OK;
  } catch (const Cancelled&) {
    return failed(NARROW_CANCELLED, "the callback asked to end");
  } catch (const InvalidArgument& error) {
    return failed(NARROW_INVALID_ARGUMENT, error.what());
  } catch (const Unsupported& error) {
    return failed(NARROW_UNSUPPORTED, error.what());
  } catch (const IoError& error) {
    return failed(NARROW_IO_ERROR, error.what());
  } catch (const CorruptFile& error) {
    return failed(NARROW_CORRUPT_FILE, error.what());
  } catch (const CudaError& error) {
    return failed(NARROW_CUDA_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return failed(NARROW_OUT_OF_MEMORY, "there is not enough memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return failed(NARROW_IO_ERROR, error.what());
  } catch (const std::exception& error) {
    return failed(NARROW_INTERNAL, error.what());
  } catch (...) {
    return failed(NARROW_INTERNAL, "an error of an unknown kind");
  }
}

template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw InvalidArgument(fmt::format("{} is NULL", name));
  return *pointer;
}
inline std::string_view text(const char* pointer, const char* name) { return &given(pointer, name); }

inline narrow_tensor* handed_out(Tensor tensor) {
  const std::string dtype(name_of(tensor.dtype()));
  return new narrow_tensor{tensor.contiguous(), dtype};
}
inline narrow_quantized* handed_out(QuantizedTensor quantized) {
  std::string scheme = quantized.scheme.to_string();
  return new narrow_quantized{std::move(quantized), std::move(scheme)};
}

/// Work whose result goes to *place, which is NULL where it fails.
template <typename T, typename Work>
narrow_status making(T** place, const Work& work) noexcept {
  if (place != nullptr) *place = nullptr;
  return guarded([&] { given(place, "the place of the result") = work(); });
}

}  // namespace narrow::c_api
