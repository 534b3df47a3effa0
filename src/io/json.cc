#include "io/json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kMostOrderedKeys = 32768;

/// The keys of the objects that are open, the innermost object's last. One text holds all of them: a key costs no memory of its own.
class OpenKeys {
 public:
  void start_object() { objects_.push_back({keys_.size(), text_.size()}); }
  void add(std::string_view key) {
    keys_.push_back({text_.size(), key.size()});
    text_ += key;
  }
  std::size_t count() const { return keys_.size() - objects_.back().keys; }
  /// A key that the innermost object, which ends, has twice.
  std::optional<std::string> end_object() {
    const auto view = [this](Place place) { return std::string_view(text_).substr(place.begin, place.size); };
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(objects_.back().keys);
    std::sort(first, keys_.end(), [&](Place a, Place b) { return view(a) < view(b); });
    const auto twin = std::adjacent_find(first, keys_.end(), [&](Place a, Place b) { return view(a) == view(b); });
    if (twin != keys_.end()) return std::string(view(*twin));
    keys_.erase(first, keys_.end());
    text_.resize(objects_.back().text);
    objects_.pop_back();
    return std::nullopt;
  }

 private:
  struct Place {
    std::size_t begin, size;
  };
  struct Object {
    std::size_t keys, text;  // how much there was before it
  };
  std::string text_;
  std::vector<Place> keys_;
  std::vector<Object> objects_;
};

/// Checks depth and duplicate keys without building anything.
class Check {
 public:
  std::string problem;
  std::size_t most_keys = std::numeric_limits<std::size_t>::max();

  bool start_object(std::size_t) {
    keys_.start_object();
    return enter();
  }
  bool end_object() {
    --depth_;
    const std::optional<std::string> twin = keys_.end_object();
    return !twin || fail(fmt::format("the key {} is there twice in one object", in_quotes(*twin)));
  }
  bool key(const std::string& text) {
    keys_.add(text);
    return keys_.count() <= most_keys || fail(fmt::format("an object has more than {} keys", most_keys));
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
    return fail(fmt::format("it is not valid JSON at offset {}", position > 0 ? position - 1 : 0));
  }

 private:
  bool fail(std::string why) {
    problem = std::move(why);
    return false;
  }
  bool enter() { return ++depth_ <= kDeepest || fail(fmt::format("it nests deeper than {} levels", kDeepest)); }

  int depth_ = 0;
  OpenKeys keys_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw CorruptFile(fmt::format("{}: {}", path.string(), why));
}

void check_beginning(std::string_view text, const std::filesystem::path& path) {
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) refuse(path, fmt::format("it has a NUL at offset {}", nul));
  if (text.starts_with("\xEF\xBB\xBF")) refuse(path, "it begins with a byte-order mark");
}

/// Builds what the text says, and checks it on the way: reading takes most of the time, and is done once.
template <typename Value>
Value checked(std::string_view text, const std::filesystem::path& path, Check&& check) {
  using Event = typename Value::parse_event_t;
  check_beginning(text, path);
  const auto step = [&](int, Event event, Value& value) {
    bool goes_on = true;
    if (event == Event::object_start) goes_on = check.start_object(0);
    if (event == Event::object_end) goes_on = check.end_object();
    if (event == Event::key) goes_on = check.key(value.template get_ref<const std::string&>());
    if (event == Event::array_start) goes_on = check.start_array(0);
    if (event == Event::array_end) goes_on = check.end_array();
    if (!goes_on) refuse(path, check.problem);
    return true;
  };
  try {
    return Value::parse(text.begin(), text.end(), step);
  } catch (const nlohmann::json::parse_error& error) {
    check.parse_error(error.byte, "", error);
  } catch (const nlohmann::json::exception&) {
    check_json(text, path);  // a number beyond all types: says where
  }
  refuse(path, check.problem);
}

}  // namespace

void check_json(std::string_view text, const std::filesystem::path& path) {
  check_beginning(text, path);
  Check check;
  if (!Json::sax_parse(text.begin(), text.end(), &check)) refuse(path, check.problem);
}

Json parse_json(std::string_view text, const std::filesystem::path& path) { return checked<Json>(text, path, Check{}); }

namespace {

/// nlohmann converts any number to any type: what does not fit would be undefined.
std::int64_t checked_whole(const Json& value, std::string_view what) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
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
  return checked<OrderedJson>(text, path, std::move(limited));
}

}  // namespace narrow::io
