#pragma once
/// The parts that the JSON of several commands share. Keys keep their order; a number that JSON cannot hold is null.

#include <nlohmann/json.hpp>

#include "narrow/quantize.h"
#include "narrow/tensor.h"

namespace narrow::report {

using Json = nlohmann::ordered_json;

/// The number; null where it is infinite or NaN.
Json number(double value);
/// {"max", "mean", "rms", "sqnr_db", "cosine"}: null sqnr_db stands for an exact copy.
Json error_object(const ErrorMetrics& error);
/// Indented text, ended by a newline. Bytes that are not UTF-8 (tensor names) become U+FFFD.
std::string json_text(const Json& json);

}  // namespace narrow::report
