// random_products COUNT [SEED]: products of random shapes, strides, schemes, types and epilogues against sums in fp64 of the exactly
// dequantized values; every element within |y - y64| <= gamma(k) sum |a||w| + the roundings of bias and output, and products of small whole
// numbers exactly. Prints how many products and elements were compared and how many are wrong.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include <omp.h>

#include "narrow/matmul.h"
#include "narrow/quantize.h"

namespace narrow {
namespace {

class Random {
 public:
  explicit Random(unsigned seed) : generator_(seed) {}
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(limit)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  float normal() { return normal_(generator_); }

  /// 0, 1, primes, powers of two and what lies beside them, and anything below 100.
  std::int64_t size() {
    if (below(3) == 0) return one_of<std::int64_t>({0, 1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 97, 127, 128, 129, 131});
    return 1 + below(100);
  }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
};

/// Outliers, zeros and small numbers; or whole numbers from -3 to 3.
Tensor values(Random& random, std::int64_t rows, std::int64_t cols, bool whole) {
  const Tensor x = Tensor::empty(DType::kF32, {rows, cols});
  const float spread = random.one_of({1.0f, 0.02f, 1e-3f, 30.0f});
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const float value = whole ? static_cast<float>(random.below(7) - 3) : random.normal() * spread * (random.below(64) == 0 ? 20.0f : 1.0f);
    x.as<float>()[i] = random.below(16) == 0 ? 0.0f : value;
  }
  return x;
}

/// x as a strided view whose gaps hold NaN: whoever reads them shows it.
struct Strided {
  Tensor memory, view;
};
Strided apart(Random& random, const Tensor& x) {
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1], pitch = cols + 1 + random.below(9);
  Strided result;
  result.memory = Tensor::empty(DType::kF32, {rows, pitch});
  for (std::int64_t i = 0; i < result.memory.size(); ++i)
    result.memory.as<float>()[i] = i % pitch < cols ? x.as<float>()[i / pitch * cols + i % pitch] : NAN;
  result.view = Tensor::borrow(result.memory.data(), DType::kF32, {rows, cols}, {pitch, 1});
  return result;
}

float as_float(const Tensor& y, std::int64_t i) {
  if (y.dtype() == DType::kF32) return y.as<float>()[i];
  return decode(y.dtype() == DType::kF16 ? kFp16 : kBf16, y.as<std::uint16_t>()[i]);
}

struct Counts {
  std::int64_t products = 0, elements = 0, wrong = 0, exact = 0;
};

/// One product; says what it was where an element is wrong.
void check_product(Random& random, Counts& counts) {
  const std::int64_t m = random.size() % 20, n = random.size(), k = random.size();
  const bool whole = random.below(4) == 0;
  std::vector<Scheme> schemes = standard_schemes();
  Scheme scheme = schemes[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(schemes.size())))];
  const Tensor dense = values(random, n, k, whole);
  const bool is_dense = random.below(8) == 0;
  const DType weight_type = random.one_of({DType::kF32, DType::kF16, DType::kBf16});
  const Tensor stored = convert(dense, weight_type);
  const QuantizedTensor q = quantize(dense, scheme);
  const PreparedWeight weight = is_dense ? prepare(stored) : prepare(q);
  const Tensor w = is_dense ? convert(stored, DType::kF32) : dequantize(q);

  const DType x_type = random.one_of({DType::kF32, DType::kF32, DType::kF16, DType::kBf16});
  const Tensor plain = convert(values(random, m, k, whole), x_type);
  Strided strided;
  const bool is_strided = x_type == DType::kF32 && random.below(2) == 0;
  if (is_strided) strided = apart(random, plain);
  const Tensor& x = is_strided ? strided.view : plain;

  MatmulOptions options;
  options.out = random.one_of({DType::kF32, DType::kF32, DType::kF16, DType::kBf16});
  Tensor a = convert(plain, DType::kF32);
  std::string activations;
  if (random.below(3) == 0) {
    activations = random.one_of<const char*>({"int8:row", "int8:row:asym", "int8:block32", "fp8_e4m3:row", "int8:tensor"});
    options.quantize = ActivationQuantization{.scheme = Scheme::parse(activations)};
    a = dequantize(quantize(plain, options.quantize->scheme, {.nonfinite = NonFinite::kSaturate}));
  }
  if (random.below(3) == 0) options.bias = values(random, 1, n, whole).reshape({n});
  const Tensor y = matmul(x, weight, options);

  const double unit = 0x1p-24, out_unit = options.out == DType::kF32 ? unit : options.out == DType::kF16 ? 0x1p-11 : 0x1p-8;
  // k terms, and up to four roundings of scales: of the value, the row's, the block's and their product.
  const double steps = static_cast<double>(k + 4) * unit, gamma = steps / (1.0 - steps);
  const double smallest = options.out == DType::kF16 ? 0x1p-25 : 0x1p-149;
  ++counts.products;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double term = static_cast<double>(a.as<float>()[i * k + l]) * static_cast<double>(w.as<float>()[j * k + l]);
        sum += term;
        magnitude += std::fabs(term);
      }
      const double bias = options.bias ? static_cast<double>(options.bias->as<float>()[j]) : 0.0, wanted = sum + bias;
      const double bound = gamma * magnitude + unit * (std::fabs(wanted) + std::fabs(bias)) + 2.0 * out_unit * std::fabs(wanted) + smallest;
      const double got = static_cast<double>(as_float(y, i * n + j));
      const bool is_exact = whole && is_dense && activations.empty() && options.out == DType::kF32;
      ++counts.elements;
      counts.exact += is_exact ? 1 : 0;
      const double largest = options.out == DType::kF16 ? 65504.0 : 3.4e38;
      const bool saturated = std::fabs(wanted) > largest && std::fabs(got) >= largest;
      if (saturated || (is_exact ? got == wanted : std::fabs(got - wanted) <= bound)) continue;
      if (++counts.wrong <= 20)
        std::printf("wrong: [%lld, %lld, %lld] %s x %s%s -> %s, element %lld, %lld: %.9g instead of %.9g, bound %.3g\n",
                    static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k),
                    activations.empty() ? std::string(name_of(x_type)).c_str() : activations.c_str(),
                    is_dense ? std::string(name_of(weight_type)).c_str() : scheme.to_string().c_str(), options.bias ? " + bias" : "",
                    std::string(name_of(options.out)).c_str(), static_cast<long long>(i), static_cast<long long>(j), got, wanted, bound);
    }
}

int run(long count, unsigned seed) {
  Random random(seed);
  Counts counts;
  for (long i = 0; i < count; ++i) {
    omp_set_num_threads(random.below(16) == 0 ? 3 : 1);
    check_product(random, counts);
  }
  std::printf("products: %lld products, %lld elements (%lld compared exactly), %lld outside of the bound; seed %u\n",
              static_cast<long long>(counts.products), static_cast<long long>(counts.elements), static_cast<long long>(counts.exact),
              static_cast<long long>(counts.wrong), seed);
  return counts.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace narrow

int main(int count, char** words) {
  if (count < 2) return 2;
  return narrow::run(std::atol(words[1]), count > 2 ? static_cast<unsigned>(std::atol(words[2])) : 1u);
}
