#pragma once
/// Checks of what people wrote, in their words, before any work.

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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

/// The one of `names` that at most two letters added, removed or changed make of `word`; empty where none is so near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

/// Throws IoError where no file can be written at `path`: asked before work that takes long. Creates nothing.
void check_output_file(const std::string& path);

}  // namespace narrow::command
