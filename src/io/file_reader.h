#pragma once
/// Reading a regular file by ranges: no mapping, so that a file that shrinks gives an error and not a signal.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace narrow::io {

/// An open regular file. Its size is taken once; reads from several threads are safe.
class FileReader {
 public:
  /// Throws IoError where it cannot be opened or is not a regular file (a FIFO does not block).
  explicit FileReader(std::filesystem::path path);
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Fills `out` from `offset`. Throws IoError, or CorruptFile where the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// A whole file as text; throws CorruptFile where it is larger than `limit`.
std::string read_text(const std::filesystem::path& path, std::uint64_t limit);

}  // namespace narrow::io
