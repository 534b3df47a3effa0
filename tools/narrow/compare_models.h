#pragma once
/// narrow compare MODEL SCHEME ...: accuracy, size and speed of several schemes in one run, and the page about it.

#include <string>
#include <vector>

#include "commands.h"
#include "model_options.h"

namespace narrow::command {

struct CompareModelsOptions {
  std::string model, report;
  std::vector<std::string> schemes;  ///< schemes, presets, or directories of quantized models
  bool errors = false;
  TokenOptions tokens;
  SchemeOptions scheme;
};
/// The table (and the page) of several schemes.
void run_compare_models(Context& context, const CompareModelsOptions& options);
/// E4M3 with one scale per tensor, per row and per block of 128, on the layers with the largest outliers.
void run_compare_errors(Context& context, const CompareModelsOptions& options);

}  // namespace narrow::command
