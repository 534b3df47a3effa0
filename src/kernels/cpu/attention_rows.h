#pragma once
/// The fast rows of attention on this architecture, best first: kernels/cpu/<arch>/attention_table.cc.

#include <span>

#include "kernels/attention.h"

namespace narrow::cpu {

std::span<const AttentionKernel> attention_rows();

}  // namespace narrow::cpu
