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
  kModelOpt,           ///< "modelopt": ModelOpt's FP8 and NVFP4 (TensorRT-LLM, vLLM)
  kBitsAndBytes,       ///< "bnb": bitsandbytes' NF4; read alone
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
  ErrorMetrics error{};   ///< against the source's finite values
  SpecialValues source{};
};
struct InteropReport {
  Ecosystem target = Ecosystem::kNarrow;
  std::vector<TensorProof> tensors;                 ///< the quantized ones, by name
  std::vector<KeptTensor> kept;                     ///< of a plain source: not quantized for their NaN and infinities
  std::int64_t copied = 0;                          ///< tensors carried over as they are
  std::uint64_t bytes_before = 0, bytes_after = 0;  ///< of all tensors
  double seconds = 0.0;
};

/// Whose rule makes scales and codes: files do not say, readers do not need to know.
enum class ScaleRules : std::uint8_t {
  kNarrow,
  kEcosystem,  ///< the target's own tools' (docs/interop.md), where they differ: ct, gptq, awq
};

/// Quantizes a plain checkpoint by a recipe and writes it as `target` wants it: scales in the type that it stores. Buffers for one tensor
/// at a time; the directory appears when it is complete, and every tensor was read back. Throws InvalidArgument where a scheme has no
/// place in the target: of a weight, or of activations in one that holds weights alone.
InteropReport export_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe,
                                Ecosystem target, const ProgressCallback& progress = {}, ScaleRules rules = ScaleRules::kNarrow);

/// A quantized checkpoint (or a GGUF file, by way of narrow's own form) in another ecosystem's form: the same codes where the target can
/// hold them, else requantized to the scheme that is closest there.
InteropReport convert_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, Ecosystem target,
                                 const ProgressCallback& progress = {});

/// One tensor of a GGUF file, and how far it is from its source.
struct GgufTensorReport {
  std::string name, type;
  bool is_exact = false;  ///< the blocks hold the codes of a quantized source
  ErrorMetrics error;
};
struct GgufReport {
  std::vector<GgufTensorReport> tensors;  ///< in the file's order
  std::uint64_t bytes = 0;                ///< of the file
  double seconds = 0.0;
};

/// A Llama checkpoint, plain or of narrow's own form, as one GGUF file: the weights of Linear layers in blocks of `type` ("q8_0", "q4_k",
/// ...) by ggml's own rules, embeddings and head as they are, norms in fp32; metadata and a byte-level BPE tokenizer for llama.cpp. Codes
/// that the type has a place for are kept (int8:block32:scale=fp16 in q8_0, int4:block32:scale=fp16 in q4_0, mxfp4); an empty type means
/// the one that has, or q8_0. Written atomically and read back.
GgufReport export_gguf(const std::filesystem::path& input, const std::filesystem::path& output, std::string_view type,
                       const ProgressCallback& progress = {});

/// The same of a plain checkpoint that is quantized by a recipe on the way.
GgufReport export_gguf(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe, std::string_view type,
                       const ProgressCallback& progress = {});

/// A GGUF file of a Llama model as a Hugging Face directory of narrow's own form: config.json from its metadata, tokenizer.json where it is
/// a byte-level BPE with GPT-2's pattern. Weights in q8_0, q4_0 and mxfp4 keep their codes, other blocks become int8:block32; plain tensors
/// are copied, and without any quantized weight the directory is a plain checkpoint.
InteropReport import_gguf(const std::filesystem::path& input, const std::filesystem::path& output, const ProgressCallback& progress = {});
/// Whether a path is a file that begins as GGUF files do.
bool is_gguf(const std::filesystem::path& path);
/// Reads and checks every block of a GGUF file; problems are one sentence each.
VerifyReport verify_gguf(const std::filesystem::path& path);

/// Reads every quantized weight of a checkpoint as this ecosystem's; problems are one sentence each.
VerifyReport verify_as(const std::filesystem::path& path, Ecosystem ecosystem);

}  // namespace narrow
