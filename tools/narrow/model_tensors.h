#pragma once
/// The tensors of a checkpoint by the names of the plain model, whoever quantized it.

#include <optional>
#include <string>
#include <vector>

#include "io/interop.h"
#include "narrow/checkpoint.h"

namespace narrow::command {

/// A tensor as it was read: the values that it stands for, fp32 where it is quantized, and how it is stored.
struct ModelTensor {
  Tensor values;
  std::optional<Scheme> scheme{};              ///< of a quantized one
  std::optional<QuantizedTensor> quantized{};  ///< its codes and scales; not where columns have an order of their own
};

/// A plain checkpoint, one of narrow's own form, or one of a form that `narrow convert` reads.
class ModelTensors {
 public:
  /// Opens a file or a directory, as open_checkpoint does.
  explicit ModelTensors(const std::string& path);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  /// Whose form it has: "narrow", "ct", ..; empty for a plain one.
  std::string form() const;
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Whether it is a weight that another ecosystem's tensors hold: no header says its shape.
  bool is_foreign(const std::string& name) const { return foreign_ && foreign_->is_quantized(name); }
  /// Of all parts, as they lie in the files.
  std::uint64_t stored_bytes(const std::string& name) const;
  ModelTensor read(const std::string& name) const;

 private:
  Checkpoint checkpoint_;
  std::optional<io::InteropReader> foreign_;
};

}  // namespace narrow::command
