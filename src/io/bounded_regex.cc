#include "io/bounded_regex.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::size_t kLongestPattern = 512, kLongestName = 1024, kMostStates = 16384;

/// Every {n,m} copies what it repeats, those within others once for each copy, and matching takes time and stack for all of them: the
/// length times all counts is held to a limit. std::regex also adds up the digits of counts and back references without one, and overflows.
bool repeats_too_often(const std::string& pattern) {
  std::size_t states = pattern.size(), number = 0, count = 1;
  bool counts = false, refers = false;  // within {}, after a backslash
  for (const char c : pattern) {
    if (c >= '0' && c <= '9') {
      number = 10 * number + static_cast<std::size_t>(c - '0');
      if (number > kMostStates && (counts || refers)) return true;
      if (counts) count = std::max(count, number);
      number = std::min(number, kMostStates);
      continue;
    }
    number = 0;
    refers = c == '\\';
    counts = c == '{' || (counts && c == ',');
    if (c != '}') continue;
    states *= std::exchange(count, 1);
    if (states > kMostStates) return true;
  }
  return false;
}

std::regex compiled(const std::string& pattern) {
  if (pattern.size() > kLongestPattern)
    throw InvalidArgument(fmt::format("the pattern {} is longer than {} characters", in_quotes(pattern), kLongestPattern));
  if (repeats_too_often(pattern)) throw InvalidArgument(fmt::format("the pattern {} repeats too often", in_quotes(pattern)));
  auto flags = std::regex::ECMAScript | std::regex::optimize;
#if defined(__GLIBCXX__)
  flags |= std::regex_constants::__polynomial;  // no exponential backtracking, and no back references
#endif
  try {
    return std::regex(pattern, flags);
  } catch (const std::regex_error& error) {
    throw InvalidArgument(fmt::format("{} is not a regular expression: {}", in_quotes(pattern), error.what()));
  }
}

}  // namespace

BoundedRegex::BoundedRegex(const std::string& pattern) : pattern_(pattern), regex_(compiled(pattern)) {}

bool BoundedRegex::matches(std::string_view name) const {
  if (name.size() > kLongestName)
    throw InvalidArgument(
        fmt::format("{} has {} characters, too long for the pattern {}", in_quotes(name), name.size(), in_quotes(pattern_)));
  try {
    return std::regex_search(name.begin(), name.end(), regex_, std::regex_constants::match_continuous);
  } catch (const std::regex_error& error) {
    throw InvalidArgument(fmt::format("the pattern {} is too complex: {}", in_quotes(pattern_), error.what()));
  }
}

}  // namespace narrow::io
