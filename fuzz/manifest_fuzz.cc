// A manifest from any text, given a right hash so that what follows is reached: parsed, or CorruptFile. The same text as what files of
// transformers say of their tensors.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/hash.h"
#include "io/manifest.h"
#include "io/quantized_layout.h"
#include "narrow/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHash = 16, kTail = 4;
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size > kHash + kTail && text.ends_with("\"\n}\n")) {
    text.replace(size - kHash - kTail, kHash, kHash, '0');
    text.replace(size - kHash - kTail, kHash, narrow::io::hash_of(text));
  }
  try {
    for (const auto& [name, tensor] : narrow::io::parse_saved_tensors(text, "metadata"))
      if (narrow::io::stored_parts(name, *tensor.scheme, tensor.shape).empty()) std::abort();
  } catch (const narrow::CorruptFile&) {
  }
  try {
    const narrow::io::Manifest manifest = narrow::io::parse_manifest(text, "manifest");
    if (narrow::io::parse_manifest(narrow::io::print_manifest(manifest), "again").tensors.size() != manifest.tensors.size()) std::abort();
  } catch (const narrow::CorruptFile&) {
  }
  return 0;
}
