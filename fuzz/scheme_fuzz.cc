// A scheme from any text: one that prints to a text that parses to it again, or InvalidArgument.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "narrow/error.h"
#include "narrow/scheme.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::Scheme scheme = narrow::Scheme::parse({reinterpret_cast<const char*>(data), size});
    if (narrow::Scheme::parse(scheme.to_string()) != scheme) std::abort();
  } catch (const narrow::InvalidArgument&) {
  }
  return 0;
}
