#pragma once
/// A quantization as plan, shards and finish: what quantize_checkpoint does in one process and a cluster in many.

#include <filesystem>
#include <string>
#include <vector>

#include "methods/shard.h"
#include "narrow/recipe.h"

namespace narrow {

class QuantizeRun {
 public:
  /// Opens, plans and lays out; writes nothing. `output` is where free disk is looked for. A recipe that keeps tensors with NaN and
  /// infinities reads every tensor once for it.
  QuantizeRun(const std::filesystem::path& input, Recipe recipe, const std::filesystem::path& output);
  QuantizeRun(const QuantizeRun&) = delete;  // files point into the plan
  QuantizeRun& operator=(const QuantizeRun&) = delete;

  const Checkpoint& input() const { return input_; }
  const Recipe& recipe() const { return recipe_; }
  const Plan& plan() const { return plan_; }
  const std::vector<OutputFile>& files() const { return files_; }
  /// Throws where the place is taken, lies in the input or has too little room.
  void check_output(const std::filesystem::path& output) const;

  /// One file into the directory `place`; `work.options` are the recipe's.
  ShardResult write(const OutputFile& file, const std::filesystem::path& place, ShardWork work) const;
  /// Side files and manifest into `place`; `results` are in the order of files().
  QuantizeReport finish(const std::filesystem::path& place, std::vector<ShardResult> results) const;

 private:
  std::filesystem::path source_;
  Checkpoint input_;
  Recipe recipe_;
  Plan plan_;
  std::vector<KeptTensor> kept_;  ///< by the recipe's policy for values that are not finite
  std::vector<OutputFile> files_;
  std::string config_;
};

}  // namespace narrow
