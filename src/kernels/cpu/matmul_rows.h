#pragma once
/// The vector bodies of one instruction set, and the table rows made of them: the rows of two sets differ in names and bodies alone.

#include <vector>

#include "kernels/matmul.h"

namespace narrow::cpu {

using MatmulRun = void (*)(const MatmulProblem&, const MatmulTile&, const std::byte* packed, std::byte* scratch);
using MatmulScratch = std::size_t (*)(const MatmulProblem&);

struct MatmulBodies {
  MatmulRun fp32, float16, float8, float6, int8;
  MatmulRun code5, code4, code3, code2, code1;
  MatmulRun code4_zero, code3_zero, code2_zero;
  MatmulScratch float_scratch;
  std::int64_t float_rows;
  MatmulRun dot8, dot4, dot2;
  MatmulScratch dot8_scratch, dot4_scratch, dot2_scratch;
  std::int64_t dot_rows;
};

/// The members in order, from the templates of matmul_float.inl and matmul_integer.inl.
#define NARROW_MATMUL_BODIES                                                                                                       \
  {                                                                                                                                \
    float_run<Fp32Decoder>, float_run<FloatDecoder<16>>, float_run<FloatDecoder<8>>, float_run<FloatDecoder<6>>,                   \
        float_run<Int8Decoder>, float_run<TableDecoder<5>>, float_run<TableDecoder<4>>, float_run<TableDecoder<3>>,                \
        float_run<TableDecoder<2>>, float_run<TableDecoder<1>>, float_run<TableDecoder<4, true>>, float_run<TableDecoder<3, true>>, \
        float_run<TableDecoder<2, true>>, float_scratch_bytes, kFloatRows, integer_run<8>, integer_run<4>, integer_run<2>,         \
        integer_scratch_bytes<8>, integer_scratch_bytes<4>, integer_scratch_bytes<2>, kIntegerRows                                  \
  }

/// The integer members alone, of instruction sets that add nothing to the float ones.
#define NARROW_MATMUL_DOT_BODIES                                                                                             \
  {                                                                                                                          \
    nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,     \
        float_scratch_bytes, kFloatRows, integer_run<8>, integer_run<4>, integer_run<2>, integer_scratch_bytes<8>,           \
        integer_scratch_bytes<4>, integer_scratch_bytes<2>, kIntegerRows                                                      \
  }

/// Appends the rows of one instruction set, best first. Names are literals: one array per set.
struct MatmulNames {
  const char *dot8 = nullptr, *dot4 = nullptr, *dot2 = nullptr;
  const char *fp32 = nullptr, *float16 = nullptr, *float8 = nullptr, *float6 = nullptr, *int8 = nullptr, *code5 = nullptr, *code4 = nullptr;
  const char *code3 = nullptr, *code2 = nullptr, *code1 = nullptr, *code4_zero = nullptr, *code3_zero = nullptr, *code2_zero = nullptr;
};
void append_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies);

}  // namespace narrow::cpu

namespace narrow::avx512 {
extern const cpu::MatmulBodies kMatmulBodies;
}
namespace narrow::avx512bf16 {
extern const cpu::MatmulRun kBf16;
extern const cpu::MatmulScratch kBf16Scratch;
extern const std::int64_t kBf16Tile;
}
namespace narrow::amx {
extern const cpu::MatmulRun kDot8;
extern const cpu::MatmulScratch kDot8Scratch;
extern const std::int64_t kDot8Rows;
}
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
