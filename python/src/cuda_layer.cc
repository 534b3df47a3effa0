/// A Linear layer's weight on a CUDA device, prepared once for the kernels that its scheme and the rounding of its input call for.

#include "cuda_layer.h"

#include <variant>

#include "narrow/cuda_fused.h"
#include "narrow/cuda_matmul.h"
#include "narrow/cuda_weights.h"
#include "narrow/error.h"

namespace narrow::python {
namespace {

enum class Product {
  kNone,     // no kernel of ours: values have to be decoded and multiplied by somebody else
  kWeights,  // plain inputs, fp16 or bf16
  kFp8,      // codes by codes
  kInt8,
  kInt4,  // codes of int8 inputs
};

bool is_outer(const Granularity& g) { return g.kind == Granularity::Kind::kTensor || g == Granularity::row(); }

bool is_fp8_pair(const Format& x, const Format& w) {
  return (x == kFp8E4m3 && (w == kFp8E4m3 || w == kFp8E5m2)) || (x == kFp8E5m2 && w == kFp8E4m3);
}

bool is_int8(const Scheme& scheme) { return scheme.element.is_integer() && scheme.element.bits == 8; }

Product product_of(const Scheme& weight, std::int64_t n, std::int64_t k, const std::optional<Scheme>& input) {
  if (!input) return cuda::can_prepare_weight(weight, n, k) ? Product::kWeights : Product::kNone;
  if (input->scale != kFp32 || input->has_outer_scale) return Product::kNone;
  const Granularity &x = input->granularity, &w = weight.granularity;
  if (is_int8(*input) && !input->asymmetric && is_outer(x) && cuda::can_prepare_int4(weight, n, k)) return Product::kInt4;
  if (weight.scale != kFp32 || weight.has_outer_scale) return Product::kNone;
  const bool outer = is_outer(x) && is_outer(w);
  const bool blocks = x == Granularity::block(128) && (w == Granularity::block(128, 128) || w == Granularity::block(128));
  if (is_int8(*input) && is_int8(weight) && outer) return Product::kInt8;
  const bool is_symmetric = !input->asymmetric && !weight.asymmetric;
  return is_fp8_pair(input->element, weight.element) && is_symmetric && (outer || blocks) ? Product::kFp8 : Product::kNone;
}

constexpr std::int64_t kAlignment = 16;
constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// The rounding of inputs [m, k], in scratch memory of the caller: codes, scales, zero points.
class InputCodes {
 public:
  InputCodes(const Scheme& scheme, std::int64_t k, bool is_static) : scheme_(scheme), k_(k) {
    // fused_quantize writes what products read, and reads x once; what it does not take is quantized and then prepared.
    const bool element = scheme.element == kInt8 || scheme.element == kFp8E4m3;
    const bool is_tensor = scheme.granularity.kind == Granularity::Kind::kTensor;
    is_fused_ = element && !scheme.asymmetric && k % kAlignment == 0 && (is_static || !is_tensor);
  }

  std::int64_t byte_size(std::int64_t m) const { return aligned(m * k_) + aligned(scale_count(m) * 4) + zero_point_count(m); }

  /// An operand of a product, made by `prepare(codes)`. scale and zero point: of a static input.
  template <typename Prepare>
  auto quantize(const Tensor& x, std::byte* scratch, const std::optional<Tensor>& scale, const std::optional<Tensor>& zero_point,
                cuda::Stream stream, const Prepare& prepare) const {
    const std::int64_t m = x.shape().at(0);
    const auto take = [&](std::int64_t bytes) {
      std::byte* from = scratch;
      scratch += aligned(bytes);
      return Buffer::borrow(from, static_cast<std::size_t>(bytes), x.device());
    };
    const Buffer codes = take(m * k_), scales = take(scale_count(m) * 4), zero_points = take(zero_point_count(m));
    if (is_fused_) {
      const cuda::FusedOutput out{scheme_, x.shape(), Layout::kRow, has_blocks(), codes, scales};
      FusedInput input;
      input.x = x;
      input.scales = scale;
      cuda::fused_quantize(input, out, stream);
      return prepare(out);
    }
    const cuda::DeviceQuantized out{scheme_, x.shape(), codes, scales, zero_points, {}};
    cuda::QuantizeOptions options;
    options.scales = scale;
    options.zero_points = zero_point;
    cuda::quantize(x, out, stream, options);
    return prepare(out);
  }

 private:
  bool has_blocks() const { return scheme_.granularity == Granularity::block(128); }
  std::int64_t scale_count(std::int64_t m) const {
    if (has_blocks()) return (k_ + 127) / 128 * (is_fused_ ? cuda::padded_scale_rows(m) : m);
    return scheme_.granularity == Granularity::row() ? m : 1;
  }
  std::int64_t zero_point_count(std::int64_t m) const { return scheme_.asymmetric ? scale_count(m) : 0; }

  Scheme scheme_;
  std::int64_t k_;
  bool is_fused_ = false;
};

/// Addresses on the layer's device, for one product; 0 where there is nothing. The caller keeps the memory alive.
struct Call {
  std::uintptr_t x, y;  ///< [m, k], rows `pitch` elements apart, and [m, n], contiguous; both of one type
  std::string_view dtype;
  std::int64_t m, pitch;
  std::uintptr_t scratch;            ///< of inputs that are rounded: scratch(m) bytes
  std::uintptr_t scale, zero_point;  ///< of a static input
};

class CudaLayer {
 public:
  CudaLayer(const cuda::DeviceQuantized& weight, const std::optional<Scheme>& input, bool is_static, std::optional<Tensor> bias,
            cuda::Stream stream)
      : n_(weight.shape.at(0)), k_(weight.shape.at(1)), device_(weight.codes.device()), bias_(std::move(bias)) {
    if (input) input_.emplace(*input, k_, is_static);
    switch (product_of(weight.scheme, n_, k_, input)) {
      case Product::kNone:
        throw Unsupported("a layer of " + weight.scheme.to_string() + (input ? " with inputs of " + input->to_string() : "") +
                          " has no CUDA kernel of its own");
      case Product::kWeights:
        weight_ = cuda::prepare_weight(weight, stream);
        break;
      case Product::kFp8:
        weight_ = cuda::prepare_fp8(weight, stream);
        break;
      case Product::kInt8:
        weight_ = cuda::prepare_int8(weight, stream, input->asymmetric);
        break;
      case Product::kInt4:
        weight_ = cuda::prepare_int4(weight, stream);
        break;
    }
  }

  /// Bytes of scratch memory for m rows of input.
  std::int64_t scratch(std::int64_t m) const { return input_ ? input_->byte_size(m) : 0; }

  void run(const Call& call, cuda::Stream stream) const {
    const DType type = parse_dtype(call.dtype);
    const Tensor x = at(call.x, type, {call.m, k_}, {call.pitch, 1}), y = at(call.y, type, {call.m, n_}, {});
    const auto multiply = [&](const auto& left, const auto& right, auto options) {
      options.bias = bias_;
      cuda::matmul(left, right, y, stream, options);
    };
    const auto rounded = [&](const auto& prepare) {
      const auto given = [&](std::uintptr_t address, DType of) {
        return address == 0 ? std::nullopt : std::optional(at(address, of, {1}, {}));
      };
      return input_->quantize(x, reinterpret_cast<std::byte*>(call.scratch), given(call.scale, DType::kF32),
                              given(call.zero_point, DType::kU8), stream, prepare);
    };
    const auto int8_rows = [&](bool sums) { return rounded([&](const auto& codes) { return cuda::prepare_int8(codes, stream, sums); }); };
    if (const auto* weight = std::get_if<cuda::DeviceWeight>(&weight_))
      multiply(x, *weight, cuda::WeightMatmulOptions{});
    else if (const auto* fp8 = std::get_if<cuda::Fp8Matrix>(&weight_))
      multiply(rounded([&](const auto& codes) { return cuda::prepare_fp8(codes, stream); }), *fp8, cuda::Fp8MatmulOptions{});
    else if (const auto* int8 = std::get_if<cuda::Int8Matrix>(&weight_))
      multiply(int8_rows(int8->scheme.asymmetric), *int8, cuda::Int8MatmulOptions{});
    else
      multiply(int8_rows(false), std::get<cuda::Int4Weight>(weight_), cuda::Int8MatmulOptions{});
  }

 private:
  Tensor at(std::uintptr_t address, DType type, Shape shape, Shape strides) const {
    return Tensor::borrow(reinterpret_cast<void*>(address), type, std::move(shape), std::move(strides), device_);
  }

  std::int64_t n_, k_;
  Device device_;
  std::optional<Tensor> bias_;
  std::optional<InputCodes> input_{};
  std::variant<std::monostate, cuda::DeviceWeight, cuda::Fp8Matrix, cuda::Int8Matrix, cuda::Int4Weight> weight_;
};

}  // namespace

void bind_cuda_layer(nb::module_& module) {
  module.def(
      "cuda_layer_product",
      [](const Scheme& weight, std::int64_t n, std::int64_t k, const std::optional<Scheme>& input) {
        switch (product_of(weight, n, k, input)) {
          case Product::kWeights:
            return "weights";
          case Product::kFp8:
          case Product::kInt8:
          case Product::kInt4:
            return "codes";
          case Product::kNone:
            break;
        }
        return "";
      },
      nb::arg("weight"), nb::arg("n"), nb::arg("k"), nb::arg("input").none(),
      "Whether CUDA kernels multiply such a layer: weights by plain inputs, codes by codes, or not at all ('').");
  nb::class_<CudaLayer>(module, "CudaLayer", "A weight on a CUDA device, prepared for its product, and what its input is rounded to.")
      .def(
          "__init__",
          [](CudaLayer* self, const Scheme& scheme, Shape shape, const Array& codes, const std::optional<Array>& scales,
             const std::optional<Array>& zero_points, const std::optional<Array>& outer_scale, const std::optional<Scheme>& input,
             bool is_static, const std::optional<Array>& bias, std::uintptr_t stream) {
            new (self) CudaLayer(over_device(scheme, std::move(shape), codes, scales, zero_points, outer_scale), input, is_static,
                                 bias ? std::optional(Tensor::over(bias->buffer(), DType::kF32, bias->tensor.shape())) : std::nullopt,
                                 stream_of(stream));
          },
          nb::arg("scheme"), nb::arg("shape"), nb::arg("codes"), nb::arg("scales").none(), nb::arg("zero_points").none(),
          nb::arg("outer_scale").none(), nb::arg("input").none(), nb::arg("is_static"), nb::arg("bias").none(), nb::arg("stream"),
          Unlocked())
      .def("scratch", &CudaLayer::scratch, nb::arg("m"))
      .def(
          "run",
          [](const CudaLayer& self, std::uintptr_t x, std::uintptr_t y, std::string_view dtype, std::int64_t m, std::int64_t pitch,
             std::uintptr_t scratch, std::uintptr_t scale, std::uintptr_t zero_point, std::uintptr_t stream) {
            self.run({x, y, dtype, m, pitch, scratch, scale, zero_point}, stream_of(stream));
          },
          nb::arg("x"), nb::arg("y"), nb::arg("dtype"), nb::arg("m"), nb::arg("pitch"), nb::arg("scratch") = 0, nb::arg("scale") = 0,
          nb::arg("zero_point") = 0, nb::arg("stream"), Unlocked(),
          "x [m, k], rows pitch elements apart, and y [m, n] by their addresses, both of one type; scratch: of scratch(m) bytes; scale and "
          "zero_point: addresses of a static input's.");
}

}  // namespace narrow::python
