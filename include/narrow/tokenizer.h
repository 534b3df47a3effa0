#pragma once
/// Byte-level BPE tokenizers from Hugging Face's tokenizer.json: text to tokens and back.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace narrow {

class Tokenizer {
 public:
  /// The tokens of a text; `with_special` adds those that the file's template puts around it (a beginning-of-text token, for example).
  /// Throws InvalidArgument where the text is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool with_special = false) const;
  /// The bytes that tokens stand for, joined. Special tokens give their names, or nothing.
  std::string decode(std::span<const std::int32_t> tokens, bool skip_special = false) const;
  /// The bytes of one token: not always whole characters. Empty for a number that is none.
  std::string_view bytes(std::int32_t token) const;
  bool is_special(std::int32_t token) const;
  /// One more than the largest token.
  std::int64_t size() const;

  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

/// Reads tokenizer.json, or the one in a model's directory. Throws IoError, CorruptFile, or Unsupported naming the part that is not there.
Tokenizer open_tokenizer(const std::filesystem::path& path);

}  // namespace narrow
