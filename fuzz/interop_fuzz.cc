// Quantized weights of other ecosystems from any description: {"quantization_config": {...}, "tensors": [[NAME, DTYPE, SHAPE], ...]}
// becomes a safetensors file in memory, whose weights are read in the form that the configuration names, or are refused by an Error.
// A fourth entry of a tensor gives its values: a list of whole numbers, or an object whose text they are.
#include <cmath>
#include <cstring>
#include <optional>

#include <nlohmann/json.hpp>

#include "as_file.h"
#include "io/interop.h"
#include "io/modelopt.h"
#include "narrow/error.h"
#include "narrow/format.h"
#include "narrow/quantize.h"

namespace {

using narrow::io::Json;

constexpr std::size_t kMostBytes = std::size_t{1} << 13;  // many small weights find more than few large ones

/// The bytes of a tensor: what is given, or small numbers.
std::string contents(const Json& entry, const std::string& name, narrow::DType dtype, std::size_t bytes) {
  std::string data(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(0x11 + i % 7);
  if (name.ends_with("quant_map") && bytes == sizeof narrow::kNf4Values) std::memcpy(data.data(), narrow::kNf4Values.data(), bytes);
  if (entry.size() < 4 || !entry[3].is_array()) return data;
  const std::size_t width = static_cast<std::size_t>(narrow::bits_of(dtype)) / 8;
  for (std::size_t i = 0; width > 0 && i < entry[3].size() && (i + 1) * width <= bytes; ++i) {
    const std::int64_t value = entry[3][i].is_number_integer() ? entry[3][i].get<std::int64_t>() : 0;
    std::memcpy(data.data() + i * width, &value, width);
  }
  return data;
}

/// A whole safetensors file, or nothing where the list describes none that is small. Its reader sees every shape, also impossible ones.
std::optional<std::string> as_safetensors(const Json& tensors) {
  if (!tensors.is_array()) return std::nullopt;
  Json header = Json::object();
  std::string data;
  for (const Json& entry : tensors) {
    if (!entry.is_array() || entry.size() < 3 || !entry[0].is_string() || !entry[1].is_string() || !entry[2].is_array())
      return std::nullopt;
    const std::string name = entry[0].get<std::string>();
    if (name.empty() || header.contains(name)) return std::nullopt;
    const narrow::DType dtype = narrow::parse_dtype(entry[1].get<std::string>());
    std::string bytes;
    if (entry.size() > 3 && entry[3].is_object()) {
      bytes = entry[3].dump();
      header[name]["shape"] = {bytes.size()};
    } else {
      std::uint64_t bits = static_cast<std::uint64_t>(narrow::bits_of(dtype));
      for (const Json& dimension : entry[2]) {
        if (!dimension.is_number_unsigned()) return std::nullopt;
        if (__builtin_mul_overflow(bits, dimension.get<std::uint64_t>(), &bits)) return std::nullopt;
      }
      if (bits / 8 + data.size() > kMostBytes) return std::nullopt;
      bytes = contents(entry, name, dtype, static_cast<std::size_t>(bits / 8));
      header[name]["shape"] = entry[2];
    }
    header[name]["dtype"] = entry[1];
    header[name]["data_offsets"] = {data.size(), data.size() + bytes.size()};
    data += bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

/// What is read has a place in its own form, or a reason why not.
void check_writer(const narrow::io::InteropFormat& format, const narrow::io::InteropTensor& tensor, const Json& config) {
  const bool is_ordered = !tensor.order.empty();
  if (!format.refusal(tensor.q.scheme, tensor.q.shape, is_ordered).empty() || format.adapted(tensor.q.scheme) != tensor.q.scheme) return;
  std::vector<narrow::io::StoredBytes> parts = format.parts("m", tensor.q.scheme, tensor.q.shape, is_ordered);
  format.pack(tensor, config, parts);
  for (const narrow::io::StoredBytes& part : parts) {
    const std::int64_t bits = narrow::element_count(part.shape) * narrow::bits_of(part.dtype);
    if (part.bytes.size() != static_cast<std::size_t>(bits / 8)) std::abort();
  }
  const Json made = format.config({{"m", tensor.q.scheme, is_ordered}, {"n", std::nullopt, false}});
  if (format.ecosystem == narrow::Ecosystem::kModelOpt) narrow::io::modelopt_settings(made);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const Json input = narrow::io::parse_json(text, "input");
    if (size % 8 == 0 && Json(narrow::io::parse_ordered_json(text, "input")) != input) std::abort();  // the same lexer: not every time
    if (!input.is_object() || !input.contains("tensors") || !input.contains("quantization_config")) return 0;
    const std::optional<std::string> bytes = as_safetensors(input.at("tensors"));
    if (!bytes) return 0;
    const narrow::Checkpoint checkpoint =
        narrow::open_checkpoint(narrow::fuzz::as_file(reinterpret_cast<const std::uint8_t*>(bytes->data()), bytes->size()));
    const auto reader = narrow::io::InteropReader::open(checkpoint, input.at("quantization_config"));
    if (narrow::ecosystem_of(checkpoint) || !reader) return 0;  // a single file says nothing of itself
    const narrow::Ecosystem ecosystem = reader->format().ecosystem;
    if (&narrow::io::interop_format(narrow::parse_ecosystem(narrow::name_of(ecosystem))) != &reader->format()) std::abort();
    try {
      reader->activations();
    } catch (const narrow::Error&) {
    }
    for (const std::string& name : reader->names()) {
      if (reader->file_of(name) != checkpoint.tensor_files().front()) std::abort();
      if (!reader->is_quantized(name)) continue;
      try {
        const narrow::io::InteropTensor tensor = reader->read(name);
        if (!tensor.order.empty() && tensor.order.size() != static_cast<std::size_t>(tensor.q.shape.back())) std::abort();
        if (narrow::dequantize(tensor.q).shape() != tensor.q.shape) std::abort();
        check_writer(reader->format(), tensor, input.at("quantization_config"));
      } catch (const narrow::Error&) {
      }
    }
  } catch (const narrow::Error&) {
  }
  return 0;
}
