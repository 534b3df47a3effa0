#pragma once
/// What the product and its explanation share with prepare.

#include "narrow/matmul.h"

namespace narrow {

/// Whether prepare would choose panels for a weight of finite values.
bool fits_panels(const Scheme& scheme, std::int64_t n, std::int64_t k);
/// The canonical bytes of any prepared weight, dense ones included.
QuantizedTensor unprepare_codes(const PreparedWeight& w);

}  // namespace narrow
