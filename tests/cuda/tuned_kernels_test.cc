/// Measured choices on a device: every row is timed, and the product takes the one that is set.

#include <algorithm>
#include <cstdio>

#include "harness.h"
#include "narrow/cuda_matmul.h"
#include "narrow/tuned_kernels.h"

namespace narrow::cuda::testing {
namespace {

TEST(TunedKernels, ProductsTakeTheFastestRowThatWasTimed) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const char* name : {"fp8_e4m3:128x128", "fp8_e4m3:row", "int8:row"}) {
    const Scheme weight = Scheme::parse(name);
    const std::int64_t m = 64, n = 2112, k = 7168;
    std::vector<TunedKernel> timed;
    try {
      timed = time_kernels(m, n, k, weight);
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
    ASSERT_GT(timed.size(), 2u);
    EXPECT_TRUE(std::is_sorted(timed.begin(), timed.end(),
                               [](const TunedKernel& a, const TunedKernel& b) { return a.microseconds < b.microseconds; }));
    EXPECT_GT(timed.front().microseconds, 0.0);
    for (std::size_t i = 0; i < std::min<std::size_t>(timed.size(), 3); ++i)
      std::printf("%s: %s in %d parts %.2f us\n", name, timed[i].kernel.c_str(), timed[i].parts, timed[i].microseconds);
    for (const TunedKernel& choice : {timed.front(), timed.back()}) {
      set_tuned_kernels({choice});
      const Scheme activation = Scheme::parse(weight.element == kInt8                    ? "int8:row"
                                              : weight.granularity == Granularity::row() ? "fp8_e4m3:row"
                                                                                         : "fp8_e4m3:block128");
      const Tensor y = Tensor::empty(DType::kBf16, {m, n}, kDevice);
      const DeviceQuantized x = allocate_quantized(activation, {m, k}, kDevice), w = allocate_quantized(weight, {n, k}, kDevice);
      const std::vector<MatmulChoice> rows = weight.element == kInt8
                                                 ? explain_matmul(prepare_int8(x, stream, false), prepare_int8(w, stream, false), y)
                                                 : explain_matmul(prepare_fp8(x, stream), prepare_fp8(w, stream), y);
      for (const MatmulChoice& row : rows) {
        EXPECT_EQ(row.chosen, row.name == choice.kernel) << row.name;
        EXPECT_EQ(row.chosen, row.reason.find("tuned") != std::string::npos) << row.reason;
      }
    }
    set_tuned_kernels({});
  }
}

}  // namespace
}  // namespace narrow::cuda::testing
