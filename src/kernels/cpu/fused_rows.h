#pragma once
/// The fast rows of the fused neighbours on this architecture, best first: kernels/cpu/<arch>/fused_table.cc.

#include <span>

#include "kernels/fused.h"

namespace narrow::cpu {

std::span<const FusedKernel> fused_rows();

}  // namespace narrow::cpu
