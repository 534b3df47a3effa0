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

constexpr MatmulNames kAvx2Names{
    "avx2_matmul_int8_int8_any",  "avx2_matmul_int8_int4_any", "avx2_matmul_int8_int3_any",   "avx2_matmul_int8_int2_any",
    "avx2_matmul_int8_int1_any",  "avx2_matmul_f32_fp32_none", "avx2_matmul_f32_float16_any", "avx2_matmul_f32_float8_any",
    "avx2_matmul_f32_float6_any", "avx2_matmul_f32_int8_any",  "avx2_matmul_f32_int4_any",    "avx2_matmul_f32_int3_any",
    "avx2_matmul_f32_code5_any",  "avx2_matmul_f32_code4_any", "avx2_matmul_f32_code3_any",   "avx2_matmul_f32_code2_any",
    "avx2_matmul_f32_code1_any",  "avx2_matmul_f32_uint4_any", "avx2_matmul_f32_uint3_any",   "avx2_matmul_f32_uint2_any"};

/// Tiles of 16 rows: fewer are left to vectors, which need no tile configuration.
bool accepts_tiles(const MatmulProblem& problem) {
  return problem.m >= 16 && accepts_integer(problem, 8) && !varies_along_k(problem.x.scheme, problem.x.grid) &&
         !varies_along_k(problem.w.scheme, problem.w.grid);
}

template <int kBits>
bool accepts_one_row(const MatmulProblem& problem) {
  return accepts_pairs(problem, kBits);
}

}  // namespace

std::span<const MatmulKernel> matmul_rows() {
  static const std::vector<MatmulKernel> rows = [] {
    std::vector<MatmulKernel> table;
    table.push_back({"amx_matmul_int8_int8_row", Isa::kAmx,
                     "16 rows or more of 8-bit integers and panels of 8-bit integers, no scale along k", accepts_tiles, amx::kDot8Rows, 64,
                     integer_packed_bytes, integer_begin, integer_pack, amx::kDot8Scratch, amx::kDot8});
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
    append_rows(table, Isa::kAvx2, kAvx2Names, avx2::kMatmulBodies);
    return table;
  }();
  return rows;
}

}  // namespace narrow::cpu
