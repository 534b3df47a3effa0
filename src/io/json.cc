#include "io/json.h"

#include <limits>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kMostOrderedKeys = 32768;

/// Checks depth and duplicate keys without building anything.
class Check {
 public:
  std::string problem;
  std::size_t most_keys = std::numeric_limits<std::size_t>::max();

  bool start_object(std::size_t) {
    keys_.emplace_back();
    return enter();
  }
  bool end_object() {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool key(std::string& text) {
    const bool is_new = keys_.back().insert(text).second;
    if (is_new && keys_.back().size() <= most_keys) return true;
    problem = is_new ? fmt::format("an object has more than {} keys", most_keys) : fmt::format("the key {} is there twice in one object", in_quotes(text));
    return false;
  }
  bool start_array(std::size_t) { return enter(); }
  bool end_array() {
    --depth_;
    return true;
  }
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    problem = fmt::format("it is not valid JSON at offset {}", position > 0 ? position - 1 : 0);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= kDeepest) return true;
    problem = fmt::format("it nests deeper than {} levels", kDeepest);
    return false;
  }
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

void check(std::string_view text, const std::filesystem::path& path, Check&& check) {
  const auto reject = [&](const std::string& why) { throw CorruptFile(fmt::format("{}: {}", path.string(), why)); };
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) reject(fmt::format("it has a NUL at offset {}", nul));
  if (text.starts_with("\xEF\xBB\xBF")) reject("it begins with a byte-order mark");
  if (!Json::sax_parse(text.begin(), text.end(), &check)) reject(check.problem);
}

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& path) {
  check(text, path, Check{});
  return Json::parse(text.begin(), text.end());
}

namespace {

/// nlohmann converts any number to any type: what does not fit would be undefined.
std::int64_t checked_whole(const Json& value, std::string_view what) {
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
                                               : value.is_number_integer();
  if (!fits) throw InvalidArgument(fmt::format("{} is {}, which is no whole number", what, in_quotes(value.dump())));
  return value.get<std::int64_t>();
}

}  // namespace

std::int64_t whole_number(const Json& object, const char* key) { return checked_whole(object.at(key), key); }
std::int64_t whole_number(const Json& array, std::size_t index) { return checked_whole(array.at(index), "a number of a list"); }

OrderedJson parse_ordered_json(std::string_view text, const std::filesystem::path& path) {
  Check limited;
  limited.most_keys = kMostOrderedKeys;
  check(text, path, std::move(limited));
  return OrderedJson::parse(text.begin(), text.end());
}

}  // namespace narrow::io
