/// The matmul rows of x86-64, best first.

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_tables.h"

namespace narrow::cpu {
namespace {

constexpr MatmulNames kAvx512Names{
    "avx512_matmul_int8_int8_any", "avx512_matmul_int8_int4_any", "avx512_matmul_int8_int2_any",
    "avx512_matmul_f32_fp32_none", "avx512_matmul_f32_float16_any", "avx512_matmul_f32_float8_any", "avx512_matmul_f32_float6_any",
    "avx512_matmul_f32_int8_any", "avx512_matmul_f32_code5_any", "avx512_matmul_f32_code4_any", "avx512_matmul_f32_code3_any",
    "avx512_matmul_f32_code2_any", "avx512_matmul_f32_code1_any", "avx512_matmul_f32_uint4_any", "avx512_matmul_f32_uint3_any",
    "avx512_matmul_f32_uint2_any"};

constexpr MatmulNames kAvx2Names{
    "avx2_matmul_int8_int8_any", "avx2_matmul_int8_int4_any", "avx2_matmul_int8_int2_any",
    "avx2_matmul_f32_fp32_none", "avx2_matmul_f32_float16_any", "avx2_matmul_f32_float8_any", "avx2_matmul_f32_float6_any",
    "avx2_matmul_f32_int8_any", "avx2_matmul_f32_code5_any", "avx2_matmul_f32_code4_any", "avx2_matmul_f32_code3_any",
    "avx2_matmul_f32_code2_any", "avx2_matmul_f32_code1_any", "avx2_matmul_f32_uint4_any", "avx2_matmul_f32_uint3_any",
    "avx2_matmul_f32_uint2_any"};

}  // namespace

std::span<const MatmulKernel> matmul_rows() {
  static const std::vector<MatmulKernel> rows = [] {
    std::vector<MatmulKernel> table;
    append_rows(table, Isa::kAvx512, kAvx512Names, avx512::kMatmulBodies);
    append_rows(table, Isa::kAvx2, kAvx2Names, avx2::kMatmulBodies);
    return table;
  }();
  return rows;
}

}  // namespace narrow::cpu
