#include "model/tokenizer/split.h"

#include "model/tokenizer/unicode.h"

namespace narrow::tokenizer {
namespace {

using unicode::is_letter;
using unicode::is_number;
using unicode::is_space;

constexpr std::string_view kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_line_end(char32_t code) { return code == U'\r' || code == U'\n'; }
bool is_other(char32_t code) { return !is_space(code) && !is_letter(code) && !is_number(code); }

/// A place in a text, and looking ahead from it.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  bool at_end(std::size_t at) const { return at >= text_.size(); }
  /// The code point at `at` and the place after it; 0 beyond the end.
  char32_t code(std::size_t at, std::size_t* after = nullptr) const {
    if (at_end(at)) return 0;
    const char32_t result = unicode::next_code(text_, at);
    if (after != nullptr) *after = at;
    return result;
  }
  /// The end of the run from `at` on whose code points all pass, at most `most` of them.
  template <typename Test>
  std::size_t run(std::size_t at, const Test& test, int most = -1) const {
    for (std::size_t after = at; most != 0 && !at_end(at) && test(code(at, &after)); at = after) most -= most > 0 ? 1 : 0;
    return at;
  }

 private:
  std::string_view text_;
};

char32_t lower(char32_t code, bool ignore_case) {
  if (!ignore_case) return code;
  if (code == 0x17F) return U's';  // the long s folds to s
  return code >= U'A' && code <= U'Z' ? code + 32 : code;
}

/// 's 't 'm 'd 're 've 'll: the end, or `at`.
std::size_t contraction(const Cursor& text, std::size_t at, bool ignore_case) {
  std::size_t after = at, second = at;
  if (text.code(at, &after) != U'\'' || text.at_end(after)) return at;
  const char32_t a = lower(text.code(after, &second), ignore_case);
  if (a == U's' || a == U't' || a == U'm' || a == U'd') return second;
  if (text.at_end(second)) return at;
  std::size_t third = second;
  const char32_t b = lower(text.code(second, &third), ignore_case);
  return (a == U'r' && b == U'e') || (a == U'v' && b == U'e') || (a == U'l' && b == U'l') ? third : at;
}

/// One optional blank, then at least one that passes: the end, or `at`.
template <typename Test>
std::size_t after_blank(const Cursor& text, std::size_t at, const Test& test) {
  const std::size_t begin = text.code(at) == U' ' ? at + 1 : at;
  const std::size_t end = text.run(begin, test);
  return end > begin ? end : at;
}

/// \s+(?!\S)|\s+ : all spaces where the text ends with them, else all but the last, which goes with what follows.
std::size_t spaces(const Cursor& text, std::size_t at) {
  const std::size_t end = text.run(at, is_space);
  if (text.at_end(end)) return end;
  std::size_t last = at;
  for (std::size_t next = at; next < end; text.code(next, &next)) last = next;
  return last > at ? last : end;
}

std::size_t gpt2(const Cursor& text, std::size_t at) {
  if (const std::size_t end = contraction(text, at, false); end > at) return end;
  if (const std::size_t end = after_blank(text, at, is_letter); end > at) return end;
  if (const std::size_t end = after_blank(text, at, is_number); end > at) return end;
  if (const std::size_t end = after_blank(text, at, is_other); end > at) return end;
  return spaces(text, at);
}

std::size_t llama3(const Cursor& text, std::size_t at, int digits) {
  if (const std::size_t end = contraction(text, at, true); end > at) return end;
  std::size_t second = at;
  const char32_t first = text.code(at, &second);
  if (is_letter(first)) return text.run(at, is_letter);
  if (!is_line_end(first) && !is_number(first))
    if (const std::size_t end = text.run(second, is_letter); end > second) return end;
  if (is_number(first)) return text.run(at, is_number, digits);
  if (const std::size_t end = after_blank(text, at, is_other); end > at) return text.run(end, is_line_end);
  // \s*[\r\n]+ : up to the last line end of the run of spaces.
  const std::size_t end = text.run(at, is_space);
  std::size_t line_end = at;
  for (std::size_t next = at; next < end;)
    if (is_line_end(text.code(next, &next))) line_end = next;
  return line_end > at ? line_end : spaces(text, at);
}

std::size_t digits(const Cursor& text, std::size_t at, bool one_by_one) {
  if (const std::size_t end = text.run(at, is_number, one_by_one ? 1 : -1); end > at) return end;
  return text.run(at, [](char32_t code) { return !is_number(code); });
}

std::size_t piece_end(const Splitter& splitter, const Cursor& text, std::size_t at) {
  switch (splitter.kind) {
    case Splitter::Kind::kGpt2: return gpt2(text, at);
    case Splitter::Kind::kLlama3: return llama3(text, at, 3);
    case Splitter::Kind::kQwen2: return llama3(text, at, 1);
    case Splitter::Kind::kDigits: return digits(text, at, true);
    case Splitter::Kind::kDigitRuns: return digits(text, at, false);
  }
  return at;
}

}  // namespace

std::optional<Splitter> splitter_for(std::string_view regex) {
  if (regex == kGpt2Regex) return Splitter{Splitter::Kind::kGpt2};
  if (regex == kLlama3Regex) return Splitter{Splitter::Kind::kLlama3};
  if (regex == kQwen2Regex) return Splitter{Splitter::Kind::kQwen2};
  return std::nullopt;
}

void split(const Splitter& splitter, std::string_view text, std::vector<std::string_view>& pieces) {
  const Cursor cursor(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(splitter, cursor, at);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace narrow::tokenizer
