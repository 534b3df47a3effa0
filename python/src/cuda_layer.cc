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

}  // namespace

struct CudaLayer::State {
  std::int64_t n, k;
  Device device;
  std::optional<Tensor> bias;
  std::optional<InputCodes> input{};
  std::variant<std::monostate, cuda::DeviceWeight, cuda::Fp8Matrix, cuda::Int8Matrix, cuda::Int4Weight> weight{};

  Tensor at(std::uintptr_t address, DType type, Shape shape, Shape strides) const {
    return Tensor::borrow(reinterpret_cast<void*>(address), type, std::move(shape), std::move(strides), device);
  }
};

CudaLayer::CudaLayer(const cuda::DeviceQuantized& weight, const std::optional<Scheme>& input, bool is_static, std::optional<Tensor> bias,
                     cuda::Stream stream) {
  auto state = std::make_shared<State>(weight.shape.at(0), weight.shape.at(1), weight.codes.device(), std::move(bias));
  if (input) state->input.emplace(*input, state->k, is_static);
  switch (product_of(weight.scheme, state->n, state->k, input)) {
    case Product::kNone:
      throw Unsupported("a layer of " + weight.scheme.to_string() + (input ? " with inputs of " + input->to_string() : "") +
                        " has no CUDA kernel of its own");
    case Product::kWeights: state->weight = cuda::prepare_weight(weight, stream); break;
    case Product::kFp8: state->weight = cuda::prepare_fp8(weight, stream); break;
    case Product::kInt8: state->weight = cuda::prepare_int8(weight, stream, input->asymmetric); break;
    case Product::kInt4: state->weight = cuda::prepare_int4(weight, stream); break;
  }
  state_ = std::move(state);
}

std::int64_t CudaLayer::n() const { return state_->n; }
std::int64_t CudaLayer::k() const { return state_->k; }
bool CudaLayer::rounds_inputs() const { return state_->input.has_value(); }
std::int64_t CudaLayer::scratch(std::int64_t m) const { return state_->input ? state_->input->byte_size(m) : 0; }

void CudaLayer::run(const LayerCall& call, cuda::Stream stream) const {
  const State& layer = *state_;
  const Tensor x = layer.at(call.x, call.dtype, {call.m, layer.k}, {call.pitch, 1}),
               y = layer.at(call.y, call.dtype, {call.m, layer.n}, {});
  const auto multiply = [&](const auto& left, const auto& right, auto options) {
    options.bias = layer.bias;
    cuda::matmul(left, right, y, stream, options);
  };
  const auto rounded = [&](const auto& prepare) {
    const auto given = [&](std::uintptr_t address, DType type) {
      return address == 0 ? std::nullopt : std::optional(layer.at(address, type, {1}, {}));
    };
    return layer.input->quantize(x, reinterpret_cast<std::byte*>(call.scratch), given(call.scale, DType::kF32),
                                 given(call.zero_point, DType::kU8), stream, prepare);
  };
  const auto int8_rows = [&](bool sums) { return rounded([&](const auto& codes) { return cuda::prepare_int8(codes, stream, sums); }); };
  if (const auto* weight = std::get_if<cuda::DeviceWeight>(&layer.weight))
    multiply(x, *weight, cuda::WeightMatmulOptions{});
  else if (const auto* fp8 = std::get_if<cuda::Fp8Matrix>(&layer.weight))
    multiply(rounded([&](const auto& codes) { return cuda::prepare_fp8(codes, stream); }), *fp8, cuda::Fp8MatmulOptions{});
  else if (const auto* int8 = std::get_if<cuda::Int8Matrix>(&layer.weight))
    multiply(int8_rows(int8->scheme.asymmetric), *int8, cuda::Int8MatmulOptions{});
  else
    multiply(int8_rows(false), std::get<cuda::Int4Weight>(layer.weight), cuda::Int8MatmulOptions{});
}

void bind_cuda_layer(nb::module_& module) {
  module.def(
      "cuda_layer_product",
      [](const Scheme& weight, std::int64_t n, std::int64_t k, const std::optional<Scheme>& input) {
        switch (product_of(weight, n, k, input)) {
          case Product::kWeights: return "weights";
          case Product::kFp8:
          case Product::kInt8:
          case Product::kInt4: return "codes";
          case Product::kNone: break;
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
            self.run({x, y, parse_dtype(dtype), m, pitch, scratch, scale, zero_point}, stream_of(stream));
          },
          nb::arg("x"), nb::arg("y"), nb::arg("dtype"), nb::arg("m"), nb::arg("pitch"), nb::arg("scratch") = 0, nb::arg("scale") = 0,
          nb::arg("zero_point") = 0, nb::arg("stream"), Unlocked(),
          "x [m, k], rows pitch elements apart, and y [m, n] by their addresses, both of one type; scratch: of scratch(m) bytes; scale and "
          "zero_point: addresses of a static input's.");
}

}  // namespace narrow::python
