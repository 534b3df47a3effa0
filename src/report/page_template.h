#pragma once
/// page.html, embedded when narrow is built (src/report/CMakeLists.txt).

#include <string_view>

namespace narrow::report {

std::string_view page_template();

}  // namespace narrow::report
