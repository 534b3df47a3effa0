#pragma once

#include "narrow/tensor.h"

namespace narrow {

/// The transpose of contiguous fp32 [rows, cols] as a new tensor; leading dimensions count as rows.
Tensor transposed(const Tensor& x);

}  // namespace narrow
