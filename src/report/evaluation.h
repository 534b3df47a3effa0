#pragma once
/// An evaluation for machines and for people.

#include <string>

#include "narrow/evaluate.h"
#include "report/json.h"
#include "report/style.h"

namespace narrow::report {

/// {"weights", "activations", "bits_per_weight", "weight_bytes"}: the schemes of the Linear layers, most used first.
Json model_object(const Model& model);
/// `scored_bytes`: of the text that the scored tokens stand for; 0: unknown, and bits_per_byte is null.
Json evaluation_object(const Evaluation& evaluation, std::uint64_t scored_bytes);
std::string evaluation_text(const Style& style, const Model& model, const Evaluation& evaluation, std::uint64_t scored_bytes);

/// "int8:row", or "int8:row, bf16" where layers differ: the one of most layers first.
std::string weights_text(const Model& model);
/// The same of activations; "fp32" where they are not rounded.
std::string activations_text(const Model& model);

}  // namespace narrow::report
