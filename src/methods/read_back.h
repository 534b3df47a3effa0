#pragma once
/// After a file is written: every tensor is read from it again, hashed, and compared with its source.

#include <string>

#include "io/file_reader.h"
#include "io/manifest.h"
#include "io/safetensors_writer.h"
#include "narrow/recipe.h"

namespace narrow {

struct ReadBack {
  ErrorMetrics error;                ///< over the source's finite values
  double clipped = 0.0;              ///< share of the elements
  double signal = 0.0, noise = 0.0;  ///< sum x^2, sum (x - y)^2
  SpecialValues source{};
};

/// What the codes of a tensor are: the nearest to its values, which is checked, or a method's choice, which only their hash can tell.
enum class Codes : std::uint8_t { kNearest, kAny };

/// A file that was just written. Throws CorruptFile where it is not what was written, or where the input changed meanwhile.
class WrittenFile {
 public:
  WrittenFile(const std::filesystem::path& path, const io::SafetensorsLayout& layout);
  void check_copy(const Checkpoint& input, const std::string& name, const io::Manifest::LogicalTensor& expected) const;
  ReadBack check_quantized(const Checkpoint& input, const std::string& name, const io::Manifest::LogicalTensor& expected,
                           Codes codes) const;

 private:
  const TensorInfo& find(const std::string& name) const;
  Buffer read_part(const std::string& name, const io::Manifest::LogicalTensor& expected) const;

  io::FileReader file_;
  std::vector<TensorInfo> tensors_;  // by name
};

}  // namespace narrow
