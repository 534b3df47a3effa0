#include "array.h"

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::python {
namespace {

namespace dl = nb::dlpack;

/// DLPack's codes for the floats of 8 bits (DLPack 1.1).
enum Float8Code : std::uint8_t { kE4m3Fn = 10, kE4m3Fnuz = 11, kE5m2 = 12, kE5m2Fnuz = 13, kE8m0Fnu = 14 };

DType dtype_of(const dl::dtype& type) {
  const auto is = [&](dl::dtype_code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  using Code = dl::dtype_code;
  if (is(Code::Float, 32)) return DType::kF32;
  if (is(Code::Float, 16)) return DType::kF16;
  if (is(Code::Bfloat, 16)) return DType::kBf16;
  if (is(Code::Float, 64)) return DType::kF64;
  if (is(Code::Bool, 8)) return DType::kBool;
  if (is(Code::Int, 8)) return DType::kI8;
  if (is(Code::Int, 16)) return DType::kI16;
  if (is(Code::Int, 32)) return DType::kI32;
  if (is(Code::Int, 64)) return DType::kI64;
  if (is(Code::UInt, 8)) return DType::kU8;
  if (is(Code::UInt, 16)) return DType::kU16;
  if (is(Code::UInt, 32)) return DType::kU32;
  if (is(Code::UInt, 64)) return DType::kU64;
  if (type.bits == 8 && type.lanes == 1) switch (type.code) {
      case kE4m3Fn: return DType::kF8E4m3;
      case kE4m3Fnuz: return DType::kF8E4m3Fnuz;
      case kE5m2: return DType::kF8E5m2;
      case kE5m2Fnuz: return DType::kF8E5m2Fnuz;
      case kE8m0Fnu: return DType::kF8E8m0;
      default: break;
    }
  throw InvalidArgument(
      fmt::format("an array of DLPack type {}, {} bits, {} lanes has no name in narrow; convert it to fp32, fp16 or bf16 first", type.code,
                  type.bits, type.lanes));
}

/// The type under which a tensor leaves: its own, or bytes.
dl::dtype exported_dtype(DType dtype) {
  using Code = dl::dtype_code;
  const auto type = [](Code code, int bits) { return dl::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1}; };
  switch (dtype) {
    case DType::kF32: return type(Code::Float, 32);
    case DType::kF16: return type(Code::Float, 16);
    case DType::kBf16: return type(Code::Bfloat, 16);
    case DType::kF64: return type(Code::Float, 64);
    case DType::kBool: return type(Code::Bool, 8);
    case DType::kI8: return type(Code::Int, 8);
    case DType::kI16: return type(Code::Int, 16);
    case DType::kI32: return type(Code::Int, 32);
    case DType::kI64: return type(Code::Int, 64);
    case DType::kU16: return type(Code::UInt, 16);
    case DType::kU32: return type(Code::UInt, 32);
    case DType::kU64: return type(Code::UInt, 64);
    default: return type(Code::UInt, 8);
  }
}

Device device_of(const nb::ndarray<nb::ro>& array) {
  switch (array.device_type()) {
    case nb::device::cpu::value: return Device::cpu();
    case nb::device::cuda_host::value: return Device::cpu();
    case nb::device::cuda::value: return Device::cuda(array.device_id());
    default:
      throw Unsupported(
          fmt::format("an array on DLPack device type {} cannot be used; copy it to the CPU or a CUDA device", array.device_type()));
  }
}

/// Keeps a Python object alive; the last holder may let go on any thread.
std::shared_ptr<void> hold(nb::object owner) {
  if (owner.is_none()) return {};
  return {owner.release().ptr(), [](PyObject* held) {
            const nb::gil_scoped_acquire locked;
            Py_DECREF(held);
          }};
}

}  // namespace

Buffer Array::buffer() const {
  return owner ? Buffer::adopt(owner, tensor.data(), tensor.byte_size(), tensor.device())
               : Buffer::adopt(std::make_shared<Tensor>(tensor), tensor.data(), tensor.byte_size(), tensor.device());
}

Array import_array(const nb::ndarray<nb::ro>& array, std::string_view dtype) {
  const DType type = dtype.empty() ? dtype_of(array.dtype()) : parse_dtype(dtype);
  if (bits_of(type) != array.dtype().bits)
    throw InvalidArgument(fmt::format("elements of {} bits cannot stand for {}", array.dtype().bits, name_of(type)));
  Shape shape, strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(static_cast<std::int64_t>(array.shape(i)));
    strides.push_back(array.stride(i));
  }
  return {Tensor::borrow(array.data(), type, std::move(shape), std::move(strides), device_of(array)),
          std::make_shared<nb::ndarray<nb::ro>>(array)};
}

Array at_pointer(std::uintptr_t pointer, std::string_view dtype, Shape shape, Shape strides, int cuda, nb::object owner) {
  const Device device = cuda < 0 ? Device::cpu() : Device::cuda(cuda);
  return {Tensor::borrow(reinterpret_cast<void*>(pointer), parse_dtype(dtype), std::move(shape), std::move(strides), device),
          hold(std::move(owner))};
}

namespace {

template <typename... Framework>
nb::object export_as(const Array& array) {
  const Tensor& tensor = array.tensor;
  if (bits_of(tensor.dtype()) < 8)
    throw InvalidArgument(fmt::format("{} tensors are packed; read their bytes as codes", name_of(tensor.dtype())));
  std::vector<std::size_t> shape(tensor.shape().begin(), tensor.shape().end());
  nb::capsule owner(new Array(array), [](void* held) noexcept { delete static_cast<Array*>(held); });
  const bool on_cpu = tensor.device().is_cpu();
  return nb::cast(nb::ndarray<Framework...>(tensor.data(), shape.size(), shape.data(), owner, tensor.strides().data(),
                                            exported_dtype(tensor.dtype()), on_cpu ? nb::device::cpu::value : nb::device::cuda::value,
                                            tensor.device().index));
}

}  // namespace

nb::object export_array(const Array& array) { return export_as<nb::array_api>(array); }

std::optional<Tensor> tensor_of(const std::optional<Array>& array) { return array ? std::optional<Tensor>(array->tensor) : std::nullopt; }

void bind_array(nb::module_& module) {
  nb::class_<Array>(module, "Array", "A tensor of narrow over memory of any framework.")
      .def(
          "__init__",
          [](Array* self, const nb::ndarray<nb::ro>& array, std::string_view dtype) { new (self) Array(import_array(array, dtype)); },
          nb::arg("array"), nb::arg("dtype") = "")
      .def_static("at", &at_pointer, nb::arg("pointer"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"), nb::arg("cuda") = -1,
                  nb::arg("owner") = nb::none())
      .def_static(
          "bytes_at",
          [](std::uintptr_t pointer, std::int64_t size, int cuda, nb::object owner) {
            return at_pointer(pointer, "U8", {size}, {}, cuda, std::move(owner));
          },
          "Contiguous memory as bytes.")
      .def_static(
          "empty",
          [](Shape shape, std::string_view dtype, int cuda) {
            return Array{Tensor::empty(parse_dtype(dtype), std::move(shape), cuda < 0 ? Device::cpu() : Device::cuda(cuda))};
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda") = -1, "Memory of narrow, uninitialised. cuda: a device's index.")
      .def_prop_ro("dtype", [](const Array& self) { return std::string(name_of(self.tensor.dtype())); })
      .def_prop_ro("shape", [](const Array& self) { return nb::tuple(nb::cast(self.tensor.shape())); })
      .def(
          "as_words",
          [](const Array& self) {
            if (bits_of(self.tensor.dtype()) != 16) throw InvalidArgument("only elements of 16 bits are words");
            return Array{Tensor::borrow(self.tensor.data(), DType::kU16, self.tensor.shape(), self.tensor.strides(), self.tensor.device()),
                         self.owner ? self.owner : std::make_shared<Tensor>(self.tensor)};
          },
          "The same memory as uint16.")
      .def("exported", [](const Array& self) { return export_array(self); })
      .def(
          "capsule", [](const Array& self) { return export_as<>(self); }, "A DLPack capsule.")
      .def("__dlpack__", [](const Array& self, nb::kwargs options) { return export_array(self).attr("__dlpack__")(**options); })
      .def("__dlpack_device__", [](const Array& self) { return export_array(self).attr("__dlpack_device__")(); });
}

}  // namespace narrow::python
