#pragma once
/// GGUF version 3, little end first:
///   "GGUF" | u32 version | i64 tensors | i64 pairs | pairs | tensor infos | zeros up to the alignment | data, each tensor aligned
///   pair: string key, u32 type, value; string: u64 length, bytes; array: u32 type, u64 count, elements
///   info: string name, u32 dimensions, i64 ne[], the contiguous one first, u32 ggml type, u64 offset from the data's start

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/gguf_blocks.h"
#include "narrow/tensor.h"

namespace narrow::io {

/// The values that narrow writes; a reader keeps other numbers as their text, and of other arrays their count.
using GgufValue = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<std::int32_t>>;

struct GgufTensor {
  std::string name;
  Shape shape;  ///< as everywhere in narrow: the contiguous dimension last
  const GgmlTypeInfo* type = nullptr;
  std::uint64_t begin = 0, bytes = 0;  ///< in the file
};

struct GgufHeader {
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
  std::string text;  ///< what a file begins with, padded to the alignment
  std::uint64_t file_bytes = 0;
};

inline constexpr std::uint64_t kGgufAlignment = 32;

/// The header of a file with these tensors in this order; fills in where each begins. Throws InvalidArgument for names beyond 63 bytes,
/// more than 4 dimensions, or rows that are no whole blocks.
GgufHeader layout_gguf(std::vector<std::pair<std::string, GgufValue>> metadata, std::vector<GgufTensor> tensors);

/// Reads and checks a header. Throws CorruptFile naming the path for what ggml's own reader refuses: another magic or version, counts and
/// lengths beyond the file, keys or tensors twice, alignments that are no power of two, offsets that leave gaps; Unsupported for other
/// types.
GgufHeader read_gguf(const FileReader& file);

}  // namespace narrow::io
