#pragma once
/// narrow_manifest.json, the last file of narrow's own checkpoints: what every byte of the directory must be.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "narrow/checkpoint.h"

namespace narrow::io {

inline constexpr int kManifestVersion = 1;

struct Manifest {
  struct StoredTensor {
    std::string file, hash;
  };
  struct LogicalTensor {
    std::optional<Scheme> scheme;  ///< nothing: copied
    Shape shape;
    DType source_dtype = DType::kF32;
    std::string source_hash;
    std::map<std::string, StoredTensor> stored;
  };
  struct TensorFile {
    std::uint64_t bytes = 0, header_bytes = 0;
    std::string header_hash;
  };
  struct SideFile {
    std::uint64_t bytes = 0;
    std::string hash;
  };

  std::string narrow_version;
  std::map<std::string, TensorFile> files;
  std::map<std::string, SideFile> side_files;
  std::map<std::string, LogicalTensor> tensors;
};

/// Directories that transformers saved have no manifest: under this key the metadata of every tensor file says what the quantized tensors
/// of the whole checkpoint are, a JSON object of {"scheme", "shape", "source_dtype"} by name (python/narrow/torch/huggingface.py).
inline constexpr const char* kSavedTensors = "narrow_tensors";
/// Those tensors, without hashes and places. Throws CorruptFile naming the path.
std::map<std::string, Manifest::LogicalTensor> parse_saved_tensors(std::string_view text, const std::filesystem::path& path);

/// This library's version, as manifests name it.
std::string_view library_version();

/// The text ends with its own hash, computed with 16 zeros in the hash's place.
std::string print_manifest(const Manifest& manifest);
/// Throws CorruptFile naming the path: another hash, another version, or contents that contradict each other.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace narrow::io
