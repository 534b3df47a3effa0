#pragma once
/// The fast rows of logits on this architecture, best first: kernels/cpu/<arch>/attention_table.cc.

#include <span>

#include "kernels/logits.h"

namespace narrow::cpu {

std::span<const LogitsKernel> logits_rows();

}  // namespace narrow::cpu
