/// Tokenizer: special tokens are cut out first, then each rest is normalized, split into pieces, and merged.

#include <algorithm>

#include <fmt/format.h>

#include "io/text.h"
#include "model/tokenizer/state.h"
#include "model/tokenizer/unicode.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using tokenizer::AddedToken;

bool is_word(char32_t code) { return code == U'_' || unicode::is_letter(code) || unicode::is_number(code); }

/// Whether a match at [begin, end) stands on its own, for tokens that ask for it.
bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0) {
    std::size_t before = begin - 1;
    while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0u) == 0x80u) --before;
    if (is_word(unicode::next_code(text, before))) return false;
  }
  std::size_t after = end;
  return end >= text.size() || !is_word(unicode::next_code(text, after));
}

/// The longest added token at a place, or null.
const AddedToken* match(const std::vector<AddedToken>& added, std::string_view text, std::size_t place, bool normalized) {
  const AddedToken* best = nullptr;
  for (const AddedToken& token : added)
    if (token.normalized == normalized && text.substr(place).starts_with(token.content) &&
        (best == nullptr || token.content.size() > best->content.size()) &&
        (!token.single_word || stands_alone(text, place, place + token.content.size())))
      best = &token;
  return best;
}

class Encoder {
 public:
  Encoder(const Tokenizer::State& state, std::vector<std::int32_t>& out) : state_(state), out_(out) {}

  void encode(std::string_view text) {
    cut(text, false, [&](std::string_view part) {
      const std::string normal = state_.nfc ? unicode::to_nfc(part) : std::string(part);
      cut(normal, true, [&](std::string_view rest) { encode_plain(rest); });
    });
  }

 private:
  /// Gives the added tokens of one kind to the output, and what lies between them to `rest`.
  template <typename Rest>
  void cut(std::string_view text, bool normalized, const Rest& rest) {
    const std::string& starts = normalized ? state_.normalized_starts : state_.raw_starts;
    std::size_t done = 0;
    for (std::size_t place = starts.empty() ? std::string_view::npos : text.find_first_of(starts); place != std::string_view::npos;
         place = text.find_first_of(starts, place)) {
      const AddedToken* token = match(state_.added, text, place, normalized);
      if (token == nullptr) {
        ++place;
        continue;
      }
      std::size_t begin = place, end = place + token->content.size();
      if (token->strips_left)
        while (begin > done && (text[begin - 1] == ' ' || text[begin - 1] == '\n' || text[begin - 1] == '\t' || text[begin - 1] == '\r'))
          --begin;
      if (token->strips_right)
        while (end < text.size() && (text[end] == ' ' || text[end] == '\n' || text[end] == '\t' || text[end] == '\r')) ++end;
      if (begin > done) rest(text.substr(done, begin - done));
      out_.push_back(token->number);
      done = place = end;
    }
    if (done < text.size()) rest(text.substr(done));
  }

  void encode_plain(std::string_view text) {
    pieces_.assign(1, text);
    std::string prefixed;
    for (const tokenizer::Step& step : state_.steps) {
      if (step.adds_blank && !text.starts_with(' ')) {
        prefixed = " " + std::string(text);
        pieces_.assign(1, prefixed);
      }
      if (!step.splitter) continue;
      next_.clear();
      for (const std::string_view piece : pieces_) split(*step.splitter, piece, next_);
      std::swap(pieces_, next_);
    }
    for (const std::string_view piece : pieces_) encode_piece(piece);
  }

  /// Words come again: their tokens are kept, up to a bound.
  void encode_piece(std::string_view piece) {
    constexpr std::size_t kLongest = 64, kMost = std::size_t{1} << 16;
    if (piece.size() > kLongest) return state_.bpe.encode(piece, out_);
    const auto found = known_.find(std::string(piece));
    if (found != known_.end()) {
      out_.insert(out_.end(), found->second.begin(), found->second.end());
      return;
    }
    std::vector<std::int32_t> tokens;
    state_.bpe.encode(piece, tokens);
    out_.insert(out_.end(), tokens.begin(), tokens.end());
    if (known_.size() < kMost) known_.emplace(piece, std::move(tokens));
  }

  const Tokenizer::State& state_;
  std::vector<std::int32_t>& out_;
  std::vector<std::string_view> pieces_, next_;
  std::unordered_map<std::string, std::vector<std::int32_t>> known_;
};

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool with_special) const {
  if (!io::is_utf8(text)) throw InvalidArgument("the text is not UTF-8; convert it first");
  std::vector<std::int32_t> tokens;
  if (with_special) tokens = state_->before;
  Encoder(*state_, tokens).encode(text);
  if (with_special) tokens.insert(tokens.end(), state_->after.begin(), state_->after.end());
  return tokens;
}

std::string_view Tokenizer::bytes(std::int32_t token) const {
  if (token < 0 || token >= size()) return {};
  return state_->bytes[static_cast<std::size_t>(token)];
}

bool Tokenizer::is_special(std::int32_t token) const {
  return std::any_of(state_->added.begin(), state_->added.end(),
                     [&](const AddedToken& added) { return added.number == token && added.special; });
}

std::int64_t Tokenizer::size() const { return static_cast<std::int64_t>(state_->bytes.size()); }

std::string Tokenizer::decode(std::span<const std::int32_t> tokens, bool skip_special) const {
  std::string text;
  for (const std::int32_t token : tokens)
    if (!skip_special || !is_special(token)) text += bytes(token);
  return text;
}

}  // namespace narrow
