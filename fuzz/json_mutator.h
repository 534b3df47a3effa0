#pragma once
/// Mutations that keep a JSON document a JSON document: a reader's own checks are reached, which random bytes seldom pass the parser for.
/// They work on the text itself, without a parser: the order of keys, their blanks, and keys that are there twice stay.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace narrow::fuzz {

/// Where the parts of a document lie, as far as it can be followed.
class JsonParts {
 public:
  struct Span {
    std::size_t begin = 0, end = 0;
    std::size_t depth = 0;
    std::size_t size() const { return end - begin; }
  };
  std::vector<Span> values, keys, elements;  ///< an element: what lies between two commas, with its key

  /// Those of this text, in the place of those of another.
  void find(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    for (std::vector<Span>* spans : {&values, &keys, &elements}) spans->clear();
    for (std::vector<std::size_t>* places : {&containers_, &starts_}) places->clear();
    const auto end_element = [&](std::size_t end) {
      if (starts_.empty()) return;
      if (text.substr(starts_.back(), end - starts_.back()).find_first_not_of(kBlanks) != std::string_view::npos)
        elements.push_back({starts_.back(), end, starts_.size()});
      starts_.back() = end + 1;
    };
    for (std::size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '{' || c == '[') {
        containers_.push_back(i);
        starts_.push_back(++i);
      } else if (c == '}' || c == ']') {
        end_element(i);
        ++i;
        if (containers_.empty()) continue;
        values.push_back({containers_.back(), i, containers_.size() - 1});
        containers_.pop_back();
        starts_.pop_back();
      } else if (c == ',') {
        end_element(i++);
      } else if (c == ':' || kBlanks.find(c) != std::string_view::npos) {
        ++i;
      } else {
        const std::size_t end = c == '"' ? end_of_text(text, i) : std::min(text.find_first_of(",:{}[]\" \t\r\n", i), text.size());
        const std::size_t next = text.find_first_not_of(kBlanks, end);
        const bool is_key = next != std::string_view::npos && text[next] == ':';
        (is_key ? keys : values).push_back({i, end, containers_.size()});
        i = end;
      }
    }
  }

 private:
  std::vector<std::size_t> containers_, starts_;  // of the open ones; of their current elements

  static std::size_t end_of_text(std::string_view text, std::size_t begin) {
    for (std::size_t i = begin + 1; i < text.size(); ++i) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        return i + 1;
    }
    return text.size();
  }
};

class JsonMutator {
 public:
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  /// The text with one to three parts changed; empty where it has none.
  std::string mutated(std::string text) {
    static JsonParts parts;
    for (unsigned changes = 1 + below(3); changes > 0; --changes) {
      parts.find(text);
      if (parts.values.empty()) return {};
      change(text, parts);
    }
    return text;
  }

  /// The first text with a value, or an element, of the second; empty where there is none.
  std::string crossed(std::string first, std::string_view second) {
    static JsonParts into, from;
    into.find(first);
    from.find(second);
    const bool whole = below(2) == 0 && !into.elements.empty() && !from.elements.empty();
    if (!whole && (into.values.empty() || from.values.empty())) return {};
    const JsonParts::Span place = one_of(whole ? into.elements : into.values), part = one_of(whole ? from.elements : from.values);
    const std::string given(second.substr(part.begin, part.size()));
    return whole ? first.insert(place.begin, given + ',') : first.replace(place.begin, place.size(), given);
  }

 private:
  using Span = JsonParts::Span;

  unsigned below(std::size_t count) { return count == 0 ? 0 : static_cast<unsigned>(random_() % count); }

  /// Every depth is as likely, however many parts it has: a large vocabulary does not hide the rest.
  Span one_of(const std::vector<Span>& spans) {
    std::size_t deepest = 0;
    for (const Span& span : spans) deepest = std::max(deepest, span.depth);
    const std::size_t depth = below(deepest + 1);
    const auto count = std::count_if(spans.begin(), spans.end(), [&](const Span& span) { return span.depth == depth; });
    if (count == 0) return spans[below(spans.size())];
    unsigned skipped = below(static_cast<std::size_t>(count));
    return *std::find_if(spans.begin(), spans.end(), [&](const Span& span) { return span.depth == depth && skipped-- == 0; });
  }

  std::string_view interesting() {
    // clang-format off
    constexpr std::string_view kValues[] = {
        "null", "true", "false", "0", "1", "-1", "2", "3", "4", "7", "8", "16", "31", "32", "64", "127", "128", "255", "256",
        "2147483647", "2147483648", "4294967296", "9007199254740993", "1152921504606846976", "9223372036854775807",
        "-9223372036854775808", "18446744073709551615", "18446744073709551616", "0.5", "-0.0", "1.0", "1e308", "1e-320", "1e19", "\"\"",
        "\"..\"", "\"/\"", "\"a\"", "\"re:.*\"", "\"\\u00e9\"", "[]", "{}", "[0]", "[1,2]"};
    // clang-format on
    return kValues[below(std::size(kValues))];
  }

  /// Another text between the same quotes, mostly one that needs no escapes.
  void change_text(std::string& text, Span span) {
    std::string inside = text.substr(span.begin + 1, span.size() < 2 ? 0 : span.size() - 2);
    const std::size_t size = inside.size();
    inside.resize(size + 16);
    inside.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(inside.data()), size, inside.size()));
    if (below(8) != 0)
      std::erase_if(inside,
                    [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F || c == '"'; });
    text.replace(span.begin, span.size(), '"' + inside + '"');
  }

  void change_number(std::string& text, Span span) {
    const std::string_view digits = std::string_view(text).substr(span.begin, span.size());
    if (digits.size() > 20 || digits.find_first_not_of("-0123456789") != std::string_view::npos) return;
    const std::uint64_t step = std::uint64_t{1} << below(12), number = std::strtoull(std::string(digits).c_str(), nullptr, 10);
    text.replace(span.begin, span.size(), std::to_string(static_cast<std::int64_t>(number + (below(2) == 0 ? step : ~step + 1))));  // wraps
  }

  void change(std::string& text, const JsonParts& parts) {
    const Span value = one_of(parts.values), other = one_of(parts.values);
    const bool has_elements = !parts.elements.empty(), has_keys = !parts.keys.empty();
    const Span element = has_elements ? one_of(parts.elements) : value, second = has_elements ? one_of(parts.elements) : value;
    const auto part = [&](Span span) { return text.substr(span.begin, span.size()); };
    switch (below(9)) {
      case 0: text.replace(value.begin, value.size(), part(other)); return;
      case 1: text.replace(value.begin, value.size(), interesting()); return;
      case 2: {  // without the element and one of its commas
        const bool after = element.end < text.size() && text[element.end] == ',';
        const bool before = !after && element.begin > 0 && text[element.begin - 1] == ',';
        text.erase(element.begin - (before ? 1 : 0), element.size() + (before || after ? 1 : 0));
        return;
      }
      case 3: text.insert(element.begin, part(second) + ','); return;
      case 4:
        if (!has_keys) return;
        if (const Span key = one_of(parts.keys); below(2) == 0) {
          change_text(text, key);
        } else {
          text.replace(key.begin, key.size(), part(one_of(parts.keys)));
        }
        return;
      case 5: change_number(text, value); return;
      case 6: {
        std::string many;
        for (unsigned i = below(64); i > 0 && many.size() < 2048; --i) many += part(element) + ',';
        text.insert(element.begin, many);
        return;
      }
      case 7:
        if (element.end <= second.begin) {
          const std::string first = part(element), last = part(second);
          text.replace(second.begin, second.size(), first).replace(element.begin, element.size(), last);
        }
        return;
      default:
        if (text[value.begin] == '"') change_text(text, value);
    }
  }

  std::minstd_rand random_;
};

/// Every fourth mutation is of bytes, so that what is no JSON is seen too.
inline std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string text = JsonMutator(seed).mutated(std::string(reinterpret_cast<const char*>(data), size));
  if (text.empty() || text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

/// libFuzzer's own would glue bytes together.
inline std::size_t cross_json(const std::uint8_t* first, std::size_t first_size, const std::uint8_t* second, std::size_t second_size,
                              std::uint8_t* out, std::size_t most, unsigned seed) {
  const std::string text = JsonMutator(seed).crossed(std::string(reinterpret_cast<const char*>(first), first_size),
                                                     {reinterpret_cast<const char*>(second), second_size});
  if (text.size() > most) return 0;
  std::memcpy(out, text.data(), text.size());
  return text.size();
}

}  // namespace narrow::fuzz
