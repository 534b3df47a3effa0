#pragma once
/// The fast rows of MSFP products on this architecture, best first: kernels/cpu/<arch>/msfp_table.cc.

#include <span>

#include "kernels/msfp.h"

namespace narrow::cpu {

std::span<const MsfpKernel> msfp_rows();

}  // namespace narrow::cpu
