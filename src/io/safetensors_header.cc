#include "io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

/// Receives the parser's events and accepts only the grammar of a header. The first wrong event stops the parser.
class HeaderEvents {
 public:
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;  ///< empty: all is well

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::kStart: return go(Place::kTop);
      case Place::kTensorValue: return go(Place::kTensor);
      case Place::kMetadataStart: return go(Place::kMetadata);
      default: return unexpected("an object");
    }
  }

  bool key(std::string& text) {
    if (text.find('\0') != std::string::npos) return fail(fmt::format("the name {} holds a NUL", in_quotes(text)));
    if (place_ == Place::kMetadata) {
      metadata_key_ = std::move(text);
      if (metadata.contains(metadata_key_)) return fail(fmt::format("the key {} of __metadata__ is there twice", in_quotes(metadata_key_)));
      return go(Place::kMetadataValue);
    }
    if (place_ == Place::kTop) return top_key(text);
    if (text == "dtype") return field(Place::kDtype, has_dtype_, text);
    if (text == "shape") return field(Place::kShapeStart, has_shape_, text);
    if (text == "data_offsets") return field(Place::kOffsetsStart, has_offsets_, text);
    return in_tensor(fmt::format("has the unknown field {}", in_quotes(text)));
  }

  bool end_object() {
    if (place_ == Place::kMetadata) return go(Place::kTop);
    if (place_ == Place::kTop) return go(Place::kEnd);
    if (!has_dtype_ || !has_shape_ || !has_offsets_)
      return in_tensor(fmt::format("has no {}", !has_dtype_ ? "dtype" : (!has_shape_ ? "shape" : "data_offsets")));
    return go(Place::kTop);
  }

  bool start_array(std::size_t) {
    if (place_ == Place::kShapeStart) return go(Place::kShape);
    if (place_ == Place::kOffsetsStart) return go(Place::kOffsets);
    return unexpected("an array");
  }

  bool end_array() {
    if (place_ == Place::kOffsets && offset_count_ != 2) return in_tensor(fmt::format("has {} data_offsets instead of 2", offset_count_));
    return go(Place::kTensor);
  }

  bool string(std::string& text) {
    if (place_ == Place::kMetadataValue) {
      metadata.emplace(std::move(metadata_key_), std::move(text));
      return go(Place::kMetadata);
    }
    if (place_ != Place::kDtype) return unexpected("a string");
    try {
      tensors.back().dtype = parse_dtype(text);
    } catch (const InvalidArgument&) {
      return in_tensor(fmt::format("has the unknown dtype {}", in_quotes(text)));
    }
    return go(Place::kTensor);
  }

  bool number_unsigned(std::uint64_t value) {
    TensorInfo* info = tensors.empty() ? nullptr : &tensors.back();
    if (place_ == Place::kShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return in_tensor(fmt::format("has the dimension {}, beyond 2^63 - 1", value));
      if (info->shape.size() == kHighestRank) return in_tensor(fmt::format("has more than {} dimensions", kHighestRank));
      info->shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) return unexpected("a number");
    if (offset_count_ == 2) return in_tensor("has more than 2 data_offsets");
    (offset_count_++ == 0 ? info->begin : info->end) = value;
    return true;
  }
  bool number_integer(std::int64_t value) { return number_rejected(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) { return number_rejected(text); }
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail(fmt::format("the header is not valid JSON at offset {}", kLengthBytes + (position > 0 ? position - 1 : 0)));
  }

 private:
  enum class Place : std::uint8_t {
    kStart,
    kTop,
    kTensorValue,
    kTensor,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kMetadataStart,
    kMetadata,
    kMetadataValue,
    kEnd,
  };

  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool fail(std::string sentence) {
    problem = std::move(sentence);
    return false;
  }
  bool in_tensor(std::string_view what) { return fail(fmt::format("tensor {} {}", in_quotes(tensors.back().name), what)); }

  bool top_key(std::string& text) {
    if (text == kMetadataKey) {
      if (has_metadata_) return fail("__metadata__ is there twice");
      has_metadata_ = true;
      return go(Place::kMetadataStart);
    }
    if (text.empty()) return fail("a tensor has an empty name");
    tensors.emplace_back().name = std::move(text);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offset_count_ = 0;
    return go(Place::kTensorValue);
  }
  bool field(Place place, bool& seen, std::string_view name) {
    if (seen) return in_tensor(fmt::format("has the field {} twice", name));
    seen = true;
    return go(place);
  }
  bool number_rejected(const std::string& text) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected("a number");
    return in_tensor(fmt::format("has {} where a whole number from 0 to 2^64 - 1 must be", text.substr(0, 40)));
  }
  bool unexpected(std::string_view what) {
    switch (place_) {
      case Place::kStart: return fail(fmt::format("the header is {} and not a JSON object", what));
      case Place::kMetadataStart: return fail(fmt::format("__metadata__ is {} and not an object", what));
      case Place::kMetadataValue:
        return fail(fmt::format("the value of {} in __metadata__ is {} and not a string", in_quotes(metadata_key_), what));
      case Place::kTensorValue: return in_tensor(fmt::format("is {} and not an object", what));
      case Place::kDtype: return in_tensor(fmt::format("has {} as its dtype, not a string", what));
      default:
        return in_tensor(fmt::format("has {} where its {} must be", what,
                                     place_ == Place::kShape || place_ == Place::kShapeStart ? "shape" : "data_offsets"));
    }
  }

  Place place_ = Place::kStart;
  std::string metadata_key_;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

/// Bytes of the elements. Dimensions of 0 do not excuse the others: their product must fit as well.
std::optional<std::uint64_t> packed_size(const TensorInfo& info, bool& whole_bytes) {
  std::uint64_t nonzero = static_cast<std::uint64_t>(bits_of(info.dtype));
  bool empty = false;
  for (const std::int64_t dimension : info.shape) {
    empty = empty || dimension == 0;
    if (dimension > 0 && __builtin_mul_overflow(nonzero, static_cast<std::uint64_t>(dimension), &nonzero)) return std::nullopt;
  }
  if (nonzero > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  const std::uint64_t bits = empty ? 0 : nonzero;
  whole_bytes = bits % 8 == 0;
  return bits / 8;
}

[[noreturn]] void reject(const std::filesystem::path& path, std::string_view sentence) {
  throw CorruptFile(fmt::format("{}: {}", path.string(), sentence));
}

void check_sizes(const std::vector<TensorInfo>& tensors, const std::filesystem::path& path) {
  for (const TensorInfo& info : tensors) {
    bool whole_bytes = true;
    const std::optional<std::uint64_t> bytes = packed_size(info, whole_bytes);
    if (!bytes) reject(path, fmt::format("tensor {} has a shape whose size overflows", in_quotes(info.name)));
    if (!whole_bytes)
      reject(path,
             fmt::format("tensor {} of {} {} does not fill whole bytes", in_quotes(info.name), name_of(info.dtype), to_string(info.shape)));
    if (info.end < info.begin)
      reject(path, fmt::format("tensor {} ends at {} before it begins at {}", in_quotes(info.name), info.end, info.begin));
    if (info.end - info.begin != *bytes)
      reject(path, fmt::format("tensor {} of {} {} takes {} bytes, but its data_offsets [{}, {}] span {}", in_quotes(info.name),
                               name_of(info.dtype), to_string(info.shape), *bytes, info.begin, info.end, info.end - info.begin));
  }
}

/// No hole, no overlap, no two names for one range, and the last one ends with the file.
void check_tiling(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes, const std::filesystem::path& path) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& info : tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->begin != b->begin ? a->begin < b->begin : a->end < b->end; });
  std::uint64_t expected = 0;
  for (const TensorInfo* info : order) {
    if (info->begin != expected)
      reject(path, fmt::format("tensor {} begins at {} of the data, where {} must be: ranges may not {}", in_quotes(info->name),
                               info->begin, expected, info->begin > expected ? "leave holes" : "overlap"));
    expected = info->end;
  }
  if (expected != data_bytes)
    reject(path, fmt::format("its tensors take {} bytes, but {} follow the header: it is {}", expected, data_bytes,
                             expected > data_bytes ? "truncated" : "followed by something else"));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t file_size, const std::filesystem::path& path) {
  const std::uint64_t header_bytes = kLengthBytes + json.size();
  const std::size_t first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || json[first] != '{')
    reject(path, fmt::format("no JSON object begins at offset {}; this is not a safetensors file",
                             kLengthBytes + (first == std::string_view::npos ? 0 : first)));
  const std::size_t nul = json.find('\0');  // the JSON library takes a NUL for the end of its input
  if (nul != std::string_view::npos) reject(path, fmt::format("the header has a NUL at offset {}", kLengthBytes + nul));

  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) reject(path, events.problem);
  check_sizes(events.tensors, path);
  check_tiling(events.tensors, file_size - header_bytes, path);

  SafetensorsHeader header{std::move(events.tensors), std::move(events.metadata), header_bytes};
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(header.tensors.begin(), header.tensors.end(),
                                       [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twin != header.tensors.end()) reject(path, fmt::format("tensor {} is there twice", in_quotes(twin->name)));
  const std::string file = path.filename().string();
  for (TensorInfo& info : header.tensors) {
    info.begin += header_bytes;
    info.end += header_bytes;
    info.file = file;
  }
  return header;
}

std::uint64_t checked_header_length(std::span<const std::byte, kLengthBytes> field, std::uint64_t file_size,
                                    const std::filesystem::path& path) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(field[i]) << (8 * i);
  if (std::memcmp(field.data(), "GGUF", 4) == 0)
    reject(path, "this is a GGUF file, not a safetensors file; `narrow convert FILE DIRECTORY --to narrow` makes a checkpoint of it");
  if (length > kLargestHeader)
    reject(path, fmt::format("the header length {} at offset 0 is beyond the limit of {} bytes; this is not a safetensors file", length,
                             kLargestHeader));
  if (length > file_size - kLengthBytes)
    reject(path, fmt::format("the header length {} at offset 0 reaches beyond its {} bytes: it is truncated", length, file_size));
  return length;
}

SafetensorsHeader read_safetensors_header(const FileReader& file) {
  if (file.size() < kLengthBytes) reject(file.path(), fmt::format("{} bytes are too few for a safetensors file", file.size()));
  std::byte field[kLengthBytes];
  file.read(0, field);
  std::string json(static_cast<std::size_t>(checked_header_length(field, file.size(), file.path())), '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  return parse_safetensors_header(json, file.size(), file.path());
}

}  // namespace narrow::io
