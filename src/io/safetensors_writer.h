#pragma once
/// Writing safetensors files byte for byte as the reference implementation does, a range at a time.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/hash.h"
#include "narrow/checkpoint.h"

namespace narrow::io {

using Metadata = std::map<std::string, std::string>;

/// A file before it is written: its header, and where each tensor's bytes will lie.
struct SafetensorsLayout {
  std::vector<TensorInfo> tensors;  ///< as in the file: by dtype, widest first, then by name
  std::string header;               ///< the length field, the JSON, and spaces up to a multiple of 8
  std::uint64_t file_bytes = 0;
};

/// From names, dtypes and shapes alone. Throws InvalidArgument for names that a reader would refuse.
SafetensorsLayout layout_safetensors(std::vector<TensorInfo> tensors, const Metadata& metadata);

/// Writes a laid-out file; each tensor's bytes come in ascending order, the tensors themselves in any.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout);
  /// The next bytes of a tensor.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Durable and under its name; every tensor must be complete.
  void commit(Names names = Names::kDurable);
  /// xxHash of a tensor's bytes so far.
  std::string hash(std::string_view name) { return find(name).hasher.digits(); }
  const SafetensorsLayout& layout() const { return layout_; }

 private:
  struct Part {
    const TensorInfo* info = nullptr;
    std::uint64_t written = 0;
    Hasher hasher{};
  };
  Part& find(std::string_view name);

  SafetensorsLayout layout_;
  std::map<std::string_view, Part> parts_;
  AtomicFile file_;
};

}  // namespace narrow::io
