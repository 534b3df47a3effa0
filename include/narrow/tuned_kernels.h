#pragma once
/// Choices of GPU kernels that were measured instead of estimated, and the file that keeps them. Off unless use_tuned_kernels is called.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// Where choices were measured. Those of another GPU, driver or version of narrow mean nothing.
struct TunedMachine {
  std::string gpu;     ///< its name
  int driver = 0;      ///< as CUDA counts it: 13000 for 13.0
  std::string narrow;  ///< the library's version

  bool operator==(const TunedMachine&) const = default;
};

/// A product and a row of its table.
struct TunedKernel {
  std::string types;   ///< fp8_e4m3 x fp8_e4m3, fp8_e4m3 x fp8_e5m2, fp8_e5m2 x fp8_e4m3, int8 x int8
  std::string scales;  ///< outer, outer fast, block128 x 128x128, block128 x block128
  std::string out;     ///< the type of y
  std::int64_t m = 0, n = 0, k = 0;
  std::string kernel;  ///< the row's name
  int parts = 1;       ///< of each tile along k
  double microseconds = 0.0;

  /// Whether both are about the same product.
  bool is_for(const TunedKernel& other) const {
    return types == other.types && scales == other.scales && out == other.out && m == other.m && n == other.n && k == other.k;
  }
};

struct TunedKernels {
  TunedMachine machine;
  std::vector<TunedKernel> choices;

  /// One choice per product: the new one replaces the old.
  void add(const TunedKernel& choice);
};

/// The file is one JSON object: format, version, machine, choices. Throws IoError, or CorruptFile naming what is wrong.
TunedKernels read_tuned_kernels(const std::filesystem::path& path);
void write_tuned_kernels(const std::filesystem::path& path, const TunedKernels& kernels);

/// Lets products of this process take the file's choices from now on. Returns an empty text, or one sentence that says why the file is
/// ignored: it is missing, damaged, or was measured elsewhere. Never throws for what the file holds.
std::string use_tuned_kernels(const std::filesystem::path& path, const TunedMachine& here);

namespace cuda {

/// The device, as files name it; an empty one where there is none.
TunedMachine tuned_machine(int device = 0);
/// The choices that products of this process take before the cost model's; none switches them off.
void set_tuned_kernels(std::vector<TunedKernel> choices);

/// Times every row and number of parts for x [m, k] times a weight [n, k], fp8 or int8, with x in the scales that go with the weight's:
/// fastest first. Allocates up to about 512 MB, and waits.
std::vector<TunedKernel> time_kernels(std::int64_t m, std::int64_t n, std::int64_t k, const Scheme& weight, DType out = DType::kBf16,
                                      int device = 0);

}  // namespace cuda
}  // namespace narrow
