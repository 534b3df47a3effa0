#pragma once
/// Linear layers on a CUDA device: weights joined into one product where that is exact, and how their input is made.

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "model/linear.h"
#include "narrow/cuda_matmul.h"
#include "narrow/cuda_weights.h"

namespace narrow::model {

/// Memory that the inputs of all layers share, in bytes per row: values in up to 4 bytes, codes, scales.
struct InputScratch {
  Buffer values, rounded, codes, scales, workspace;
  Buffer sums;     ///< of layers that keep fp32: what products of split inputs give, of some rows at a time
  Buffer weights;  ///< of a layer whose weights are decoded before they are multiplied, fp32
  /// widest: inputs; most_outputs: of layers that keep fp32, 0: there are none; most_decoded: weights of one layer.
  static InputScratch allocate(std::int64_t rows, std::int64_t widest, std::int64_t most_outputs, std::int64_t most_decoded, Device device);
};

/// What is computed on the way into a layer.
struct DeviceSource {
  enum class Op : std::uint8_t {
    kNorm,    ///< RMSNorm of the stream, fp32, to which the delta is added first
    kGate,    ///< silu(gate) * up of [rows, 2 k]
    kValues,  ///< x as it is
  };
  Op op = Op::kValues;
  Tensor x;
  std::optional<Tensor> norm{};  ///< fp32 [k]
  float epsilon = 0.0f;
  std::optional<Tensor> delta{};  ///< of the stream's shape
};

/// The weights of layers that share an input, [n, k] each, one below the other.
class DeviceLinear {
 public:
  DeviceLinear() = default;
  /// Copies the layers of the CPU's executor, bit for bit. `weights`, where given: one per layer to take in place of its own, or null.
  /// keeps_fp32: inputs that are not rounded are split into two fp16 values each, of which 22 bits are multiplied, and so are weights in
  /// fp32; those that are rounded, but not to int8 codes that a product takes, have sums in fp64 (Linear::in_fp64). y must be fp32.
  DeviceLinear(std::span<const Linear* const> layers, Device device, cuda::Stream stream, bool keeps_fp32 = false,
               std::span<const QuantizedTensor* const> weights = {});
  /// One weight that is there already; dense ones are quantized tensors of fp16 or bf16 without scales (fp16 to keep fp32).
  DeviceLinear(const cuda::DeviceQuantized& weight, const std::optional<ActivationScheme>& activation, cuda::Stream stream,
               bool keeps_fp32 = false);

  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  /// Bytes that a product reads.
  std::uint64_t byte_size() const;
  /// The type of an input that is not rounded to codes, or of both its parts.
  DType input_type() const { return input_; }
  /// The type in which a product adds to the stream before this layer's norm.
  DType delta_type() const { return multiplies_codes_ ? DType::kF32 : DType::kF16; }
  /// What attention gives for this layer: its own type where nothing else is made of it, else fp32 (fp16 for many rows, unless it is kept).
  DType source_type(bool many) const;

  /// Weights that a pass over so many rows has to have room for in scratch, decoded.
  std::int64_t decoded_weights(std::int64_t rows) const;

  /// The weight, where run() is one product of it with values of input_type(), and bias; else null. Then its bias, or null.
  const cuda::DeviceWeight* plain_weight() const;
  const float* plain_bias() const { return pieces_.front().bias ? pieces_.front().bias->as<float>() : nullptr; }

  /// y [rows, n] = input * weight + bias (+ residual). y: fp32, fp16 or bf16.
  void run(const DeviceSource& source, const InputScratch& scratch, const Tensor& y, cuda::Stream stream,
           const std::optional<Tensor>& residual = {}) const;

 private:
  struct Piece {
    std::variant<cuda::DeviceWeight, cuda::Fp8Matrix, cuda::Int8Matrix, cuda::Int4Weight, cuda::DeviceQuantized> weight;
    std::int64_t first = 0, n = 0;
    std::optional<Tensor> bias{};
    std::optional<cuda::DeviceWeight> low{};  ///< of weights in fp32: what fp16 leaves of them, times 2^11
  };
  void add(const cuda::DeviceQuantized& weight, const std::optional<Tensor>& bias, cuda::Stream stream);
  void set_rounding(const InputRounding& rounding);
  /// Sums of fp8 codes have fewer bits than fp32 on tensor cores; those of integers are exact.
  bool may_multiply_codes(bool keeps_fp32) const { return !keeps_fp32 || rounding_->element == kInt8; }
  void run_values(const Tensor& x, const InputScratch& scratch, const Tensor& y, cuda::Stream stream,
                  const std::optional<Tensor>& residual) const;
  void run_split(const Tensor& x, const Buffer& parts, const InputScratch& scratch, const Tensor& y, cuda::Stream stream,
                 const std::optional<Tensor>& residual) const;
  void run_exact(const Tensor& x, const InputScratch& scratch, const Tensor& y, cuda::Stream stream,
                 const std::optional<Tensor>& residual) const;
  void run_codes(const DeviceSource& source, const InputScratch& scratch, const Tensor& y, cuda::Stream stream,
                 const std::optional<Tensor>& residual) const;

  std::int64_t n_ = 0, k_ = 0;
  DType input_ = DType::kF16;
  std::optional<Scheme> rounding_{};      ///< of the input
  std::optional<Tensor> static_scale_{};  ///< fp32 [1]
  bool multiplies_codes_ = false;         ///< fp8 or int8 on both sides, or int4 x int8; else rounded values in 16 bits are multiplied
  bool splits_ = false;                   ///< fp32 is kept, and the input is not rounded
  bool in_fp64_ = false;                  ///< fp32 is kept, and the input is rounded, but not multiplied as codes
  std::vector<Piece> pieces_;
};

/// Whether two layers round their input in the same way.
bool same_rounding(const Linear& a, const Linear& b);
/// Whether fused_quantize and a product of codes take the pair.
bool multiplies_codes(const Scheme& weight, const ActivationScheme& activation, std::int64_t n, std::int64_t k);
/// One scale of the tensor for each of its rows: the same values, and rows can be joined with those of other tensors.
QuantizedTensor with_row_scales(QuantizedTensor q);
/// The columns [first, first + n) of y [rows, ..].
Tensor columns(const Tensor& y, std::int64_t first, std::int64_t n);
/// The input of a layer in a type, in `to` unless it is there already; exact: norms, in fp32, with the CPU's bits.
Tensor source_values(const DeviceSource& source, DType type, const Buffer& to, cuda::Stream stream, bool exact = false);

}  // namespace narrow::model
