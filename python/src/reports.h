#pragma once
/// Recipes, progress and reports of quantizing at the boundary to Python.

#include <functional>

#include "array.h"
#include "narrow/recipe.h"

namespace narrow::python {

Recipe make_recipe(std::string_view scheme, const std::vector<std::string>& targets, const std::vector<std::string>& ignore,
                   const std::vector<std::pair<std::string, std::string>>& rules, std::string_view on_nonfinite = "error");
/// Calls progress(name, bytes done, bytes total) with the interpreter's lock; `progress` must outlive the result.
ProgressCallback report_to(const std::function<void(std::string, std::uint64_t, std::uint64_t)>& progress);
nb::dict as_dict(const QuantizeReport& report);

}  // namespace narrow::python
