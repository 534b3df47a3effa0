#pragma once
/// One output file of a quantization: written, read back and reported. Files know nothing of each other, so that any process can make any
/// of them; what they report is joined in the order of their names.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/manifest.h"
#include "methods/output_layout.h"
#include "narrow/recipe.h"

namespace narrow {

/// What became of some output files.
struct ShardResult {
  io::Manifest manifest{};              ///< of the files and their tensors alone
  std::vector<TensorResult> tensors{};  ///< the quantized ones, in the order of the file
  double signal = 0.0, noise = 0.0;     ///< sum x^2, sum (x - y)^2 over them

  /// The file's own sums first, then their sum: the same bits wherever a file was made.
  void join(ShardResult&& next);
};

/// As text it travels between machines: JSON that ends with its own hash. parse throws CorruptFile naming `where`.
std::string print_shard_result(const ShardResult& result);
ShardResult parse_shard_result(std::string_view text, const std::string& where);

/// What a method has made of a tensor; nothing: it is rounded to nearest.
using FittedWeights = std::function<std::optional<QuantizedTensor>(const PlannedTensor&)>;

/// How tensors become codes.
struct ShardWork {
  QuantizeOptions options{};
  FittedWeights fitted{};       ///< empty: everything is rounded
  bool fits_to_inputs = false;  ///< codes of fitted weights need not be the nearest
  std::function<void(const PlannedTensor&, Stage, const ErrorMetrics&)> tell{};
};

/// Writes `file` into the directory `place`, reads it back and compares it with the source.
ShardResult write_shard(const Checkpoint& input, const OutputFile& file, const std::filesystem::path& place, const ShardWork& work);

}  // namespace narrow
