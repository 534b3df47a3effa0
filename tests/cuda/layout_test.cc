/// Layouts on the device against the CPU's: every pair, odd shapes, offsets, batches.

#include "harness.h"
#include "narrow/cuda_fused.h"

namespace narrow::cuda::testing {
namespace {

TEST(CudaLayout, EveryPairMatchesTheCpu) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const Layout from : all_layouts())
    for (const Layout to : all_layouts())
      for (const Shape& shape : {Shape{1, 1}, Shape{5, 33}, Shape{64, 256}, Shape{70, 500}, Shape{128, 512}, Shape{2, 3, 40, 272},
                                 Shape{96, 16}, Shape{257, 1024}})
        for (const std::size_t offset : {std::size_t{0}, std::size_t{3}}) {
          const MatrixShape matrix = as_matrices(shape);
          const std::int64_t in = matrix.matrices * layout_size(from, matrix.rows, matrix.cols),
                             out = matrix.matrices * layout_size(to, matrix.rows, matrix.cols);
          const Tensor host = Tensor::empty(DType::kU8, {in});  // padding too: it must not reach the result
          for (std::int64_t i = 0; i < in; ++i) host.as<std::uint8_t>()[i] = static_cast<std::uint8_t>((i * 2654435761u) >> 13);
          const std::string what =
              std::string(name_of(from)) + " to " + std::string(name_of(to)) + " " + to_string(shape) + " offset " + std::to_string(offset);
          const Tensor expected = transform(host, shape, from, to);
          const Guarded source(static_cast<std::size_t>(in), offset, stream), result(static_cast<std::size_t>(out), offset, stream);
          const Tensor x = Tensor::borrow(source.data(), DType::kU8, {in}, {}, kDevice),
                       y = Tensor::borrow(result.data(), DType::kU8, {out}, {}, kDevice);
          copy(host, x, stream);
          transform(x, y, shape, from, to, stream);
          expect_equal(expected.reshape({out}), to_host(y, stream), what);
          result.check(stream, what);
          ASSERT_FALSE(HasFatalFailure());
        }
}

TEST(CudaLayout, RefusesWithASentence) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const Tensor x = Tensor::empty(DType::kI8, {4, 32}, kDevice), small = Tensor::empty(DType::kI8, {100}, kDevice),
               wide = Tensor::empty(DType::kF16, {128}, kDevice);
  EXPECT_THROW(transform(x, small, {4, 32}, Layout::kRow, Layout::kCol32, stream), InvalidArgument);
  EXPECT_THROW(transform(x, wide, {4, 32}, Layout::kRow, Layout::kCol32, stream), InvalidArgument);
  EXPECT_THROW(transform(Tensor::empty(DType::kI8, {4, 32}), x, {4, 32}, Layout::kRow, Layout::kCol32, stream), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
