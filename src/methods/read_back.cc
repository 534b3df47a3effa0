#include "methods/read_back.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "io/hash.h"
#include "io/quantized_layout.h"
#include "io/safetensors_header.h"
#include "io/text.h"
#include "methods/output_directory.h"
#include "methods/row_chunks.h"
#include "methods/special_values.h"
#include "methods/value_check.h"
#include "narrow/error.h"
#include "ops/error_accumulator.h"

namespace narrow {
namespace {

Buffer slice(const Buffer& whole, std::size_t begin, std::size_t size) {
  return size == 0 ? Buffer::allocate(0) : Buffer::borrow(whole.data() + begin, size);
}

/// The values as fp32, exactly.
Tensor widen(const Tensor& rows, ReusedBuffer& memory) {
  if (rows.dtype() == DType::kF32) return rows;
  const Tensor wide = memory.tensor(DType::kF32, rows.shape());
  const std::int64_t count = rows.size();
  const std::uint16_t* from = rows.as<std::uint16_t>();
  std::uint32_t* to = wide.as<std::uint32_t>();
  if (rows.dtype() == DType::kBf16) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint32_t>(from[i]) << 16;
  } else {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<std::uint32_t>(decode(kFp16, from[i]));
  }
  return wide;
}

[[noreturn]] void input_changed(const Checkpoint& input, const std::string& name) {
  throw CorruptFile(fmt::format("{}: tensor {} changed while it was read; quantize a copy that nobody writes to",
                                input.directory().string(), io::in_quotes(name)));
}

}  // namespace

WrittenFile::WrittenFile(const std::filesystem::path& path, const io::SafetensorsLayout& layout) : file_(path) {
  io::SafetensorsHeader header = io::read_safetensors_header(file_);
  const bool same =
      header.header_bytes == layout.header.size() && header.tensors.size() == layout.tensors.size() && file_.size() == layout.file_bytes;
  if (!same) throw CorruptFile(fmt::format("{}: it is not what was written to it", path.string()));
  tensors_ = std::move(header.tensors);
}

const TensorInfo& WrittenFile::find(const std::string& name) const {
  const auto place = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const TensorInfo& info, const std::string& wanted) { return info.name < wanted; });
  if (place == tensors_.end() || place->name != name)
    throw CorruptFile(fmt::format("{}: tensor {} was written and is missing", file_.path().string(), io::in_quotes(name)));
  return *place;
}

void WrittenFile::check_copy(const Checkpoint& input, const std::string& name, const io::Manifest::LogicalTensor& expected) const {
  const TensorInfo& info = find(name);
  std::vector<std::byte> bytes;
  std::uint64_t offset = info.begin;
  const std::string source = stream_tensor(input, input.stored(name), [&](std::span<const std::byte> piece) {
    bytes.resize(piece.size());
    file_.read(offset, bytes);
    offset += piece.size();
    if (std::memcmp(bytes.data(), piece.data(), piece.size()) != 0)
      throw CorruptFile(fmt::format("{}: tensor {} reads back different from its source", file_.path().string(), io::in_quotes(name)));
  });
  if (source != expected.source_hash) input_changed(input, name);
}

Buffer WrittenFile::read_part(const std::string& name, const io::Manifest::LogicalTensor& expected) const {
  const TensorInfo& info = find(name);
  Buffer buffer = Buffer::allocate(static_cast<std::size_t>(info.byte_size()));
  file_.read(info.begin, {buffer.data(), buffer.size()});
  if (io::hash_of(buffer.bytes()) != expected.stored.at(name).hash)
    throw CorruptFile(fmt::format("{}: {} reads back different from what was written", file_.path().string(), io::in_quotes(name)));
  return buffer;
}

ReadBack WrittenFile::check_quantized(const Checkpoint& input, const std::string& name, const io::Manifest::LogicalTensor& expected,
                                      Codes kind) const {
  const Scheme& scheme = *expected.scheme;
  const TensorInfo &source = input.stored(name), &codes = find(name + ".codes");
  const Buffer scales = scheme.has_scales() ? read_part(name + ".scales", expected) : Buffer::allocate(0);
  const Buffer zero_points = scheme.asymmetric ? read_part(name + ".zero_points", expected) : Buffer::allocate(0);
  const float outer_scale = scheme.has_outer_scale ? *read_part(name + ".outer_scale", expected).as<float>() : 1.0f;

  const MatrixShape matrix = as_matrices(expected.shape);
  const std::size_t grid_row_cells = static_cast<std::size_t>(scale_grid(scheme, expected.shape).cols),
                    scale_bytes = scheme.scale.bits / 8u;
  const std::size_t code_row = packed_row_bytes(scheme, matrix.cols);
  const std::size_t source_row = static_cast<std::size_t>(matrix.cols) * static_cast<std::size_t>(bits_of(expected.source_dtype)) / 8;
  io::Hasher source_hash, code_hash;
  ErrorAccumulator error;
  SpecialValueCounter special;
  std::int64_t clipped = 0;
  ReusedBuffer source_memory, wide_memory, code_memory, value_memory;
  for (const RowChunk& chunk : dequantize_chunks(scheme, expected.shape, expected.source_dtype)) {
    const Tensor rows = source_memory.tensor(expected.source_dtype, chunk.shape);
    input.read_bytes(source, static_cast<std::uint64_t>(chunk.first) * source_row, {rows.data(), rows.byte_size()});
    source_hash.add({rows.data(), rows.byte_size()});
    const Buffer code_rows = code_memory.view(static_cast<std::size_t>(chunk.count) * code_row);
    file_.read(codes.begin + static_cast<std::uint64_t>(chunk.first) * code_row, {code_rows.data(), code_rows.size()});
    code_hash.add(code_rows.bytes());
    const std::size_t first_cell = static_cast<std::size_t>(chunk.first_grid_row) * grid_row_cells,
                      cells = static_cast<std::size_t>(chunk.grid_rows) * grid_row_cells;
    const QuantizedTensor q = assemble(scheme, chunk.shape, code_rows, slice(scales, first_cell * scale_bytes, cells * scale_bytes),
                                       slice(zero_points, first_cell, scheme.asymmetric ? cells : 0), outer_scale);
    Tensor y = value_memory.tensor(DType::kF32, chunk.shape);
    dequantize_into(q, y);
    const Tensor x = widen(rows, wide_memory);
    const ValueCheck check = check_values(x, y, q);
    clipped += check.clipped;
    if (kind == Codes::kNearest && check.first_violation >= 0)
      throw CorruptFile(fmt::format("{}: element {} of tensor {} reads back as {} instead of {}, further than one step of its scale",
                                    file_.path().string(), chunk.first * matrix.cols + check.first_violation, io::in_quotes(name),
                                    y.as<float>()[check.first_violation], x.as<float>()[check.first_violation]));
    special.add(rows);
    if (!special.values().all_finite()) leave_out_nonfinite(x, y);
    error.add(x, y);
  }
  if (code_hash.digits() != expected.stored.at(name + ".codes").hash)
    throw CorruptFile(
        fmt::format("{}: {} reads back different from what was written", file_.path().string(), io::in_quotes(name + ".codes")));
  if (source_hash.digits() != expected.source_hash) input_changed(input, name);
  ReadBack result{error.metrics(), 0.0, error.signal(), error.noise(), special.values()};
  if (result.error.count > 0) result.clipped = static_cast<double>(clipped) / static_cast<double>(result.error.count);
  return result;
}

}  // namespace narrow
