#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace narrow::unicode {
namespace {

struct CodeRange {
  char32_t first, last;
};
struct CombiningClass {
  char32_t code;
  std::uint8_t value;
};
struct Decomposition {
  char32_t code, first, second;
};
struct Composition {
  char32_t first, second, code;
};

#include "model/tokenizer/unicode_classes.inl"
#include "model/tokenizer/unicode_composition.inl"

/// The row of a table ordered by its first member, or null.
template <typename Row, std::size_t kCount, typename Key, typename Value>
const Row* look_up(const Row (&table)[kCount], const Key& key, const Value& value) {
  const Row* found =
      std::lower_bound(std::begin(table), std::end(table), value, [&](const Row& row, const Value& wanted) { return key(row) < wanted; });
  return found != std::end(table) && key(*found) == value ? found : nullptr;
}

template <std::size_t kCount>
bool contains(const CodeRange (&table)[kCount], char32_t code) {
  const CodeRange* after = std::upper_bound(std::begin(table), std::end(table), code,
                                            [](char32_t wanted, const CodeRange& range) { return wanted < range.first; });
  return after != std::begin(table) && code <= std::prev(after)->last;
}

/// Letters and numbers of the first 128 code points, which are most of all text.
constexpr bool is_ascii_letter(char32_t code) { return (code | 0x20u) >= U'a' && (code | 0x20u) <= U'z'; }
constexpr bool is_ascii_digit(char32_t code) { return code >= U'0' && code <= U'9'; }

std::uint8_t combining_class(char32_t code) {
  if (code < 0x300) return 0;
  const CombiningClass* row = look_up(
      kCombining, [](const CombiningClass& r) { return r.code; }, code);
  return row == nullptr ? std::uint8_t{0} : row->value;
}

// Hangul syllables are leading consonant + vowel + optional trailing consonant, by arithmetic.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28, kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

void decompose(char32_t code, std::vector<char32_t>& out) {
  if (code >= kSyllables && code < kSyllables + kSyllableCount) {
    const char32_t index = code - kSyllables;
    out.push_back(kLeads + index / (kVowelCount * kTrailCount));
    out.push_back(kVowels + index % (kVowelCount * kTrailCount) / kTrailCount);
    if (index % kTrailCount != 0) out.push_back(kTrails + index % kTrailCount);
    return;
  }
  const Decomposition* row = code < 0xC0 ? nullptr
                                         : look_up(
                                               kDecompositions, [](const Decomposition& r) { return r.code; }, code);
  if (row == nullptr) return out.push_back(code);
  decompose(row->first, out);
  if (row->second != 0) decompose(row->second, out);
}

/// What two code points become, or 0.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLeads && a < kLeads + kLeadCount && b >= kVowels && b < kVowels + kVowelCount)
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTrailCount;
  if (a >= kSyllables && a < kSyllables + kSyllableCount && (a - kSyllables) % kTrailCount == 0 && b > kTrails && b < kTrails + kTrailCount)
    return a + (b - kTrails);
  const auto key = [](const Composition& row) { return std::pair{row.first, row.second}; };
  const Composition* row = look_up(kCompositions, key, std::pair{a, b});
  return row == nullptr ? 0 : row->code;
}

}  // namespace

bool is_letter(char32_t code) { return code < 0x80 ? is_ascii_letter(code) : contains(kLetters, code); }
bool is_number(char32_t code) { return code < 0x80 ? is_ascii_digit(code) : contains(kNumbers, code); }

bool is_space(char32_t code) {
  if (code < 0x80) return code == U' ' || (code >= 9 && code <= 13);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

char32_t next_code(std::string_view text, std::size_t& place) {
  const auto byte = [&] { return static_cast<unsigned char>(text[place++]); };
  const unsigned char first = byte();
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : (first >= 0xE0 ? 2 : 1);
  char32_t code = first & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) code = code << 6 | (byte() & 0x3Fu);
  return code;
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string to_nfc(std::string_view text) {
  // Nothing below U+0300 composes with what is before it, or decomposes and stays so.
  bool plain = true;
  for (const char byte : text) plain = plain && static_cast<unsigned char>(byte) < 0xCC;
  if (plain) return std::string(text);
  std::vector<char32_t> codes;
  for (std::size_t place = 0; place < text.size();) decompose(next_code(text, place), codes);
  // Marks after a starter in the order of their classes.
  for (std::size_t i = 0; i < codes.size();) {
    std::size_t end = i + 1;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    const std::size_t begin = combining_class(codes[i]) == 0 ? i + 1 : i;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(begin), codes.begin() + static_cast<std::ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  std::vector<char32_t> out;
  std::size_t starter = 0;
  bool has_starter = false;
  int last_class = -1;  // of what stands between the starter and here
  for (const char32_t code : codes) {
    const int own = combining_class(code);
    const bool blocked = last_class != -1 && last_class >= own;
    if (has_starter && !blocked) {
      if (const char32_t joined = compose(out[starter], code); joined != 0) {
        out[starter] = joined;
        continue;
      }
    }
    if (own == 0) {
      starter = out.size();
      has_starter = true;
      last_class = -1;
    } else {
      last_class = own;
    }
    out.push_back(code);
  }
  std::string result;
  for (const char32_t code : out) append_utf8(result, code);
  return result;
}

}  // namespace narrow::unicode
