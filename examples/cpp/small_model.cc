/// A model made small, verified, and compared with what it was.   small_model MODEL OUT SCHEME TOKENS

#include <algorithm>
#include <cstdio>

#include <narrow/narrow.h>

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr,
                 "usage: small_model MODEL OUT SCHEME TOKENS, e.g. examples/docs-llama-13m small W8A8 examples/docs_tokens.safetensors\n");
    return 2;
  }
  try {
    const narrow::Recipe recipe = narrow::Recipe::of(argv[3]);  // a scheme or a preset
    const narrow::Plan plan = narrow::plan_quantize(narrow::open_checkpoint(argv[1]), recipe, argv[2]);
    narrow::check_quantizes(plan);
    std::printf("%.2f MB will be %.2f MB\n", 1e-6 * static_cast<double>(plan.bytes_before), 1e-6 * static_cast<double>(plan.file_bytes));

    const narrow::QuantizeReport report = narrow::quantize_checkpoint(argv[1], argv[2], recipe);
    if (!narrow::verify_checkpoint(argv[2]).problems.empty()) return 1;
    std::printf("%zu tensors at %.2f bits per weight, %.1f dB\n", report.tensors.size(), report.plan.bits_per_weight, report.sqnr_db);

    narrow::TokenWindows windows = narrow::read_token_windows(argv[4], "eval");
    windows.resize(std::min<std::size_t>(windows.size(), 4));
    const narrow::Model base = narrow::open_model(argv[1]), small = narrow::open_model(argv[2]);
    const narrow::Evaluation result = narrow::evaluate(small, windows, {.base = &base});
    std::printf("perplexity %.3f beside %.3f, KL divergence %.5f, %.0f tokens per second\n", result.perplexity,
                result.divergence->base_perplexity, result.divergence->kl_mean, result.tokens_per_second);
  } catch (const narrow::Error& error) {
    std::fprintf(stderr, "small_model: %s\n", error.what());
    return 1;
  }
}
