#include "bench/peers.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

#ifdef NARROW_BENCH_OPENBLAS
#include <cblas.h>
#endif
#ifdef NARROW_BENCH_ONEDNN
#include <dnnl.hpp>
#include <unordered_map>
#endif

namespace narrow::bench {
namespace {

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, int>;

/// Repeated timings, as for our own rows.
template <typename Work>
[[maybe_unused]] double typical_time(const Work& work, bool best) {
  std::vector<double> times;
  work(0);
  double spent = 0.0;
  for (int i = 1; i < 200 && (times.size() < 3 || spent < 0.25); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work(i);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    spent += times.back();
  }
  if (best) return *std::min_element(times.begin(), times.end());
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Weights rotate beyond the cache at small m, as for our own rows.
[[maybe_unused]] int copies_for(std::int64_t m, std::int64_t bytes) {
  return m <= 32 ? static_cast<int>(std::max<std::int64_t>(2, (160 << 20) / bytes)) : 1;
}

}  // namespace

double openblas_time(std::int64_t m, std::int64_t n, std::int64_t k, int threads, bool best) {
#ifdef NARROW_BENCH_OPENBLAS
  static std::map<Key, double> known;
  const auto [place, fresh] = known.try_emplace(Key{m, n, k, threads}, 0.0);
  if (!fresh) return place->second;
  openblas_set_num_threads(threads);
  const int copies = copies_for(m, n * k * 4);
  std::vector<float> x(static_cast<std::size_t>(m * k), 0.5f), w(static_cast<std::size_t>(n * k * copies), 0.25f),
      y(static_cast<std::size_t>(m * n));
  return place->second = typical_time(
             [&](int i) {
               cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0f,
                           x.data(), static_cast<int>(k), w.data() + (i % copies) * n * k, static_cast<int>(k), 0.0f, y.data(),
                           static_cast<int>(n));
             },
             best);
#else
  static_cast<void>(std::tie(m, n, k, threads, best));
  return 0.0;
#endif
}

double onednn_int8_time(std::int64_t m, std::int64_t n, std::int64_t k, int threads, bool best) {
#ifdef NARROW_BENCH_ONEDNN
  static std::map<Key, double> known;
  const auto [place, fresh] = known.try_emplace(Key{m, n, k, threads}, 0.0);
  if (!fresh) return place->second;
  using namespace dnnl;
  static engine cpu(engine::kind::cpu, 0);
  stream queue(cpu);
  using tag = memory::format_tag;
  using type = memory::data_type;
  const memory::desc x_desc({m, k}, type::s8, tag::ab), w_any({k, n}, type::s8, tag::any), y_desc({m, n}, type::f32, tag::ab),
      bias_desc({1, n}, type::f32, tag::ab);
  primitive_attr attributes;
  attributes.set_output_scales(1 << 1, std::vector<float>(static_cast<std::size_t>(n), 0.01f));
  const matmul::primitive_desc description(matmul::desc(x_desc, w_any, bias_desc, y_desc), attributes, cpu);
  memory x(x_desc, cpu), y(y_desc, cpu), bias(bias_desc, cpu);
  const int copies = copies_for(m, n * k);
  std::vector<memory> weights;
  for (int i = 0; i < copies; ++i) {
    memory plain({{k, n}, type::s8, tag::ba}, cpu);
    auto* values = static_cast<std::int8_t*>(plain.get_data_handle());
    for (std::int64_t j = 0; j < n * k; ++j) values[j] = static_cast<std::int8_t>(j % 251 - 125);
    weights.emplace_back(description.weights_desc(), cpu);
    reorder(plain, weights.back()).execute(queue, plain, weights.back());
  }
  std::fill_n(static_cast<std::int8_t*>(x.get_data_handle()), m * k, std::int8_t{3});
  std::fill_n(static_cast<float*>(bias.get_data_handle()), n, 1.0f);
  queue.wait();
  const matmul product(description);
  return place->second = typical_time(
             [&](int i) {
               product.execute(queue, {{DNNL_ARG_SRC, x},
                                       {DNNL_ARG_WEIGHTS, weights[static_cast<std::size_t>(i % copies)]},
                                       {DNNL_ARG_BIAS, bias},
                                       {DNNL_ARG_DST, y}});
               queue.wait();
             },
             best);
#else
  static_cast<void>(std::tie(m, n, k, threads, best));
  return 0.0;
#endif
}

}  // namespace narrow::bench
