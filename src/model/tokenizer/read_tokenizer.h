#pragma once
/// tokenizer.json to Tokenizer.

#include <filesystem>

#include "io/json.h"
#include "narrow/tokenizer.h"

namespace narrow {

/// The tokenizer that a document describes; `path` is for sentences. Throws CorruptFile, or Unsupported for what narrow would do
/// differently.
Tokenizer read_tokenizer(const io::Json& json, const std::filesystem::path& path);

}  // namespace narrow
