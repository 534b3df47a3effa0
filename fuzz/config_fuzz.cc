// A config.json from any text, beside a small quantized module: a model's configuration, and weights in the form that it names, or an
// Error.
#include <filesystem>
#include <fstream>

#include "as_file.h"
#include "io/interop.h"
#include "json_mutator.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace {

namespace fs = std::filesystem;

/// A module with the tensors of GPTQ, AWQ, compressed-tensors and fp8 blocks, all under other names.
fs::path make_model() {
  std::string name = (fs::temp_directory_path() / "narrow-fuzz-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  using narrow::DType;
  using narrow::Tensor;
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const char* tensor, DType dtype, narrow::Shape shape) {
    const Tensor x = tensors[tensor] = Tensor::empty(dtype, std::move(shape));
    for (std::size_t i = 0; i < x.byte_size(); ++i) x.data()[i] = static_cast<std::byte>(0x11 + i % 7);
  };
  add("g.qweight", DType::kI32, {4, 32});
  add("g.qzeros", DType::kI32, {1, 4});
  add("g.scales", DType::kF16, {1, 32});
  add("c.weight_packed", DType::kI32, {32, 4});
  add("c.weight_scale", DType::kF16, {32, 1});
  add("c.weight_shape", DType::kI64, {2});
  tensors["c.weight_shape"].as<std::int64_t>()[0] = tensors["c.weight_shape"].as<std::int64_t>()[1] = 32;
  add("f.weight", DType::kF8E4m3, {32, 32});
  add("f.weight_scale_inv", DType::kF32, {1, 1});
  narrow::write_safetensors(name + "/model.safetensors", tensors);
  return name;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return narrow::fuzz::mutate_json(data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fs::path place = make_model();
  std::ofstream(place / "config.json", std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const narrow::Checkpoint checkpoint = narrow::open_checkpoint(place);
    try {
      narrow::read_model_config(checkpoint);
    } catch (const narrow::Error&) {
    }
    const auto reader = narrow::io::InteropReader::open(checkpoint);
    if (!reader) return 0;
    for (const std::string& name : reader->names())
      if (reader->is_quantized(name)) reader->read(name);
  } catch (const narrow::Error&) {
  }
  return 0;
}
