#pragma once
/// Regular expressions that come from files.

#include <regex>
#include <string>
#include <string_view>

namespace narrow::io {

/// A regular expression that matches from the start of a name. Time grows with pattern times name and never exponentially; std::regex
/// recurses with the length of what it reads, so patterns have at most 512 bytes and names 1024; a pattern's bytes times all its counts {n}
/// are at most 16384. Throws InvalidArgument for what is no expression, has back references, or is longer.
class BoundedRegex {
 public:
  explicit BoundedRegex(const std::string& pattern);
  bool matches(std::string_view name) const;

 private:
  std::string pattern_;
  std::regex regex_;
};

}  // namespace narrow::io
