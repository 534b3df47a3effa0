#pragma once
/// The fast rows of int1 products on this architecture, best first: kernels/cpu/<arch>/binary_table.cc.

#include <span>

#include "kernels/binary.h"

namespace narrow::cpu {

std::span<const BinaryKernel> binary_rows();

}  // namespace narrow::cpu
