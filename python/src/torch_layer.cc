/// A call of a prepared layer with torch's own tensors. Python takes ten steps for what happens here in one: shape, type, device, stream,
/// memory for the result, has a part of the weight changed. Tensors are looked at through DLPack's exchange interface, which torch has from
/// 2.10 on; nothing here is compiled against torch.

#include <array>

#include "cuda_layer.h"
#include "narrow/error.h"

namespace narrow::python {
namespace {

using Tensor = nb::dlpack::dltensor;

/// The functions of DLPack 1.3 that a type of tensors offers as __dlpack_c_exchange_api__.
struct Exchange {
  std::uint32_t major, minor;
  void* previous;
  int (*allocate)(Tensor*, void**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, void**);
  int (*managed_to_object)(void*, void**);
  int (*tensor_from_object)(void*, Tensor*);
  int (*current_stream)(int device_type, std::int32_t device, void** stream);
};
constexpr std::uint32_t kExchangeMajor = 1;

/// What torch gives for these calls.
struct Torch {
  const Exchange* exchange;
  nb::object empty_strided;   ///< (shape, strides, dtype) on the current device
  nb::object current_device;  ///< its index
  nb::object bytes;           ///< torch.uint8
};

nb::object take(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object call(const nb::object& function, std::initializer_list<PyObject*> arguments) {
  return take(PyObject_Vectorcall(function.ptr(), arguments.begin(), arguments.size(), nullptr));
}

Tensor view(const Torch& torch, nb::handle object) {
  Tensor tensor{};
  if (torch.exchange->tensor_from_object(object.ptr(), &tensor) != 0) throw nb::python_error();
  return tensor;
}

std::uintptr_t address(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset; }

std::optional<DType> half_type(const nb::dlpack::dtype& type) {
  if (type.bits != 16 || type.lanes != 1) return std::nullopt;
  if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return DType::kF16;
  if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::kBf16;
  return std::nullopt;
}

/// A tensor that the layer was made of, and the count of its changes at that time; none for tensors that do not count.
struct Part {
  nb::object tensor;
  std::optional<std::int64_t> version;
};

std::int64_t version_of(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("_version");
  return PyLong_AsLongLong(take(PyObject_GetAttr(tensor.ptr(), name)).ptr());
}

constexpr std::size_t kParts = 4;  // scales, zero points, outer scale, bias
using Handles = std::array<nb::handle, kParts>;

class TorchLayer {
 public:
  /// codes are compared by identity alone; who holds this drops it with them.
  TorchLayer(CudaLayer layer, nb::handle codes, std::optional<std::int64_t> version,
             std::vector<std::pair<nb::object, std::optional<std::int64_t>>> parts, std::string scheme, std::string inputs, Torch torch)
      : layer_(std::move(layer)),
        codes_(codes.ptr()),
        version_(version),
        scheme_(std::move(scheme)),
        inputs_(std::move(inputs)),
        torch_(std::move(torch)) {
    for (std::size_t i = 0; i < kParts; ++i) parts_[i] = {std::move(parts.at(i).first), parts[i].second};
  }

  /// The product; None where this is not the layer of these parts, or x is not plain rows of fp16 or bf16 on the current device.
  nb::object operator()(nb::handle x, nb::handle codes, const Handles& parts, std::string_view scheme, std::string_view inputs,
                        nb::handle input_scale, nb::handle input_zero_point) const {
    if (!is_of(codes, parts, scheme, inputs)) return nb::none();
    const Tensor in = view(torch_, x);
    const std::optional<DType> type = half_type(in.dtype);
    std::int64_t rows = 1;
    const std::optional<std::int64_t> pitch = type ? pitch_of(in, rows) : std::nullopt;
    if (!pitch || rows == 0 || in.device.device_type != nb::device::cuda::value || !is_current(in.device.device_id)) return nb::none();

    static PyObject* const dtype_name = PyUnicode_InternFromString("dtype");
    const nb::object y = empty_rows(in, take(PyObject_GetAttr(x.ptr(), dtype_name)));
    nb::object scratch;
    LayerCall call{address(in), address(view(torch_, y)), *type, rows, *pitch, 0, 0, 0};
    if (layer_.rounds_inputs()) {
      scratch = empty_bytes(layer_.scratch(rows));
      call.scratch = address(view(torch_, scratch));
      if (!input_scale.is_none()) call.scale = address(view(torch_, input_scale));
      if (!input_zero_point.is_none()) call.zero_point = address(view(torch_, input_zero_point));
    }
    void* stream = nullptr;
    if (torch_.exchange->current_stream(in.device.device_type, in.device.device_id, &stream) != 0) throw nb::python_error();
    {
      const nb::gil_scoped_release unlocked;
      layer_.run(call, static_cast<cuda::Stream>(stream));
    }
    return y;
  }

 private:
  bool is_of(nb::handle codes, const Handles& parts, std::string_view scheme, std::string_view inputs) const {
    if (codes.ptr() != codes_ || scheme != scheme_ || inputs != inputs_ || (version_ && *version_ != version_of(codes))) return false;
    for (std::size_t i = 0; i < kParts; ++i) {
      if (!parts_[i].tensor.is(parts[i])) return false;
      if (parts_[i].version && *parts_[i].version != version_of(parts[i])) return false;
    }
    return true;
  }

  bool is_current(std::int32_t device) const { return PyLong_AsLong(call(torch_.current_device, {}).ptr()) == device; }

  /// Elements from row to row, and the number of rows; none where columns are not contiguous, rows not evenly spaced, or not of k columns.
  std::optional<std::int64_t> pitch_of(const Tensor& x, std::int64_t& rows) const {
    const int rank = x.ndim;
    if (rank < 1 || x.shape[rank - 1] != layer_.k()) return std::nullopt;
    for (int i = 0; i + 1 < rank; ++i) rows *= x.shape[i];
    if (x.strides == nullptr) return layer_.k();
    if (rank == 2 && x.strides[1] == 1 && x.strides[0] >= layer_.k()) return x.strides[0];
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (x.shape[i] != 1 && x.strides[i] != step) return std::nullopt;
      step *= x.shape[i];
    }
    return layer_.k();
  }

  nb::object empty_rows(const Tensor& x, const nb::object& dtype) const {
    const int rank = x.ndim;
    const nb::object shape = take(PyTuple_New(rank)), strides = take(PyTuple_New(rank));
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const std::int64_t size = i == rank - 1 ? layer_.n() : x.shape[i];
      PyTuple_SET_ITEM(shape.ptr(), i, PyLong_FromLongLong(size));
      PyTuple_SET_ITEM(strides.ptr(), i, PyLong_FromLongLong(step));
      step *= size;
    }
    return call(torch_.empty_strided, {shape.ptr(), strides.ptr(), dtype.ptr()});
  }

  nb::object empty_bytes(std::int64_t size) const {
    const nb::object shape = take(PyTuple_Pack(1, take(PyLong_FromLongLong(size)).ptr()));
    const nb::object strides = take(PyTuple_Pack(1, take(PyLong_FromLong(1)).ptr()));
    return call(torch_.empty_strided, {shape.ptr(), strides.ptr(), torch_.bytes.ptr()});
  }

  CudaLayer layer_;
  PyObject* codes_;
  std::optional<std::int64_t> version_;
  std::array<Part, kParts> parts_;
  std::string scheme_, inputs_;
  Torch torch_;
};

/// Throws Unsupported where the capsule is of another generation of the interface.
Torch torch_of(const nb::capsule& exchange, nb::object empty_strided, nb::object current_device, nb::object bytes) {
  const auto* functions = static_cast<const Exchange*>(exchange.data());
  if (functions->major != kExchangeMajor) throw Unsupported("torch's DLPack exchange interface is of another generation");
  return {functions, std::move(empty_strided), std::move(current_device), std::move(bytes)};
}

}  // namespace

void bind_torch_layer(nb::module_& module) {
  nb::class_<TorchLayer>(module, "TorchLayer", "A CudaLayer, the tensors that it was made of, and what its call needs of torch.")
      .def(
          "__init__",
          [](TorchLayer* self, const CudaLayer& layer, nb::handle codes, std::optional<std::int64_t> version,
             std::vector<std::pair<nb::object, std::optional<std::int64_t>>> parts, std::string scheme, std::string inputs,
             const nb::capsule& exchange, nb::object empty_strided, nb::object current_device, nb::object bytes) {
            new (self) TorchLayer(layer, codes, version, std::move(parts), std::move(scheme), std::move(inputs),
                                  torch_of(exchange, std::move(empty_strided), std::move(current_device), std::move(bytes)));
          },
          nb::arg("layer"), nb::arg("codes"), nb::arg("version").none(), nb::arg("parts"), nb::arg("scheme"), nb::arg("inputs"),
          nb::arg("exchange"), nb::arg("empty_strided"), nb::arg("current_device"), nb::arg("bytes"))
      .def(
          "__call__",
          [](const TorchLayer& self, nb::handle x, nb::handle codes, nb::handle scales, nb::handle zero_points, nb::handle outer_scale,
             nb::handle bias, std::string_view scheme, std::string_view inputs, nb::handle input_scale, nb::handle input_zero_point) {
            return self(x, codes, {scales, zero_points, outer_scale, bias}, scheme, inputs, input_scale, input_zero_point);
          },
          nb::arg("x"), nb::arg("codes"), nb::arg("scales").none(), nb::arg("zero_points").none(), nb::arg("outer_scale").none(),
          nb::arg("bias").none(), nb::arg("scheme"), nb::arg("inputs"), nb::arg("input_scale").none(), nb::arg("input_zero_point").none(),
          "The product; None where this is not the layer of these tensors, or x is not plain rows of fp16 or bf16.");
}

}  // namespace narrow::python
