#pragma once
/// Tensors whose values lie in files: memory that the operating system takes back when it needs it.

#include <filesystem>

#include "narrow/tensor.h"

namespace narrow::io {

class Spill {
 public:
  Spill() = default;
  /// Files go into `directory`, without names: they vanish with the tensors, however the process ends. Empty: nothing is spilled.
  explicit Spill(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// x with its values in a file, to be read alone; x itself where nothing is spilled. Throws IoError where the file cannot be written.
  Tensor keep(const Tensor& x) const;
  /// Gives the memory of what `keep` returned back until it is read again.
  void rest(const Tensor& x) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace narrow::io
