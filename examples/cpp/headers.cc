/// Every header of narrow by its main function, in a few lines each.   headers MODEL TOKENS OUT
///   headers examples/docs-llama-13m examples/docs_tokens.safetensors /tmp/headers

#include <cmath>
#include <cstdio>
#include <filesystem>

#include <narrow/narrow.h>

namespace {

using namespace narrow;
namespace fs = std::filesystem;

/// Smooth values of every sign, [rows, cols].
Tensor values(std::int64_t rows, std::int64_t cols) {
  Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = std::sin(0.37f * static_cast<float>(i));
  return x;
}

// narrow/format.h, narrow/codec.h: what one code means.
void codes() {
  const Format format = kFp6E3m2;
  const std::uint32_t code = encode(format, 3.3f);
  std::printf("format.h      3.3 is code %u of fp6_e3m2, which means %g; the largest is %g\n", code, decode(format, code),
              format.largest());
}

// narrow/tensor.h, narrow/scheme.h, narrow/quantize.h: a tensor, a scheme, codes and scales.
void quantized() {
  const Tensor weight = values(64, 256);
  const QuantizedTensor q = quantize(weight, Scheme::parse("int4:block128:asym"));
  const ErrorMetrics error = compare(weight, dequantize(q));
  std::printf("quantize.h    %zu bytes instead of %zu, %.1f dB\n", q.byte_size(), weight.byte_size(), error.sqnr_db);
}

// narrow/matmul.h: a weight is prepared once, for many products.
void product() {
  const PreparedWeight w = prepare(quantize(values(64, 256), Scheme::parse("int8:row")));
  const Tensor y = matmul(values(4, 256), w, {.activation = Activation::kSilu, .out = DType::kF16});
  std::printf("matmul.h      y is %s %s\n", std::string(name_of(y.dtype())).c_str(), to_string(y.shape()).c_str());
}

// narrow/fused.h: a norm and the quantization of what it gives, in one pass.
void fused() {
  const QuantizedTensor x = fused_quantize({.op = FusedOp::kRmsNorm, .x = values(4, 256)}, Scheme::parse("int8:row"));
  std::printf("fused.h       codes and scales of RMSNorm(x): %zu bytes\n", x.byte_size());
}

// narrow/binary.h: a convolution of +-1 with +-1.
void binary() {
  const PreparedBinaryConv2d w = prepare_binary_conv2d(quantize(values(8, 3 * 3 * 32), Scheme::parse("int1:row")),
                                                       {.kernel_h = 3, .kernel_w = 3, .pad_h = 1, .pad_w = 1});
  const Tensor pixels = values(6 * 6, 32), image = Tensor::borrow(pixels.data(), DType::kF32, {1, 6, 6, 32});
  const Tensor sums = binary_conv2d(quantize(image, Scheme::parse("int1:tensor")), w, DType::kI32);
  std::printf("binary.h      exact sums %s\n", to_string(sums.shape()).c_str());
}

// narrow/layout.h: the same bytes in the order that another library reads.
void layout() {
  const QuantizedTensor q = quantize(values(32, 64), Scheme::parse("int8:row"));
  const Tensor rows = Tensor::borrow(q.codes.data(), DType::kI8, {32, 64});
  const Tensor col32 = transform(rows, {32, 64}, Layout::kRow, Layout::kCol32);
  std::printf("layout.h      element (1, 40) lies at %lld of COL32's %lld\n",
              static_cast<long long>(layout_offset(Layout::kCol32, 1, 40, 32, 64)), static_cast<long long>(col32.size()));
}

// narrow/methods.h: codes chosen by what they do to the layer's output.
void method() {
  const Tensor weight = values(32, 64);
  std::vector<double> moment(64 * 64, 0.0);  // X^T X of the layer's input
  for (std::size_t i = 0; i < 64; ++i) moment[i * 64 + i] = 1.0 + static_cast<double>(i);
  const FittedWeight fitted = fit_weight(weight, Scheme::parse("int4:block32"), moment, Method::parse("gptq+clip"));
  std::printf("methods.h     loss %.5f by rounding, %.5f by gptq+clip\n", fitted.loss_before, fitted.loss_after);
}

// narrow/checkpoint.h, narrow/recipe.h: a model's files, read and made small; written atomically and verified.
void checkpoints(const fs::path& model, const fs::path& out) {
  const Recipe recipe = Recipe::of("int4:block128");
  const Plan plan = plan_quantize(open_checkpoint(model), recipe, out);
  const QuantizeReport report = quantize_checkpoint(model, out / "small", recipe);
  std::printf("recipe.h      %llu bytes as planned, %.1f dB\n", static_cast<unsigned long long>(plan.file_bytes), report.sqnr_db);
  const Checkpoint small = open_checkpoint(out / "small");
  const QuantizedTensor q = small.quantized("model.layers.0.mlp.up_proj.weight");
  std::printf("checkpoint.h  up_proj is %s, %zu bytes; %zu problems\n", q.scheme.to_string().c_str(), q.byte_size(),
              verify_checkpoint(out / "small").problems.size());
}

// narrow/shards.h: the same files by many processes, one file each.
void shards(const fs::path& model, const fs::path& out) {
  const ShardedQuantize work(model, Recipe::of("int4:block128"));
  fs::create_directory(out / "shards");
  std::vector<std::string> reports;
  for (std::size_t i = 0; i < work.shards().size(); ++i) reports.push_back(work.write(i, out / "shards"));  // each could be a process
  work.finish(out / "shards", reports);
  std::printf("shards.h      %zu files, %zu problems\n", reports.size(), verify_checkpoint(out / "shards").problems.size());
}

// narrow/interop.h: the form that another runtime loads.
void interop(const fs::path& out) {
  const InteropReport report = convert_checkpoint(out / "small", out / "gptq", Ecosystem::kGptq);
  std::printf("interop.h     %zu weights as GPTQ stores them\n", report.tensors.size());
}

// narrow/model.h, narrow/evaluate.h, narrow/calibrate.h, narrow/search.h: the model runs, on its own files.
void models(const fs::path& path, const fs::path& tokens, const fs::path& out) {
  TokenWindows windows = read_token_windows(tokens, "eval");
  windows.resize(1);
  const Model base = open_model(path), small = open_model(out / "small");
  const Evaluation result = evaluate(small, windows, {.base = &base});
  std::printf("evaluate.h    perplexity %.2f, KL divergence %.4f\n", result.perplexity, result.divergence->kl_mean);

  const CalibrationStatistics statistics = collect_statistics(base, windows, /*second_moments=*/true);
  const InputStatistics& input = statistics.of("model.layers.0.mlp.down_proj");
  std::printf("calibrate.h   inputs of down_proj lie in [%.2f, %.2f]\n", input.minimum, input.maximum);

  SearchOptions budget{.menu = {Scheme::parse("int4:block128"), Scheme::parse("int8:row")}};
  budget.bits = 5.0;
  budget.probe_windows = 1;
  budget.statistics = &statistics;
  const SearchResult found = search_schemes(path, windows, budget);
  std::printf("search.h      %zu rules for %.2f bits per weight\n", found.recipe.rules.size(), found.bits);
}

// narrow/tokenizer.h, narrow/generate.h: text to tokens, more of them, and back.
void text(const fs::path& path) {
  const Tokenizer tokenizer = open_tokenizer(path);
  const std::vector<std::int32_t> prompt = tokenizer.encode("To install the package, run");
  const Generation made = generate(open_model(path), prompt, {.tokens = 8});
  std::printf("generate.h    \"To install the package, run%s\"\n", tokenizer.decode(made.tokens).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: headers MODEL TOKENS OUT\n");
    return 2;
  }
  const fs::path model = argv[1], tokens = argv[2], out = argv[3];
  try {
    fs::create_directories(out);
    codes();
    quantized();
    product();
    fused();
    binary();
    layout();
    method();
    checkpoints(model, out);
    shards(model, out);
    interop(out);
    models(model, tokens, out);
    text(model);
  } catch (const Error& error) {  // narrow/error.h: one sentence: what was asked, what is allowed, what to do
    std::fprintf(stderr, "headers: %s\n", error.what());
    return 1;
  }
}
