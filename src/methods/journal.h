#pragma once
/// What a run by a method has done so far, on disk: one file per weight, so that a killed run goes on where it stopped.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "narrow/methods.h"

namespace narrow {

/// Everything that the weights of a run depend on, as 16 hexadecimal digits: the model's bytes, each tensor's scheme, the method, the text
/// or the statistics, and whether a GPU computes.
std::string fingerprint_of(const Checkpoint& input, const Plan& plan, const Method& method, const Calibration& calibration,
                           Device device = Device::cpu());

class Journal {
 public:
  /// No directory: nothing is kept. Otherwise it is made, or opened where it is the same run's; throws InvalidArgument for another one's.
  Journal(std::filesystem::path directory, const std::string& fingerprint);

  struct Entry {
    FittedModule module;
    QuantizedTensor quantized;
  };
  std::optional<Entry> find(const std::string& tensor, const Scheme& scheme, const Shape& shape) const;
  /// Durable when it returns.
  void add(const std::string& tensor, const Entry& entry) const;
  /// The state of a step that goes through the whole model, under its name: what it was given last, durable when `keep` returns.
  void keep(const std::string& step, const std::map<std::string, Tensor>& state) const;
  std::optional<Checkpoint> kept(const std::string& step) const;
  bool is_kept_on_disk() const { return !directory_.empty(); }
  /// The run is complete: the directory goes.
  void remove() const;

 private:
  std::filesystem::path directory_;
};

}  // namespace narrow
