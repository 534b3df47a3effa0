// io/file_reader.cc for fuzzers: every path is the bytes that as_file was given. Half a dozen system calls would be a tenth of an input's
// time.
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "as_file.h"
#include "io/file_reader.h"
#include "narrow/error.h"

namespace narrow {
namespace {

std::span<const std::uint8_t> contents;

}  // namespace

const std::filesystem::path& fuzz::as_file(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = "/dev/null";  // is there, for those who look before they open, and is no directory
  contents = {data, size};
  return path;
}

namespace io {

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)), descriptor_(0), size_(contents.size()) {}
FileReader::~FileReader() { descriptor_ = -1; }

void FileReader::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset)
    throw CorruptFile(fmt::format("{}: {} bytes at offset {} lie beyond its {} bytes", path_.string(), out.size(), offset, size_));
  if (!out.empty()) std::memcpy(out.data(), contents.subspan(static_cast<std::size_t>(offset)).data(), out.size());
}

}  // namespace io
}  // namespace narrow
