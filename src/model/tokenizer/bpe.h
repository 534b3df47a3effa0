#pragma once
/// Byte pair encoding: the bytes of a piece, merged pair by pair in the order of the merges' ranks.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace narrow::tokenizer {

class Bpe {
 public:
  /// `tokens`: the bytes of every token of the vocabulary (empty where a number is not used). Throws InvalidArgument where a byte has no
  /// token.
  Bpe(std::vector<std::string> tokens, bool ignore_merges);
  Bpe(Bpe&&) = default;
  Bpe(const Bpe&) = delete;  // numbers_ views tokens_
  /// Merges of lower rank come first. False where a part, or what it becomes, is no token.
  bool add_merge(std::string_view left, std::string_view right, std::int32_t rank);

  /// Appends the tokens of one piece.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// -1 where there is none.
  std::int32_t find(std::string_view bytes) const;

 private:
  struct Merge {
    std::int32_t rank, result;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, std::int32_t> numbers_;  // of tokens of two bytes and more
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::array<std::int32_t, 256> byte_tokens_;
  bool ignore_merges_ = false;
};

}  // namespace narrow::tokenizer
