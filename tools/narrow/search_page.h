#pragma once
/// What a search measured, as one file of HTML; nothing is loaded.

#include <string>

#include "narrow/search.h"

namespace narrow::command {

/// The predicted divergence of every layer in every scheme of the menu, the choice marked, and the best that other budgets give.
std::string search_page(const std::string& model, const SearchResult& result);

}  // namespace narrow::command
