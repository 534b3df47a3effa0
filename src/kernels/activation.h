#pragma once
/// The activation functions of epilogues.

#include <cstdint>

#include "narrow/matmul.h"

namespace narrow {
#include "kernels/activation.inl"
}  // namespace narrow
