#pragma once
/// Products of MSFP matrices (msfp11 .. msfp16) on CUDA devices, both sides packed. Products of elements are exact, sums are fp32.
/// Nothing here waits; all calls on existing memory can be captured into a graph.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/cuda.h"
#include "narrow/matmul.h"

namespace narrow::cuda {

/// An MSFP matrix [rows, k] as products read it: codes of 4 bits (msfp11, msfp12) or 8, and the exponents of boxes beside them. Copying
/// shares its memory.
struct MsfpMatrix {
  Scheme scheme;
  std::int64_t rows = 0, k = 0;
  std::int64_t depth = 0;  ///< k, padded to a multiple of 128 with zeros
  int bits = 8;            ///< of a stored code
  Buffer codes;            ///< [rows, depth * bits / 8]
  Buffer exponents;        ///< [depth / 64][rows padded to a multiple of 128] words of four bytes, one for each box of 16

  Device device() const { return codes.device(); }
};

/// The matrix for products. Shares its codes where they are of 4 or 8 bits (msfp12, msfp16) and k is a multiple of 128, else copies them.
MsfpMatrix prepare_msfp(const DeviceQuantized& q, Stream stream);
/// The exact inverse: canonical bytes.
DeviceQuantized unprepare_msfp(const MsfpMatrix& q, Stream stream);

struct MsfpMatmulOptions {
  std::optional<Tensor> bias{};  ///< fp32 [n]
  Activation activation = Activation::kNone;
  std::optional<Tensor> residual{};  ///< fp32, fp16 or bf16 [m, n]; added after the activation
  std::string_view kernel{};         ///< a row of msfp_matmul_kernel_names() by name, for tests; the best one otherwise
};

/// Scratch memory of a product: x and w in bf16, and some counters.
std::size_t msfp_matmul_workspace(const MsfpMatrix& x, const MsfpMatrix& w);
/// y [m, n], contiguous columns, fp32, fp16 or bf16:
///   convert(activate(sum_k x[m, k] * w[n, k] + bias[n]) + residual[m, n]).  The two sides may have different msfp formats.
void matmul(const MsfpMatrix& x, const MsfpMatrix& w, const Tensor& y, Stream stream, const MsfpMatmulOptions& options = {},
            Workspace workspace = {});

/// The rows of the table: Hopper's, then the one that runs everywhere.
std::vector<std::string> msfp_matmul_kernel_names();

}  // namespace narrow::cuda
