#pragma once
/// Checks of what people wrote, in their words, before any work.

#include <charconv>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace narrow::command {

/// A check of an option: a number from `least` to `most`; NaN is none.
template <typename Number>
CLI::Validator number_from(Number least, Number most) {
  return CLI::Validator(
      [=](const std::string& text) {
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
        return good ? std::string() : fmt::format("'{}' is not a number from {} to {}", text, least, most);
      },
      "");
}

/// Throws IoError where no file can be written at `path`: asked before work that takes long. Creates nothing.
void check_output_file(const std::string& path);

}  // namespace narrow::command
