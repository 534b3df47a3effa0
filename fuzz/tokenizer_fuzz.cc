// A tokenizer.json from any text: one whose tokens give a text back, or an Error.
#include "as_file.h"
#include "json_mutator.h"
#include "narrow/error.h"
#include "narrow/tokenizer.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return narrow::fuzz::mutate_json(data, size, most, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static narrow::fuzz::AsFile file;
  try {
    const narrow::Tokenizer tokenizer = narrow::open_tokenizer(file.with(data, size));
    for (const std::int32_t token : tokenizer.encode("the <s> 12 \xC3\xA9\n", true))
      if (token < 0 || token >= tokenizer.size()) std::abort();
  } catch (const narrow::CorruptFile&) {
  } catch (const narrow::Unsupported&) {
  } catch (const narrow::InvalidArgument&) {  // a text with letters that the vocabulary lacks
  }
  return 0;
}
