// A scheme from any text: one that prints to a text that parses to it again, or InvalidArgument.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "narrow/error.h"
#include "narrow/scheme.h"

namespace {

void check_print(const narrow::Scheme& scheme) {
  if (narrow::Scheme::parse(scheme.to_string()) != scheme) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (const narrow::Scheme& scheme : narrow::standard_schemes()) check_print(scheme);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check_print(narrow::Scheme::parse({reinterpret_cast<const char*>(data), size}));
  } catch (const narrow::InvalidArgument&) {
  }
  return 0;
}
