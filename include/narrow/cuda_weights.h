#pragma once
/// Products of fp16 or bf16 activations with weights in any scheme, on CUDA devices:
///   y[m, n] = convert(activate(sum_k x[m, k] * w[n, k] + bias[n]) * multiplier[m, n] + residual[m, n]),
/// w standing for the exactly dequantized values. Sums are fp32, in one fixed order. Nothing here waits but prepare_weight, where
/// scales change along k and its stream is not captured; all calls can be captured into a graph, those on existing memory and
/// prepare_weight.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// A weight [n, k] as products read it. Immutable; copying shares its memory.
struct DeviceWeight {
  Scheme scheme;  ///< of dense weights: fp16 or bf16 without scales
  std::int64_t n = 0, k = 0;
  bool is_prepared = false;  ///< in chunks for Hopper's tensor cores; else canonical, which the row for every device reads
  Buffer chunks;             ///< prepared: codes, and the scales and zero points that change along k
  Buffer factors;            ///< prepared: fp32, two per row, and a word
  Buffer codes;              ///< canonical
  Buffer scales;             ///< canonical grid; prepared: where scales do not change along k
  Buffer zero_points;        ///< canonical
  Buffer outer_scale;        ///< one fp32, of schemes that have one
  /// Prepared: whether a row's scales along k are so near to each other that products of many rows may multiply them into 16-bit values
  /// (powers of two: exactly), or sum in units of one of them; else slower kernels take the product. False of weights whose preparation was
  /// captured, unless their scales do not change along k.
  bool is_steady = true;

  Device device() const { return is_prepared ? chunks.device() : codes.device(); }
  /// Bytes that a product reads.
  std::size_t byte_size() const { return is_prepared ? chunks.size() + factors.size() : codes.size() + scales.size() + zero_points.size(); }
};

/// Whether weights of the scheme are prepared: floats of up to 8 bits and 4 exponent bits and fp8_e5m2, integers of 1, 2, 3, 4 and 8 bits,
/// fp16 and bf16; with scales per tensor, row, rows x columns, as long as columns are a multiple of 16 or reach over the whole of k.
bool can_prepare_weight(const Scheme& scheme, std::int64_t n, std::int64_t k);
/// The weight for products. Schemes that cannot be prepared keep their canonical bytes, which are shared.
DeviceWeight prepare_weight(const DeviceQuantized& q, Stream stream);
/// A dense weight, fp16 or bf16, contiguous.
DeviceWeight prepare_weight(const Tensor& w, Stream stream);
/// The exact inverse: the canonical bytes, bit for bit.
DeviceQuantized unprepare_weight(const DeviceWeight& w, Stream stream);

struct WeightMatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> multiplier{};  ///< [m, n] in fp32, fp16 or bf16: the other half of a gated pair, y = silu(gate) * up
  std::optional<Tensor> residual{};    ///< [m, n] in fp32, fp16 or bf16; added last
  std::optional<Tensor> order{};       ///< int32 [k]: column k of the weight goes with column order[k] of x (GPTQ's act-order)
  std::string_view kernel{};           ///< a row of weight_matmul_kernel_names() by name, for tests; the best one otherwise
};

/// x: [m, k] in fp16 or bf16, contiguous columns; y: [m, n] in fp32, fp16 or bf16, contiguous columns.
/// Scratch, of an x with an order, or whose rows do not start at multiples of 16 bytes or k is no multiple of 64: a copy of it. A workspace
/// that holds more than that lets products of many rows share their last tiles evenly between multiprocessors, which nothing is allocated
/// for.
void matmul(const Tensor& x, const DeviceWeight& w, const Tensor& y, Stream stream, const WeightMatmulOptions& options = {},
            Workspace workspace = {});

/// Bytes of workspace with which no product of up to m rows of x allocates, and all take the fastest way.
std::size_t weight_matmul_workspace(std::int64_t m, const DeviceWeight& w);

/// The rows of the table: Hopper's tiles, then the one that runs everywhere.
std::vector<std::string> weight_matmul_kernel_names();
/// The rows for x [m, k] times a weight [n, k] of a scheme on a Hopper of so many multiprocessors (an H200 has 132), whether they take it,
/// and what was estimated of them; needs no device. Empty in a build without CUDA.
std::vector<MatmulChoice> explain_weight_matmul(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, DType x = DType::kF16,
                                                int multiprocessors = 132);

}  // namespace narrow::cuda
