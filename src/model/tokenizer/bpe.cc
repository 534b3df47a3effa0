#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::tokenizer {

Bpe::Bpe(std::vector<std::string> tokens, bool ignore_merges) : tokens_(std::move(tokens)), ignore_merges_(ignore_merges) {
  byte_tokens_.fill(-1);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& bytes = tokens_[i];
    if (bytes.size() == 1) {
      byte_tokens_[static_cast<unsigned char>(bytes.front())] = static_cast<std::int32_t>(i);
    } else if (!bytes.empty()) {
      numbers_.emplace(bytes, static_cast<std::int32_t>(i));
    }
  }
  const auto missing = std::find(byte_tokens_.begin(), byte_tokens_.end(), -1);
  if (missing != byte_tokens_.end())
    throw InvalidArgument(fmt::format("the vocabulary has no token for the byte {:#04x}", missing - byte_tokens_.begin()));
}

std::int32_t Bpe::find(std::string_view bytes) const {
  if (bytes.size() == 1) return byte_tokens_[static_cast<unsigned char>(bytes.front())];
  const auto found = numbers_.find(bytes);
  return found == numbers_.end() ? -1 : found->second;
}

bool Bpe::add_merge(std::string_view left, std::string_view right, std::int32_t rank) {
  const std::int32_t a = find(left), b = find(right), joined = find(std::string(left) + std::string(right));
  if (a < 0 || b < 0 || joined < 0) return false;
  merges_.emplace(key(a, b), Merge{rank, joined});
  return true;
}

const Bpe::Merge* Bpe::merge_of(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.empty()) return;
  if (const std::int32_t whole = ignore_merges_ ? find(piece) : -1; whole >= 0) return out.push_back(whole);
  // A doubly linked list of parts; a queue of the pairs that can merge, lowest rank first, then leftmost.
  struct Part {
    std::int32_t token;
    std::int32_t before, after;  // -1: none
  };
  struct Candidate {
    std::int32_t rank, place, left, right;
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
  };
  const std::int32_t count = static_cast<std::int32_t>(piece.size());
  std::vector<Part> parts(piece.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::int32_t place) {
    const std::int32_t next = place < 0 ? -1 : parts[static_cast<std::size_t>(place)].after;
    if (next < 0) return;
    const std::int32_t left = parts[static_cast<std::size_t>(place)].token, right = parts[static_cast<std::size_t>(next)].token;
    if (const Merge* merge = merge_of(left, right)) queue.push({merge->rank, place, left, right});
  };
  for (std::int32_t i = 0; i < count; ++i)
    parts[static_cast<std::size_t>(i)] = {byte_tokens_[static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])], i - 1,
                                          i + 1 < count ? i + 1 : -1};
  for (std::int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Part& left = parts[static_cast<std::size_t>(best.place)];
    if (left.token != best.left || left.after < 0) continue;  // merged away since
    Part& right = parts[static_cast<std::size_t>(left.after)];
    if (right.token != best.right) continue;
    left.token = merge_of(best.left, best.right)->result;
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) parts[static_cast<std::size_t>(left.after)].before = best.place;
    consider(left.before);
    consider(best.place);
  }
  for (std::int32_t i = 0; i >= 0; i = parts[static_cast<std::size_t>(i)].after) out.push_back(parts[static_cast<std::size_t>(i)].token);
}

}  // namespace narrow::tokenizer
