#pragma once
/// One self-contained HTML page about a model and its quantized forms.

#include <string>
#include <vector>

#include "narrow/evaluate.h"
#include "report/json.h"

namespace narrow::report {

struct PageModel {
  std::string name;
  Model model;
};

struct PageInput {
  std::string path;             ///< of the plain model
  Json answer;                  ///< what `narrow compare --json` prints
  const TokenWindows& windows;  ///< the first few show the activations
  Model base;
  std::vector<PageModel> models{};
};

/// The page: its data as JSON inside the template page.html.
std::string model_page(const PageInput& input);
/// That data: the answer, with per-tensor errors, histograms, code values and outlier channels.
Json page_data(const PageInput& input);

}  // namespace narrow::report
