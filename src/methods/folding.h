#pragma once
/// What a method folds into a model before any code is chosen, written as a plain checkpoint for the time of the run.

#include <memory>

#include "io/atomic_file.h"
#include "narrow/methods.h"

namespace narrow {

/// The model that codes are chosen for, with what is known of it.
class FoldedModel {
 public:
  /// Folds what the method asks for; files go beside `output` and vanish with this object. Fills static scales that the recipe lacks.
  FoldedModel(const std::filesystem::path& input, const std::filesystem::path& output, const Recipe& recipe, const Method& method,
              const Calibration& calibration);

  const std::filesystem::path& path() const { return path_; }
  const Recipe& recipe() const { return recipe_; }
  /// Of the folded model: the windows, or the statistics as the folding changed them.
  Calibration calibration() const { return {windows_, statistics_ ? statistics_.get() : given_}; }

 private:
  std::filesystem::path path_;
  Recipe recipe_;
  std::span<const std::vector<std::int32_t>> windows_;
  const CalibrationStatistics* given_;
  std::unique_ptr<CalibrationStatistics> statistics_;
  std::vector<std::unique_ptr<io::AtomicDirectory>> scratch_;
};

}  // namespace narrow
