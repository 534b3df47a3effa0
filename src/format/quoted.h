#pragma once
/// Names and texts of others in a sentence.

#include <string>
#include <string_view>

namespace narrow {

/// 'name', with control characters as '?' and no more than 100 bytes of it: a sentence stays one line whatever a file holds.
std::string in_quotes(std::string_view name);

}  // namespace narrow
