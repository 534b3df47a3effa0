// A tokenizer.json from any text: one whose tokens give a text back, or an Error.
#include <algorithm>

#include "as_file.h"
#include "json_target.h"
#include "model/tokenizer/unicode.h"
#include "narrow/error.h"
#include "narrow/tokenizer.h"

namespace {

/// Entries for all bytes in GPT-2's alphabet, numbered from 0: without them no vocabulary is accepted, and no mutation would keep them.
std::string all_bytes() {
  std::string entries;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    entries += byte == 0 ? "\"" : ",\"";
    if (byte == '"' || byte == '\\') entries += '\\';
    narrow::unicode::append_utf8(entries, printable ? byte : next++);
    entries += "\":" + std::to_string(byte);
  }
  return entries;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view
      kMark = "\"BYTES\":0",
      kTexts = "I'll the  <s> 1234\t\n\xC3\xA9 e\xCC\x81\xCC\xA7 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8 \xF0\x9F\x98\x80x'S";
  constexpr std::size_t kTail = 24;
  static narrow::fuzz::AsFile file;
  static const std::string entries = all_bytes();
  std::string text(reinterpret_cast<const char*>(data), size);
  const std::string tail = text.substr(size - std::min(size, kTail));
  if (const std::size_t mark = text.find(kMark); mark != std::string::npos) text.replace(mark, kMark.size(), entries);
  try {
    const narrow::Tokenizer tokenizer = narrow::open_tokenizer(file.with(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
    for (const std::string_view part : {kTexts, std::string_view(tail)}) {
      const std::vector<std::int32_t> tokens = tokenizer.encode(part, true);
      for (const std::int32_t token : tokens)
        if (token < 0 || token >= tokenizer.size()) std::abort();
      tokenizer.decode(tokens, true);
    }
  } catch (const narrow::CorruptFile&) {
  } catch (const narrow::Unsupported&) {
  } catch (const narrow::InvalidArgument&) {  // the end of the input is no UTF-8
  }
  return 0;
}
