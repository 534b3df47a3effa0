#include "io/bounded_regex.h"

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::size_t kLongestPattern = 512, kLongestName = 1024, kMostDigits = 6;

/// std::regex adds up the digits of {n,m} and of back references without a limit, and overflows.
bool has_endless_number(const std::string& pattern) {
  std::size_t digits = 0;
  char before = ' ';
  for (const char c : pattern) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits == 0) before = c;
    if (digits > kMostDigits && (before == '{' || before == ',' || before == '\\')) return true;
  }
  return false;
}

std::regex compiled(const std::string& pattern) {
  if (pattern.size() > kLongestPattern)
    throw InvalidArgument(fmt::format("the pattern {} is longer than {} characters", in_quotes(pattern), kLongestPattern));
  if (has_endless_number(pattern)) throw InvalidArgument(fmt::format("the pattern {} repeats too often", in_quotes(pattern)));
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
