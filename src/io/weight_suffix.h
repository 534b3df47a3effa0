#pragma once
/// How checkpoints name the weight of a module.

#include <string_view>

namespace narrow::io {

/// Ends the name of a module's weight; what is before it names the module.
inline constexpr std::string_view kWeightSuffix = ".weight";

}  // namespace narrow::io
