#pragma once
/// How checkpoints name the tensors of a module.

#include <string_view>

namespace narrow {

inline constexpr std::string_view kWeight = ".weight";  ///< ends the name of a layer's weight; what is before it names the layer

}  // namespace narrow
