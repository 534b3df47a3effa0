#pragma once
/// What writing another ecosystem's form gave; shared by convert and quantize --export.

#include <optional>
#include <string>

#include "context.h"
#include "narrow/interop.h"

namespace narrow::command {

/// Whether every weight has its line, or the worst alone.
enum class Proof : std::uint8_t { kShown, kWorst };

void print_interop_report(Context& context, const std::string& input, const std::string& output, const InteropReport& report, Proof proof);

/// gguf or gguf:TYPE: TYPE, empty where none is named; nothing for another form.
std::optional<std::string> gguf_type(const std::string& form);
void print_gguf_report(Context& context, const std::string& input, const std::string& output, const std::string& form,
                       const GgufReport& report);

}  // namespace narrow::command
