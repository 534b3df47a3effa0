// Sums over a row of logits, four vectors at a time. Included by a leaf after attention.inl, whose exp_below_zero and fold it uses.
// Bound: arithmetic of exp; partial sums are fp32, their total fp64.   Meaning: reference/logits.cc, within fp32 rounding.

inline double total_of(const VF (&sums)[4]) {
  double total = 0.0;
  for (const VF& sum : sums)
    for (int lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sum[lane]);
  return total;
}

inline LogitSums logits_run(const float* x, const float* y, std::int64_t count) {
  constexpr int kStep = 4 * kLanes;
  const auto larger_of = [](float a, float b) { return a > b ? a : b; };
  VF largest[4];
  for (VF& v : largest) v = splat(-__builtin_inff());
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    for (int v = 0; v < 4; ++v) largest[v] = larger(load<VF>(x + i + v * kLanes), largest[v]);
  float top = fold(larger(larger(largest[0], largest[1]), larger(largest[2], largest[3])), larger_of);
  for (; i < count; ++i) top = larger_of(x[i], top);
  LogitSums result;
  while (result.largest + 1 < count && x[result.largest] != top) ++result.largest;

  VF sums[4] = {}, products[4] = {};
  const auto add = [&](int v, VF value, VF other) {
    const VF e = exp_below_zero(value - top);
    sums[v] += e;
    products[v] = multiply_add(e, value - other, products[v]);
  };
  for (i = 0; i + kStep <= count; i += kStep)
    for (int v = 0; v < 4; ++v) {
      const VF value = load<VF>(x + i + v * kLanes);
      add(v, value, y == nullptr ? value : load<VF>(y + i + v * kLanes));
    }
  for (; i < count; i += kLanes) {
    float value[kLanes], other[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {  // beyond the end: far below the largest, and no difference
      value[lane] = i + lane < count ? x[i + lane] : top - 1000.0f;
      other[lane] = i + lane < count && y != nullptr ? y[i + lane] : value[lane];
    }
    add(0, load<VF>(value), load<VF>(other));
  }
  const double total = total_of(sums);
  result.log_sum = static_cast<double>(top) + __builtin_log(total);
  result.difference = total_of(products) / total;
  return result;
}
