#pragma once
/// Which instruction sets this CPU has, and which of them may be used.

#include <optional>
#include <span>
#include <string_view>

namespace narrow {

/// Instruction sets that kernels are compiled for. A kernel names the one it needs.
enum class Isa : unsigned char {
  kScalar,      ///< any CPU
  kAvx2,        ///< AVX2, FMA, F16C, BMI2
  kAvxVnni,     ///< kAvx2 and AVX-VNNI (Alder Lake, Sierra Forest, Zen 5 and newer)
  kAvx512,      ///< AVX-512 F, BW, DQ, VL, VNNI, VBMI, VBMI2, VPOPCNTDQ, BITALG (Ice Lake, Zen 4 and newer)
  kAvx512Bf16,  ///< kAvx512 and BF16 (Cooper Lake, Zen 4 and newer)
  kAmx,         ///< kAvx512Bf16 and AMX tiles with int8
  kNeon,        ///< AArch64
  kDotProd,     ///< AArch64 with SDOT/UDOT
  kI8mm,        ///< AArch64 with SMMLA/USMMLA
  kCuda,        ///< a CUDA device
};

std::string_view name_of(Isa isa);
/// "scalar", "avx2", ...; nothing for other words.
std::optional<Isa> parse_isa(std::string_view name);
/// All CPU instruction sets, of every architecture, worst first.
std::span<const Isa> all_isas();

/// Whether the CPU has it and limit_cpu allows it.
bool cpu_supports(Isa isa);
/// From now on only this instruction set and those it includes are used; for tests and comparisons, process-wide.
/// Throws Unsupported where the CPU lacks it.
void limit_cpu(Isa isa);
void unlimit_cpu();

}  // namespace narrow
