#pragma once
/// Files and directories that appear under their names complete or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace narrow::io {

/// What the names of unfinished files and directories contain: `.NAME.narrow-partial-PID-N`.
inline constexpr std::string_view kPartialMark = ".narrow-partial-";

/// Whether commit() makes the new name durable, or leaves that to the directory around it.
enum class Names : std::uint8_t { kDurable, kLeftToDirectory };

/// A file written under a temporary name in the same directory. commit() makes it durable and gives it its name;
/// without it the destructor removes it. Every failure is an IoError with path and offset.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Where it lies until commit(): what was written can be read back there.
  const std::filesystem::path& place() const { return temporary_; }
  /// fsync, rename, fsync of the directory; the last once for all files where an AtomicDirectory holds them.
  void commit(Names names = Names::kDurable);

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

void write_text(const std::filesystem::path& path, std::string_view text, Names names = Names::kDurable);

/// A directory filled under a temporary name beside its place; commit() renames it there. The place must not exist,
/// or be an empty directory.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(std::filesystem::path path);
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;
  ~AtomicDirectory();

  /// Where to write until commit().
  const std::filesystem::path& place() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool committed_ = false;
};

}  // namespace narrow::io
