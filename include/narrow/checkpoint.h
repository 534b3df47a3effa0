#pragma once
/// Checkpoints: safetensors files and Hugging Face directories, read by range, and narrow's own quantized directories.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/quantize.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// A tensor as a file declares it.
struct TensorInfo {
  std::string name{};
  DType dtype = DType::kF32;
  Shape shape{};
  std::uint64_t begin = 0, end = 0;  ///< bytes in the file, from its start
  std::string file{};                ///< file name within the checkpoint's directory

  std::uint64_t byte_size() const { return end - begin; }
};

/// How a quantized tensor of narrow's own checkpoint is stored, from the manifest.
struct QuantizedInfo {
  std::string name;  ///< of the original tensor
  Scheme scheme;
  Shape shape;
  DType source_dtype = DType::kBf16;
  std::string source_hash;  ///< xxHash of the original's bytes, as 16 hexadecimal digits
};

/// An open checkpoint. Every header was checked when it was opened; values are read when they are asked for.
class Checkpoint {
 public:
  /// The directory (or the file's parent), and whether it is narrow's own quantized form.
  const std::filesystem::path& directory() const;
  bool is_quantized() const;

  /// All tensors as stored, ordered by name; those of narrow's quantized form carry suffixes (.codes, .scales, ...).
  const std::vector<TensorInfo>& stored() const;
  const TensorInfo& stored(std::string_view name) const;
  /// Logical tensors: names of the original model, quantized or not, ordered by name.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  /// Shape and dtype of a logical tensor; a quantized one reports its source's.
  Shape shape(std::string_view name) const;
  DType dtype(std::string_view name) const;
  /// How a logical tensor is quantized, or nothing.
  std::optional<QuantizedInfo> quantized_info(std::string_view name) const;

  /// The values; a quantized tensor is dequantized to its source's type.
  Tensor tensor(std::string_view name) const;
  /// Codes and scales of a quantized tensor; throws InvalidArgument for any other.
  QuantizedTensor quantized(std::string_view name) const;
  /// A stored tensor, and a range of its bytes: whoever streams needs no more memory than the range.
  Tensor read_stored(std::string_view name) const;
  void read_bytes(const TensorInfo& info, std::uint64_t offset, std::span<std::byte> bytes) const;

  /// Files beside the tensors (config.json, tokenizer.json, ...), by name, in order.
  const std::vector<std::string>& side_files() const;
  /// config.json as text; empty where there is none.
  std::string config() const;
  /// The safetensors files, in order of name; one name for a single file.
  const std::vector<std::string>& tensor_files() const;
  /// The index's file name; empty for a single file.
  const std::string& index_file() const;
  /// A tensor file's __metadata__.
  const std::map<std::string, std::string>& metadata(std::string_view file) const;

  struct State;
  explicit Checkpoint(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

/// Opens a safetensors file, or a directory with one or with shards and an index. Quantized ones are those that narrow wrote, and those
/// that transformers saved with narrow.torch.huggingface, which have no hashes.
/// Throws IoError, or CorruptFile naming the path, the offset and the tensor.
Checkpoint open_checkpoint(const std::filesystem::path& path);

/// Writes tensors to one safetensors file, byte for byte as the reference implementation does: to a temporary file,
/// fsync, rename, fsync of the directory. Nothing is left behind where it fails.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// What verify found in a file of narrow's own form or in a plain checkpoint.
struct VerifyReport {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> problems;  ///< one sentence each, naming the tensor or the file
  bool has_hashes = false;            ///< there was a manifest to check them against
};
/// Reads every byte again and checks every hash of the manifest; a checkpoint without one is checked for its structure alone.
VerifyReport verify_checkpoint(const std::filesystem::path& path);

}  // namespace narrow
