// GPTQ, clip search and learned rounding on a CUDA device against the CPU's: moments, losses, codes, factors, whole checkpoints.
#include <cmath>
#include <cstring>

#include "device/cuda/runtime.h"
#include "format/packing.h"
#include "harness.h"
#include "io/files.h"
#include "kernels/cuda/gptq/gptq.h"
#include "kernels/cuda/gptq/solver.h"
#include "methods/cuda/device_fit.h"
#include "methods/gptq.h"
#include "methods/hessian.h"
#include "methods/second_moments.h"
#include "model/small_model.h"
#include "narrow/methods.h"
#include "narrow/model.h"

namespace narrow::cuda::testing {
namespace {

bool same(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  return same(a.codes, b.codes) && same(a.scales, b.scales) && same(a.zero_points, b.zero_points) && a.outer_scale == b.outer_scale;
}

/// The share of values that differ.
double difference(const QuantizedTensor& a, const QuantizedTensor& b) {
  const Tensor x = dequantize(a), y = dequantize(b);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) count += x.as<float>()[i] != y.as<float>()[i];
  return static_cast<double>(count) / static_cast<double>(x.size());
}

/// The share of codes that differ: scales of which the last bits differ leave codes as they are.
double code_difference(const QuantizedTensor& a, const QuantizedTensor& b) {
  const std::int64_t n = a.shape[0], k = a.shape[1];
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t c = 0; c < k; ++c) {
      const auto code = [&](const QuantizedTensor& q) {
        return read_code(q.codes.as<std::uint8_t>() + static_cast<std::size_t>(row) * q.row_bytes(), c, q.scheme.element.bits);
      };
      count += code(a) != code(b);
    }
  return static_cast<double>(count) / static_cast<double>(n * k);
}

constexpr const char* kSchemes[] = {"int4:block128", "int4:row", "int3:block64", "int4:block100:asym", "fp4_e2m1:row", "fp5_e2m2:row",
                                    "nvfp4",         "mxfp4",    "msfp12",       "int4:tensor",        "int8:128x128", "nf4:block64"};

TEST(DeviceGptq, MomentsAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  for (const auto& [tokens, k] : {std::pair{1, 1}, {5, 3}, {17, 130}, {1024, 64}, {2100, 200}, {1500, 259}}) {
    SCOPED_TRACE(fmt::format("{} tokens of {}", tokens, k));
    const Tensor x = test::correlated_inputs(tokens, k);
    const std::vector<double> expected = test::moment_of(x);
    DeviceHessian hessian(k, kDevice, stream);
    hessian.add(to_device(x, kDevice, stream));
    const std::vector<double> diagonal = hessian.diagonal();
    for (int i = 0; i < k; ++i)
      EXPECT_NEAR(diagonal[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i * k + i)],
                  1e-5 * expected[static_cast<std::size_t>(i * k + i)]);
    // Everything beside the diagonal is seen through tr(E M E^T).
    const Tensor e = test::random_values(DType::kF32, {37, k}, 3, 1.0f);
    double energy = 0.0;
    for (std::int64_t row = 0; row < 37; ++row)
      for (int i = 0; i < k; ++i)
        for (int j = 0; j < k; ++j)
          energy += static_cast<double>(e.as<float>()[row * k + i]) * expected[static_cast<std::size_t>(i * k + j)] *
                    static_cast<double>(e.as<float>()[row * k + j]);
    EXPECT_NEAR(hessian.energy(to_device(e, kDevice, stream)), energy, 1e-5 * energy);
  }
}

TEST(DeviceGptq, IdentityHessianRoundsToNearest) {
  NARROW_REQUIRE_DEVICE();
  const Tensor w = test::random_values(DType::kF32, {48, 200}, 1, 0.1f);
  for (const Scheme& scheme : standard_schemes()) {
    if (scheme.element.bits > 16) continue;
    const FittedWeight fitted = fit_weight(w, scheme, test::identity(200), {.gptq = true}, kDevice);
    EXPECT_TRUE(same(fitted.quantized, quantize(w, scheme))) << scheme.to_string();
    EXPECT_EQ(fitted.loss_before, fitted.loss_after) << scheme.to_string();
    EXPECT_TRUE(same(fit_weight(w, scheme, test::identity(200), {.gptq = true, .act_order = true}, kDevice).quantized, quantize(w, scheme)))
        << scheme.to_string();
  }
}

/// Calls `check(w, factor, input, what)` for odd shapes in both orders of columns, where the device's input has the CPU's own factor.
template <typename Check>
void with_the_cpus_factor(Method method, const Check& check) {
  const OwnedStream stream;
  for (const auto& [n, k] : {std::pair{70, 128}, {33, 100}, {5, 7}}) {
    const Tensor w = test::random_values(DType::kF32, {n, k}, 2, 0.1f);
    const std::vector<double> moment = test::moment_of(test::correlated_inputs(600, k));
    for (const bool act_order : {false, true}) {
      method.act_order = act_order;
      const HessianFactor factor = *Hessian(moment, k).factor(0.01, act_order);
      DeviceInput input(DeviceHessian(moment, k, kDevice, stream), method);
      ASSERT_TRUE(input.factor);
      copy_bytes(input.factor->upper.data(), factor.upper.data(), factor.upper.size() * sizeof(float), stream);
      synchronize(stream);
      check(w, factor, input, fmt::format("{} x {}{}", n, k, act_order ? ", in order of energy" : ""));
    }
  }
}

/// With the CPU's own factor only sums over blocks are rounded otherwise: the codes of the first block are the CPU's.
TEST(DeviceGptq, FirstBlockOfTheSameFactorHasTheCpusCodes) {
  NARROW_REQUIRE_DEVICE();
  with_the_cpus_factor({.gptq = true}, [](const Tensor& w, const HessianFactor& factor, const DeviceInput& input, const std::string& what) {
    for (const char* name : kSchemes)
      EXPECT_TRUE(
          same(fit_on_device(w, Scheme::parse(name), input).quantized, quantize_columns(w, Scheme::parse(name), &factor, false, {})))
          << name << ", " << what;
  });
}

/// Scales are searched by the same sums then, so that they are the CPU's too. With act-order blocks have theirs beforehand.
TEST(DeviceGptq, ClipFindsTheCpusScalesForTheSameFactor) {
  NARROW_REQUIRE_DEVICE();
  with_the_cpus_factor(
      {.gptq = true, .clip = true}, [](const Tensor& w, const HessianFactor& factor, const DeviceInput& input, const std::string& what) {
        for (const char* name :
             {"int4:block128", "int4:row", "int3:block64", "int4:block32:asym", "int3:row:asym", "fp4_e2m1:row", "nvfp4", "mxfp4", "msfp12",
              "int4:tensor", "int8:128x128", "int8:16x16", "nf4:block64", "int1:row", "int4:col", "fp8_e4m3:none"}) {
          const QuantizedTensor expected = quantize_columns(w, Scheme::parse(name), &factor, true, {});
          const QuantizedTensor made = fit_on_device(w, Scheme::parse(name), input).quantized;
          EXPECT_TRUE(same(made, expected)) << name << ", " << what << ": " << difference(made, expected) << " of the values differ";
        }
      });
}

/// Every way of choosing codes: the CPU's loss, and lower than without the step.
TEST(DeviceGptq, ClipAndRefineReachTheCpusLosses) {
  NARROW_REQUIRE_DEVICE();
  for (const auto& [n, k] : {std::pair{32, 384}, {27, 200}}) {
    const Tensor w = test::random_values(DType::kBf16, {n, k}, 2, 0.1f);
    const std::vector<double> moment = test::moment_of(test::correlated_inputs(1000, k));
    for (const char* name :
         {"int4:block128", "int4:row", "int3:block100:asym", "nvfp4", "msfp12", "int4:tensor", "int8:128x128", "fp8_e4m3:none"}) {
      const Scheme scheme = Scheme::parse(name);
      const double rounding = fit_weight(w, scheme, moment, {.clip = true}).loss_before;
      for (const bool act_order : {false, true}) {
        double without = rounding;
        for (const char* steps : {"clip", "refine", "clip+refine", "gptq+clip", "gptq+refine", "gptq+clip+refine"}) {
          Method method = Method::parse(steps);
          if (act_order && !method.gptq) continue;
          method.act_order = act_order;
          SCOPED_TRACE(fmt::format("{} {} {} x {}{}", name, steps, n, k, act_order ? " in order of energy" : ""));
          const FittedWeight cpu = fit_weight(w, scheme, moment, method), gpu = fit_weight(w, scheme, moment, method, kDevice);
          EXPECT_NEAR(gpu.loss_after, cpu.loss_after, 0.02 * cpu.loss_after);
          EXPECT_LE(gpu.loss_after, rounding * (1.0 + 1e-6));  // fp8 without a scale has nothing to search
          if (method.gptq && method.clip) {
            EXPECT_LE(gpu.loss_after, without);
            without = gpu.loss_after;
          }
          EXPECT_TRUE(same(fit_weight(w, scheme, moment, method, kDevice).quantized, gpu.quantized));  // the same bytes every time
        }
      }
    }
  }
}

/// From the same start refine takes the CPU's steps, but where the gradient's last bits decide.
TEST(DeviceGptq, RefineTakesTheCpusSteps) {
  NARROW_REQUIRE_DEVICE();
  const std::int64_t k = 256;
  const Tensor w = test::random_values(DType::kF32, {40, k}, 5, 0.1f);
  const std::vector<double> moment = test::moment_of(test::correlated_inputs(1500, k));
  for (const char* name : kSchemes) {
    const Scheme scheme = Scheme::parse(name);
    for (const int sweeps : {1, 8}) {
      const Method method{.refine = true, .sweeps = sweeps};
      const FittedWeight cpu = fit_weight(w, scheme, moment, method), gpu = fit_weight(w, scheme, moment, method, kDevice);
      EXPECT_NEAR(gpu.loss_after, cpu.loss_after, 0.01 * cpu.loss_after) << name << ", " << sweeps << " sweeps";
      EXPECT_LT(gpu.loss_after, gpu.loss_before) << name;
      EXPECT_LT(code_difference(cpu.quantized, gpu.quantized), sweeps == 1 ? 0.02 : 0.05) << name << ", " << sweeps << " sweeps";
    }
  }
}

/// Where cuSOLVER is not installed.
TEST(DeviceGptq, FactorsOnTheHostAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const std::int64_t k = 140;
  const std::vector<double> moment = test::moment_of(test::correlated_inputs(600, k));
  std::vector<double> half = moment;  // below the diagonal nothing is known on the device
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < i; ++j) half[static_cast<std::size_t>(i * k + j)] = NAN;
  for (const bool act_order : {false, true}) {
    const HessianFactor expected = *Hessian(moment, k).factor(0.01, act_order);
    const std::optional<DeviceFactor> made = DeviceHessian(half, k, kDevice, stream).factor_on_host(0.01, act_order);
    ASSERT_TRUE(made);
    std::vector<float> upper(expected.upper.size());
    std::vector<std::int32_t> order(expected.order.size());
    copy_bytes(upper.data(), made->upper.data(), made->upper.size(), stream);
    copy_bytes(order.data(), made->order.data(), made->order.size(), stream);
    synchronize(stream);
    EXPECT_EQ(upper, expected.upper);
    EXPECT_EQ(order, std::vector<std::int32_t>(expected.order.begin(), expected.order.end()));
    EXPECT_EQ(made->damping, expected.damping);
  }
}

TEST(DeviceGptq, LossesAreTheCpus) {
  NARROW_REQUIRE_DEVICE();
  for (const auto& [n, k] : {std::pair{64, 512}, {51, 400}}) {
    const Tensor w = test::random_values(DType::kBf16, {n, k}, 2, 0.1f);
    const std::vector<double> moment = test::moment_of(test::correlated_inputs(2000, k));
    for (const char* name : kSchemes)
      for (const bool act_order : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} x {}{}", name, n, k, act_order ? " in order of energy" : ""));
        const Scheme scheme = Scheme::parse(name);
        const Method method{.gptq = true, .act_order = act_order};
        const FittedWeight cpu = fit_weight(w, scheme, moment, method), gpu = fit_weight(w, scheme, moment, method, kDevice);
        EXPECT_TRUE(same(cpu.quantized.scales, gpu.quantized.scales));
        EXPECT_NEAR(gpu.loss_before, cpu.loss_before, 1e-4 * cpu.loss_before);
        EXPECT_NEAR(gpu.loss_after, cpu.loss_after, 0.01 * cpu.loss_after);
        EXPECT_LT(gpu.loss_after, gpu.loss_before);
        EXPECT_LT(difference(cpu.quantized, gpu.quantized), 0.02);  // values between two codes, and what follows from each
        EXPECT_EQ(gpu.damping, cpu.damping);
        // The same bytes every time.
        EXPECT_TRUE(same(fit_weight(w, scheme, moment, method, kDevice).quantized, gpu.quantized));
      }
  }
}

TEST(DeviceGptq, DeadColumnsAndSingularHessians) {
  NARROW_REQUIRE_DEVICE();
  const std::int64_t k = 192;
  const Tensor w = test::random_values(DType::kF32, {40, k}, 4, 0.1f), x = test::correlated_inputs(50, k);  // fewer tokens than channels
  for (std::int64_t row = 0; row < 50; ++row) x.as<float>()[row * k + 5] = x.as<float>()[row * k + 77] = 0.0f;
  const Scheme scheme = Scheme::parse("int4:row");
  const std::vector<double> moment = test::moment_of(x);
  const FittedWeight cpu = fit_weight(w, scheme, moment, {.gptq = true}), gpu = fit_weight(w, scheme, moment, {.gptq = true}, kDevice);
  EXPECT_EQ(gpu.dead_columns, 2);
  EXPECT_NEAR(gpu.loss_after, cpu.loss_after, 0.01 * cpu.loss_after);
  std::vector<double> indefinite = test::identity(k);
  indefinite[1] = indefinite[static_cast<std::size_t>(k)] = 100.0;
  const FittedWeight rounded = fit_weight(w, scheme, indefinite, {.gptq = true}, kDevice);
  EXPECT_EQ(rounded.fallback, "the Hessian is not positive definite");
  EXPECT_TRUE(same(rounded.quantized, quantize(w, scheme)));
  std::vector<double> infinite = test::identity(k);
  infinite[0] = HUGE_VAL;
  EXPECT_EQ(fit_weight(w, scheme, infinite, {.gptq = true}, kDevice).fallback, "the Hessian is not positive definite");
}

TEST(DeviceGptq, RefusesWhatItCannotDo) {
  NARROW_REQUIRE_DEVICE();
  const Tensor w = test::random_values(DType::kF32, {8, 16}, 4, 0.1f);
  const Scheme scheme = Scheme::parse("int4:row");
  EXPECT_THROW(fit_weight(w, scheme, test::identity(16), {}, kDevice), Unsupported);
  w.as<float>()[3] = NAN;
  EXPECT_THROW(fit_weight(w, scheme, test::identity(16), {.gptq = true}, kDevice), InvalidArgument);
}

/// Inputs are rounded to fp16 on the device, by 2^-11, and codes that turn out otherwise change the inputs of later layers: losses agree to
/// some percent.
void expect_alike(const MethodReport& cpu, const MethodReport& gpu) {
  ASSERT_EQ(gpu.modules.size(), cpu.modules.size());
  EXPECT_EQ(gpu.fallbacks, cpu.fallbacks);
  for (std::size_t i = 0; i < cpu.modules.size(); ++i) {
    SCOPED_TRACE(cpu.modules[i].module);
    EXPECT_EQ(gpu.modules[i].module, cpu.modules[i].module);
    EXPECT_NEAR(gpu.modules[i].loss_before, cpu.modules[i].loss_before, 0.02 * cpu.modules[i].loss_before);
    EXPECT_NEAR(gpu.modules[i].loss_after, cpu.modules[i].loss_after, 0.05 * cpu.modules[i].loss_after);
  }
}

TEST(DeviceGptq, QuantizesCheckpointsAsTheCpuDoes) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  std::vector<std::vector<std::int32_t>> windows;
  for (unsigned i = 0; i < 12; ++i) windows.push_back(test::random_tokens(i == 11 ? 30 : 150, 96, i));
  int model = 0;
  for (const test::Decoder& decoder :
       {test::Decoder{.hidden = 128, .intermediate = 256, .heads = 4, .kv_heads = 2, .head_dim = 32},
        test::Decoder{.type = "qwen2", .hidden = 128, .intermediate = 192, .heads = 4, .kv_heads = 4, .head_dim = 32, .biases = true},
        test::Decoder{.type = "mistral", .extra = R"("sliding_window": 70,)", .hidden = 64, .intermediate = 128}}) {
    SCOPED_TRACE(decoder.type);
    const std::filesystem::path input = place / std::to_string(model++);
    test::write_decoder(input, decoder);
    const auto run = [&](const char* scheme, const char* output, const Calibration& calibration, Device device) {
      return quantize_checkpoint(input, input.string() + output, {.scheme = Scheme::parse(scheme)}, {.gptq = true}, calibration,
                                 {.device = device});
    };
    const MethodReport cpu = run("int4:block32", "_cpu", {windows}, Device::cpu()), gpu = run("int4:block32", "_gpu", {windows}, kDevice);
    expect_alike(cpu, gpu);
    EXPECT_EQ(gpu.factored_by, device_factor_by());
    const CalibrationStatistics statistics = collect_statistics(open_model(input), windows, true);
    const Calibration known{.statistics = &statistics};
    expect_alike(run("nvfp4", "_known_cpu", known, Device::cpu()), run("nvfp4", "_known_gpu", known, kDevice));
    const auto refined = [&](const char* output, Device device) {
      return quantize_checkpoint(input, input.string() + output, {.scheme = Scheme::parse("int4:block32:asym")},
                                 Method::parse("gptq+clip+refine"), {windows}, {.device = device});
    };
    expect_alike(refined("_refined_cpu", Device::cpu()), refined("_refined_gpu", kDevice));
    EXPECT_THROW(quantize_checkpoint(input, input.string() + "_never", {.scheme = Scheme::parse("int4:row")}, Method::parse("correct+gptq"),
                                     {windows}, {.device = kDevice}),
                 Unsupported);
  }
}

TEST(DeviceGptq, JournalsGoOnOnTheSameKindOfDeviceAlone) {
  NARROW_REQUIRE_DEVICE();
  const test::TemporaryDirectory place;
  test::write_decoder(place / "in", {});
  const std::vector<std::vector<std::int32_t>> windows{test::random_tokens(200, 96, 1), test::random_tokens(100, 96, 2)};
  const Recipe recipe{.scheme = Scheme::parse("int4:block32")};
  const auto run = [&](const char* output, const MethodRun& how) {
    return quantize_checkpoint(place / "in", place / output, recipe, {.gptq = true}, {windows}, how);
  };
  run("whole", {.device = kDevice});
  const auto stop = [](const FittedModule&, std::size_t done, std::size_t) {
    if (done == 9) throw IoError("stopped");
  };
  EXPECT_THROW(run("out", {.journal = place / "journal", .fitted = stop, .device = kDevice}), IoError);
  EXPECT_THROW(run("out", {.journal = place / "journal"}), InvalidArgument);
  run("out", {.journal = place / "journal", .device = kDevice});
  EXPECT_EQ(test::read_bytes(place / "out" / "model.safetensors"), test::read_bytes(place / "whole" / "model.safetensors"));
  EXPECT_THROW(run("spilled", {.spill = place.path(), .device = kDevice}), InvalidArgument);
}

TEST(DeviceGptq, SaysWhoFactors) {
  NARROW_REQUIRE_DEVICE();
  RecordProperty("factored_by", std::string(device_factor_by()));
  EXPECT_EQ(has_solver(), device_factor_by() == "cuSOLVER");
}

}  // namespace
}  // namespace narrow::cuda::testing
