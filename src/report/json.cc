#include "report/json.h"

#include <cmath>

namespace narrow::report {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json error_object(const ErrorMetrics& error) {
  return {{"max", number(error.max_absolute)},
          {"mean", number(error.mean_absolute)},
          {"rms", number(error.rms)},
          {"sqnr_db", number(error.sqnr_db)},
          {"cosine", number(error.cosine)}};
}

std::string json_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace narrow::report
