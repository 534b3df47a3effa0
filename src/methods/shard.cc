#include "methods/shard.h"

#include <cmath>
#include <set>

#include <fmt/format.h>

#include "io/hash.h"
#include "io/quantized_layout.h"
#include "io/text.h"
#include "kernels/storage.h"
#include "methods/output_directory.h"
#include "methods/read_back.h"
#include "methods/whole_scales.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

/// The sentence for a tensor that cannot be quantized: names it, and the element where a value is not finite.
[[noreturn]] void explain_failure(const PlannedTensor& planned, const Tensor& rows, std::int64_t first_element,
                                  const InvalidArgument& error) {
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const float value = load_value(rows.data(), rows.dtype(), i);
    if (std::isfinite(value)) continue;
    throw InvalidArgument(
        fmt::format("quantize: tensor {} has {} at element {}, which {} cannot hold; mend the tensor, ignore it, or choose keep or nearest "
                    "for such values",
                    io::in_quotes(planned.name), std::isnan(value) ? "NaN" : "an infinity", first_element + i, planned.scheme.to_string()));
  }
  throw InvalidArgument(fmt::format("quantize: tensor {}: {}", io::in_quotes(planned.name), error.what()));
}

/// Runs that share scales (one per tensor or column) write them with the first.
void append_parts(io::SafetensorsWriter& writer, const std::vector<io::StoredPart>& parts, const QuantizedTensor& q, bool is_first,
                  bool has_new_scales) {
  for (const io::StoredPart& part : parts) {
    if (part.part == io::Part::kCodes) writer.append(part.name, q.codes.bytes());
    if (part.part == io::Part::kScales && has_new_scales) writer.append(part.name, q.scales.bytes());
    if (part.part == io::Part::kZeroPoints && has_new_scales) writer.append(part.name, q.zero_points.bytes());
    if (part.part == io::Part::kOuterScale && is_first) writer.append(part.name, std::as_bytes(std::span(&q.outer_scale, 1)));
  }
}

/// Quantizes one tensor into the file and returns the hash of its source.
std::string write_quantized(const Checkpoint& input, const PlannedTensor& planned, const QuantizeOptions& options,
                            io::SafetensorsWriter& writer) {
  const TensorInfo& info = input.stored(planned.name);
  const std::vector<io::StoredPart> parts = io::stored_parts(planned.name, planned.scheme, planned.shape);
  const std::int64_t cols = as_matrices(planned.shape).cols;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(cols) * static_cast<std::uint64_t>(bits_of(planned.dtype)) / 8;
  ReusedBuffer memory;
  const auto read = [&](const RowChunk& chunk) {
    const Tensor rows = memory.tensor(planned.dtype, chunk.shape);
    input.read_bytes(info, static_cast<std::uint64_t>(chunk.first) * row_bytes, {rows.data(), rows.byte_size()});
    return rows;
  };
  const Reading reading = plan_reading(planned.scheme, options, planned.shape, planned.dtype);
  std::optional<WholeScales> whole;
  if (reading.twice) whole.emplace(planned.scheme, planned.shape, reading.chunks, read);
  io::Hasher source;
  std::int64_t grid_rows_written = 0;
  std::optional<QuantizedTensor> q;
  for (const RowChunk& chunk : reading.chunks) {
    const Tensor rows = read(chunk);
    source.add({rows.data(), rows.byte_size()});
    try {
      if (!q || q->shape != chunk.shape) q = allocate_quantized(planned.scheme, chunk.shape);
      quantize_into(rows, *q, whole ? whole->options_for(chunk, options) : options);
      append_parts(writer, parts, *q, chunk.first == 0, chunk.first_grid_row >= grid_rows_written);
      grid_rows_written = chunk.first_grid_row + chunk.grid_rows;
    } catch (const InvalidArgument& error) {
      explain_failure(planned, rows, chunk.first * cols, error);
    }
  }
  return source.digits();
}

/// Writes what a method has made of one tensor, and returns the hash of its source.
std::string write_fitted(const Checkpoint& input, const PlannedTensor& planned, const QuantizedTensor& q, io::SafetensorsWriter& writer) {
  append_parts(writer, io::stored_parts(planned.name, planned.scheme, planned.shape), q, true, true);
  return stream_tensor(input, input.stored(planned.name), [](std::span<const std::byte>) {});
}

/// Returns the tensors whose codes a method chose.
std::set<std::string> write(const Checkpoint& input, const OutputFile& file, const fs::path& place, const ShardWork& work,
                            io::Manifest& manifest) {
  std::set<std::string> fitted;
  io::SafetensorsWriter writer(place / file.name, file.layout);
  for (const PlannedTensor* planned : file.tensors) {
    io::Manifest::LogicalTensor& entry = manifest.tensors[planned->name];
    entry.shape = planned->shape;
    entry.source_dtype = planned->dtype;
    if (planned->fate == Fate::kQuantize) {
      entry.scheme = planned->scheme;
      const std::optional<QuantizedTensor> made = work.fitted ? work.fitted(*planned) : std::nullopt;
      if (made) fitted.insert(planned->name);
      entry.source_hash = made ? write_fitted(input, *planned, *made, writer) : write_quantized(input, *planned, work.options, writer);
      for (const io::StoredPart& part : io::stored_parts(planned->name, planned->scheme, planned->shape))
        entry.stored[part.name] = {file.name, writer.hash(part.name)};
    } else {
      entry.source_hash =
          stream_tensor(input, input.stored(planned->name), [&](std::span<const std::byte> bytes) { writer.append(planned->name, bytes); });
      entry.stored[planned->name] = {file.name, writer.hash(planned->name)};
    }
    if (work.tell) work.tell(*planned, Stage::kWritten, {});
  }
  writer.commit(io::Names::kLeftToDirectory);
  manifest.files[file.name] = {file.layout.file_bytes, file.layout.header.size(), io::hash_of(file.layout.header)};
  return fitted;
}

void verify(const Checkpoint& input, const OutputFile& file, const fs::path& place, const ShardWork& work,
            const std::set<std::string>& fitted, ShardResult& result) {
  const WrittenFile written(place / file.name, file.layout);
  for (const PlannedTensor* planned : file.tensors) {
    const io::Manifest::LogicalTensor& entry = result.manifest.tensors.at(planned->name);
    ErrorMetrics error;
    if (planned->fate == Fate::kCopy) {
      written.check_copy(input, planned->name, entry);
    } else {
      const bool is_nearest = !work.fits_to_inputs || !fitted.contains(planned->name);
      const ReadBack back = written.check_quantized(input, planned->name, entry, is_nearest ? Codes::kNearest : Codes::kAny);
      result.signal += back.signal;
      result.noise += back.noise;
      error = back.error;
      result.tensors.push_back({planned->name, planned->scheme, back.error, back.clipped, back.source});
    }
    if (work.tell) work.tell(*planned, Stage::kVerified, error);
  }
}

}  // namespace

void ShardResult::join(ShardResult&& next) {
  manifest.files.merge(next.manifest.files);
  manifest.tensors.merge(next.manifest.tensors);
  tensors.insert(tensors.end(), next.tensors.begin(), next.tensors.end());
  signal += next.signal;
  noise += next.noise;
}

ShardResult write_shard(const Checkpoint& input, const OutputFile& file, const fs::path& place, const ShardWork& work) {
  ShardResult result;
  result.manifest.narrow_version = io::library_version();
  const std::set<std::string> fitted = write(input, file, place, work, result.manifest);
  verify(input, file, place, work, fitted, result);
  return result;
}

}  // namespace narrow
