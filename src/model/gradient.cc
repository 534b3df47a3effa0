#include "model/gradient.h"

#include <algorithm>
#include <cmath>

#include "device/float_environment.h"
#include "dispatch/attention.h"
#include "narrow/error.h"
#include "tensor/transposed.h"

namespace narrow::model {
namespace {

/// y^T x of [rows, n] and [rows, k]: a weight's gradient from those of its outputs and its inputs.
Tensor outer_product(const Tensor& y, const PreparedWeight& x_transposed) { return matmul(transposed(y), x_transposed); }

/// Rows and columns of x [.., stride], copied.
Tensor part(const Tensor& x, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  const std::int64_t stride = x.shape().back();
  Tensor result = Tensor::empty(DType::kF32, {rows, cols});
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(x.as<float>() + (row + i) * stride + col, cols, result.as<float>() + i * cols);
  return result;
}

void put(const Tensor& values, const Tensor& to, std::int64_t row, std::int64_t col) {
  const std::int64_t cols = values.shape().back(), rows = values.size() / cols, stride = to.shape().back();
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(values.as<float>() + i * cols, cols, to.as<float>() + (row + i) * stride + col);
}

void add(const Tensor& values, const Tensor& to) {
  const float* from = values.as<float>();
  float* sum = to.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < to.size(); ++i) sum[i] += from[i];
}

/// 1 / sqrt(mean of squares + epsilon) of one row.
float inverse_rms(const float* x, std::int64_t cols, float epsilon) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < cols; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(cols) + static_cast<double>(epsilon)));
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) {
  const std::int64_t cols = weight.size(), rows = x.size() / cols;
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  const float* w = weight.as<float>();
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = x.as<float>() + row * cols;
      const float r = inverse_rms(from, cols, epsilon);
      for (std::int64_t i = 0; i < cols; ++i) y.as<float>()[row * cols + i] = from[i] * r * w[i];
    }
  }
  return y;
}

/// With r = 1 / rms(x), y = r w x: dx = r (w dy - x r^2 mean(x w dy)), dw = sum over the rows of r x dy.
Tensor rms_norm_back(const Tensor& x, const Tensor& weight, float epsilon, const Tensor& dy, Tensor* dw) {
  const std::int64_t cols = weight.size(), rows = x.size() / cols;
  Tensor dx = Tensor::empty(DType::kF32, x.shape());
  std::vector<float> inverse(static_cast<std::size_t>(rows));
  const float* w = weight.as<float>();
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      const float *values = x.as<float>() + row * cols, *slope = dy.as<float>() + row * cols;
      const float r = inverse[static_cast<std::size_t>(row)] = inverse_rms(values, cols, epsilon);
      double sum = 0.0;
      for (std::int64_t i = 0; i < cols; ++i) sum += static_cast<double>(values[i] * w[i] * slope[i]);
      const float shared = static_cast<float>(sum / static_cast<double>(cols)) * r * r;
      for (std::int64_t i = 0; i < cols; ++i) dx.as<float>()[row * cols + i] = r * (w[i] * slope[i] - values[i] * shared);
    }
  }
  if (dw == nullptr) return dx;
  constexpr std::int64_t kStrip = 16;
  *dw = Tensor::empty(DType::kF32, {cols});
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < cols; first += kStrip) {
    std::array<double, kStrip> sums{};
    const std::int64_t width = std::min(kStrip, cols - first);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t place = row * cols + first + i;
        sums[static_cast<std::size_t>(i)] +=
            static_cast<double>(inverse[static_cast<std::size_t>(row)] * x.as<float>()[place] * dy.as<float>()[place]);
      }
    for (std::int64_t i = 0; i < width; ++i) dw->as<float>()[first + i] = static_cast<float>(sums[static_cast<std::size_t>(i)]);
  }
  return dx;
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

Tensor silu_multiply(const Tensor& gate, const Tensor& up) {
  Tensor y = Tensor::empty(DType::kF32, gate.shape());
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const float g = gate.as<float>()[i];
      y.as<float>()[i] = g * sigmoid(g) * up.as<float>()[i];
    }
  }
  return y;
}

/// y = silu(gate) up: the gradient by gate goes to `dgate`, that by up takes the place of dy.
void silu_multiply_back(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate) {
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < gate.size(); ++i) {
      const float g = gate.as<float>()[i], s = sigmoid(g), slope = dy.as<float>()[i];
      dgate.as<float>()[i] = slope * up.as<float>()[i] * s * (1.0f + g * (1.0f - s));
      dy.as<float>()[i] = slope * g * s;
    }
  }
}

Tensor values_of(const Linear& linear) { return convert(unprepare_dense(linear.weight), DType::kF32); }

Tensor through(const DenseLinear& linear, const Tensor& x, const std::optional<Tensor>& residual = {}) {
  MatmulOptions options;
  options.bias = linear.bias;
  options.residual = residual;
  return matmul(x, linear.forward, options);
}

/// The keys that each token sees become their shares, softmax(scale * score); the others zero.
void to_shares(const Tensor& scores, std::int64_t window, float scale) {
  const std::int64_t tokens = scores.shape().back();
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* row = scores.as<float>() + t * tokens;
    const std::int64_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
    const float largest = *std::max_element(row + first, row + t + 1);
    float sum = 0.0f;
    for (std::int64_t j = first; j <= t; ++j) sum += row[j] = std::exp(scale * (row[j] - largest));
    const float factor = 1.0f / sum;
    for (std::int64_t j = first; j <= t; ++j) row[j] *= factor;
    std::fill(row, row + first, 0.0f);
    std::fill(row + t + 1, row + tokens, 0.0f);
  }
}

/// From the gradient by shares p to that by the products of q and k, in place: scale p (dp - sum of p dp).
void shares_back(const Tensor& shares, float scale, const Tensor& slopes) {
  const std::int64_t tokens = shares.shape().back();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* p = shares.as<float>() + t * tokens;
    float* dp = slopes.as<float>() + t * tokens;
    float sum = 0.0f;
    for (std::int64_t j = 0; j <= t; ++j) sum += p[j] * dp[j];
    for (std::int64_t j = 0; j < tokens; ++j) dp[j] = scale * p[j] * (dp[j] - sum);
  }
}

}  // namespace

DenseLinear::DenseLinear(const Tensor& w, std::optional<Tensor> added)
    : forward(prepare(w)), backward(prepare(transposed(w))), bias(std::move(added)) {}

DenseLayer dense_layer(const Model::State& plain, std::size_t index) {
  const LayerWeights& from = plain.layers[index];
  if (from.router) throw Unsupported("gradients go through layers with one MLP; there is none for a router of experts yet");
  const std::vector<const Linear*> linears = from.linears();
  DenseLayer layer{.linears = {},
                   .attention_norm = from.attention_norm,
                   .mlp_norm = from.mlp_norm,
                   .q_norm = from.q_norm,
                   .k_norm = from.k_norm,
                   .window = plain.config.windows[index]};
  for (std::size_t i = 0; i < linears.size(); ++i) *layer.linears.all()[i] = DenseLinear(values_of(*linears[i]), linears[i]->bias);
  return layer;
}

DenseHead dense_head(const Model::State& plain) { return {plain.final_norm, DenseLinear(values_of(plain.head), plain.head.bias)}; }

WindowBatch::WindowBatch(const ModelConfig& config, std::span<const std::span<const std::int32_t>> texts) {
  for (const auto& text : texts) {
    const std::int64_t tokens = static_cast<std::int64_t>(text.size());
    const RopeFrequencies frequencies = rope_frequencies(config.rope, config.head_dim, config.max_positions, tokens);
    windows.push_back({rows, tokens, rope_table(frequencies, 0, tokens)});
    rows += tokens;
  }
}

Tensor LayerPass::normed_heads(const Tensor& heads, const std::optional<Tensor>& norm) const {
  return norm ? rms_norm(heads, *norm, config_.norm_epsilon) : heads;
}

void LayerPass::turn(const Tensor& heads, std::int64_t count, bool back) const {
  for (const WindowBatch::Window& window : batch_.windows) {
    const std::int64_t pairs = window.rope.pairs;
#pragma omp parallel for schedule(static)
    for (std::int64_t token = 0; token < window.tokens; ++token)
      for (std::int64_t head = 0; head < count; ++head) {
        float* values = heads.as<float>() + ((window.row + token) * count + head) * config_.head_dim;
        if (!back) {
          turn_head(window.rope, token, values);
          continue;
        }
        for (std::int64_t i = 0; i < pairs; ++i) {  // the transpose of the turn
          const float c = window.rope.cosine[static_cast<std::size_t>(token * pairs + i)],
                      s = window.rope.sine[static_cast<std::size_t>(token * pairs + i)], a = values[i], b = values[i + pairs];
          values[i] = a * c + b * s;
          values[i + pairs] = b * c - a * s;
        }
      }
  }
}

Tensor LayerPass::attend() const {
  Tensor out = Tensor::empty(DType::kF32, q_.shape());
  const std::int64_t group = config_.heads / config_.kv_heads, dim = config_.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::int64_t tasks = static_cast<std::int64_t>(batch_.windows.size()) * config_.kv_heads;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const FloatEnvironment environment;
    const WindowBatch::Window& window = batch_.windows[static_cast<std::size_t>(task / config_.kv_heads)];
    const std::int64_t kv_head = task % config_.kv_heads;
    const PreparedWeight keys = prepare(part(k_, window.row, window.tokens, kv_head * dim, dim)),
                         values = prepare(transposed(part(v_, window.row, window.tokens, kv_head * dim, dim)));
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Tensor shares = matmul(part(q_, window.row, window.tokens, head * dim, dim), keys);
      to_shares(shares, layer_.window, scale);
      put(matmul(shares, values), out, window.row, head * dim);
    }
  }
  return out;
}

/// The shares are computed again: keeping them would take tokens^2 for every head of every layer.
void LayerPass::attend_back(const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv) const {
  const std::int64_t group = config_.heads / config_.kv_heads, dim = config_.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::int64_t tasks = static_cast<std::int64_t>(batch_.windows.size()) * config_.kv_heads;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const FloatEnvironment environment;
    const WindowBatch::Window& window = batch_.windows[static_cast<std::size_t>(task / config_.kv_heads)];
    const std::int64_t kv_head = task % config_.kv_heads, tokens = window.tokens;
    const Tensor k = part(k_, window.row, tokens, kv_head * dim, dim);
    const PreparedWeight keys = prepare(k), turned_keys = prepare(transposed(k)),
                         values = prepare(part(v_, window.row, tokens, kv_head * dim, dim));
    std::optional<Tensor> key_slopes, value_slopes;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Tensor q = part(q_, window.row, tokens, head * dim, dim), slope = part(dout, window.row, tokens, head * dim, dim);
      const Tensor shares = matmul(q, keys), slopes = matmul(slope, values);
      to_shares(shares, layer_.window, scale);
      MatmulOptions sum;
      sum.residual = value_slopes;
      value_slopes = matmul(transposed(shares), prepare(transposed(slope)), sum);
      shares_back(shares, scale, slopes);
      put(matmul(slopes, turned_keys), dq, window.row, head * dim);
      sum.residual = key_slopes;
      key_slopes = matmul(transposed(slopes), prepare(transposed(q)), sum);
    }
    put(*key_slopes, dk, window.row, kv_head * dim);
    put(*value_slopes, dv, window.row, kv_head * dim);
  }
}

Tensor LayerPass::forward(const Tensor& x) {
  const LayerParts<DenseLinear>& w = layer_.linears;
  x_ = x;
  attention_input_ = rms_norm(x, layer_.attention_norm, config_.norm_epsilon);
  plain_q_ = through(w.q, attention_input_);
  plain_k_ = through(w.k, attention_input_);
  v_ = through(w.v, attention_input_);
  q_ = normed_heads(plain_q_, layer_.q_norm);
  k_ = normed_heads(plain_k_, layer_.k_norm);
  turn(q_, config_.heads, false);
  turn(k_, config_.kv_heads, false);
  mixed_ = attend();
  middle_ = through(w.o, mixed_, x);
  mlp_input_ = rms_norm(middle_, layer_.mlp_norm, config_.norm_epsilon);
  gate_ = through(w.gate, mlp_input_);
  up_ = through(w.up, mlp_input_);
  gated_ = silu_multiply(gate_, up_);
  return through(w.down, gated_, middle_);
}

Tensor LayerPass::backward(const Tensor& dy, LayerGradients& gradients) const {
  const LayerParts<DenseLinear>& w = layer_.linears;
  LayerParts<Tensor>& slopes = gradients.weights;
  const float epsilon = config_.norm_epsilon;
  // down, silu and product, gate and up, norm; dy goes on beside them
  slopes.down = outer_product(dy, prepare(transposed(gated_)));
  const Tensor dup = matmul(dy, w.down.backward), dgate = Tensor::empty(DType::kF32, gate_.shape());
  silu_multiply_back(gate_, up_, dup, dgate);
  const PreparedWeight mlp_input = prepare(transposed(mlp_input_));
  slopes.gate = outer_product(dgate, mlp_input);
  slopes.up = outer_product(dup, mlp_input);
  MatmulOptions sum;
  sum.residual = matmul(dgate, w.gate.backward);
  const Tensor dmiddle = rms_norm_back(middle_, layer_.mlp_norm, epsilon, matmul(dup, w.up.backward, sum), &gradients.mlp_norm);
  add(dy, dmiddle);
  // o, attention, q and k and v, norm
  slopes.o = outer_product(dmiddle, prepare(transposed(mixed_)));
  Tensor dq = Tensor::empty(DType::kF32, q_.shape()), dk = Tensor::empty(DType::kF32, k_.shape()),
         dv = Tensor::empty(DType::kF32, v_.shape());
  attend_back(matmul(dmiddle, w.o.backward), dq, dk, dv);
  turn(dq, config_.heads, true);
  turn(dk, config_.kv_heads, true);
  if (layer_.q_norm) dq = rms_norm_back(plain_q_, *layer_.q_norm, epsilon, dq, nullptr);
  if (layer_.k_norm) dk = rms_norm_back(plain_k_, *layer_.k_norm, epsilon, dk, nullptr);
  const PreparedWeight attention_input = prepare(transposed(attention_input_));
  slopes.q = outer_product(dq, attention_input);
  slopes.k = outer_product(dk, attention_input);
  slopes.v = outer_product(dv, attention_input);
  sum.residual = matmul(dq, w.q.backward);
  sum.residual = matmul(dk, w.k.backward, sum);
  const Tensor dx = rms_norm_back(x_, layer_.attention_norm, epsilon, matmul(dv, w.v.backward, sum), &gradients.attention_norm);
  add(dmiddle, dx);
  return dx;
}

double head_divergence(const ModelConfig& config, const DenseHead& head, const Tensor& x, const Tensor& plain, float factor,
                       HeadGradients* gradients) {
  const Tensor normed = rms_norm(x, head.norm, config.norm_epsilon);
  const Tensor logits = through(head.linear, normed);
  const std::int64_t vocabulary = logits.shape().back(), rows = logits.size() / vocabulary;
  const LogitsKernel& kernel = find_logits();
  std::vector<double> divergences(static_cast<std::size_t>(rows));
#pragma omp parallel
  {
    const FloatEnvironment environment;
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      float* own = logits.as<float>() + row * vocabulary;
      const float* theirs = plain.as<float>() + row * vocabulary;
      const LogitSums target = kernel.run(theirs, own, vocabulary), mine = kernel.run(own, nullptr, vocabulary);
      divergences[static_cast<std::size_t>(row)] = std::max(0.0, target.difference - target.log_sum + mine.log_sum);
      if (gradients == nullptr) continue;
      const float own_sum = static_cast<float>(mine.log_sum), their_sum = static_cast<float>(target.log_sum);
      for (std::int64_t i = 0; i < vocabulary; ++i) own[i] = factor * (std::exp(own[i] - own_sum) - std::exp(theirs[i] - their_sum));
    }
  }
  double sum = 0.0;
  for (const double divergence : divergences) sum += divergence;
  if (gradients != nullptr)
    gradients->x = rms_norm_back(x, head.norm, config.norm_epsilon, matmul(logits, head.linear.backward), &gradients->norm);
  return sum;
}

}  // namespace narrow::model
