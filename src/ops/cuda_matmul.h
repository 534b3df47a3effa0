#pragma once
/// The plain problems behind products of one-byte elements, for tests and benchmarks, and what fp8 and int8 products share.

#include "kernels/cuda/byte_product.h"
#include "kernels/cuda/int4_product.h"
#include "narrow/cuda_matmul.h"

namespace narrow::cuda {

/// Checks everything that matmul checks; throws as it does.
ByteProblem fp8_problem(const Fp8Matrix& x, const Fp8Matrix& w, const Tensor& y, const Fp8MatmulOptions& options);
ByteProblem int8_problem(const Int8Matrix& x, const Int8Matrix& w, const Tensor& y, const Int8MatmulOptions& options);
Int4Problem int4_problem(const Int8Matrix& x, const Int4Weight& w, const Tensor& y, const Int8MatmulOptions& options);

/// The checked epilogue of a product of integers with n columns into y.
ByteEpilogue integer_epilogue(const Tensor& y, std::int64_t n, const Int8MatmulOptions& options);

/// The checked bias and residual of a product with n columns into y.
void attach_tensors(ByteEpilogue& e, const Tensor& y, std::int64_t n, const std::optional<Tensor>& bias,
                    const std::optional<Tensor>& residual);
/// Hopper's configurations as rows of a table whose names begin with the prefix.
std::vector<MatmulChoice> hopper_choices(const ByteProblem& problem, const ByteDevice& device, std::string_view prefix);
/// The plan of the row with that name, or of the best one.
BytePlan hopper_plan(const ByteProblem& problem, const ByteDevice& device, std::string_view prefix, std::string_view kernel);

/// Adds cuBLASLt's row after Hopper's, chosen where its estimate is the lowest. `here`: the device of the table is the current one.
void add_library_choice(std::vector<MatmulChoice>& choices, const ByteProblem& problem, const ByteDevice& device, std::string_view name,
                        bool here);
/// Whether cuBLASLt's row runs the product: asked for by name, or the best one. Throws where it is asked for and does not take it.
bool is_for_library(const ByteProblem& problem, const ByteDevice& device, std::string_view name, std::string_view kernel);

}  // namespace narrow::cuda
