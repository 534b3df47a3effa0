#include <cstdio>

#include <narrow/narrow.h>

int main() {
  const narrow::Tensor x = narrow::Tensor::of({1.0f, -2.0f, 3.0f, 0.25f}, {2, 2});
  const narrow::QuantizedTensor q = narrow::quantize(x, narrow::Scheme::parse("fp6_e3m2:row"));
  const double error = narrow::compare(x, narrow::dequantize(q)).max_absolute;
  std::printf("consumer: %zu bytes, error %g\n", q.byte_size(), error);
  return error < 0.5 ? 0 : 1;
}
