# Libraries of the core, as headers: from the system, or from a folder of headers (-DNARROW_DEPS_DIR=).
add_library(narrow_headers INTERFACE)
target_compile_definitions(narrow_headers INTERFACE XXH_INLINE_ALL)
if(NARROW_DEPS_DIR)
  target_include_directories(narrow_headers SYSTEM INTERFACE ${NARROW_DEPS_DIR})
endif()
foreach(header fmt/format.h nlohmann/json.hpp xxhash.h)
  string(MAKE_C_IDENTIFIER "NARROW_HEADER_${header}" variable)
  find_path(${variable} ${header} HINTS ${NARROW_DEPS_DIR})
  if(NOT ${variable})
    message(FATAL_ERROR "header ${header} was not found; `make setup` installs it, or name a folder with -DNARROW_DEPS_DIR=")
  endif()
endforeach()

# fmt as a header costs every source file two seconds. A static library has its code once, in src/fmt.cc, which was written for version 9.
file(STRINGS ${NARROW_HEADER_fmt_format_h}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9[0-9][0-9][0-9][0-9]$")
if(fmt_version AND NOT BUILD_SHARED_LIBS AND NOT NARROW_MINIMAL)
  set(NARROW_FMT_SOURCE fmt.cc)
else()
  set(NARROW_FMT_SOURCE "")
  target_compile_definitions(narrow_headers INTERFACE FMT_HEADER_ONLY)
endif()

# Eigen, whose headers lie in a folder of their own.
find_path(NARROW_EIGEN Eigen/Core HINTS ${NARROW_DEPS_DIR} PATH_SUFFIXES eigen3)
if(NOT NARROW_EIGEN)
  message(FATAL_ERROR "header Eigen/Core was not found; `make setup` installs it, or name a folder with -DNARROW_DEPS_DIR=")
endif()
target_include_directories(narrow_headers SYSTEM INTERFACE ${NARROW_EIGEN})

if(NARROW_STATIC_COMMAND)  # an archive, not a shared object
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
