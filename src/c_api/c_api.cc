/// include/narrow/c.h without checkpoints: every function catches what the library throws and turns it into a status and a sentence of
/// the thread.

#include <cstring>

#include "c_api/objects.h"
#include "narrow/codec.h"

namespace narrow::c_api {
namespace {

constexpr std::int32_t kInterfaceVersion = 100;
constexpr std::int32_t kMostDimensions = 64;

/// The sentence of a thread's last failure. Setting it cannot fail: a sentence that finds no memory is a shorter one.
class LastError {
 public:
  void set(const char* sentence) noexcept {
    try {
      text_ = sentence;
      current_ = text_.c_str();
    } catch (...) {
      current_ = "there is not enough memory";
    }
  }
  const char* get() const noexcept { return current_; }

 private:
  std::string text_;
  const char* current_ = "";
};
thread_local LastError last_error;

Shape shape_of(const std::int64_t* shape, std::int32_t rank) {
  if (rank < 0 || rank > kMostDimensions) throw InvalidArgument(fmt::format("a rank of {} is none of 0 to {}", rank, kMostDimensions));
  if (rank > 0) given(shape, "shape");
  Shape result(shape, shape + rank);
  element_count(result);
  return result;
}

Buffer copied(const void* data, std::size_t bytes, const char* name) {
  Buffer buffer = Buffer::allocate(bytes);
  if (bytes > 0) std::memcpy(buffer.data(), &given(static_cast<const std::byte*>(data), name), bytes);
  return buffer;
}

const void* part(const Buffer& buffer, std::size_t* bytes) {
  if (bytes != nullptr) *bytes = buffer.size();
  return buffer.data();
}

}  // namespace

narrow_status failed(narrow_status status, const char* sentence) noexcept {
  last_error.set(sentence);
  return status;
}

}  // namespace narrow::c_api

using namespace narrow::c_api;
using namespace narrow;

extern "C" {

const char* narrow_last_error(void) { return last_error.get(); }
const char* narrow_version(void) { return NARROW_VERSION; }
int32_t narrow_c_version(void) { return kInterfaceVersion; }

// ---- formats and schemes ----

narrow_status narrow_encode(const char* format, float value, uint32_t* code) {
  return guarded([&] { given(code, "code") = encode(parse_format(text(format, "format")), value); });
}
narrow_status narrow_decode(const char* format, uint32_t code, float* value) {
  return guarded([&] {
    const Format parsed = parse_format(text(format, "format"));
    if (parsed.bits < 32 && code >> parsed.bits != 0) throw InvalidArgument(fmt::format("{} is no code of {} bits", code, parsed.bits));
    given(value, "value") = decode(parsed, code);
  });
}
narrow_status narrow_format_bits(const char* format, int32_t* bits) {
  return guarded([&] { given(bits, "bits") = parse_format(text(format, "format")).bits; });
}

narrow_status narrow_scheme_text(const char* scheme, char* out, size_t size) {
  return guarded([&] {
    const std::string canonical = Scheme::parse(text(scheme, "scheme")).to_string();
    if (canonical.size() >= size) throw InvalidArgument(fmt::format("{} takes {} bytes", canonical, canonical.size() + 1));
    std::memcpy(&given(out, "text"), canonical.c_str(), canonical.size() + 1);
  });
}
narrow_status narrow_scheme_bytes(const char* scheme, const int64_t* shape, int32_t rank, uint64_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = quantized_bytes(Scheme::parse(text(scheme, "scheme")), shape_of(shape, rank)); });
}

// ---- tensors ----

narrow_status narrow_tensor_create(const char* dtype, const int64_t* shape, int32_t rank, const void* data, size_t bytes,
                                   narrow_tensor** tensor) {
  return making(tensor, [&] {
    Tensor made = Tensor::empty(parse_dtype(text(dtype, "dtype")), shape_of(shape, rank));
    if (data == nullptr) {
      std::memset(made.data(), 0, made.byte_size());
    } else {
      if (bytes != made.byte_size())
        throw InvalidArgument(
            fmt::format("{} of {} takes {} bytes, not {}", name_of(made.dtype()), to_string(made.shape()), made.byte_size(), bytes));
      if (bytes > 0) std::memcpy(made.data(), data, bytes);
    }
    return handed_out(std::move(made));
  });
}
const char* narrow_tensor_dtype(const narrow_tensor* tensor) { return tensor->dtype.c_str(); }
int32_t narrow_tensor_rank(const narrow_tensor* tensor) { return tensor->value.rank(); }
const int64_t* narrow_tensor_shape(const narrow_tensor* tensor) { return tensor->value.shape().data(); }
const void* narrow_tensor_data(const narrow_tensor* tensor) { return tensor->value.data(); }
size_t narrow_tensor_bytes(const narrow_tensor* tensor) { return tensor->value.byte_size(); }
void narrow_tensor_free(narrow_tensor* tensor) { delete tensor; }

// ---- quantized tensors ----

narrow_status narrow_quantize(const narrow_tensor* x, const char* scheme, narrow_quantized** quantized) {
  return making(quantized, [&] { return handed_out(quantize(given(x, "x").value, Scheme::parse(text(scheme, "scheme")))); });
}
narrow_status narrow_dequantize(const narrow_quantized* quantized, const char* dtype, narrow_tensor** tensor) {
  return making(tensor, [&] { return handed_out(dequantize(given(quantized, "quantized").value, parse_dtype(text(dtype, "dtype")))); });
}
narrow_status narrow_assemble(const char* scheme, const int64_t* shape, int32_t rank, const void* codes, size_t codes_bytes,
                              const void* scales, size_t scales_bytes, const void* zero_points, size_t zero_points_bytes, float outer_scale,
                              narrow_quantized** quantized) {
  return making(quantized, [&] {
    return handed_out(assemble(Scheme::parse(text(scheme, "scheme")), shape_of(shape, rank), copied(codes, codes_bytes, "codes"),
                               copied(scales, scales_bytes, "scales"), copied(zero_points, zero_points_bytes, "zero_points"), outer_scale));
  });
}
const char* narrow_quantized_scheme(const narrow_quantized* quantized) { return quantized->scheme.c_str(); }
int32_t narrow_quantized_rank(const narrow_quantized* quantized) { return static_cast<int32_t>(quantized->value.shape.size()); }
const int64_t* narrow_quantized_shape(const narrow_quantized* quantized) { return quantized->value.shape.data(); }
const void* narrow_quantized_codes(const narrow_quantized* quantized, size_t* bytes) { return part(quantized->value.codes, bytes); }
const void* narrow_quantized_scales(const narrow_quantized* quantized, size_t* bytes) { return part(quantized->value.scales, bytes); }
const void* narrow_quantized_zero_points(const narrow_quantized* quantized, size_t* bytes) {
  return part(quantized->value.zero_points, bytes);
}
float narrow_quantized_outer_scale(const narrow_quantized* quantized) { return quantized->value.outer_scale; }
void narrow_quantized_free(narrow_quantized* quantized) { delete quantized; }

// ---- products ----

narrow_status narrow_prepare(const narrow_quantized* quantized, narrow_weight** weight) {
  return making(weight, [&] { return new narrow_weight{prepare(given(quantized, "quantized").value)}; });
}
narrow_status narrow_prepare_dense(const narrow_tensor* tensor, narrow_weight** weight) {
  return making(weight, [&] { return new narrow_weight{prepare(given(tensor, "tensor").value)}; });
}
narrow_status narrow_matmul(const narrow_tensor* x, const narrow_weight* weight, const narrow_tensor* bias, const char* activations,
                            const char* dtype, narrow_tensor** y) {
  return making(y, [&] {
    MatmulOptions options;
    options.out = parse_dtype(text(dtype, "dtype"));
    if (!is_floating(options.out)) throw InvalidArgument(fmt::format("a product is F32, F16 or BF16, not {}", name_of(options.out)));
    if (bias != nullptr) options.bias = bias->value;
    if (activations != nullptr) options.quantize = ActivationQuantization{.scheme = Scheme::parse(activations)};
    return handed_out(matmul(given(x, "x").value, given(weight, "weight").value, options));
  });
}
void narrow_weight_free(narrow_weight* weight) { delete weight; }

}  // extern "C"
