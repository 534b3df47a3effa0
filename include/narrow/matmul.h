#pragma once
/// Products: y[m, n] = epilogue(sum_k x[m, k] * w[n, k]) with weights in any scheme, prepared once for the kernels that read them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "narrow/quantize.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// What follows the bias: silu(v) = v / (1 + exp(-v)), gelu(v) = v / 2 * (1 + erf(v / sqrt 2)).
enum class Activation : std::uint8_t { kNone, kRelu, kGelu, kSilu };

/// How a prepared weight lies in memory.
enum class WeightLayout : std::uint8_t {
  kCanonical,  ///< the bytes of the QuantizedTensor (or the dense rows): every row of the table reads it, the fast ones do not
  kPanels,     ///< panels of 64 outputs, 32 k at a time, one 32-bit lane per output; docs/kernels/cpu_matmul.md draws it
};

struct PrepareOptions {
  /// Panels where the scheme allows, else canonical; a layout asked for by name is given or refused with Unsupported.
  std::optional<WeightLayout> layout{};
};

/// A weight [n, k] in the layout of the kernels that multiply it. Immutable; copying shares its memory.
struct PreparedWeight {
  Scheme scheme;  ///< of dense weights: fp32, fp16 or bf16 without scales
  std::int64_t n = 0, k = 0;
  WeightLayout layout = WeightLayout::kCanonical;
  Buffer codes;        ///< canonical rows, or panels
  Buffer scales;       ///< in the scheme's storage; canonical grid, or [panel, k block, 64]
  Buffer zero_points;  ///< asymmetric schemes; canonical grid, or [panel, k block, 64]
  Buffer sums;         ///< panels of integers: int32 sum over a k block of the stored codes, [panel, k block, 64]
  float outer_scale = 1.0f;

  Device device() const { return codes.device(); }
  std::size_t byte_size() const { return codes.size() + scales.size() + zero_points.size() + sums.size(); }
};

/// Throws InvalidArgument unless w is a matrix [n, k].
PreparedWeight prepare(const QuantizedTensor& w, const PrepareOptions& options = {});
/// A dense weight: fp32, fp16 or bf16, any strides.
PreparedWeight prepare(const Tensor& w, const PrepareOptions& options = {});
/// The exact inverse: the canonical bytes, bit for bit. Throws InvalidArgument for a dense fp32 weight, which no scheme names.
QuantizedTensor unprepare(const PreparedWeight& w);
/// The dense values of a prepared dense weight, bit for bit.
Tensor unprepare_dense(const PreparedWeight& w);

/// How floating-point activations enter the product.
struct ActivationQuantization {
  /// int8:row (dynamic, per token), int8:row:asym, int8:block128, fp8_e4m3:block128, ...; static scales make it static.
  Scheme scheme = Scheme::parse("int8:row");
  std::optional<Tensor> scales{};  ///< as QuantizeOptions::scales; int8:tensor takes one
  std::optional<Tensor> zero_points{};
};

struct MatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> residual{};  ///< [m, n] in fp32, fp16 or bf16; added after the activation
  /// kF32, kF16, kBf16; kI8, kF8E4m3, kF8E5m2 requantized by out_scale; kI32: the exact integer sum, without scales,
  /// of integer x integer products that have no scale along k.
  DType out = DType::kF32;
  float out_scale = 1.0f;  ///< of kI8, kF8E4m3, kF8E5m2: code = encode(v / out_scale)
  std::optional<ActivationQuantization> quantize{};
  /// Lets weight-only products of integer weights round their activations to int8, dynamically per token: faster, and
  /// the same as asking for quantize = int8:row.
  bool allow_int8_activations = false;
};

/// y[..., n] = convert(activate((scale_x * scale_w) * (acc - zero-point terms) + bias[n]) + residual).
/// x: [..., k] in fp32, fp16 or bf16, any strides. The result has the same bits for any number of threads.
Tensor matmul(const Tensor& x, const PreparedWeight& w, const MatmulOptions& options = {});
/// The same with activations that are quantized already.
Tensor matmul(const QuantizedTensor& x, const PreparedWeight& w, const MatmulOptions& options = {});
/// The same into y: contiguous, on the CPU, of the result's shape and type. Saves the operating system's zeroing of fresh pages.
void matmul_into(const Tensor& x, const PreparedWeight& w, Tensor& y, const MatmulOptions& options = {});
void matmul_into(const QuantizedTensor& x, const PreparedWeight& w, Tensor& y, const MatmulOptions& options = {});

/// A row of the kernel table for one product, and whether and why it would run.
struct MatmulChoice {
  std::string name;
  std::string isa;
  bool accepted = false;
  bool chosen = false;
  std::string reason;  ///< one clause: why it was refused, or why it is the one
};
/// The rows of the table, best first, for x [m, k] times w [n, k] on this CPU.
std::vector<MatmulChoice> explain_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight,
                                         const MatmulOptions& options = {}, DType x = DType::kF32);

}  // namespace narrow
