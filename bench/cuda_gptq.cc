/// GPTQ on a CUDA device for a model of Llama-3-8B's shape with random weights: what its parts take, and whole layers.
///
///   bench_cuda_gptq                           moments, factors and fits of its shapes
///   bench_cuda_gptq DIR [LAYERS] [WINDOWS]    writes such a checkpoint of some layers (8) into DIR and quantizes it to int4:block128
///                                             with windows (128) of 2048 random tokens; what 32 layers would take

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "io/safetensors_writer.h"
#include "io/text.h"
#include "kernels/cuda/decoder/decoder.h"
#include "kernels/cuda/gptq/gptq.h"
#include "methods/cuda/device_fit.h"
#include "narrow/model_bench.h"

namespace {

using namespace narrow;

constexpr Device kDevice = Device::cuda(0);

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Tensor random(DType type, Shape shape, float deviation, cuda::Stream stream) {
  Tensor x = Tensor::empty(type, std::move(shape), kDevice);
  cuda::check(cuda::launch_random(x.data(), type, x.size(), deviation, 5, stream), "random");
  return x;
}

void measure(std::int64_t k, std::initializer_list<std::int64_t> weights, cuda::Stream stream) {
  constexpr std::int64_t kRows = 8192;
  const Tensor x = random(DType::kF32, {kRows, k}, 1.0f, stream);
  DeviceHessian hessian(k, kDevice, stream);
  for (int i = 0; i < 2; ++i) hessian.add(x);
  cuda::synchronize(stream);
  double begin = now();
  for (int i = 0; i < 3; ++i) hessian.add(x);
  cuda::synchronize(stream);
  double seconds = (now() - begin) / 3;
  fmt::print("k {}: moment of {} tokens {:.2f} ms, {:.1f} Tflop/s\n", k, kRows, seconds * 1e3,
             static_cast<double>(kRows) * static_cast<double>(k) * static_cast<double>(k) / seconds * 1e-12);
  hessian.factor(0.01, false);  // the solver's first call makes its handle
  for (const char* steps : {"gptq", "gptq+clip", "gptq+clip+refine"}) {
    begin = now();
    const DeviceInput input(hessian, Method::parse(steps));
    fmt::print("  {}: factor by {}: {:.1f} ms\n", steps, device_factor_by(), (now() - begin) * 1e3);
    for (const std::int64_t n : weights)
      for (const char* scheme : {"int4:block128", "int4:row", "nvfp4"}) {
        const Tensor w = cuda::to_host(random(DType::kBf16, {n, k}, 0.02f, stream), stream);
        double least = HUGE_VAL;
        FittedWeight fitted;
        for (int repeat = 0; repeat < 2; ++repeat) {
          begin = now();
          fitted = fit_on_device(w, Scheme::parse(scheme), input);
          least = std::min(least, now() - begin);
        }
        fmt::print("  {} [{}, {}] {}: {:.1f} ms, loss {:.6f} -> {:.6f}\n", steps, n, k, scheme, least * 1e3, fitted.loss_before,
                   fitted.loss_after);
      }
  }
}

/// Random tensors in one file, norms 1; the head is tied, since its size does not matter here.
void write_model(const std::filesystem::path& directory, const ModelConfig& c, cuda::Stream stream) {
  std::vector<TensorInfo> infos;
  const auto add = [&](std::string name, Shape shape) { infos.push_back({std::move(name), DType::kBf16, std::move(shape)}); };
  add("model.embed_tokens.weight", {c.vocabulary, c.hidden});
  add("model.norm.weight", {c.hidden});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string p = fmt::format("model.layers.{}.", i);
    const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    add(p + "self_attn.q_proj.weight", {q, c.hidden});
    add(p + "self_attn.k_proj.weight", {kv, c.hidden});
    add(p + "self_attn.v_proj.weight", {kv, c.hidden});
    add(p + "self_attn.o_proj.weight", {c.hidden, q});
    add(p + "mlp.gate_proj.weight", {c.intermediate, c.hidden});
    add(p + "mlp.up_proj.weight", {c.intermediate, c.hidden});
    add(p + "mlp.down_proj.weight", {c.hidden, c.intermediate});
    add(p + "input_layernorm.weight", {c.hidden});
    add(p + "post_attention_layernorm.weight", {c.hidden});
  }
  std::filesystem::create_directories(directory);
  io::SafetensorsWriter writer(directory / "model.safetensors", io::layout_safetensors(infos, {{"format", "pt"}}));
  std::uint64_t seed = 1;
  for (const TensorInfo& info : infos) {
    Tensor x = Tensor::empty(info.dtype, info.shape, kDevice);
    const bool is_norm = info.shape.size() == 1;
    const float deviation = is_norm ? 0.0f : 1.0f / std::sqrt(static_cast<float>(info.shape.back()));
    cuda::check(cuda::launch_random(x.data(), x.dtype(), x.size(), deviation, ++seed, stream), "random");
    const Tensor host = cuda::to_host(x, stream);
    if (is_norm) std::fill_n(host.as<std::uint16_t>(), host.size(), std::uint16_t{0x3F80});
    writer.append(info.name, {host.data(), host.byte_size()});
  }
  writer.commit();
  io::write_text(directory / "config.json",
                 fmt::format(R"({{"model_type": "llama", "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
"num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "vocab_size": {}, "max_position_embeddings": 8192,
"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true}})",
                             c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocabulary));
}

void quantize_model(const std::filesystem::path& place, std::int64_t layers, std::int64_t count, cuda::Stream stream) {
  ModelConfig config;
  for (const ModelPreset& preset : model_presets())
    if (preset.name == "llama-3-8b") config = preset.config;
  const std::int64_t all = config.layers;
  config.layers = layers;
  config.vocabulary = 32000;
  double begin = now();
  write_model(place / "plain", config, stream);
  fmt::print("{} layers written in {:.1f} s\n", layers, now() - begin);
  std::vector<std::vector<std::int32_t>> windows;
  std::mt19937 generator(1);
  for (std::int64_t i = 0; i < count; ++i) {
    windows.emplace_back(2048);
    for (std::int32_t& token : windows.back()) token = static_cast<std::int32_t>(generator() % 32000);
  }
  double last = begin = now();
  MethodRun how;
  how.device = kDevice;
  how.fitted = [&](const FittedModule& module, std::size_t, std::size_t) {
    fmt::print("  {:7.3f} s  {}  loss {:.6f} -> {:.6f} {}\n", now() - last, module.module, module.loss_before, module.loss_after,
               module.fallback);
    last = now();
  };
  const MethodReport report = quantize_checkpoint(
      place / "plain", place / "int4", {.scheme = Scheme::parse("int4:block128"), .ignore = {"lm_head"}}, {.gptq = true}, {windows}, how);
  fmt::print(
      "{} layers, {} x 2048 tokens: {:.1f} s of fitting, factors by {}; {:.0f} s for {} layers; {:.1f} s of writing and reading back\n",
      layers, count, report.fit_seconds, report.factored_by, report.fit_seconds * static_cast<double>(all) / static_cast<double>(layers),
      all, report.files.seconds);
}

}  // namespace

int main(int count, char** arguments) {
  const cuda::OwnedStream stream;
  const auto number = [&](int i, std::int64_t otherwise) { return count > i ? std::atoll(arguments[i]) : otherwise; };
  if (count > 1) {
    quantize_model(arguments[1], number(2, 8), number(3, 128), stream);
    return 0;
  }
  measure(4096, {1024, 4096, 14336}, stream);
  measure(14336, {4096}, stream);
}
