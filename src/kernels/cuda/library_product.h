#pragma once
/// Products of one-byte elements by cuBLASLt, one more row of the tables where the library is installed. It is loaded at run time: narrow
/// builds and runs without it.

#include <string_view>

#include "kernels/cuda/byte_product.h"

namespace narrow::cuda {

/// Why the library does not take a product, in words; empty: it does. What the library itself refuses is known on a device alone.
std::string_view library_refuses(const ByteProblem& problem);
/// The same, asked on the current device of the library itself.
bool library_takes(const ByteProblem& problem);
/// Estimated microseconds on an H200.
double estimate_library_product(const ByteProblem& problem);
/// CUDA's error code.
int launch_library_product(const ByteProblem& problem, Stream stream);

}  // namespace narrow::cuda
