/// include/narrow/c.h: every function catches what the library throws and turns it into a status and a sentence of the thread.

#include "narrow/c.h"

#include <cstring>
#include <exception>
#include <new>

#include <fmt/format.h>

#include "io/manifest.h"
#include "narrow/checkpoint.h"
#include "narrow/codec.h"
#include "narrow/error.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"

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
struct narrow_checkpoint {
  narrow::Checkpoint value;
  std::vector<std::string> names;
};

namespace narrow {
namespace {

constexpr std::int32_t kInterfaceVersion = 100;
constexpr std::int32_t kMostDimensions = 64;

/// A callback asked to end.
struct Cancelled {};

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

narrow_status failed(narrow_status status, const char* sentence) noexcept {
  last_error.set(sentence);
  return status;
}

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
std::string_view text(const char* pointer, const char* name) { return &given(pointer, name); }

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

narrow_tensor* handed_out(Tensor tensor) {
  const std::string dtype(name_of(tensor.dtype()));
  return new narrow_tensor{tensor.contiguous(), dtype};
}
narrow_quantized* handed_out(QuantizedTensor quantized) {
  std::string scheme = quantized.scheme.to_string();
  return new narrow_quantized{std::move(quantized), std::move(scheme)};
}

/// Work whose result goes to *place, which is NULL where it fails.
template <typename T, typename Work>
narrow_status making(T** place, const Work& work) noexcept {
  if (place != nullptr) *place = nullptr;
  return guarded([&] { given(place, "the place of the result") = work(); });
}

ProgressCallback callback_of(narrow_progress progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](const TensorProgress& tensor) {
    if (progress(tensor.name.c_str(), tensor.bytes_done, tensor.bytes_total, user) != 0) throw Cancelled{};
  };
}

const void* part(const Buffer& buffer, std::size_t* bytes) {
  if (bytes != nullptr) *bytes = buffer.size();
  return buffer.data();
}

}  // namespace
}  // namespace narrow

using namespace narrow;

extern "C" {

const char* narrow_last_error(void) { return last_error.get(); }
const char* narrow_version(void) { return io::library_version().data(); }
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

// ---- checkpoints ----

narrow_status narrow_checkpoint_open(const char* path, narrow_checkpoint** checkpoint) {
  return making(checkpoint, [&] {
    Checkpoint opened = open_checkpoint(text(path, "path"));
    std::vector<std::string> names = opened.names();
    return new narrow_checkpoint{std::move(opened), std::move(names)};
  });
}
int64_t narrow_checkpoint_count(const narrow_checkpoint* checkpoint) { return static_cast<int64_t>(checkpoint->names.size()); }
const char* narrow_checkpoint_name(const narrow_checkpoint* checkpoint, int64_t index) {
  return index >= 0 && index < narrow_checkpoint_count(checkpoint) ? checkpoint->names[static_cast<std::size_t>(index)].c_str() : nullptr;
}
int32_t narrow_checkpoint_is_quantized(const narrow_checkpoint* checkpoint, const char* name) {
  int32_t answer = 0;
  guarded([&] { answer = checkpoint->value.quantized_info(text(name, "name")).has_value() ? 1 : 0; });
  return answer;
}
narrow_status narrow_checkpoint_tensor(const narrow_checkpoint* checkpoint, const char* name, narrow_tensor** tensor) {
  return making(tensor, [&] { return handed_out(given(checkpoint, "checkpoint").value.tensor(text(name, "name"))); });
}
narrow_status narrow_checkpoint_quantized(const narrow_checkpoint* checkpoint, const char* name, narrow_quantized** quantized) {
  return making(quantized, [&] { return handed_out(given(checkpoint, "checkpoint").value.quantized(text(name, "name"))); });
}
void narrow_checkpoint_free(narrow_checkpoint* checkpoint) { delete checkpoint; }

narrow_status narrow_checkpoint_quantize(const char* input, const char* output, const char* scheme, const char* const* ignore,
                                         size_t ignore_count, narrow_progress progress, void* user) {
  return guarded([&] {
    Recipe recipe = Recipe::of(text(scheme, "scheme"));
    if (ignore_count > 0) recipe.ignore.clear();
    for (size_t i = 0; i < ignore_count; ++i) recipe.ignore.emplace_back(text((&given(ignore, "ignore"))[i], "a pattern"));
    quantize_checkpoint(text(input, "input"), text(output, "output"), recipe, callback_of(progress, user));
  });
}
narrow_status narrow_checkpoint_dequantize(const char* input, const char* output, const char* dtype, narrow_progress progress, void* user) {
  return guarded([&] {
    dequantize_checkpoint(text(input, "input"), text(output, "output"), parse_dtype(text(dtype, "dtype")), callback_of(progress, user));
  });
}
narrow_status narrow_checkpoint_verify(const char* path) {
  return guarded([&] {
    const VerifyReport report = verify_checkpoint(text(path, "path"));
    if (!report.problems.empty()) throw CorruptFile(report.problems.front());
  });
}

}  // extern "C"
