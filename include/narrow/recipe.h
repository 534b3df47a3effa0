#pragma once
/// Quantizing a whole checkpoint: which tensors become what, what that costs, and doing it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "narrow/checkpoint.h"
#include "narrow/quantize.h"
#include "narrow/scheme.h"

namespace narrow {

/// How the input of a Linear layer is rounded before the product: `SCHEME:dynamic` takes its scales from each input, `SCHEME:static` from
/// calibration. A scheme without either word is dynamic.
struct ActivationScheme {
  Scheme scheme{};
  bool is_static = false;

  static ActivationScheme parse(std::string_view text);
  std::string to_string() const;
  friend bool operator==(const ActivationScheme&, const ActivationScheme&) = default;
};

/// What calibration found for one module's input.
struct StaticScale {
  float scale = 1.0f;  ///< of one scale per tensor; of a scheme with an outer scale, that one
  std::uint8_t zero_point = 0;
};

/// The activations of the quantized Linear layers.
struct ActivationRecipe {
  ActivationScheme scheme{};
  std::vector<std::pair<std::string, std::optional<ActivationScheme>>>
      rules{};                                  ///< the first that matches a module replaces it; nothing: fp32
  std::map<std::string, StaticScale> scales{};  ///< by module; every static one needs its own

  /// What becomes of a module's input.
  std::optional<ActivationScheme> scheme_of(std::string_view module) const;
};
/// The activations that a quantized checkpoint, of narrow or another ecosystem, was written with.
std::optional<ActivationRecipe> read_activations(const Checkpoint& checkpoint);

/// What becomes of a tensor with values that its scheme cannot hold: NaN, infinities.
enum class OnNonFinite : std::uint8_t {
  kError,    ///< InvalidArgument, naming tensor and element; nothing is written
  kKeep,     ///< the tensor is copied as it is
  kNearest,  ///< NaN becomes zero, an infinity the largest value of its scale; scales come from the finite values
};
std::string_view name_of(OnNonFinite policy);
/// error, keep or nearest.
OnNonFinite parse_on_nonfinite(std::string_view name);

/// Which tensors are quantized, and how. A pattern is an exact tensor name, a module name (the tensor's name without
/// ".weight"), the last part of one ("lm_head"), or "re:" and a regular expression that matches from the start.
struct Recipe {
  Scheme scheme{};
  std::vector<std::string> targets{};                   ///< empty: the weights of Linear layers
  std::vector<std::string> ignore{"lm_head"};           ///< wins over targets; embeddings, norms and routers of experts are not Linear
  std::vector<std::pair<std::string, Scheme>> rules{};  ///< the first that matches replaces the scheme
  QuantizeOptions options{};
  OnNonFinite on_nonfinite = OnNonFinite::kError;
  std::optional<ActivationRecipe> activations{};  ///< none: weight-only

  /// A scheme, or a preset by its name: weights and activations together.
  static Recipe of(std::string_view scheme_or_preset);
  /// Reads a YAML recipe: scheme (or a preset), activations, targets, ignore, rules, activation_rules, on_nonfinite. Throws
  /// InvalidArgument naming the line.
  static Recipe load_yaml(const std::filesystem::path& path);
  /// All of it as one line of JSON, to travel between processes. from_json throws InvalidArgument for what to_json does not write.
  std::string to_json() const;
  static Recipe from_json(std::string_view text);
};

/// Weights and activations under the name that the field gives them.
struct Preset {
  std::string_view name;
  std::string_view weights;      ///< a scheme
  std::string_view activations;  ///< an activation scheme; empty: weight-only
  std::string_view meaning;
};
const std::vector<Preset>& presets();

enum class Fate : std::uint8_t { kQuantize, kCopy };  ///< what becomes of a tensor

/// One tensor's way through a recipe.
struct PlannedTensor {
  std::string name;
  Fate fate = Fate::kCopy;
  Scheme scheme{};     ///< where quantized
  std::string reason;  ///< "Linear weight", "ignored by lm_head", "norm: not a matrix", ...
  DType dtype = DType::kF32;
  Shape shape;
  std::uint64_t bytes_before = 0, bytes_after = 0;
};

/// What quantizing would do, computed without reading a value.
struct Plan {
  std::vector<PlannedTensor> tensors;
  std::uint64_t bytes_before = 0;  ///< of all tensors
  std::uint64_t bytes_after = 0;   ///< of all tensors; exact
  std::uint64_t file_bytes = 0;    ///< of the tensor files to be written, headers included; exact
  double bits_per_weight = 0.0;    ///< over the quantized tensors, scales included
  std::uint64_t peak_memory = 0;   ///< bytes of buffers at the largest tensor
  std::uint64_t free_disk = 0;     ///< where the output would go
};
Plan plan_quantize(const Checkpoint& input, const Recipe& recipe, const std::filesystem::path& output_place);
/// One sentence for every pattern of the plan's recipe that changes nothing: mostly it is misspelt. The default lm_head may find nothing.
std::vector<std::string> idle_patterns(const Plan& plan, const Recipe& recipe);
/// Throws InvalidArgument where a plan quantizes no tensor, and says what keeps them as they are.
void check_quantizes(const Plan& plan);
/// Throws InvalidArgument where the input of a quantized layer is static and the recipe has no scale for it: nobody could run the result.
void check_calibrated(const Plan& plan, const Recipe& recipe);

/// Every tensor is reported twice: when it was written, and when it was read back and compared with the source.
enum class Stage : std::uint8_t { kWritten, kVerified };
struct TensorProgress {
  std::string name;
  Stage stage = Stage::kWritten;
  bool quantized = false;
  std::uint64_t bytes_done = 0, bytes_total = 0;  ///< of input, each tensor counted once per stage
  ErrorMetrics error{};                           ///< of quantized tensors, once verified
};
using ProgressCallback = std::function<void(const TensorProgress&)>;

/// Values of a tensor's source that scales must be careful with. Subnormal means so in the source's own type.
struct SpecialValues {
  std::int64_t nans = 0, infinities = 0, subnormals = 0;
  bool is_constant = false;  ///< one value throughout
  bool is_zero = false;      ///< zeros throughout, of either sign
  bool all_finite() const { return nans == 0 && infinities == 0; }
};

/// The error of each quantized tensor, over its finite values, read back from the written files and compared with the source.
struct TensorResult {
  std::string name;
  Scheme scheme{};
  ErrorMetrics error;
  double clipped = 0.0;
  SpecialValues source{};
};
/// A tensor that was not quantized for its NaN and infinities, by OnNonFinite::kKeep.
struct KeptTensor {
  std::string name;
  SpecialValues source{};
};
struct QuantizeReport {
  Plan plan;
  std::vector<TensorResult> tensors;
  std::vector<KeptTensor> kept;
  double seconds = 0.0;
  double sqnr_db = 0.0;  ///< over all quantized values together
};

/// Writes the quantized checkpoint to `output` (a directory that does not exist, or is empty). Streaming: buffers for
/// one tensor at a time. Atomic: files appear under their names when complete, the manifest last. Verified: every
/// tensor is read back, its hash checked and its values compared with the source.
QuantizeReport quantize_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe,
                                   const ProgressCallback& progress = {});

/// The reverse: a plain checkpoint in fp32, bf16 or fp16.
void dequantize_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, DType dtype,
                           const ProgressCallback& progress = {});

}  // namespace narrow
