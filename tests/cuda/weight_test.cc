/// Products with weights in all schemes against the exact product in double precision, element by element, in guarded and poisoned memory.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "ops/cuda_weights.h"
#include "product_test.h"
#include "weight_oracle.h"

namespace narrow::cuda::testing {
namespace {

/// Random shapes per family: 400, or as many as NARROW_WEIGHT_SHAPES says.
int shapes_per_family() {
  const char* text = std::getenv("NARROW_WEIGHT_SHAPES");
  return text == nullptr ? 400 : std::max(1, std::atoi(text));
}

/// Schemes by family; random shapes are drawn for each.
const std::vector<std::pair<const char*, std::vector<const char*>>> kFamilies = {
    {"int8", {"int8:row", "int8:tensor", "int8:block128", "int8:row:asym", "int8:block64:asym", "mxint8"}},
    {"int4", {"int4:block128", "int4:row", "int4:block32", "int4:block64:asym", "int4:block128:asym", "int4:block96", "int4:block256"}},
    {"int3, int2, int1", {"int3:block128", "int3:block32:asym", "int2:block64", "int2:row:asym", "int1:row", "int1:block128"}},
    {"fp8",
     {"fp8_e4m3:row", "fp8_e4m3:128x128", "fp8_e5m2:row", "fp8_e4m3:block128", "fp8_e3m4:row", "fp8_e2m5:block32", "fp7_e3m3:row",
      "fp7_e4m2:row"}},
    {"fp6", {"fp6_e3m2:row", "fp6_e2m3:row", "fp6_e3m2:block128", "fp6_e2m3:block64", "fp6_e4m1:row", "fp6_e1m4:block128"}},
    {"fp5", {"fp5_e2m2:row", "fp5_e3m1:row", "fp5_e2m2:block128", "fp5_e1m3:row", "fp5_e4m0:row"}},
    {"fp4", {"fp4_e2m1:row", "fp4_e3m0:row", "fp4_e2m1:block128", "fp4_e2m1:block32", "fp4_e1m2:block64:scale=fp16"}},
    {"fp3, fp2", {"fp3_e2m0:row", "fp3_e1m1:row", "fp3_e2m0:block128", "fp2_e1m0:row"}},
    {"mx", {"mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2"}},
    {"nvfp4", {"nvfp4"}},
    {"msfp", {"msfp11", "msfp12", "msfp13", "msfp14", "msfp15", "msfp16"}},
    {"without a decoder", {"nf4:block64", "fp8_e6m1:row", "int4:block20", "fp6_e3m2:col", "fp12_e5m6:row"}},
    {"dense", {"fp16", "bf16"}}};

class WeightTest : public ProductTest {
 protected:
  WeightTest() : ProductTest(7) {}
  Tensor values(DType type, const Shape& shape) {
    return to_device(random_values(type, shape, Values::kNormal, static_cast<unsigned>(generator_())), kDevice, *stream_);
  }

  DeviceQuantized random_weight(const char* name, std::int64_t n, std::int64_t k) {
    const Scheme scheme = Scheme::parse(name);
    if (!scheme.has_scales()) {
      const Tensor w = values(scheme.element == kFp16 ? DType::kF16 : DType::kBf16, {n, k});
      held_ = w;
      return {scheme, {n, k}, Buffer::borrow(w.data(), w.byte_size(), kDevice), {}, {}, {}};
    }
    const DeviceQuantized q = allocate_quantized(scheme, {n, k}, kDevice);
    cuda::quantize(values(DType::kF32, {n, k}), q, *stream_);
    return q;
  }

  static WeightView canonical_view(const DeviceQuantized& q) {
    return weight_view({q.scheme, q.shape[0], q.shape[1], false, {}, {}, q.codes, q.scales, q.zero_points, q.outer_scale});
  }

  struct Case {
    DeviceQuantized q;
    DeviceWeight w;
    Tensor x;
    DType out = DType::kF16;
    WeightMatmulOptions options;
    std::int64_t row_gap = 0, offset = 0;  ///< of y, in elements
    bool shares = false;                   ///< with a workspace in which tiles are shared
  };

  /// Runs the product into guarded memory and compares every element.
  void expect_right(const Case& c, const std::string& what) {
    const Stream stream = *stream_;
    const std::size_t element = static_cast<std::size_t>(bits_of(c.out)) / 8;
    const std::int64_t m = c.x.shape()[0], n = c.w.n, pitch = n + c.row_gap;
    const Guarded memory(static_cast<std::size_t>(m * pitch) * element, static_cast<std::size_t>(c.offset) * element, stream);
    const Tensor y = Tensor::borrow(memory.data(), c.out, {m, n}, {pitch, 1}, kDevice);
    const Guarded workspace(c.shares ? weight_matmul_workspace(m, c.w) : 0, 0, stream);
    WeightErrors errors;
    ASSERT_NO_THROW({
      matmul(c.x, c.w, y, stream, c.options, {c.shares ? workspace.data() : nullptr, c.shares ? weight_matmul_workspace(m, c.w) : 0});
      errors = compare_with_oracle(weight_problem(c.x, c.w, y, c.options), canonical_view(c.q), stream);
    }) << what;
    ASSERT_EQ(errors.outside, 0u) << what << ": worst share of the bound " << errors.worst_share;
    memory.check(stream, what);
    if (c.shares) workspace.check(stream, what + ", workspace");
    worst_share_ = std::max(worst_share_, errors.worst_share);
  }

  /// Whether a row takes the product; what explain_weight_matmul says is of weights whose scales are steady.
  bool takes(const Case& c, const std::string& name) const {
    const std::vector<std::string> names = weight_matmul_kernel_names();
    const auto row = std::find(names.begin(), names.end(), name);
    const Tensor y = Tensor::empty(c.out, {c.x.shape()[0], c.w.n}, kDevice);
    return row + 1 == names.end() || has_weight_config(weight_problem(c.x, c.w, y, {}), static_cast<int>(row - names.begin()));
  }

  std::string describe(const Case& c) const {
    return c.w.scheme.to_string() + " x " + std::string(name_of(c.x.dtype())) + " " + std::to_string(c.x.shape()[0]) + "x" +
           std::to_string(c.w.n) + "x" + std::to_string(c.w.k) + " -> " + std::string(name_of(c.out)) + " kernel '" +
           std::string(c.options.kernel) + "' activation " + std::to_string(static_cast<int>(c.options.activation)) +
           (c.options.bias ? " bias" : "") + (c.options.multiplier ? " multiplier" : "") + (c.options.residual ? " residual" : "") +
           (c.options.order ? " order" : "");
  }

  Tensor held_;
  double worst_share_ = 0.0;
};

TEST_F(WeightTest, RandomShapesStayInsideTheBound) {
  const int shapes = shapes_per_family();
  const std::vector<std::string> names = weight_matmul_kernel_names();
  for (const auto& [family, schemes] : kFamilies) {
    worst_share_ = 0.0;
    for (int i = 0; i < shapes; ++i) {
      const std::int64_t m = pick(3) == 0 ? 1 + pick(16) : size(300), n = size(400), k = 1 + pick(pick(4) == 0 ? 1500 : 500);
      const char* scheme = schemes[static_cast<std::size_t>(pick(static_cast<int>(schemes.size())))];
      Case c;
      c.q = random_weight(scheme, n, k);
      c.w = prepare_weight(c.q, *stream_);
      const DType type = pick(2) == 0 ? DType::kF16 : DType::kBf16;
      const std::int64_t gap = pick(3) == 0 ? 0 : (pick(2) == 0 ? 64 - k % 64 : pick(9));
      const Tensor wide = values(type, {m, k + gap});
      c.x = gap == 0 ? wide : Tensor::borrow(wide.data(), type, {m, k}, {k + gap, 1}, kDevice);
      c.out = kTypes[pick(3)];
      if (pick(3) == 0) c.options.bias = values(DType::kF32, {n});
      if (pick(3) == 0) c.options.activation = static_cast<Activation>(pick(4));
      if (pick(4) == 0) c.options.multiplier = values(kTypes[pick(3)], {m, n});
      if (pick(4) == 0) c.options.residual = values(kTypes[pick(3)], {m, n});
      if (pick(3) == 0) c.row_gap = pick(2) == 0 ? 8 : pick(9), c.offset = pick(2) == 0 ? 0 : pick(9);
      if (c.options.residual || c.options.multiplier) c.row_gap = 0;
      std::vector<std::int32_t> order(static_cast<std::size_t>(k));
      if (pick(5) == 0) {
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), generator_);
        c.options.order = to_device(Tensor::borrow(order.data(), DType::kI32, {k}), kDevice, *stream_);
      }
      c.shares = pick(2) == 0;
      if (pick(2) == 0) {
        const std::string& name = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
        if (takes(c, name)) c.options.kernel = name;
      }
      ASSERT_NO_FATAL_FAILURE(expect_right(c, std::string(family) + ", case " + std::to_string(i) + ": " + describe(c)));
    }
    std::printf("%-18s worst share of the bound %.3f\n", family, worst_share_);
  }
}

TEST_F(WeightTest, EveryRowTakesItsProducts) {
  for (const std::string& name : weight_matmul_kernel_names())
    for (const auto& [family, schemes] : kFamilies)
      for (const char* scheme : schemes)
        for (const DType type : {DType::kF16, DType::kBf16}) {
          Case c;
          c.q = random_weight(scheme, 300, 576);
          c.w = prepare_weight(c.q, *stream_);
          c.x = values(type, {9, 576});
          c.options.kernel = name;
          if (takes(c, name)) {
            ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
          } else {
            const Tensor y = Tensor::empty(c.out, {9, 300}, kDevice);
            ASSERT_THROW(matmul(c.x, c.w, y, *stream_, c.options), Unsupported) << describe(c);
          }
        }
}

/// So many columns that every ring of slots wraps around several times, and so many rows that thread blocks make several passes.
TEST_F(WeightTest, LongAndTallProducts) {
  const std::vector<std::string> names = weight_matmul_kernel_names();
  for (const char* scheme : {"int8:row", "int4:block128:asym", "int4:block32", "int3:block128", "fp8_e4m3:row", "fp6_e3m2:row",
                             "fp5_e2m2:row", "fp4_e2m1:row", "fp3_e2m0:row", "fp6_e2m3:row", "mxfp4", "nvfp4", "msfp12", "fp16"})
    for (const Shape& shape : {Shape{96, 17000}, Shape{9000, 520}, Shape{22000, 192}}) {
      Case c;
      c.q = random_weight(scheme, shape[0], shape[1]);
      c.w = prepare_weight(c.q, *stream_);
      for (const std::int64_t m : {1, 8, 13, 30, 100})
        for (const DType type : {DType::kF16, DType::kBf16}) {
          c.x = values(type, {m, shape[1]});
          c.options.kernel = {};
          ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
          c.options.kernel = names[static_cast<std::size_t>(pick(static_cast<int>(names.size())))];
          if (takes(c, std::string(c.options.kernel))) {
            ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
          }
        }
    }
}

/// So many rows of x that each thread block takes many tiles, some of them at once with the tiles of another.
TEST_F(WeightTest, ManyRowsOfX) {
  const std::vector<std::string> names = weight_matmul_kernel_names();
  for (const char* scheme : {"fp16", "bf16", "int8:row", "int4:block128", "int4:block128:asym", "fp6_e3m2:row", "nvfp4", "mxfp4", "msfp12"})
    for (const Shape& shape : {Shape{384, 384}, Shape{8192, 384}, Shape{384, 1024}}) {
      Case c;
      c.q = random_weight(scheme, shape[0], shape[1]);
      c.w = prepare_weight(c.q, *stream_);
      const bool is_bf16 = c.w.scheme.element == kBf16;
      c.x = values(is_bf16 ? DType::kBf16 : DType::kF16, {8192, shape[1]});
      for (const DType out : {DType::kF16, DType::kF32}) {
        c.out = out;
        c.options.kernel = {};
        for (int again = 0; again < 4; ++again) {
          c.shares = again % 2 == 1;
          expect_right(c, describe(c));
        }
        for (const std::string& name : names) {
          c.options.kernel = name;
          if (name.find('x') != std::string::npos && takes(c, name)) expect_right(c, describe(c));
        }
      }
    }
}

/// Few and small: what compute-sanitizer can follow.
TEST_F(WeightTest, SmallProductsOfEveryRow) {
  for (const std::string& name : weight_matmul_kernel_names())
    for (const char* scheme : {"int4:block128:asym", "fp6_e3m2:row", "nvfp4", "mxfp4", "fp16"})
      for (const std::int64_t m : {3, 70}) {
        Case c;
        c.q = random_weight(scheme, 200, 640);
        c.w = prepare_weight(c.q, *stream_);
        c.x = values(DType::kF16, {m, 640});
        c.options.kernel = name;
        for (const bool shares : {false, true}) {
          c.shares = shares;
          if (takes(c, name)) {
            ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
          }
        }
      }
}

TEST_F(WeightTest, PreparingIsUndoneBitForBit) {
  for (const auto& [family, schemes] : kFamilies)
    for (const char* scheme : schemes)
      for (const Shape& shape : {Shape{1, 1}, Shape{64, 128}, Shape{100, 333}, Shape{190, 1000}}) {
        const DeviceQuantized q = random_weight(scheme, shape[0], shape[1]);
        const DeviceWeight w = prepare_weight(q, *stream_);
        EXPECT_EQ(w.is_prepared, can_prepare_weight(q.scheme, shape[0], shape[1]));
        if (!q.scheme.has_scales()) {
          const DeviceQuantized back = unprepare_weight(w, *stream_);
          const auto host = [&](const Buffer& b) {
            return to_host(Tensor::over(b, DType::kU8, {static_cast<std::int64_t>(b.size())}), *stream_);
          };
          expect_equal(host(q.codes), host(back.codes), std::string(scheme) + " " + to_string(shape));
        } else {
          expect_equal(to_host(q, *stream_), unprepare_weight(w, *stream_), *stream_, std::string(scheme) + " " + to_string(shape));
        }
      }
}

TEST_F(WeightTest, SpecialCodesAndScalesPropagate) {
  for (const char* scheme : {"fp8_e4m3:row", "fp8_e5m2:row", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"})
    for (const DType type : {DType::kF16, DType::kBf16})
      for (const std::int64_t m : {3, 40, 200}) {
        QuantizedTensor q = narrow::quantize(random_values(DType::kF32, {130, 256}, Values::kNormal, 3), Scheme::parse(scheme));
        if (q.scheme.element.bits == 8) {
          q.codes.as<std::uint8_t>()[5 * 256 + 17] = 0x7F;  // NaN in both formats
          q.codes.as<std::uint8_t>()[77 * 256 + 3] = 0x7C;  // infinity in e5m2
        }
        if (q.scheme.scale == kE8m0) q.scales.as<std::uint8_t>()[9 * 8 + 2] = 0xFF;
        Case c;
        c.q = to_device(q, kDevice, *stream_);
        c.w = prepare_weight(c.q, *stream_);
        c.x = values(type, {m, 256});
        c.out = DType::kF32;
        ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));
      }
}

/// Scales along k that differ by powers of two up to 2^far, blocks of zeros among them; every row of x sees one block of columns alone, so
/// that the smallest are not lost beside the largest.
TEST_F(WeightTest, ScalesFarApart) {
  constexpr std::int64_t kN = 200, kK = 640;
  for (const char* scheme : {"mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "msfp12", "msfp16", "nvfp4", "int4:block128",
                             "int4:block128:asym", "fp6_e3m2:block128", "int1:block128"})
    for (const int far : {6, 18, 70}) {
      const Tensor weight = random_values(DType::kF32, {kN, kK}, Values::kNormal, static_cast<unsigned>(generator_()));
      for (std::int64_t i = 0; i < kN * kK; i += 32) {
        const float power = std::ldexp(1.0f, pick(far + 1) - far / 2);
        for (std::int64_t j = i; j < i + 32; ++j) weight.as<float>()[j] *= i / 32 % 7 == 3 ? 0.0f : power;
      }
      Case c;
      c.q = to_device(narrow::quantize(weight, Scheme::parse(scheme)), kDevice, *stream_);
      c.w = prepare_weight(c.q, *stream_);
      const bool is_clear = c.w.scheme.scale == kE8m0 && far != 18 && c.w.scheme.element != kFp8E5m2;
      if (is_clear) {
        EXPECT_EQ(c.w.is_steady, far == 6) << scheme << " " << far;
      }
      c.out = DType::kF32;
      const bool is_smooth = c.w.is_steady || c.w.scheme.has_outer_scale;
      for (const DType type : {DType::kF16, DType::kBf16})
        for (const std::int64_t m : {20, 70, 300}) {
          const Tensor x = random_values(type, {m, kK}, Values::kNormal, static_cast<unsigned>(generator_()));
          for (std::int64_t i = 0; i < m * kK; ++i)
            if (i % kK / 32 != i / kK % (kK / 32)) x.as<std::uint16_t>()[i] = 0;
          c.x = to_device(x, kDevice, *stream_);
          c.options.kernel = {};
          ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c) + " far " + std::to_string(far)));
          for (const std::string& name : weight_matmul_kernel_names()) {
            if (name.find('x') == std::string::npos || !takes(c, name)) continue;
            EXPECT_NE(name.ends_with("promoted"), is_smooth) << describe(c);
            c.options.kernel = name;
            ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c) + " far " + std::to_string(far)));
          }
        }
    }
}

TEST_F(WeightTest, RepeatsBitForBit) {
  for (const char* scheme : {"int4:block128", "fp6_e3m2:row", "nvfp4"})
    for (const std::int64_t m : {1, 16, 33, 130, 520}) {
      const DeviceWeight w = prepare_weight(random_weight(scheme, 2112, 4096), *stream_);
      const Tensor x = values(DType::kF16, {m, 4096});
      const Tensor first = Tensor::empty(DType::kF32, {m, 2112}, kDevice), again = Tensor::empty(DType::kF32, {m, 2112}, kDevice);
      const Tensor space = Tensor::empty(DType::kU8, {static_cast<std::int64_t>(weight_matmul_workspace(m, w))}, kDevice);
      const Workspace workspace{space.data(), space.byte_size()};
      matmul(x, w, first, *stream_, {}, workspace);
      for (int i = 0; i < 5; ++i) {
        matmul(x, w, again, *stream_, {}, workspace);
        expect_equal(to_host(first, *stream_), to_host(again, *stream_), std::string(scheme) + " " + std::to_string(m));
      }
    }
}

/// A weight that is prepared inside a capture: replays prepare it from what is there then, and multiply.
TEST_F(WeightTest, PreparedInsideACapture) {
  for (const char* scheme : {"int4:block128", "mxfp4", "nvfp4", "msfp12", "fp6_e3m2:row", "fp16"})
    for (const std::int64_t m : {3, 70, 300}) {
      Case c;
      c.q = random_weight(scheme, 200, 640);
      c.x = values(DType::kF16, {m, 640});
      const Tensor y = Tensor::empty(DType::kF32, {m, 200}, kDevice);
      synchronize(*stream_);
      const Graph graph(*stream_, [&] {
        c.w = prepare_weight(c.q, *stream_);
        matmul(c.x, c.w, y, *stream_);
      });
      EXPECT_EQ(c.w.is_steady, !c.q.scheme.has_scales() || c.q.scheme.granularity == Granularity::row()) << scheme;
      for (int i = 0; i < 2; ++i) {
        set_bytes(y.data(), 0xFF, y.byte_size(), *stream_);
        graph.launch(*stream_);
        const WeightErrors errors = compare_with_oracle(weight_problem(c.x, c.w, y, {}), canonical_view(c.q), *stream_);
        EXPECT_EQ(errors.outside, 0u) << scheme << " " << m;
      }
      c.out = DType::kF32;
      ASSERT_NO_FATAL_FAILURE(expect_right(c, describe(c)));  // outside, now that a replay has prepared it
    }
}

TEST_F(WeightTest, RefusesWhatItCannotDoInOneSentence) {
  const DeviceWeight w = prepare_weight(random_weight("int4:block128", 24, 64), *stream_);
  const Tensor x = values(DType::kF16, {8, 64}), y = Tensor::empty(DType::kF16, {8, 24}, kDevice);
  EXPECT_THROW(matmul(values(DType::kF32, {8, 64}), w, y, *stream_), Unsupported);
  EXPECT_THROW(matmul(values(DType::kF16, {8, 80}), w, y, *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kF16, {24, 8}, kDevice), *stream_), InvalidArgument);
  EXPECT_THROW(matmul(x, w, Tensor::empty(DType::kI8, {8, 24}, kDevice), *stream_), Unsupported);
  EXPECT_THROW(matmul(random_values(DType::kF16, {8, 64}, Values::kNormal, 1), w, y, *stream_), InvalidArgument);
  WeightMatmulOptions unknown;
  unknown.kernel = "sm90_matmul_weights_7x7";
  EXPECT_THROW(matmul(x, w, y, *stream_, unknown), InvalidArgument);
  WeightMatmulOptions order;
  order.order = values(DType::kF32, {64});
  EXPECT_THROW(matmul(x, w, y, *stream_, order), InvalidArgument);
}

}  // namespace
}  // namespace narrow::cuda::testing
