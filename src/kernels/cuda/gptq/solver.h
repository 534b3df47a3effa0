#pragma once
/// Cholesky factors by cuSOLVER, where it is installed. It is loaded at run time: narrow builds and runs without it.

#include <cstdint>

#include "narrow/cuda.h"

namespace narrow::cuda {

/// Whether the library is there.
bool has_solver();

/// matrix, symmetric [k, k] in fp64, becomes L^-1 on and below the diagonal, matrix = L L^T; what is above is left as it falls. False: it
/// is not positive definite. Waits for the stream. Throws Unsupported where the library fails or is not there.
bool invert_factor(double* matrix, std::int64_t k, Device device, Stream stream);

}  // namespace narrow::cuda
