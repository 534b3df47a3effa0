/// The code of fmt, once: as a header it would be compiled again in every source file, two seconds each (cmake/dependencies.cmake).

#include <fmt/format-inl.h>

namespace fmt::detail {

template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);

}  // namespace fmt::detail
