/// Recipe::load_yaml of a build without yaml-cpp.

#include <fmt/format.h>

#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {

Recipe Recipe::load_yaml(const std::filesystem::path& path) {
  throw Unsupported(fmt::format(
      "{} cannot be read: this build has no yaml-cpp; install it and build again, or give the recipe as arguments", path.string()));
}

}  // namespace narrow
