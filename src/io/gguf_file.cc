#include "io/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kMagic = "GGUF", kAlignmentKey = "general.alignment";
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kLongestName = 63, kMostDimensions = 4;

enum : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

std::uint64_t aligned(std::uint64_t size, std::uint64_t alignment) { return (size + alignment - 1) / alignment * alignment; }

std::uint64_t bytes_of(const GgmlTypeInfo& type, const Shape& shape) {
  return static_cast<std::uint64_t>(element_count(shape) / type.values) * type.bytes;
}

// ---- writing ----

class Text {
 public:
  template <typename T>
  void add(T value) {
    static_assert(std::endian::native == std::endian::little);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& value) {
    add(std::uint64_t{value.size()});
    text_ += value;
  }
  void add_raw(std::string_view bytes) { text_ += bytes; }
  void add(const GgufValue& value) {
    std::visit([this](const auto& held) { add_typed(held); }, value);
  }
  std::string padded(std::uint64_t alignment) && {
    text_.resize(static_cast<std::size_t>(aligned(text_.size(), alignment)), '\0');
    return std::move(text_);
  }

 private:
  void add_typed(std::uint32_t value) { add(std::uint32_t{kU32}), add(value); }
  void add_typed(float value) { add(std::uint32_t{kF32}), add(value); }
  void add_typed(bool value) { add(std::uint32_t{kBool}), add(static_cast<std::uint8_t>(value)); }
  void add_typed(const std::string& value) { add(std::uint32_t{kString}), add(value); }
  template <typename T>
  void add_typed(const std::vector<T>& values) {
    add(std::uint32_t{kArray});
    add(std::uint32_t{std::is_same_v<T, std::string> ? kString : kI32});
    add(std::uint64_t{values.size()});
    for (const T& value : values) add(value);
  }
  std::string text_;
};

// ---- reading ----

/// Reads forward, by windows: a header is made of many small numbers.
class Cursor {
 public:
  Cursor(const FileReader& file) : file_(file) {}

  [[noreturn]] void reject(std::string_view why) const {
    throw CorruptFile(fmt::format("{}: at byte {}: {}", file_.path().string(), offset_, why));
  }
  std::uint64_t offset() const { return offset_; }

  std::string bytes(std::uint64_t count) {
    if (count > file_.size() - offset_) reject(fmt::format("{} bytes are beyond its end", count));
    std::string result(static_cast<std::size_t>(count), '\0');
    fill(std::as_writable_bytes(std::span(result)));
    return result;
  }
  template <typename T>
  T number() {
    if (sizeof(T) > file_.size() - offset_) reject(fmt::format("{} bytes are beyond its end", sizeof(T)));
    T value;
    fill(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  std::string string() { return bytes(number<std::uint64_t>()); }
  /// A count of things that take at least `least` bytes each.
  std::uint64_t count(std::uint64_t least) {
    const std::int64_t value = number<std::int64_t>();
    if (value < 0 || static_cast<std::uint64_t>(value) > (file_.size() - offset_) / least)
      reject(fmt::format("a count of {} is beyond the file", value));
    return static_cast<std::uint64_t>(value);
  }

  /// A number of any kind as text, where narrow has no use for it.
  GgufValue value(std::uint32_t type) {
    switch (type) {
      case kU8: return std::to_string(number<std::uint8_t>());
      case kI8: return std::to_string(number<std::int8_t>());
      case kU16: return std::to_string(number<std::uint16_t>());
      case kI16: return std::to_string(number<std::int16_t>());
      case kU32: return number<std::uint32_t>();
      case kI32: return std::to_string(number<std::int32_t>());
      case kF32: return number<float>();
      case kBool: return number<std::uint8_t>() != 0;
      case kString: return string();
      case kU64: return std::to_string(number<std::uint64_t>());
      case kI64: return std::to_string(number<std::int64_t>());
      case kF64: return fmt::format("{}", number<double>());
      case kArray: return array();
      default: reject(fmt::format("{} is no type of a value", type));
    }
  }

 private:
  static constexpr std::uint64_t kWindow = std::uint64_t{1} << 16;

  /// The next bytes, which the file has.
  void fill(std::span<std::byte> out) {
    const std::uint64_t end = window_begin_ + window_.size();
    if (out.size() > kWindow) {
      file_.read(offset_, out);
    } else if (!out.empty()) {
      if (offset_ < window_begin_ || offset_ > end || out.size() > end - offset_) {
        window_.resize(static_cast<std::size_t>(std::min(kWindow, file_.size() - offset_)));
        window_begin_ = offset_;
        file_.read(offset_, window_);
      }
      std::memcpy(out.data(), window_.data() + (offset_ - window_begin_), out.size());
    }
    offset_ += out.size();
  }

  /// Texts and i32 as they are. Of other numbers, which narrow has no use for, only their count: as texts they would take thirty times
  /// their bytes.
  GgufValue array() {
    const std::uint32_t type = number<std::uint32_t>();
    if (type == kArray || type > kF64) reject(fmt::format("an array of type {}", type));
    const std::uint64_t width = type == kString || type >= kU64               ? 8
                                : type == kU8 || type == kI8 || type == kBool ? 1
                                : type == kU16 || type == kI16                ? 2
                                                                              : 4;
    const std::uint64_t size = count(width);
    if (type == kI32) {
      std::vector<std::int32_t> numbers(static_cast<std::size_t>(size));
      fill(std::as_writable_bytes(std::span(numbers)));
      return numbers;
    }
    if (type != kString) {
      offset_ += size * width;
      return fmt::format("{} numbers", size);
    }
    std::vector<std::string> texts;
    for (std::uint64_t i = 0; i < size; ++i) texts.push_back(string());
    return texts;
  }

  const FileReader& file_;
  std::uint64_t offset_ = 0, window_begin_ = 0;
  std::vector<std::byte> window_;
};

GgufTensor read_info(Cursor& cursor) {
  GgufTensor tensor;
  tensor.name = cursor.string();
  if (tensor.name.empty() || tensor.name.size() > kLongestName)
    cursor.reject(fmt::format("a tensor's name has {} bytes, not 1 to {}", tensor.name.size(), kLongestName));
  const std::uint32_t dimensions = cursor.number<std::uint32_t>();
  if (dimensions > kMostDimensions) cursor.reject(fmt::format("tensor {} has {} dimensions", in_quotes(tensor.name), dimensions));
  std::int64_t elements = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const std::int64_t size = cursor.number<std::int64_t>();
    if (size < 0 || (size > 0 && elements > (std::int64_t{1} << 56) / size))
      cursor.reject(fmt::format("tensor {} has a shape whose size overflows", in_quotes(tensor.name)));
    elements *= std::max<std::int64_t>(size, 1);  // zeros do not excuse the other dimensions
    tensor.shape.insert(tensor.shape.begin(), size);
  }
  tensor.type = &ggml_type(cursor.number<std::uint32_t>());
  if (tensor.shape.empty() || tensor.shape.back() % tensor.type->values != 0)
    cursor.reject(fmt::format("rows of tensor {} are no whole blocks of {}", in_quotes(tensor.name), tensor.type->name));
  tensor.bytes = bytes_of(*tensor.type, tensor.shape);
  tensor.begin = cursor.number<std::uint64_t>();
  return tensor;
}

std::uint64_t alignment_of(const Cursor& cursor, const GgufHeader& header) {
  for (const auto& [key, value] : header.metadata) {
    if (key != kAlignmentKey) continue;
    const std::uint32_t* number = std::get_if<std::uint32_t>(&value);
    if (number == nullptr || !std::has_single_bit(*number)) cursor.reject("general.alignment is not a power of two");
    return *number;
  }
  return kGgufAlignment;
}

}  // namespace

GgufHeader layout_gguf(std::vector<std::pair<std::string, GgufValue>> metadata, std::vector<GgufTensor> tensors) {
  GgufHeader header{std::move(metadata), std::move(tensors), {}, 0};
  Text text;
  text.add_raw(kMagic);
  text.add(kVersion);
  text.add(static_cast<std::int64_t>(header.tensors.size()));
  text.add(static_cast<std::int64_t>(header.metadata.size()));
  for (const auto& [key, value] : header.metadata) {
    text.add(key);
    text.add(value);
  }
  std::uint64_t offset = 0;
  for (GgufTensor& tensor : header.tensors) {
    if (tensor.name.empty() || tensor.name.size() > kLongestName || tensor.shape.empty() || tensor.shape.size() > kMostDimensions)
      throw InvalidArgument(fmt::format("gguf: tensor {} needs a name of at most {} bytes and 1 to {} dimensions", in_quotes(tensor.name),
                                        kLongestName, kMostDimensions));
    if (tensor.shape.back() % tensor.type->values != 0)
      throw InvalidArgument(fmt::format("gguf: rows of {} of tensor {} are no whole blocks of {}", tensor.shape.back(),
                                        in_quotes(tensor.name), tensor.type->name));
    text.add(tensor.name);
    text.add(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) text.add(*size);
    text.add(static_cast<std::uint32_t>(tensor.type->type));
    text.add(offset);
    tensor.bytes = bytes_of(*tensor.type, tensor.shape);
    tensor.begin = offset;
    offset = aligned(offset + tensor.bytes, kGgufAlignment);
  }
  header.text = std::move(text).padded(kGgufAlignment);
  for (GgufTensor& tensor : header.tensors) tensor.begin += header.text.size();
  header.file_bytes = header.text.size() + offset;
  return header;
}

GgufHeader read_gguf(const FileReader& file) {
  Cursor cursor(file);
  if (cursor.bytes(kMagic.size()) != kMagic) cursor.reject("it does not begin with GGUF");
  const std::uint32_t version = cursor.number<std::uint32_t>();
  if ((version & 0xFFFFu) == 0) cursor.reject("its bytes are in the order of a big-endian machine");
  if (version < 2 || version > kVersion) cursor.reject(fmt::format("its version is {}, not 2 or 3", version));
  const std::uint64_t tensors = cursor.count(8), pairs = cursor.count(12);
  GgufHeader header;
  std::set<std::string> keys, names;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const std::string key = cursor.string();
    if (key.empty() || !keys.insert(key).second) cursor.reject(fmt::format("the key {} is empty or there twice", in_quotes(key)));
    header.metadata.emplace_back(key, cursor.value(cursor.number<std::uint32_t>()));
  }
  for (std::uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(read_info(cursor));
    if (!names.insert(header.tensors.back().name).second)
      cursor.reject(fmt::format("tensor {} is there twice", in_quotes(header.tensors.back().name)));
  }
  const std::uint64_t alignment = alignment_of(cursor, header), data = aligned(cursor.offset(), alignment);
  std::uint64_t expected = 0;
  for (GgufTensor& tensor : header.tensors) {
    if (tensor.begin != expected)
      cursor.reject(fmt::format("tensor {} begins at {} instead of {}", in_quotes(tensor.name), tensor.begin, expected));
    expected = aligned(expected + tensor.bytes, alignment);
    tensor.begin += data;
    if (tensor.begin > file.size() || tensor.bytes > file.size() - tensor.begin)
      cursor.reject(fmt::format("tensor {} lies beyond its end", in_quotes(tensor.name)));
  }
  header.file_bytes = data + expected;
  return header;
}

}  // namespace narrow::io
