# Flags of our own targets; consumers of the library see none of them.
add_library(narrow_flags INTERFACE)
# Results must not depend on how the compiler contracts or reorders: no FMA unless it is written, no fast math.
target_compile_options(narrow_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# -Wno-restrict: g++ 12 sees overlaps in std::string that are not there.
target_compile_options(narrow_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow> -Wconversion -Wno-sign-conversion -Wpedantic $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>>)
if(NARROW_WARNINGS_AS_ERRORS)
  target_compile_options(narrow_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(NARROW_SANITIZE)
  target_compile_options(narrow_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NARROW_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  # g++ 12 takes std::regex under the sanitizers for uninitialised.
  target_compile_options(narrow_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(narrow_flags INTERFACE -fsanitize=${NARROW_SANITIZE})
else()
  target_compile_options(narrow_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=2>>)
  target_link_options(narrow_flags INTERFACE $<$<PLATFORM_ID:Linux>:LINKER:-z,relro,-z,now,-z,noexecstack>)  # tools/dev/check_hardening.py
endif()
if(NARROW_STATIC_COMMAND)  # what the linker can leave out, it finds by sections
  target_compile_options(narrow_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections -fdata-sections>)
endif()
