#pragma once
/// A Llama model under GGUF's names and back: tensors, config.json as metadata, tokenizer.json as lists of tokens, the order of q's and k's
/// rows.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/gguf_file.h"
#include "io/json.h"
#include "narrow/checkpoint.h"

namespace narrow {

using GgufPairs = std::vector<std::pair<std::string, io::GgufValue>>;

/// model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight, and back; empty for a name that Llama does not have.
std::string gguf_name(std::string_view name);
std::string huggingface_name(std::string_view name);

struct AttentionHeads {
  std::int64_t query = 0, key = 0, dimension = 0;

  /// Heads in the rows of a tensor of the file: of q and k alone, whose rows are ordered; 0 for all others.
  std::int64_t of(std::string_view gguf_name) const;
};

/// Hugging Face rotates the halves of a head, ggml its neighbours: row 2 j + p of a head is row p d/2 + j there.
constexpr std::int64_t huggingface_row(std::int64_t row, std::int64_t dimension) {
  const std::int64_t inside = row % dimension;
  return row - inside + inside % 2 * (dimension / 2) + inside / 2;
}

/// Metadata and tokenizer of a checkpoint's config.json and tokenizer.json. Throws Unsupported for what GGUF (or narrow) has no place for.
struct LlamaMetadata {
  GgufPairs pairs;
  AttentionHeads heads;
};
LlamaMetadata metadata_of(const Checkpoint& input, const io::GgmlTypeInfo& type);

/// What a file's metadata says of the model, as config.json says it; dtype and tensors decide the rest. Throws CorruptFile or Unsupported.
struct LlamaConfig {
  io::OrderedJson config;
  io::OrderedJson tokenizer;  ///< null where the file's is not a byte-level BPE with GPT-2's pattern
  AttentionHeads heads;
};
LlamaConfig config_of(const io::GgufHeader& header, const std::filesystem::path& path);

}  // namespace narrow
