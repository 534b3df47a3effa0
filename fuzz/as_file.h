#pragma once
/// The bytes of a fuzzer under a path, for readers that take one.

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace narrow::fuzz {

/// What is opened under the path has these bytes, until the next call. In the tests' builds it is a file in memory (as_file.cc), in the
/// fuzzers' the reader of files is another one, which makes no system calls (memory_reader.cc).
const std::filesystem::path& as_file(const std::uint8_t* data, std::size_t size);

}  // namespace narrow::fuzz
