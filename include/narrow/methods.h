#pragma once
/// Methods that choose codes and scales by what they do to a layer's output, not by each weight's own error.
/// All work for every scheme; docs/methods.md has the equations.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrow/calibrate.h"
#include "narrow/recipe.h"

namespace narrow {

/// How weights become codes. A method is its steps joined by +, in any order: gptq+clip+refine.
struct Method {
  bool gptq = false;     ///< errors of a column are made good in the columns after it
  bool clip = false;     ///< scales are searched for the least loss, not taken from the extremes
  bool refine = false;   ///< learned rounding: codes and scales improved one at a time until none helps
  bool correct = false;  ///< weights aim at the plain model's outputs, so that they make good the errors of the layers before
  bool tune = false;     ///< after all of these: codes, scales and norms follow the gradient of the whole model's divergence
  // Before all of these, folded into the weights; the model's function in floating point stays the same.
  bool rotate = false;       ///< the stream and the values' heads are rotated: no channel stands out
  bool smoothquant = false;  ///< outliers of inputs move into weights: for inputs that are rounded
  bool awq = false;          ///< channels with large inputs get finer weights

  bool act_order = false;            ///< of GPTQ: columns in falling order of their input's energy, scales of blocks known beforehand
  double damping = 0.01;             ///< the share of the mean diagonal that is added to the Hessian's
  int sweeps = 8;                    ///< of refine, at most
  int passes = 3;                    ///< of tune, over the text
  std::optional<double> strength{};  ///< of smoothquant: how much moves, 0 .. 1; none: searched for each input

  /// rtn, or steps joined by +.
  static Method parse(std::string_view text);
  std::string to_string() const;
  bool is_rounding() const { return !folds() && !chooses_codes(); }
  bool folds() const { return rotate || smoothquant || awq; }
  bool chooses_codes() const { return fits_layers() || tune; }
  /// Whether codes are chosen layer by layer, by what each sees of the text.
  bool fits_layers() const { return gptq || clip || refine || correct; }
  /// Whether choosing codes needs second moments of the inputs; whether anything needs a text, or statistics of one.
  bool needs_hessian() const { return gptq || refine || correct; }
  bool needs_calibration() const { return needs_hessian() || smoothquant || awq || tune; }
};

/// A weight that a method has quantized. Losses are tr(E X^T X E^T) / tr(W X^T X W^T) with E = W - Q: the relative squared error of the
/// output over the calibration text; 0 without one.
struct FittedWeight {
  QuantizedTensor quantized;
  double loss_before = 0.0;  ///< of rounding to nearest
  double loss_after = 0.0;
  double damping = 0.0;           ///< that GPTQ used
  std::int64_t dead_columns = 0;  ///< inputs that were always zero; their weights are rounded to nearest
  std::string fallback{};         ///< why GPTQ did not run; empty where it did or was not asked for
};

/// What a text tells of the input of some weights: sums over its tokens. `change` and `missing` are of the step correct, with P the
/// plain model's input and S what its stream has over this one's (empty where the output does not join the stream).
struct InputMoments {
  std::int64_t channels = 0;
  std::vector<double> second_moment{};  ///< X^T X, [k, k]
  std::vector<double> change{};         ///< (P - X)^T X, [k, k]
  std::vector<double> missing{};        ///< S^T X, [n, k]

  /// Adds the sums of the next chunk of the text.
  void add(const InputMoments& next);
};

/// Quantizes one weight [n, k]. second_moment: X^T X of its input, [k, k]; empty: without calibration, which GPTQ needs.
/// The same bits for any number of threads. On a CUDA device (gptq, clip, refine) the same arithmetic with the last bits of the factor and
/// of long sums its own, so that a value which lies between two codes may take the other; everything given and returned stays on the CPU.
FittedWeight fit_weight(const Tensor& w, const Scheme& scheme, std::span<const double> second_moment, const Method& method,
                        Device device = Device::cpu());

/// One module of a model that a method went through.
struct FittedModule {
  std::string module;
  Scheme scheme{};
  double loss_before = 0.0, loss_after = 0.0, damping = 0.0;
  std::int64_t dead_columns = 0;
  std::string fallback{};
};
using FitCallback = std::function<void(const FittedModule& fitted, std::size_t done, std::size_t modules)>;

/// What the step tune did: the mean KL divergence of the answers from the plain model's, in nats, over windows that it did not learn from
/// (one of 16; with fewer windows, over those it did).
struct TuneReport {
  double divergence_before = 0.0, divergence_after = 0.0;
  int best_pass = 0;  ///< whose state was taken; 0: none was better than the start
};
struct TuneProgress {
  int pass = 0;
  double share = 0.0;       ///< of all passes that is done
  double divergence = 0.0;  ///< of the step's own windows
};
using TuneCallback = std::function<void(const TuneProgress& progress)>;

struct MethodReport {
  QuantizeReport files;
  std::vector<FittedModule> modules;  ///< in the order in which they were quantized
  std::int64_t fallbacks = 0;         ///< modules with one
  std::optional<TuneReport> tuned{};
  double fit_seconds = 0.0;
  std::string factored_by{};  ///< on a CUDA device: who factored the Hessians, cuSOLVER or (where that is not installed) Eigen on the CPU
};

/// What a method knows about the inputs of a model's layers.
struct Calibration {
  std::span<const std::vector<std::int32_t>> windows{};  ///< a text, read layer by layer: every input is computed with quantized weights
  const CalibrationStatistics* statistics = nullptr;     ///< instead: what was seen of the plain model, with second moments
  RangeMethod range{};                                   ///< of static inputs that have no scale yet; they need windows
  bool is_empty() const { return windows.empty() && statistics == nullptr; }
};

/// Factors on channels, by the norm or the Linear module whose outputs they divide.
using ChannelFactors = std::map<std::string, std::vector<float>>;
/// Writes the same function with other channels: outputs of norms (and of v_proj and up_proj) divided by factors, the columns of what reads
/// them multiplied. Changed tensors are fp32.
void scale_channels(const std::filesystem::path& input, const std::filesystem::path& output, const ChannelFactors& factors);

struct MethodRun {
  /// A directory for what is done so far: a run that was killed goes on from there and ends with the same bytes. It is made where it is
  /// not there and removed when the run is complete. Empty: none.
  std::filesystem::path journal{};
  FitCallback fitted{};
  ProgressCallback progress{};
  TuneCallback tuned{};
  /// A directory in which the inputs of all tokens are kept, in place of memory, while weights are fitted layer by layer. Empty: none.
  std::filesystem::path spill{};
  /// Where inputs are computed and weights fitted. A CUDA device (Hopper) takes gptq, clip and refine, alone or after rotate, smoothquant
  /// and awq, which fold on the CPU; fit_weight says how its codes differ. The stream of all tokens is in the device's memory: no spill.
  Device device = Device::cpu();
};

/// quantize_checkpoint by a method. Clip search without a calibration weighs all columns alike. Everything that can be known to go wrong is
/// checked before the first computation.
MethodReport quantize_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe,
                                 const Method& method, const Calibration& calibration, const MethodRun& run = {});

}  // namespace narrow
