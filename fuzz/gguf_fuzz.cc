// A GGUF header from any bytes: tensors that lie in the file, or an Error.
#include "as_file.h"
#include "gguf_mutator.h"
#include "io/gguf_file.h"
#include "narrow/error.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return narrow::fuzz::mutate_gguf(data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static narrow::fuzz::AsFile file;
  try {
    const narrow::io::FileReader reader(file.with(data, size));
    for (const narrow::io::GgufTensor& tensor : narrow::io::read_gguf(reader).tensors)
      if (tensor.begin > size || tensor.bytes > size - tensor.begin) std::abort();
  } catch (const narrow::CorruptFile&) {
  } catch (const narrow::Unsupported&) {
  }
  return 0;
}
