#pragma once
/// Arrays at the boundary to Python: a narrow::Tensor over memory of numpy, torch, cupy or jax, and the other way round. Nothing is copied.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "narrow/tensor.h"

namespace narrow::python {

namespace nb = nanobind;

/// A tensor and whoever owns its memory: a DLPack capsule's array, or the tensor's own buffer.
struct Array {
  Tensor tensor;
  std::shared_ptr<void> owner{};

  /// The memory as a buffer that keeps the owner alive.
  Buffer buffer() const;
};

/// An array of any framework. dtype: narrow's name ("F8_E4M3") where the array's own type is only a carrier of the bytes (uint8); empty
/// takes the array's type. Throws InvalidArgument for types that narrow has no name for.
Array import_array(const nb::ndarray<nb::ro>& array, std::string_view dtype);
/// Memory of `owner`, or, without one, memory that the caller keeps alive while the call runs. cuda: the device's index, or -1 for the CPU.
Array at_pointer(std::uintptr_t pointer, std::string_view dtype, Shape shape, Shape strides, int cuda, nb::object owner);
/// A DLPack exporter over the array. Types that DLPack's readers mostly do not know (float8 and narrower) are bytes.
nb::object export_array(const Array& array);

std::optional<Tensor> tensor_of(const std::optional<Array>& array);

void bind_errors(nb::module_& module);
void bind_array(nb::module_& module);
void bind_formats(nb::module_& module);
void bind_operations(nb::module_& module);
void bind_products(nb::module_& module);
void bind_checkpoints(nb::module_& module);
void bind_calibration(nb::module_& module);
void bind_models(nb::module_& module);
void bind_shards(nb::module_& module);
void bind_cuda(nb::module_& module);

/// Calls without the interpreter's lock: other Python threads run meanwhile.
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

}  // namespace narrow::python
