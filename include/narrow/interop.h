#pragma once
/// Quantized checkpoints that other runtimes load, and conversion between them.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/checkpoint.h"
#include "narrow/recipe.h"

namespace narrow {

/// Who reads a checkpoint.
enum class Ecosystem : std::uint8_t {
  kNarrow,             ///< "narrow": narrow's own form
  kCompressedTensors,  ///< "ct": compressed-tensors (vLLM, transformers)
  kGptq,               ///< "gptq": GPTQModel, AutoGPTQ and what reads their files
  kAwq,                ///< "awq": AutoAWQ's GEMM form
  kFp8Block,           ///< "fp8-block": DeepSeek's fp8 with scales of 128 x 128 blocks
};
std::string_view name_of(Ecosystem ecosystem);
/// Throws InvalidArgument with the allowed names.
Ecosystem parse_ecosystem(std::string_view name);
std::span<const Ecosystem> all_ecosystems();

/// Whose form a checkpoint has; nothing for a plain one. Throws Unsupported for a method that narrow does not read.
std::optional<Ecosystem> ecosystem_of(const Checkpoint& checkpoint);

/// What became of one quantized weight on its way.
struct TensorProof {
  std::string name;
  Scheme scheme{};        ///< as written
  bool is_exact = false;  ///< every code, scale and zero point is the source's, read back from the file
  ErrorMetrics error{};   ///< against the source's values
};
struct InteropReport {
  Ecosystem target = Ecosystem::kNarrow;
  std::vector<TensorProof> tensors;                 ///< the quantized ones, by name
  std::int64_t copied = 0;                          ///< tensors carried over as they are
  std::uint64_t bytes_before = 0, bytes_after = 0;  ///< of all tensors
  double seconds = 0.0;
};

/// Quantizes a plain checkpoint by a recipe and writes it as `target` wants it: scales in the type that it stores. Buffers for one tensor
/// at a time; the directory appears when it is complete, and every tensor was read back. Throws InvalidArgument where a scheme has no
/// place in the target.
InteropReport export_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe,
                                Ecosystem target, const ProgressCallback& progress = {});

/// A quantized checkpoint in another ecosystem's form: the same codes where the target can hold them, else requantized to the scheme
/// that is closest there.
InteropReport convert_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, Ecosystem target,
                                 const ProgressCallback& progress = {});

/// One tensor of a GGUF file, and how far it is from its source.
struct GgufTensorReport {
  std::string name, type;
  ErrorMetrics error;
};
struct GgufReport {
  std::vector<GgufTensorReport> tensors;  ///< in the file's order
  std::uint64_t bytes = 0;                ///< of the file
  double seconds = 0.0;
};

/// A Llama checkpoint as one GGUF file: the weights of Linear layers in blocks of `type` ("q8_0", "q4_k", ...) by ggml's own rules,
/// embeddings and head as they are, norms in fp32; metadata and a byte-level BPE tokenizer for llama.cpp. Written atomically and read back.
GgufReport export_gguf(const std::filesystem::path& input, const std::filesystem::path& output, std::string_view type,
                       const ProgressCallback& progress = {});

/// Reads every quantized weight of a checkpoint as this ecosystem's; problems are one sentence each.
VerifyReport verify_as(const std::filesystem::path& path, Ecosystem ecosystem);

}  // namespace narrow
