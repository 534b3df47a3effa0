/// The matmul rows of AArch64, best first.

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_tables.h"

namespace narrow::cpu {
namespace {

constexpr MatmulNames kNeonNames{
    "neon_matmul_int8_int8_any",  "neon_matmul_int8_int4_any", "neon_matmul_int8_int3_any",   "neon_matmul_int8_int2_any",
    "neon_matmul_int8_int1_any",  "neon_matmul_f32_fp32_none", "neon_matmul_f32_float16_any", "neon_matmul_f32_float8_any",
    "neon_matmul_f32_float6_any", "neon_matmul_f32_int8_any",  "neon_matmul_f32_int4_any",    "neon_matmul_f32_int3_any",
    "neon_matmul_f32_code5_any",  "neon_matmul_f32_code4_any", "neon_matmul_f32_code3_any",   "neon_matmul_f32_code2_any",
    "neon_matmul_f32_code1_any",  "neon_matmul_f32_uint4_any", "neon_matmul_f32_uint3_any",   "neon_matmul_f32_uint2_any"};
constexpr MatmulNames kDotProdNames = [] {
  MatmulNames names{"dotprod_matmul_int8_int8_any", "dotprod_matmul_int8_int4_any", "dotprod_matmul_int8_int3_any",
                    "dotprod_matmul_int8_int2_any", "dotprod_matmul_int8_int1_any"};
  names.int8 = "dotprod_matmul_f32_int8_row";
  names.int4 = "dotprod_matmul_f32_int4_row";
  names.int3 = "dotprod_matmul_f32_int3_row";
  names.code4 = "dotprod_matmul_f32_code4_row";
  names.code3 = "dotprod_matmul_f32_code3_row";
  names.code2 = "dotprod_matmul_f32_code2_row";
  names.code4_zero = "dotprod_matmul_f32_uint4_row";
  names.code3_zero = "dotprod_matmul_f32_uint3_row";
  return names;
}();
constexpr MatmulNames kI8mmNames{"i8mm_matmul_int8_int8_any", "i8mm_matmul_int8_int4_any", "i8mm_matmul_int8_int3_any",
                                 "i8mm_matmul_int8_int2_any", "i8mm_matmul_int8_int1_any"};

}  // namespace

std::span<const MatmulKernel> matmul_rows() {
  static const std::vector<MatmulKernel> rows = [] {
    std::vector<MatmulKernel> table;
    append_rows(table, Isa::kI8mm, kI8mmNames, i8mm::kMatmulBodies);
    append_rows_of_one(table, Isa::kDotProd, kDotProdNames, dotprod::kMatmulBodies);
    append_rows(table, Isa::kNeon, kNeonNames, neon::kMatmulBodies);
    return table;
  }();
  return rows;
}

}  // namespace narrow::cpu
