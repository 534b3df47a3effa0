// Mutations of a GGUF file where its structure is: lengths, counts, types, dimensions and offsets get values of interest, texts other
// bytes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

/// Walks a header as far as it can be read and notes the place of every number.
class GgufFields {
 public:
  struct Field {
    std::size_t offset, width;
  };

  GgufFields(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {
    place_ = 4;  // the magic
    number(4);
    const std::uint64_t tensors = number(8), pairs = number(8);
    for (std::uint64_t i = 0; i < pairs && ok_; ++i) {
      text();
      value(static_cast<std::uint32_t>(number(4)), true);
    }
    for (std::uint64_t i = 0; i < tensors && ok_; ++i) {
      text();
      for (std::uint64_t dimensions = number(4); dimensions > 0 && ok_; --dimensions) number(8);
      number(4);
      number(8);
    }
  }
  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<Field>& texts() const { return texts_; }

 private:
  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    ok_ = ok_ && width <= size_ - place_;
    if (!ok_) return 0;
    std::memcpy(&value, data_ + place_, width);
    fields_.push_back({place_, width});
    place_ += width;
    return value;
  }
  void text() {
    const std::uint64_t length = number(8);
    ok_ = ok_ && length <= size_ - place_;
    if (!ok_) return;
    if (length > 0) texts_.push_back({place_, static_cast<std::size_t>(length)});
    place_ += static_cast<std::size_t>(length);
  }
  void value(std::uint32_t type, bool may_nest) {
    constexpr std::size_t kWidths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) return text();
    if (type == 9 && may_nest) {
      const auto inner = static_cast<std::uint32_t>(number(4));
      for (std::uint64_t count = number(8); count > 0 && ok_ && fields_.size() < 4096; --count) value(inner, false);
      return;
    }
    ok_ = ok_ && type < std::size(kWidths) && kWidths[type] > 0;
    if (ok_) number(kWidths[type]);
  }

  const std::uint8_t* data_;
  std::size_t size_, place_ = 0;
  bool ok_ = true;
  std::vector<Field> fields_, texts_;
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  // clang-format off
  constexpr std::uint64_t kNumbers[] = {
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 31, 32, 33, 39, 63, 64, 65, 255, 256, 4096, 0x7fffffff, 0x80000000, 0xffffffff,
      0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 0xffffffffffffffe0};
  // clang-format on
  std::minstd_rand random(seed);
  if (seed % 4 == 0 || size < 24) return LLVMFuzzerMutate(data, size, most);
  const GgufFields known(data, size);
  if (!known.texts().empty() && random() % 4 == 0) {  // a text of the same length
    const GgufFields::Field text = known.texts()[random() % known.texts().size()];
    LLVMFuzzerMutate(data + text.offset, text.width, text.width);
    return size;
  }
  if (known.fields().empty()) return LLVMFuzzerMutate(data, size, most);
  const GgufFields::Field field = known.fields()[random() % known.fields().size()];
  std::uint64_t value = 0;
  std::memcpy(&value, data + field.offset, field.width);
  switch (random() % 3) {
    case 0: value = kNumbers[random() % std::size(kNumbers)]; break;
    case 1: value += random() % 2 == 0 ? 1 : std::uint64_t(-1); break;
    default: value ^= std::uint64_t{1} << random() % (8 * field.width);
  }
  std::memcpy(data + field.offset, &value, field.width);
  return size;
}
