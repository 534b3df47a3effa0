#include "device/cpu_features.h"

#include <array>
#include <atomic>
#include <string>

#include "narrow/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace narrow {
namespace {

constexpr std::array kIsas{Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAvx512Bf16,
                           Isa::kAmx,    Isa::kNeon, Isa::kDotProd, Isa::kI8mm};

bool detect(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
#if defined(__x86_64__)
    case Isa::kAvx2: {
      unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
      const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;  // no name that all compilers know
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && has_f16c;
    }
    case Isa::kAvxVnni: {
      unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
      return detect(Isa::kAvx2) && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1u) != 0;
    }
    case Isa::kAvx512:
      return detect(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq") &&
             __builtin_cpu_supports("avx512bitalg");
    case Isa::kAvx512Bf16: return detect(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx: {
      if (!detect(Isa::kAvx512Bf16)) return false;
      unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
      if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
      const bool tiles = (edx >> 24 & 1u) != 0 && (edx >> 25 & 1u) != 0;  // AMX-TILE, AMX-INT8
      constexpr long kRequestPermission = 0x1023, kTileData = 18;         // ARCH_REQ_XCOMP_PERM
      return tiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }
#elif defined(__aarch64__)
    case Isa::kNeon: return true;
    case Isa::kDotProd: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    case Isa::kI8mm: return detect(Isa::kDotProd) && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
    default: return false;
  }
}

bool detected(Isa isa) {
  static const std::array<bool, kIsas.size()> found = [] {
    std::array<bool, kIsas.size()> result{};
    for (std::size_t i = 0; i < kIsas.size(); ++i) result[i] = detect(kIsas[i]);
    return result;
  }();
  for (std::size_t i = 0; i < kIsas.size(); ++i)
    if (kIsas[i] == isa) return found[i];
  return false;
}

// The enumerators of one architecture are ordered: each includes the ones before it.
std::atomic<Isa> highest{Isa::kCuda};

}  // namespace

std::string_view name_of(Isa isa) {
  constexpr std::array<std::string_view, 10> kNames{"scalar", "avx2", "avxvnni", "avx512", "avx512bf16",
                                                    "amx",    "neon", "dotprod", "i8mm",   "cuda"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::optional<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : kIsas)
    if (name_of(isa) == name) return isa;
  return std::nullopt;
}

std::span<const Isa> all_isas() { return kIsas; }

bool cpu_supports(Isa isa) { return isa <= highest.load(std::memory_order_relaxed) && detected(isa); }

void limit_cpu(Isa isa) {
  if (!detected(isa)) throw Unsupported("this CPU has no " + std::string(name_of(isa)) + "; `narrow kernels` lists what it has");
  highest = isa;
}

void unlimit_cpu() { highest = Isa::kCuda; }

}  // namespace narrow
