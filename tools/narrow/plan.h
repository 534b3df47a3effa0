#pragma once
/// A plan as JSON, for `plan` and `quantize`.

#include "narrow/recipe.h"
#include "report/json.h"

namespace narrow::command {

/// {"bytes_before", "bytes_after", "file_bytes", "bits_per_weight", "peak_memory", "free_disk", "tensors"}.
report::Json plan_object(const Plan& plan);

}  // namespace narrow::command
