/// dequantize_checkpoint: narrow's own checkpoint as a plain one.

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/quantized_layout.h"
#include "io/safetensors_header.h"
#include "io/text.h"
#include "methods/output_directory.h"
#include "methods/preflight.h"
#include "methods/row_chunks.h"
#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

struct PlainTensor {
  std::string name;
  DType dtype;
  std::uint64_t bytes_before = 0;
};

std::string_view torch_name(DType dtype) { return dtype == DType::kF32 ? "float32" : (dtype == DType::kF16 ? "float16" : "bfloat16"); }

/// config.json without its quantization_config, and with the new type where it names one.
std::string plain_config(const Checkpoint& input, DType dtype) {
  if (input.config().empty()) return {};
  io::OrderedJson config = io::parse_ordered_json(input.config(), input.directory() / io::kConfigFile);
  if (!config.is_object()) throw CorruptFile(fmt::format("{}: it is not a JSON object", (input.directory() / io::kConfigFile).string()));
  config.erase("quantization_config");
  for (const char* key : {"torch_dtype", "dtype"})
    if (config.contains(key)) config[key] = torch_name(dtype);
  return config.empty() ? std::string() : config.dump(2) + "\n";
}

/// Rows of a quantized tensor, dequantized run by run.
void write_dequantized(const Checkpoint& input, const QuantizedInfo& info, DType dtype, io::SafetensorsWriter& writer) {
  const QuantizedTensor q = input.quantized(info.name);
  const std::size_t row_bytes = q.row_bytes(), scale_bytes = q.scheme.scale.bits / 8u, grid_cols = static_cast<std::size_t>(q.grid().cols);
  const auto slice = [](const Buffer& whole, std::size_t begin, std::size_t size) {
    return size == 0 ? Buffer::allocate(0) : Buffer::borrow(whole.data() + begin, size);
  };
  for (const RowChunk& chunk : dequantize_chunks(q.scheme, q.shape, dtype)) {
    const std::size_t first = static_cast<std::size_t>(chunk.first_grid_row) * grid_cols,
                      cells = static_cast<std::size_t>(chunk.grid_rows) * grid_cols;
    const QuantizedTensor rows =
        assemble(q.scheme, chunk.shape,
                 slice(q.codes, static_cast<std::size_t>(chunk.first) * row_bytes, static_cast<std::size_t>(chunk.count) * row_bytes),
                 slice(q.scales, first * scale_bytes, cells * scale_bytes), slice(q.zero_points, first, q.scheme.asymmetric ? cells : 0),
                 q.outer_scale);
    const Tensor values = dequantize(rows, dtype);
    writer.append(info.name, {values.data(), values.byte_size()});
  }
}

/// A float tensor that was copied, in the new type.
void write_converted(const Checkpoint& input, const TensorInfo& info, DType dtype, io::SafetensorsWriter& writer) {
  const std::size_t element = static_cast<std::size_t>(bits_of(info.dtype)) / 8;
  stream_tensor(input, info, [&](std::span<const std::byte> bytes) {
    const Tensor values = convert(
        Tensor::borrow(static_cast<const void*>(bytes.data()), info.dtype, {static_cast<std::int64_t>(bytes.size() / element)}), dtype);
    writer.append(info.name, {values.data(), values.byte_size()});
  });
}

void verify_written(const fs::path& path, io::SafetensorsWriter& writer) {
  const io::FileReader file(path);
  for (const TensorInfo& info : io::read_safetensors_header(file).tensors) {
    io::Hasher hasher;
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, info.byte_size())));
    for (std::uint64_t offset = info.begin; offset < info.end; offset += piece.size()) {
      const std::span<std::byte> part(piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), info.end - offset)));
      file.read(offset, part);
      hasher.add(part);
    }
    if (hasher.digits() != writer.hash(info.name))
      throw CorruptFile(fmt::format("{}: {} reads back different from what was written", path.string(), io::in_quotes(info.name)));
  }
}

}  // namespace

void dequantize_checkpoint(const fs::path& input_path, const fs::path& output, DType dtype, const ProgressCallback& progress) {
  if (!is_floating(dtype))
    throw InvalidArgument(fmt::format("dequantize: {} is not a type to dequantize to; use F32, F16 or BF16", name_of(dtype)));
  const Checkpoint input = open_checkpoint(input_path);
  if (!input.is_quantized())
    throw InvalidArgument(
        fmt::format("{} is not quantized by narrow; `narrow convert IN OUT --to narrow` reads the forms of others", input_path.string()));

  std::map<std::string, std::vector<PlainTensor>> by_file;
  for (const std::string& file : input.tensor_files()) by_file[file];
  std::uint64_t total = 0, done = 0;
  for (const std::string& name : input.names()) {
    const std::optional<QuantizedInfo> info = input.quantized_info(name);
    const TensorInfo& stored = input.stored(info ? name + ".codes" : name);
    const std::uint64_t bytes = info ? quantized_bytes(info->scheme, info->shape) : stored.byte_size();
    by_file[stored.file].push_back({name, is_floating(input.dtype(name)) ? dtype : input.dtype(name), bytes});
    total += bytes;
  }
  std::vector<OutputFile> files;
  std::uint64_t needed = side_file_bytes(input);
  for (const auto& [file, tensors] : by_file) {
    std::vector<TensorInfo> infos;
    for (const PlainTensor& tensor : tensors)
      infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = input.shape(tensor.name)});
    files.push_back({file, {}, io::layout_safetensors(std::move(infos), output_metadata(input, file))});
    needed += files.back().layout.file_bytes;
  }
  const std::string config = plain_config(input, dtype);
  check_output_place(input_path, output, needed);

  io::AtomicDirectory directory(output);
  for (const OutputFile& file : files) {
    io::SafetensorsWriter writer(directory.place() / file.name, file.layout);
    for (const PlainTensor& tensor : by_file[file.name]) {
      const std::optional<QuantizedInfo> info = input.quantized_info(tensor.name);
      if (info) {
        write_dequantized(input, *info, dtype, writer);
      } else if (input.dtype(tensor.name) != tensor.dtype) {
        write_converted(input, input.stored(tensor.name), dtype, writer);
      } else {
        stream_tensor(input, input.stored(tensor.name), [&](std::span<const std::byte> bytes) { writer.append(tensor.name, bytes); });
      }
      done += tensor.bytes_before;
      if (progress) progress({tensor.name, Stage::kWritten, info.has_value(), done, total, {}});
    }
    writer.commit(io::Names::kLeftToDirectory);
    verify_written(directory.place() / file.name, writer);
  }
  write_side_files(input, directory.place(), config, files);
  directory.commit();
}

}  // namespace narrow
