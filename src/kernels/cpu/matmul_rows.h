#pragma once
/// The vector bodies of one instruction set, and the table rows made of them: the rows of two sets differ in names and bodies alone.

#include <vector>

#include "kernels/cpu/matmul_task.h"
#include "kernels/matmul.h"

namespace narrow::cpu {

using MatmulRun = void (*)(const MatmulProblem&, const MatmulTile&, const std::byte* packed, std::byte* scratch);
using MatmulPack = void (*)(const MatmulProblem&, std::int64_t m_begin, std::int64_t m_end, std::byte* packed);
using MatmulScratch = std::size_t (*)(const MatmulProblem&);

/// Null: the instruction set has no such body. matmul_bodies.inl fills it.
struct MatmulBodies {
  MatmulRun fp32 = nullptr, float16 = nullptr, float8 = nullptr, float6 = nullptr, int8 = nullptr;
  MatmulRun int4 = nullptr, int3 = nullptr, code5 = nullptr, code4 = nullptr, code3 = nullptr, code2 = nullptr, code1 = nullptr;
  MatmulRun code4_zero = nullptr, code3_zero = nullptr, code2_zero = nullptr;
  MatmulPack float_pack = nullptr;
  MatmulScratch float_scratch = nullptr;
  std::int64_t float_rows = 0;
  MatmulRun dot8 = nullptr, dot4 = nullptr, dot3 = nullptr, dot2 = nullptr, dot1 = nullptr;
  MatmulScratch dot8_scratch = nullptr, dot_scratch = nullptr;
  PackedRows dot8_packed = PackedRows::kBytes;  // the other widths meet bytes
  std::int64_t dot_rows = 0;
};

/// One row by pairs of bf16 (accepts_pairs), for stored codes of 6 and 5 bits.
struct OneRowBodies {
  MatmulPack pack;
  MatmulScratch scratch;
  MatmulRun run6, run5;
};

/// Integer products in tiles, for stored codes of 8, 4, 3, 2 and 1 bits.
struct AmxIntegerBodies {
  MatmulRun dot8, dot4, dot3, dot2, dot1;
  MatmulScratch dot8_scratch, dot_scratch;
};
inline constexpr std::int64_t kAmxRows = 1024, kAmxOutputs = 1024;  ///< of a tile of y: each is read again for every so many of the other

/// Of the rows of one instruction set. Names are literals: one array per set.
struct MatmulNames {
  const char *dot8 = nullptr, *dot4 = nullptr, *dot3 = nullptr, *dot2 = nullptr, *dot1 = nullptr;
  const char *fp32 = nullptr, *float16 = nullptr, *float8 = nullptr, *float6 = nullptr, *int8 = nullptr, *int4 = nullptr, *int3 = nullptr;
  const char *code5 = nullptr, *code4 = nullptr, *code3 = nullptr, *code2 = nullptr, *code1 = nullptr, *code4_zero = nullptr,
             *code3_zero = nullptr, *code2_zero = nullptr;
};
/// Appends the rows of integer activations, best first.
void append_integer_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies);
/// The same and those of float activations.
void append_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies);
/// The same and those of float activations that take a single row of them.
void append_rows_of_one(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies);

}  // namespace narrow::cpu

namespace narrow::avx512 {
extern const cpu::MatmulBodies kMatmulBodies;
}
namespace narrow::avx512bf16 {
extern const cpu::MatmulRun kBf16;
extern const cpu::MatmulScratch kBf16Scratch;
extern const std::int64_t kBf16Tile;
extern const cpu::OneRowBodies kOneRow;
}  // namespace narrow::avx512bf16
namespace narrow::amx {
extern const cpu::AmxIntegerBodies kIntegers;
}  // namespace narrow::amx
namespace narrow::avxvnni {
extern const cpu::MatmulBodies kMatmulBodies;
}  // namespace narrow::avxvnni
namespace narrow::avx2 {
extern const cpu::MatmulBodies kMatmulBodies;
}
namespace narrow::neon {
extern const cpu::MatmulBodies kMatmulBodies;
}
namespace narrow::dotprod {
extern const cpu::MatmulBodies kMatmulBodies;
}
namespace narrow::i8mm {
extern const cpu::MatmulBodies kMatmulBodies;
}
