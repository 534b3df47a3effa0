#pragma once
/// What a tokenizer.json says, ready to be used.

#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/split.h"
#include "narrow/tokenizer.h"

namespace narrow {

namespace tokenizer {

/// A token that is cut out of the text before anything else looks at it.
struct AddedToken {
  std::int32_t number = 0;
  std::string content;
  bool special = false, normalized = false, single_word = false, strips_left = false, strips_right = false;
};

/// A step of the pre-tokenizer.
struct Step {
  bool adds_blank = false;  ///< before a text that does not begin with one
  std::optional<Splitter> splitter{};
};

}  // namespace tokenizer

struct Tokenizer::State {
  tokenizer::Bpe bpe;
  std::vector<tokenizer::AddedToken> added{};
  std::string raw_starts{}, normalized_starts{};  ///< first bytes of the added tokens of either kind
  bool nfc = false;
  std::vector<tokenizer::Step> steps{};
  std::vector<std::int32_t> before{}, after{};  ///< tokens of the template around a text
  std::vector<std::string> bytes{};             ///< of every token, added ones included
};

}  // namespace narrow
