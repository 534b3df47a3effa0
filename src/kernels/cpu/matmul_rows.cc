#include "kernels/cpu/matmul_rows.h"

#include "kernels/cpu/matmul_task.h"
#include "kernels/panels.h"

namespace narrow::cpu {
namespace {

/// A weight-only row takes one width and kind of stored code.
enum class Class { kFp32, kFloat, kInteger, kCode, kCodeZero };

template <bool kOnlyRow, Class kClass, int kBits>
bool accepts_weight(const MatmulProblem& problem) {
  if (!accepts_float(problem) || (kOnlyRow && (problem.m != 1 || problem.in_fp64))) return false;
  const Format& element = problem.w.scheme.element;
  if (panels::stored_bits(element) != kBits) return false;
  switch (kClass) {
    case Class::kFp32: return true;
    case Class::kFloat: return element.is_float();
    case Class::kInteger: return element.is_integer() && (kBits == 8 || !problem.w.scheme.asymmetric);
    case Class::kCode: return !problem.w.scheme.asymmetric;
    case Class::kCodeZero: return problem.w.scheme.asymmetric;
  }
  return false;
}

template <int kBits>
bool accepts_dot(const MatmulProblem& problem) {
  return accepts_integer(problem, kBits);
}

constexpr std::int64_t kPanel = 64;

}  // namespace

void append_integer_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies) {
  const auto dot = [&](const char* name, const char* takes, bool (*accepts)(const MatmulProblem&), MatmulScratch scratch, MatmulRun run,
                       PackedRows packed = PackedRows::kBytes) {
    const bool words = packed == PackedRows::kWords;
    if (run != nullptr)
      rows.push_back({name, isa, takes, accepts, bodies.dot_rows, kPanel,
                      words ? integer_packed_bytes<PackedRows::kWords> : integer_packed_bytes<PackedRows::kBytes>,
                      words ? integer_begin<PackedRows::kWords> : integer_begin<PackedRows::kBytes>, integer_pack, scratch, run});
  };
  constexpr const char* kDot =
      "8-bit integer activations, scales per row, tensor or 32 i along k, and panels of integer weights of its width";
  dot(names.dot8, kDot, accepts_dot<8>, bodies.dot8_scratch, bodies.dot8, bodies.dot8_packed);
  dot(names.dot4, kDot, accepts_dot<4>, bodies.dot_scratch, bodies.dot4);
  dot(names.dot3, kDot, accepts_dot<3>, bodies.dot_scratch, bodies.dot3);
  dot(names.dot2, kDot, accepts_dot<2>, bodies.dot_scratch, bodies.dot2);
  dot(names.dot1, kDot, accepts_dot<1>, bodies.dot_scratch, bodies.dot1);
}

namespace {

/// The rows of float activations; kOnlyRow: those that take a single row of them.
template <bool kOnlyRow>
void append_float_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies) {
  const auto weight = [&](const char* name, const char* takes, bool (*accepts)(const MatmulProblem&), MatmulRun run) {
    if (run != nullptr)
      rows.push_back({name, isa, takes, accepts, bodies.float_rows, kPanel, float_packed_bytes, float_begin, bodies.float_pack,
                      bodies.float_scratch, run});
  };
  const auto panels = [](const char* of_one, const char* of_any) { return kOnlyRow ? of_one : of_any; };
  weight(names.fp32, "any activations and panels of fp32", accepts_weight<kOnlyRow, Class::kFp32, 32>, bodies.fp32);
  weight(names.float16, "any activations and panels of 9- to 16-bit floats", accepts_weight<kOnlyRow, Class::kFloat, 16>, bodies.float16);
  weight(names.float8, "any activations and panels of 7- and 8-bit floats", accepts_weight<kOnlyRow, Class::kFloat, 8>, bodies.float8);
  weight(names.int8, panels("one row of values and panels of 8-bit integers", "float activations and panels of 8-bit integers"),
         accepts_weight<kOnlyRow, Class::kInteger, 8>, bodies.int8);
  weight(names.float6, "any activations and panels of 6-bit codes", accepts_weight<kOnlyRow, Class::kCode, 6>, bodies.float6);
  weight(names.code5, "any activations and panels of 5-bit codes", accepts_weight<kOnlyRow, Class::kCode, 5>, bodies.code5);
  weight(names.int4,
         panels("one row of values and panels of symmetric 4-bit integers", "float activations and panels of symmetric 4-bit integers"),
         accepts_weight<kOnlyRow, Class::kInteger, 4>, bodies.int4);
  weight(names.int3,
         panels("one row of values and panels of symmetric 3-bit integers", "float activations and panels of symmetric 3-bit integers"),
         accepts_weight<kOnlyRow, Class::kInteger, 3>, bodies.int3);
  weight(names.code4, panels("one row of values and panels of 4-bit codes", "float activations and panels of 4-bit codes"),
         accepts_weight<kOnlyRow, Class::kCode, 4>, bodies.code4);
  weight(names.code4_zero,
         panels("one row of values and panels of 4-bit codes with zero points",
                "float activations and panels of 4-bit codes with zero points"),
         accepts_weight<kOnlyRow, Class::kCodeZero, 4>, bodies.code4_zero);
  weight(names.code3, panels("one row of values and panels of 3-bit codes", "float activations and panels of 3-bit codes"),
         accepts_weight<kOnlyRow, Class::kCode, 3>, bodies.code3);
  weight(names.code3_zero,
         panels("one row of values and panels of 3-bit codes with zero points",
                "float activations and panels of 3-bit codes with zero points"),
         accepts_weight<kOnlyRow, Class::kCodeZero, 3>, bodies.code3_zero);
  weight(names.code2, panels("one row of values and panels of 2-bit codes", "float activations and panels of 2-bit codes"),
         accepts_weight<kOnlyRow, Class::kCode, 2>, bodies.code2);
  weight(names.code2_zero, "float activations and panels of 2-bit codes with zero points", accepts_weight<kOnlyRow, Class::kCodeZero, 2>,
         bodies.code2_zero);
  weight(names.code1, "float activations and panels of 1-bit codes", accepts_weight<kOnlyRow, Class::kCode, 1>, bodies.code1);
}

}  // namespace

void append_rows(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies) {
  append_integer_rows(rows, isa, names, bodies);
  append_float_rows<false>(rows, isa, names, bodies);
}

void append_rows_of_one(std::vector<MatmulKernel>& rows, Isa isa, const MatmulNames& names, const MatmulBodies& bodies) {
  append_integer_rows(rows, isa, names, bodies);
  append_float_rows<true>(rows, isa, names, bodies);
}

}  // namespace narrow::cpu
