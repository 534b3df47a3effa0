/// tokenizer.json to Tokenizer: byte-level BPE; what would cut or merge differently is refused by name.

#include "model/tokenizer/read_tokenizer.h"

#include <algorithm>

#include <fmt/format.h>

#include "io/file_reader.h"
#include "io/text.h"
#include "model/tokenizer/state.h"
#include "model/tokenizer/unicode.h"
#include "narrow/error.h"

namespace narrow {
namespace {

using io::Json;
using tokenizer::AddedToken;
using tokenizer::Splitter;
using tokenizer::Step;

/// Numbers are nearly dense: what a file may ask to be allocated is bound by its own size.
constexpr std::size_t kMostHoles = 1 << 16;

/// GPT-2's alphabet: the printable bytes stand for themselves, the others for U+0100 onwards, in order.
std::vector<int> byte_of_letter() {
  std::vector<int> bytes(0x180, -1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[static_cast<std::size_t>(printable ? byte : next++)] = byte;
  }
  return bytes;
}

class Reader {
 public:
  explicit Reader(std::filesystem::path path) : path_(std::move(path)) {}

  std::shared_ptr<Tokenizer::State> read(const Json& json) {
    const Json& model = json.at("model");
    if (model.value("type", std::string("BPE")) != "BPE")
      unsupported(fmt::format("a model of type {}; narrow reads byte-level BPE", io::in_quotes(model.at("type").dump())));
    if (model.value("byte_fallback", Json(false)) == true)
      unsupported("byte_fallback (SentencePiece's kind of BPE); narrow reads byte-level BPE");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json value = model.value(key, Json()); !value.is_null() && value != "") unsupported(key);
    auto state = std::make_shared<Tokenizer::State>(
        Tokenizer::State{.bpe = tokenizer::Bpe(vocabulary(model.at("vocab")), model.value("ignore_merges", false))});
    merges(model.at("merges"), state->bpe);
    normalizer(json.value("normalizer", Json()), *state);
    pre_tokenizer(json.value("pre_tokenizer", Json()), *state);
    if (!byte_level_) unsupported("a pre-tokenizer without ByteLevel");
    decoder(json.value("decoder", Json()));
    added_tokens(json.value("added_tokens", Json::array()), *state);
    post_processor(json.value("post_processor", Json()), *state);
    return state;
  }

  [[noreturn]] void corrupt(const std::string& why) const { throw CorruptFile(fmt::format("{}: {}", path_.string(), why)); }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Unsupported(fmt::format("{}: the tokenizer has {}", path_.string(), what));
  }

 private:
  /// The bytes that a vocabulary entry's letters stand for; nothing where a letter is none of the alphabet (an added token's name).
  std::optional<std::string> bytes_of(std::string_view letters) const {
    static const std::vector<int> kAlphabet = byte_of_letter();
    std::string bytes;
    for (std::size_t place = 0; place < letters.size();) {
      const char32_t letter = unicode::next_code(letters, place);
      if (letter >= kAlphabet.size() || kAlphabet[letter] < 0) return std::nullopt;
      bytes += static_cast<char>(kAlphabet[letter]);
    }
    return bytes;
  }

  std::vector<std::string> vocabulary(const Json& vocab) const {
    if (!vocab.is_object()) corrupt("its vocab is no object");
    std::vector<std::string> tokens;
    for (const auto& [letters, number] : vocab.items()) {
      if (!number.is_number_unsigned() || number >= vocab.size() + kMostHoles)
        corrupt(fmt::format("the token {} has the number {}", io::in_quotes(letters), io::in_quotes(number.dump())));
      const std::size_t place = number.get<std::size_t>();
      if (place >= tokens.size()) tokens.resize(place + 1);
      if (const auto bytes = bytes_of(letters)) tokens[place] = *bytes;
    }
    return tokens;
  }

  void merges(const Json& list, tokenizer::Bpe& bpe) const {
    if (!list.is_array()) corrupt("its merges are no list");
    std::int32_t rank = 0;
    for (const Json& merge : list) {
      std::string left, right;
      if (merge.is_string()) {
        const std::string text = merge.get<std::string>();
        const std::size_t blank = text.find(' ');
        if (blank == std::string::npos) corrupt(fmt::format("the merge {} has no blank", io::in_quotes(text)));
        left = text.substr(0, blank);
        right = text.substr(blank + 1);
      } else {
        left = merge.at(0).get<std::string>();
        right = merge.at(1).get<std::string>();
      }
      const auto a = bytes_of(left), b = bytes_of(right);
      if (!a || !b || !bpe.add_merge(*a, *b, rank++))
        corrupt(fmt::format("the merge of {} and {} is about tokens that are not there", io::in_quotes(left), io::in_quotes(right)));
    }
  }

  void normalizer(const Json& json, Tokenizer::State& state) const {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type == "NFC") {
      state.nfc = true;
    } else if (type == "Sequence") {
      for (const Json& part : json.at("normalizers")) normalizer(part, state);
    } else {
      unsupported(fmt::format("the normalizer {}; narrow has NFC", io::in_quotes(type)));
    }
  }

  void pre_tokenizer(const Json& json, Tokenizer::State& state) {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const Json& part : json.at("pretokenizers")) pre_tokenizer(part, state);
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      Step step{.adds_blank = json.value("add_prefix_space", true)};
      if (json.value("use_regex", true)) step.splitter = Splitter{Splitter::Kind::kGpt2};
      if (step.adds_blank && !state.steps.empty()) unsupported("add_prefix_space after another pre-tokenizer");
      state.steps.push_back(step);
    } else if (type == "Digits") {
      state.steps.push_back(
          {.splitter = Splitter{json.value("individual_digits", false) ? Splitter::Kind::kDigits : Splitter::Kind::kDigitRuns}});
    } else if (type == "Split") {
      const Json& pattern = json.at("pattern");
      const std::string regex = pattern.contains("Regex") ? pattern.at("Regex").get<std::string>() : "";
      const auto splitter = tokenizer::splitter_for(regex);
      const std::string behavior = json.value("behavior", std::string("Isolated"));
      const bool keeps_all = (behavior == "Isolated" && json.value("invert", false) == false) ||
                             (behavior == "Removed" && json.value("invert", false) == true);
      if (!splitter)
        unsupported(fmt::format("the pre-tokenizer expression {}; narrow has those of GPT-2, Llama 3 and Qwen 2", io::in_quotes(regex)));
      if (!keeps_all) unsupported(fmt::format("a Split that is {}", io::in_quotes(behavior)));
      state.steps.push_back({.splitter = splitter});
    } else {
      unsupported(fmt::format("the pre-tokenizer {}; narrow has ByteLevel, Split and Digits", io::in_quotes(type)));
    }
  }

  void decoder(const Json& json) const {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type != "ByteLevel") unsupported(fmt::format("the decoder {}; narrow has ByteLevel", io::in_quotes(type)));
  }

  void added_tokens(const Json& list, Tokenizer::State& state) const {
    state.bytes = state.bpe.tokens();
    const std::size_t most = state.bytes.size() + list.size() + kMostHoles;
    for (const Json& entry : list) {
      AddedToken token;
      const Json& number = entry.at("id");
      if (!number.is_number_unsigned() || number >= most)
        corrupt(fmt::format("an added token has the number {}", io::in_quotes(number.dump())));
      token.number = number.get<std::int32_t>();
      token.content = entry.at("content").get<std::string>();
      if (token.content.empty()) corrupt("an added token is empty");
      token.special = entry.value("special", false);
      token.normalized = entry.value("normalized", !token.special);
      token.single_word = entry.value("single_word", false);
      token.strips_left = entry.value("lstrip", false);
      token.strips_right = entry.value("rstrip", false);
      const std::size_t place = static_cast<std::size_t>(token.number);
      if (place >= state.bytes.size()) state.bytes.resize(place + 1);
      state.bytes[place] = token.content;
      std::string& starts = token.normalized ? state.normalized_starts : state.raw_starts;
      if (starts.find(token.content[0]) == std::string::npos) starts += token.content[0];
      state.added.push_back(std::move(token));
    }
  }

  void post_processor(const Json& json, Tokenizer::State& state) const {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const Json& part : json.at("processors")) post_processor(part, state);
    } else if (type == "TemplateProcessing") {
      bool seen = false;
      for (const Json& item : json.at("single")) {
        if (item.contains("Sequence")) {
          seen = true;
          continue;
        }
        const std::string name = item.at("SpecialToken").at("id").get<std::string>();
        for (const Json& number : json.at("special_tokens").at(name).at("ids")) {
          if (!number.is_number_unsigned() || number >= state.bytes.size())
            corrupt(fmt::format("the special token {} has a number that is none of the vocabulary", io::in_quotes(name)));
          (seen ? state.after : state.before).push_back(number.get<std::int32_t>());
        }
      }
    } else if (type != "ByteLevel") {
      unsupported(fmt::format("the post-processor {}; narrow has ByteLevel and TemplateProcessing", io::in_quotes(type)));
    }
  }

  std::filesystem::path path_;
  bool byte_level_ = false;
};

}  // namespace

Tokenizer read_tokenizer(const io::Json& json, const std::filesystem::path& path) {
  Reader reader(path);
  try {
    return Tokenizer(reader.read(json));
  } catch (const nlohmann::json::exception&) {
    reader.corrupt("it lacks a field of a byte-level BPE tokenizer, or one has another type");
  } catch (const InvalidArgument& wrong) {
    reader.corrupt(wrong.what());
  }
}

Tokenizer open_tokenizer(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  return read_tokenizer(io::parse_json(io::read_text(file, io::kLargestJsonFile), file), file);
}

}  // namespace narrow
