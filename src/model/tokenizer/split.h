#pragma once
/// Pre-tokenizers: a text to the pieces within which tokens are merged.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace narrow::tokenizer {

/// One step: the pattern that cuts, as the file writes it, turned into a matcher by hand.
struct Splitter {
  enum class Kind {
    kGpt2,       ///< 's|'t|..| ?letters| ?numbers| ?others|spaces but the last|spaces
    kLlama3,     ///< the same without case, any sign before letters, numbers in threes, line ends apart
    kQwen2,      ///< kLlama3 with numbers one by one
    kDigits,     ///< every number on its own
    kDigitRuns,  ///< runs of numbers
  };
  Kind kind = Kind::kGpt2;
};

/// The matcher for a regular expression of a Split step, or nothing where it is not one of the known ones.
std::optional<Splitter> splitter_for(std::string_view regex);

/// Cuts `text` (well-formed UTF-8) and appends the pieces, in order, nothing left out.
void split(const Splitter& splitter, std::string_view text, std::vector<std::string_view>& pieces);

}  // namespace narrow::tokenizer
