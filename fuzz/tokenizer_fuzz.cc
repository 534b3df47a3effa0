// A tokenizer.json from any text: one whose tokens give a text back, or an Error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "model/tokenizer/read_tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "narrow/error.h"

namespace {

using narrow::io::Json;

/// Entries for all bytes in GPT-2's alphabet, numbered from 0: without them no vocabulary is accepted, and no mutation would keep them.
Json::object_t all_bytes() {
  Json::object_t entries;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string letter;
    narrow::unicode::append_utf8(letter, printable ? byte : next++);
    entries[letter] = byte;
  }
  return entries;
}

/// The vocabulary with an entry "BYTES", which stands for those of all bytes; null where there is none.
Json::object_t* marked_vocabulary(Json& json) {
  if (!json.is_object() || !json.contains("model") || !json["model"].is_object() || !json["model"].contains("vocab")) return nullptr;
  Json& vocab = json["model"]["vocab"];
  return vocab.is_object() && vocab.contains("BYTES") ? &vocab.get_ref<Json::object_t&>() : nullptr;
}

/// Puts the entries of all bytes into a vocabulary, and takes them out again: they are made once.
class WithBytes {
 public:
  explicit WithBytes(Json& json) : vocabulary_(marked_vocabulary(json)) {
    if (vocabulary_ == nullptr) return;
    vocabulary_->erase("BYTES");
    for (const auto& [letters, number] : *vocabulary_)
      if (!entries().contains(letters)) own_.push_back(letters);
    entries().merge(*vocabulary_);
    vocabulary_->swap(entries());
  }
  ~WithBytes() {
    if (vocabulary_ == nullptr) return;
    vocabulary_->swap(entries());
    for (const std::string& letters : own_) entries().erase(letters);
  }
  WithBytes(const WithBytes&) = delete;
  WithBytes& operator=(const WithBytes&) = delete;

 private:
  static Json::object_t& entries() {
    static Json::object_t entries = all_bytes();
    return entries;
  }
  Json::object_t* vocabulary_;
  std::vector<std::string> own_;  // what it had besides
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kTexts =
      "I'll the  <s> 1234\t\n\xC3\xA9 e\xCC\x81\xCC\xA7 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8 \xF0\x9F\x98\x80x'S";
  constexpr std::size_t kTail = 24;
  const std::string_view text(reinterpret_cast<const char*>(data), size), tail = text.substr(size - std::min(size, kTail));
  try {
    Json json = narrow::io::parse_json(text, "tokenizer.json");
    const WithBytes all(json);
    const narrow::Tokenizer tokenizer = narrow::read_tokenizer(json, "tokenizer.json");
    for (const std::string_view part : {kTexts, tail}) {
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
