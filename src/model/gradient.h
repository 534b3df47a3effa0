#pragma once
/// The decoder backwards: what a loss gains by every weight and norm, one layer at a time, in fp32.
///
/// Forward as in forward.cc, of whole windows that start at position 0. Every sum has a fixed order: the same bits for any number of
/// threads.

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "model/rope.h"
#include "model/weights.h"
#include "narrow/matmul.h"
#include "narrow/model.h"

namespace narrow::model {

/// One of something for each Linear of a layer.
template <typename T>
struct LayerParts {
  T q, k, v, o, gate, up, down;
  std::array<T*, 7> all() { return {&q, &k, &v, &o, &gate, &up, &down}; }
};

/// A dense weight as both directions multiply it.
struct DenseLinear {
  DenseLinear() = default;
  /// w: fp32 [n, k], contiguous.
  explicit DenseLinear(const Tensor& w, std::optional<Tensor> added = {});
  PreparedWeight forward, backward;  ///< w and its transpose
  std::optional<Tensor> bias{};      ///< fp32 [n]
};

struct DenseLayer {
  LayerParts<DenseLinear> linears;
  Tensor attention_norm, mlp_norm;           ///< fp32 [hidden]
  std::optional<Tensor> q_norm{}, k_norm{};  ///< fp32 [head_dim]
  std::int64_t window = 0;                   ///< of attention; 0: none
};

/// A plain model's layer.
DenseLayer dense_layer(const Model::State& plain, std::size_t index);

/// By each weight [n, k] and norm [hidden] of a layer; those of heads are passed through, not reported.
struct LayerGradients {
  LayerParts<Tensor> weights;
  Tensor attention_norm, mlp_norm;
};

/// Windows whose tokens are the rows of one batch, one window after the other.
struct WindowBatch {
  WindowBatch(const ModelConfig& config, std::span<const std::span<const std::int32_t>> windows);
  struct Window {
    std::int64_t row = 0, tokens = 0;
    RopeTable rope{};
  };
  std::vector<Window> windows;
  std::int64_t rows = 0;
};

/// One layer over one batch: forward, which keeps what backward needs, then backward. The layer must not change in between.
class LayerPass {
 public:
  LayerPass(const ModelConfig& config, const DenseLayer& layer, const WindowBatch& batch) : config_(config), layer_(layer), batch_(batch) {}
  /// The stream behind the layer, [rows, hidden], from the stream before it.
  Tensor forward(const Tensor& x);
  /// From the loss's gradient by the stream behind the layer to that by the stream before it.
  Tensor backward(const Tensor& dy, LayerGradients& gradients) const;

 private:
  Tensor normed_heads(const Tensor& heads, const std::optional<Tensor>& norm) const;
  void turn(const Tensor& heads, std::int64_t count, bool back) const;
  Tensor attend() const;
  void attend_back(const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv) const;

  const ModelConfig& config_;
  const DenseLayer& layer_;
  const WindowBatch& batch_;
  Tensor x_, attention_input_, plain_q_, plain_k_;  ///< q and k before their norms, where there are any
  Tensor q_, k_, v_, mixed_;                        ///< q and k turned
  Tensor middle_, mlp_input_, gate_, up_, gated_;
};

/// The final norm and the head.
struct DenseHead {
  Tensor norm;
  DenseLinear linear;
};
DenseHead dense_head(const Model::State& plain);

struct HeadGradients {
  Tensor x, norm;
};
/// The sum over the rows of the stream of KL(softmax(plain) || softmax(head(x))), in nats, and, where asked for, its gradients times
/// `factor`. plain: fp32 [rows, vocabulary].
double head_divergence(const ModelConfig& config, const DenseHead& head, const Tensor& x, const Tensor& plain, float factor,
                       HeadGradients* gradients);

}  // namespace narrow::model
