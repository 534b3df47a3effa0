/// One layer in several schemes: what it takes, what it loses, and its product.   one_layer [SCHEME ...]

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <narrow/narrow.h>

namespace {

/// Smooth values of every sign, [rows, cols].
narrow::Tensor values(std::int64_t rows, std::int64_t cols, float step) {
  narrow::Tensor x = narrow::Tensor::empty(narrow::DType::kF32, {rows, cols});
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = std::sin(step * static_cast<float>(i));
  return x;
}

void show(const std::string& name) {
  const narrow::Tensor weight = values(512, 1024, 0.37f), x = values(8, 1024, 0.11f);  // [n, k] and [m, k]
  const narrow::QuantizedTensor q = narrow::quantize(weight, narrow::Scheme::parse(name));
  const narrow::PreparedWeight prepared = narrow::prepare(q);  // once; the products share it

  const narrow::Tensor exact = narrow::matmul(x, narrow::prepare(weight));
  const narrow::Tensor y = narrow::matmul(x, prepared, {.activation = narrow::Activation::kNone, .out = narrow::DType::kF32});

  std::string kernel;
  for (const narrow::MatmulChoice& row : narrow::explain_matmul(8, 512, 1024, q.scheme))
    if (row.chosen) kernel = row.name;
  std::printf("%-20s %8zu bytes   weight %6.2f dB   product %6.2f dB   %s\n", name.c_str(), q.byte_size(),
              narrow::compare(weight, narrow::dequantize(q)).sqnr_db, narrow::compare(exact, y).sqnr_db, kernel.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> schemes(argv + 1, argv + argc);
  if (schemes.empty()) schemes = {"int8:row", "fp8_e4m3:row", "fp6_e3m2:row", "int4:block128:asym", "nvfp4", "int2:block64"};
  try {
    for (const std::string& name : schemes) show(name);
  } catch (const narrow::Error& error) {  // one sentence: what was asked, what is allowed, what to do
    std::fprintf(stderr, "one_layer: %s\n", error.what());
    return 1;
  }
}
