#include "methods/rotation.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

/// A sign per position, from a multiplicative hash: as good as random, and always the same.
float sign_of(std::int64_t i) { return ((static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 63) != 0 ? -1.0f : 1.0f; }

std::int64_t power_of_two_in(std::int64_t n) { return n & -n; }

/// The orthonormal cosine transform of m values, [m, m].
std::vector<double> cosine_matrix(std::int64_t m) {
  std::vector<double> c(static_cast<std::size_t>(m * m));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < m; ++j)
      c[static_cast<std::size_t>(i * m + j)] =
          std::sqrt((j == 0 ? 1.0 : 2.0) / static_cast<double>(m)) *
          std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) * static_cast<double>(j) / static_cast<double>(m));
  return c;
}

/// In place: the Hadamard transform of h values that stand `stride` apart, over sqrt(h).
void hadamard(double* x, std::int64_t h, std::int64_t stride) {
  for (std::int64_t half = 1; half < h; half *= 2)
    for (std::int64_t block = 0; block < h; block += 2 * half)
      for (std::int64_t i = block; i < block + half; ++i) {
        const double a = x[i * stride], b = x[(i + half) * stride];
        x[i * stride] = a + b;
        x[(i + half) * stride] = a - b;
      }
  for (std::int64_t i = 0; i < h; ++i) x[i * stride] /= std::sqrt(static_cast<double>(h));
}

Tensor transposed(const Tensor& x) {
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1];
  Tensor y = Tensor::empty(DType::kF32, {cols, rows});
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) y.as<float>()[c * rows + r] = x.as<float>()[r * cols + c];
  return y;
}

void multiply_columns(Tensor& x, const Tensor& factors) {
  const std::int64_t cols = factors.size();
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] *= factors.as<float>()[i % cols];
}

/// W [n, k] whose outputs are rotated in runs of `run` rows.
Tensor with_rotated_outputs(const Tensor& w, std::int64_t run) {
  const Tensor columns = transposed(w);  // [k, n]: the outputs are its columns
  rotate_rows(columns.as<float>(), columns.size() / run, run, false);
  return transposed(columns);
}

}  // namespace

void rotate_rows(float* x, std::int64_t rows, std::int64_t n, bool inverse) {
  const std::int64_t h = power_of_two_in(n), m = n / h;
  const std::vector<double> cosine = cosine_matrix(m);
#pragma omp parallel
  {
    std::vector<double> values(static_cast<std::size_t>(n)), mixed(static_cast<std::size_t>(n));
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      float* v = x + row * n;
      for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = static_cast<double>(inverse ? v[i] : v[i] * sign_of(i));
      for (std::int64_t j = 0; j < m; ++j) hadamard(values.data() + j, h, m);  // H is its own transpose
      for (std::int64_t i = 0; i < h; ++i)
        for (std::int64_t to = 0; to < m; ++to) {
          double sum = 0.0;
          for (std::int64_t from = 0; from < m; ++from)
            sum +=
                values[static_cast<std::size_t>(i * m + from)] * cosine[static_cast<std::size_t>(inverse ? to * m + from : from * m + to)];
          mixed[static_cast<std::size_t>(i * m + to)] = sum;
        }
      for (std::int64_t i = 0; i < n; ++i) v[i] = static_cast<float>(mixed[static_cast<std::size_t>(i)]) * (inverse ? sign_of(i) : 1.0f);
    }
  }
}

TensorChanges rotated(const Checkpoint& input) {
  const ModelConfig config = read_matching_config(input);
  if (config.tied_head || !input.contains("lm_head.weight"))
    throw Unsupported("the model's head is its embedding; rotation changes them differently, so that they cannot stay one tensor");
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight", final_norm = "model.norm.weight";
  TensorChanges changes;
  changes.types = {{embedding, input.dtype(embedding)}, {head, input.dtype(head)}, {final_norm, DType::kF32}};
  std::map<std::string, std::string> norm_of{{head, final_norm}};
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::string attention = layer + "input_layernorm.weight", mlp = layer + "post_attention_layernorm.weight";
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) norm_of[fmt::format("{}self_attn.{}.weight", layer, name)] = attention;
    std::vector<std::string> into_stream{layer + "self_attn.o_proj"};
    for (const MlpModules& modules : mlp_modules(config, i)) {
      for (const std::string& name : {modules.gate, modules.up}) norm_of[name + ".weight"] = mlp;
      into_stream.push_back(modules.down);
    }
    if (config.has_experts(i)) norm_of[router_module(config, i) + ".weight"] = mlp;
    for (const std::string& name : {attention, mlp}) changes.types[name] = DType::kF32;
    for (const std::string& name : into_stream) changes.types[name + ".weight"] = DType::kF32;
    into_stream.push_back(layer + "self_attn.v_proj");
    for (const std::string& name : into_stream)
      if (input.contains(name + ".bias")) changes.types[name + ".bias"] = DType::kF32;
  }
  for (const auto& [name, norm] : norm_of)
    if (name != head) changes.types[name] = DType::kF32;
  changes.values = [input, config, norm_of, embedding](const std::string& name) {
    Tensor w = convert(input.tensor(name), DType::kF32).contiguous();
    const bool is_v = name.find(".v_proj.") != std::string::npos, is_o = name.find(".o_proj.") != std::string::npos;
    if (const auto norm = norm_of.find(name); norm != norm_of.end()) {
      multiply_columns(w, convert(input.tensor(norm->second), DType::kF32));
      rotate_rows(w.as<float>(), w.shape()[0], config.hidden, false);
      return is_v ? with_rotated_outputs(w, config.head_dim) : w;
    }
    if (name == embedding || name.ends_with(".bias")) {
      const std::int64_t run = is_v ? config.head_dim : config.hidden;
      rotate_rows(w.as<float>(), w.size() / run, run, false);
      return w;
    }
    if (w.rank() == 1) {  // a norm, whose factors are in the weights now
      std::fill_n(w.as<float>(), w.size(), 1.0f);
      return w;
    }
    if (is_o) rotate_rows(w.as<float>(), w.size() / config.head_dim, config.head_dim, false);
    return with_rotated_outputs(w, config.hidden);
  };
  return changes;
}

}  // namespace narrow
