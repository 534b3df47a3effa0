/// The matmul rows of x86-64, best first.

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_tables.h"
#include "kernels/cpu/matmul_task.h"

namespace narrow::cpu {
namespace {

constexpr MatmulNames kAvx512Names{
    "avx512_matmul_int8_int8_any",  "avx512_matmul_int8_int4_any", "avx512_matmul_int8_int3_any",   "avx512_matmul_int8_int2_any",
    "avx512_matmul_int8_int1_any",  "avx512_matmul_f32_fp32_none", "avx512_matmul_f32_float16_any", "avx512_matmul_f32_float8_any",
    "avx512_matmul_f32_float6_any", "avx512_matmul_f32_int8_any",  "avx512_matmul_f32_int4_any",    "avx512_matmul_f32_int3_any",
    "avx512_matmul_f32_code5_any",  "avx512_matmul_f32_code4_any", "avx512_matmul_f32_code3_any",   "avx512_matmul_f32_code2_any",
    "avx512_matmul_f32_code1_any",  "avx512_matmul_f32_uint4_any", "avx512_matmul_f32_uint3_any",   "avx512_matmul_f32_uint2_any"};

constexpr MatmulNames kAvxVnniNames{"avxvnni_matmul_int8_int8_any", "avxvnni_matmul_int8_int4_any", "avxvnni_matmul_int8_int3_any",
                                    "avxvnni_matmul_int8_int2_any", "avxvnni_matmul_int8_int1_any"};

constexpr MatmulNames kAvx2Names{
    "avx2_matmul_int8_int8_any",  "avx2_matmul_int8_int4_any", "avx2_matmul_int8_int3_any",   "avx2_matmul_int8_int2_any",
    "avx2_matmul_int8_int1_any",  "avx2_matmul_f32_fp32_none", "avx2_matmul_f32_float16_any", "avx2_matmul_f32_float8_any",
    "avx2_matmul_f32_float6_any", "avx2_matmul_f32_int8_any",  "avx2_matmul_f32_int4_any",    "avx2_matmul_f32_int3_any",
    "avx2_matmul_f32_code5_any",  "avx2_matmul_f32_code4_any", "avx2_matmul_f32_code3_any",   "avx2_matmul_f32_code2_any",
    "avx2_matmul_f32_code1_any",  "avx2_matmul_f32_uint4_any", "avx2_matmul_f32_uint3_any",   "avx2_matmul_f32_uint2_any"};

/// Tiles have 16 rows: much fewer are left to vectors.
template <int kBits>
bool accepts_tiles(const MatmulProblem& problem) {
  return problem.m >= 12 && accepts_integer_tiles(problem, kBits);
}

template <int kBits>
bool accepts_one_row(const MatmulProblem& problem) {
  return accepts_pairs(problem, kBits);
}

}  // namespace

std::span<const MatmulKernel> matmul_rows() {
  static const std::vector<MatmulKernel> rows = [] {
    std::vector<MatmulKernel> table;
    const auto tiles = [&](const char* name, bool (*accepts)(const MatmulProblem&), MatmulScratch scratch, MatmulRun run) {
      table.push_back(
          {name, Isa::kAmx,
           "12 or more rows of 8-bit integers, scales per row, tensor or 64 i along k, and panels of integer weights of its width", accepts,
           kAmxRows, 64, integer_packed_bytes<PackedRows::kTiles>, integer_begin<PackedRows::kTiles>, integer_pack, scratch, run,
           kAmxOutputs});
    };
    tiles("amx_matmul_int8_int8_any", accepts_tiles<8>, amx::kIntegers.dot8_scratch, amx::kIntegers.dot8);
    tiles("amx_matmul_int8_int4_any", accepts_tiles<4>, amx::kIntegers.dot_scratch, amx::kIntegers.dot4);
    tiles("amx_matmul_int8_int3_any", accepts_tiles<3>, amx::kIntegers.dot_scratch, amx::kIntegers.dot3);
    tiles("amx_matmul_int8_int2_any", accepts_tiles<2>, amx::kIntegers.dot_scratch, amx::kIntegers.dot2);
    tiles("amx_matmul_int8_int1_any", accepts_tiles<1>, amx::kIntegers.dot_scratch, amx::kIntegers.dot1);
    table.push_back({"avx512bf16_matmul_bf16_bf16_none", Isa::kAvx512Bf16, "bf16 activations and panels of bf16", accepts_bf16,
                     avx512bf16::kBf16Tile, 64, bf16_packed_bytes, bf16_begin, bf16_pack, avx512bf16::kBf16Scratch, avx512bf16::kBf16});
    const auto one_row = [&](const char* name, const char* takes, bool (*accepts)(const MatmulProblem&), MatmulRun run) {
      table.push_back({name, Isa::kAvx512Bf16, takes, accepts, 1, 64, float_packed_bytes, float_begin, avx512bf16::kOneRow.pack,
                       avx512bf16::kOneRow.scratch, run});
    };
    one_row("avx512bf16_matmul_f32_float6_row", "one row of 128 values or more and panels of 6-bit floats", accepts_one_row<6>,
            avx512bf16::kOneRow.run6);
    one_row("avx512bf16_matmul_f32_float5_row", "one row of 128 values or more and panels of 5-bit floats", accepts_one_row<5>,
            avx512bf16::kOneRow.run5);
    append_rows(table, Isa::kAvx512, kAvx512Names, avx512::kMatmulBodies);
    append_rows(table, Isa::kAvxVnni, kAvxVnniNames, avxvnni::kMatmulBodies);
    append_rows(table, Isa::kAvx2, kAvx2Names, avx2::kMatmulBodies);
    return table;
  }();
  return rows;
}

}  // namespace narrow::cpu
