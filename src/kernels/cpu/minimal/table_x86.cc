/// The CPU rows of the minimal library on x86-64.

#include <vector>

#include "kernels/cpu/matmul_rows.h"
#include "kernels/cpu/matmul_special.h"
#include "kernels/cpu/matmul_tables.h"
#include "kernels/cpu/tables.h"

namespace narrow::cpu {

extern const QuantizeKernel kAvx2Quantize;
extern const DequantizeKernel kAvx2Dequantize;

std::span<const QuantizeKernel> quantize_rows() { return {&kAvx2Quantize, 1}; }
std::span<const DequantizeKernel> dequantize_rows() { return {&kAvx2Dequantize, 1}; }
std::vector<MatmulKernel> special_matmul_rows() { return {}; }

std::span<const MatmulKernel> matmul_rows() {
  static const std::vector<MatmulKernel> rows = [] {
    std::vector<MatmulKernel> table;
    MatmulNames names;
    names.dot8 = "avx2_matmul_int8_int8_any";
    names.dot4 = "avx2_matmul_int8_int4_any";
    append_integer_rows(table, Isa::kAvx2, names, avx2::kMatmulBodies);
    return table;
  }();
  return rows;
}

}  // namespace narrow::cpu
