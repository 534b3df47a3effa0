#pragma once
/// The executor: Llama-family decoders from Hugging Face directories, plain or quantized by narrow, on the CPU or on a Hopper GPU.
///
/// Hidden states are fp32. Every Linear is dense or in any scheme, weight-only or with its input rounded to a scheme too. It is the
/// engine of evaluation, calibration and `narrow generate`, not a server.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "narrow/calibrate.h"
#include "narrow/checkpoint.h"
#include "narrow/cuda.h"
#include "narrow/recipe.h"
#include "narrow/scheme.h"
#include "narrow/tensor.h"

namespace narrow {

/// Rotary position embedding: pair (i, i + head_dim / 2) of a head turns by position * frequency[i].
struct RopeConfig {
  enum class Kind : std::uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  std::int64_t original_positions = 0;               ///< of llama3 and yarn: what the model was trained on
  double low_frequency = 1.0, high_frequency = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;          ///< yarn
  std::optional<double> attention_factor{}, mscale{}, mscale_all_dim{};
  bool truncate = true;
};

/// A mixture of experts in place of a layer's MLP: of `count` MLPs every token goes through the `per_token` that a router finds likeliest.
struct ExpertsConfig {
  std::int64_t count = 0, per_token = 0, intermediate = 0;
  bool shares_sum_to_one = true;  ///< else the router's probabilities are the shares, whatever they sum to
};

/// What config.json says about the architecture.
struct ModelConfig {
  std::string model_type;  ///< llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
  std::int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0, max_positions = 0;
  float norm_epsilon = 1e-5f;
  bool tied_head = false;
  RopeConfig rope;
  std::vector<std::int64_t> windows;  ///< of attention, one per layer; 0: none
  std::optional<ExpertsConfig> experts{};
  std::set<std::int64_t> dense_layers{};  ///< those that have one MLP all the same
  std::optional<std::int64_t> bos{};
  std::vector<std::int64_t> eos{};

  bool has_experts(std::int64_t layer) const { return experts && !dense_layers.contains(layer); }
  bool norms_heads() const { return model_type.starts_with("qwen3"); }  ///< q and k
};
struct MlpModules {
  std::string gate, up, down;
};
/// The modules of a layer's MLP: one, or one for each expert.
std::vector<MlpModules> mlp_modules(const ModelConfig& config, std::int64_t layer);
/// What they have between gate, up and down.
std::int64_t mlp_width(const ModelConfig& config, std::int64_t layer);
/// The router of a layer with experts.
std::string router_module(const ModelConfig& config, std::int64_t layer);

/// Throws CorruptFile for a config that is none, Unsupported naming what the executor lacks.
ModelConfig read_model_config(const Checkpoint& checkpoint);
/// The same of a config.json alone.
ModelConfig read_model_config(const std::filesystem::path& config_json);
/// The same of a checkpoint whose tensors all have the shapes that its configuration asks for: for what computes with them by its sizes.
/// Throws CorruptFile naming the first that has not.
ModelConfig read_matching_config(const Checkpoint& checkpoint);

/// Keys and values of one sequence. Copying shares nothing.
class KvCache {
 public:
  KvCache(const ModelConfig& config, const Scheme& scheme, Device device = Device::cpu());
  /// Scheme::parse, but fp16 and bf16 are plain casts here.
  static Scheme parse_scheme(std::string_view text);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  /// Positions that every layer holds.
  std::int64_t size() const;
  /// Forgets all positions from `size` on; keeps the memory.
  void truncate(std::int64_t size);
  std::size_t byte_size() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// The next tokens of one sequence, whose earlier ones are in the cache.
struct Sequence {
  std::span<const std::int32_t> tokens;
  KvCache* cache = nullptr;
};

/// The rows of logits that forward gives: one per token, or one per sequence.
enum class Logits : std::uint8_t { kAll, kLast };

/// Sees the input [tokens, k] of the Linear modules that share it, before it is rounded.
using InputObserver = std::function<void(std::span<const std::string> modules, const Tensor& x)>;

/// The inputs of products that no recipe rounds; sums are fp32 whatever they are, but with kFp32 those of inputs that are rounded to other
/// than integers, which are fp64.
enum class Compute : std::uint8_t {
  kDefault,  ///< what is fastest without a loss of quality: fp32 on the CPU, fp16 on a CUDA device
  kFp32,     ///< fp32; on a CUDA device 22 bits, and fp32 between products: its greedy texts are then the CPU's
  kFp16,     ///< of CUDA devices alone
  kBf16,     ///< bf16 for dense bf16 layers, which is what frameworks do with such a model; the others as kDefault
};

struct ModelOptions {
  Compute compute = Compute::kDefault;
  /// Where the model runs.
  Device device = Device::cpu();
  /// Quantizes the weights (and activations) of a plain checkpoint as it is read.
  std::optional<Recipe> recipe{};
  /// Activations of a quantized checkpoint, in place of those it was written with.
  std::optional<ActivationRecipe> activations{};
};

/// One Linear layer as it will be computed.
struct LinearInfo {
  std::string module;
  Scheme weight;                                 ///< dense: fp32, fp16 or bf16 without scales
  std::optional<ActivationScheme> activation{};  ///< none: the input is as Compute says
  std::int64_t n = 0, k = 0;
  std::uint64_t bytes = 0;  ///< of the stored weight, without padding
};

class Model {  ///< weights as they were read, ready to run; copying shares them
 public:
  const ModelConfig& config() const;               ///< sizes and switches of config.json
  const std::vector<LinearInfo>& linears() const;  ///< the decoder's Linear layers, in order
  /// Bits per weight of the decoder's Linear layers, scales included; bytes of all weights as stored.
  double bits_per_weight() const;
  std::uint64_t weight_bytes() const;

  Device device() const;  ///< where it runs: the CPU, or a GPU

  /// Schemes of a cache: fp32, fp16, bf16, or any with one scale per row, such as fp8_e4m3:row and int8:row (on CUDA: these alone).
  KvCache make_cache(const Scheme& scheme = Scheme::parse("fp32")) const;
  /// Logits [rows, vocabulary] in fp32 on the CPU, and every cache longer by its tokens. The same bits for any number of threads.
  Tensor forward(std::span<const Sequence> sequences, Logits logits = Logits::kAll, const InputObserver& observer = {}) const;

  struct State;
  explicit Model(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Reads config.json and the weights. Throws Unsupported in one sentence for an architecture that is not there, CorruptFile where a tensor
/// is missing or has another shape.
Model open_model(const std::filesystem::path& path, const ModelOptions& options = {});

/// Windows first .. last - 1 of a text.
struct WindowRange {
  std::size_t first = 0, last = 0;
};
/// A text in chunks of whole windows, 8192 tokens or one window, cut from the front: some chunks alone are cut as within the whole.
/// What is summed over a text is summed over each chunk, then over the chunks in order, so that processes that read chunks apart and join
/// their sums in order come to the same bits as one process.
std::vector<WindowRange> text_chunks(std::span<const std::vector<std::int32_t>> windows);

/// Reads windows of tokens, some at a time, and shows the inputs of all Linear layers; `progress` hears how many windows were read.
void observe_inputs(const Model& model, std::span<const std::vector<std::int32_t>> windows, const InputObserver& observer,
                    const std::function<void(std::size_t windows)>& progress = {});

/// What the inputs of all Linear layers look like over a text, chunk by chunk.
CalibrationStatistics collect_statistics(const Model& model, std::span<const std::vector<std::int32_t>> windows, bool second_moments,
                                         const std::function<void(std::size_t windows)>& progress = {});

/// For each weight alone in place of the model's own: the mean KL divergence of the answers from the plain model's, in nats.
void replaced_divergences(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows,
                          const std::map<std::string, QuantizedTensor>& weights,
                          const std::function<void(const std::string& module, double divergence)>& found);

/// What the Linear modules that share an input see of a whole text, in parts of fp32.
struct LayerInputs {
  std::span<const std::string> modules;
  std::span<const Tensor> inputs;  ///< [tokens, k] each
  /// Where asked for: the same of the model as it was read, and, for modules whose output is added to the stream, what that model's stream
  /// has over this one's before the addition, [tokens, hidden]; empty for the others.
  std::span<const Tensor> plain{}, missing{};
  std::span<const std::size_t> chunk_ends{};       ///< of inputs, plain and missing: where each chunk of the text ends
  std::function<void(const Tensor& part)> read{};  ///< to be told of parts that were read: spilled ones then leave memory
};
/// The weights that it gives back take the place of the model's own in everything that follows.
using LayerVisitor = std::function<std::map<std::string, QuantizedTensor>(const LayerInputs& layer)>;
/// Reads windows of tokens layer by layer: q, k, v; o; gate, up; down of the first layer, then of the next. Every input is computed with
/// the weights that the visitor put in place before it. Experts come one after the other, each with the rows that it sees; one that sees
/// none is not shown. Holds the model, the stream and one input of all tokens (of experts: also what they read and give); `with_plain`: two
/// of each, and no experts. `spill`: a directory that streams and inputs of all tokens are kept in, in place of memory; empty: none.
void walk_layers(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, bool with_plain,
                 const LayerVisitor& visit, const std::filesystem::path& spill = {});

/// What the Linear modules that share an input see of a whole text, on a CUDA device.
struct DeviceLayerInputs {
  std::span<const std::string> modules;
  std::int64_t channels = 0;
  Device device;
  cuda::Stream stream = nullptr;  ///< of everything that computes with the inputs
  /// Computes the input and shows it in parts, fp32 [tokens, channels] on the device, each valid until the next.
  std::function<void(const std::function<void(const Tensor& x)>& see)> read;
};
using DeviceLayerVisitor = std::function<std::map<std::string, QuantizedTensor>(const DeviceLayerInputs& layer)>;
/// walk_layers on a CUDA device (Hopper). Between layers the stream of all tokens is kept there, 4 * hidden bytes each; inputs are computed
/// again rather than kept. Weights come to the device a layer at a time.
void walk_layers(const std::filesystem::path& path, std::span<const std::vector<std::int32_t>> windows, Device device,
                 const DeviceLayerVisitor& visit);

/// Sees the gradient of a divergence by one tensor, in fp32 and of its shape; what it gives back takes the tensor's place from the next
/// text on.
using GradientVisitor = std::function<std::optional<Tensor>(const std::string& tensor, const Tensor& gradient)>;

/// A plain decoder beside a copy of it whose tensors can be replaced: what the copy's answers lack, and which way each tensor should move.
/// The same bits for any number of threads. Memory: the plain model, 8 bytes for every weight of the copy, and the inputs of all layers
/// for the text at hand.
class LearningModel {
 public:
  explicit LearningModel(const std::filesystem::path& plain);

  /// The layers' norms and the final one, by tensor: fp32 as they were read.
  std::map<std::string, Tensor> norms() const;
  /// values: fp32 of the tensor's shape. A Linear weight, a norm, the embedding (a tied head with it) or the head; others are passed over.
  void replace(const std::string& tensor, const Tensor& values);
  /// The mean over all tokens of the windows of KL(plain || copy), in nats. With a visitor the way back too: it sees the final norm, then
  /// layer by layer from the last to the first all weights and norms.
  double divergence(std::span<const std::span<const std::int32_t>> windows, const GradientVisitor& visit = {});

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace narrow
