#pragma once
/// How a text is cut: into chunks whose sums are joined in order, and within a chunk into what one pass of the model reads.

#include "narrow/model.h"

namespace narrow {

constexpr std::size_t kBatchTokens = 1024;  ///< memory does not grow with the text

/// Runs of whole windows with at most so many tokens, at least one window each, from the front.
std::vector<WindowRange> cut_windows(std::span<const std::vector<std::int32_t>> windows, WindowRange range, std::size_t most_tokens);

}  // namespace narrow
