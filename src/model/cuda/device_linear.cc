#include "model/cuda/device_linear.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "kernels/cuda/decoder/exact.h"
#include "model/cuda/views.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

using cuda::DeviceQuantized;
using cuda::Stream;

std::size_t bytes_of(DType type) { return static_cast<std::size_t>(bits_of(type)) / 8; }

constexpr std::int64_t kExactFewRows = 64;

bool is_dense(const Scheme& scheme) { return !scheme.has_scales() && (scheme.element == kFp16 || scheme.element == kBf16); }

bool is_fp32(const Linear& layer) { return !layer.weight.scheme.has_scales() && layer.weight.scheme.element.bits == 32; }

/// A layer's weight in the host's memory: its codes, or the values of a dense one, which become the scheme's 16 bits on the device.
struct StoredWeight {
  QuantizedTensor q;  ///< of dense ones scheme and shape alone
  std::optional<Tensor> dense{};
};

StoredWeight dense_weight(Tensor values, DType type) {
  StoredWeight weight;
  weight.q.scheme.element = type == DType::kBf16 ? kBf16 : kFp16;
  weight.q.scheme.granularity = Granularity::none();
  weight.q.shape = values.shape();
  weight.dense = std::move(values);
  return weight;
}

/// Dense weights come in the type of their input.
StoredWeight weight_of(const Linear& layer, DType type) {
  if (!is_fp32(layer) && !is_dense(layer.weight.scheme)) return {with_row_scales(unprepare(layer.weight))};
  return dense_weight(unprepare_dense(layer.weight), type);
}

/// What fp16 leaves of a dense weight, times 2^11.
StoredWeight low_weight_of(const Linear& layer) {
  Tensor values = convert(unprepare_dense(layer.weight), DType::kF32);
  const Tensor high = convert(convert(values, DType::kF16), DType::kF32);
  for (std::int64_t i = 0; i < values.size(); ++i) values.as<float>()[i] = (values.as<float>()[i] - high.as<float>()[i]) * 0x1p11f;
  return dense_weight(std::move(values), DType::kF16);
}

/// Whether exact products of so many rows take the weight's codes; else its values, decoded before: many rows would decode them again
/// and again.
bool reads_codes(const DeviceQuantized& w, std::int64_t rows) {
  const Granularity& g = w.scheme.granularity;
  return rows <= kExactFewRows && w.scheme.element == kFp8E4m3 && w.scheme.scale == kFp32 && !w.scheme.asymmetric &&
         !w.scheme.has_outer_scale && w.shape[1] % 16 == 0 &&
         (g == Granularity::row() || g == Granularity::block(128) || g == Granularity::block(128, 128));
}

bool can_join(std::span<const StoredWeight> weights) {
  const Scheme& scheme = weights.front().q.scheme;
  const Granularity& g = scheme.granularity;
  for (const StoredWeight& w : weights)
    if (w.q.scheme != scheme || (g.kind == Granularity::Kind::kRectangle && (g.rows == 0 || w.q.shape[0] % g.rows != 0))) return false;
  return !scheme.has_outer_scale && g.kind != Granularity::Kind::kTensor;
}

/// The weights on the device, one below the other. Waits.
DeviceQuantized join(std::span<const StoredWeight> weights, Device device, Stream stream) {
  const QuantizedTensor& first = weights.front().q;
  std::int64_t n = 0;
  for (const StoredWeight& w : weights) n += w.q.shape[0];
  DeviceQuantized all = cuda::allocate_quantized(first.scheme, {n, first.shape[1]}, device);
  std::size_t codes = 0, scales = 0, zeros = 0;
  const auto append = [&](const Buffer& to, const Buffer& from, std::size_t& at) {
    cuda::copy_bytes(to.data() + at, from.data(), from.size(), stream);
    at += from.size();
  };
  for (const StoredWeight& w : weights) {
    append(all.codes, w.q.codes, codes);
    append(all.scales, w.q.scales, scales);
    append(all.zero_points, w.q.zero_points, zeros);
    if (!w.dense) continue;
    const Tensor part =
        Tensor::borrow(all.codes.data() + codes, first.scheme.element == kBf16 ? DType::kBf16 : DType::kF16, w.q.shape, {}, device);
    if (w.dense->dtype() == part.dtype()) {
      cuda::copy_bytes(part.data(), w.dense->data(), part.byte_size(), stream);
    } else {
      const Tensor values = cuda::to_device(*w.dense, device, stream);
      cuda::convert(values, part, stream);
      cuda::synchronize(stream);  // before the memory of values goes
    }
    codes += part.byte_size();
  }
  if (first.scheme.has_outer_scale) cuda::copy_bytes(all.outer_scale.data(), &first.outer_scale, sizeof(float), stream);
  cuda::synchronize(stream);
  return all;
}

std::optional<Tensor> join_biases(std::span<const Linear* const> layers, Device device, Stream stream) {
  std::int64_t n = 0;
  bool any = false;
  for (const Linear* layer : layers) n += layer->weight.n, any = any || layer->bias.has_value();
  if (!any) return std::nullopt;
  Tensor all = Tensor::empty(DType::kF32, {n});
  float* to = all.as<float>();
  for (const Linear* layer : layers) {
    if (layer->bias)
      std::copy_n(layer->bias->as<float>(), layer->weight.n, to);
    else
      std::fill_n(to, layer->weight.n, 0.0f);
    to += layer->weight.n;
  }
  Tensor result = cuda::to_device(all, device, stream);
  cuda::synchronize(stream);
  return result;
}

}  // namespace

QuantizedTensor with_row_scales(QuantizedTensor q) {
  if (q.scheme.granularity.kind != Granularity::Kind::kTensor || q.scheme.has_outer_scale) return q;
  const auto repeated = [&](const Buffer& one) {
    Buffer all = Buffer::allocate(one.size() * static_cast<std::size_t>(q.shape[0]));
    for (std::int64_t row = 0; row < q.shape[0]; ++row)
      std::memcpy(all.data() + static_cast<std::size_t>(row) * one.size(), one.data(), one.size());
    return all;
  };
  q.scheme.granularity = Granularity::row();
  q.scales = repeated(q.scales);
  q.zero_points = repeated(q.zero_points);
  return q;
}

bool same_rounding(const Linear& a, const Linear& b) {
  if (a.rounding.has_value() != b.rounding.has_value()) return false;
  return !a.rounding || (a.rounding->activation == b.rounding->activation && a.rounding->scale.scale == b.rounding->scale.scale &&
                         a.rounding->scale.zero_point == b.rounding->scale.zero_point);
}

bool multiplies_codes(const Scheme& weight, const ActivationScheme& activation, std::int64_t n, std::int64_t k) {
  const Scheme& x = activation.scheme;
  if (k % 16 != 0 || x.asymmetric || x.scale != kFp32 || x.has_outer_scale || x.rule != ScaleRule::kLargest) return false;
  const bool outer_x = activation.is_static ? x.granularity.kind == Granularity::Kind::kTensor : x.granularity == Granularity::row();
  if (x.element == kInt8 && weight.element.bits == 4) return outer_x && cuda::can_prepare_int4(weight, n, k);
  if (weight.element != x.element || weight.asymmetric || weight.scale != kFp32 || weight.has_outer_scale ||
      weight.rule != ScaleRule::kLargest)
    return false;
  const bool outer = outer_x && (weight.granularity.kind == Granularity::Kind::kTensor || weight.granularity == Granularity::row());
  if (weight.element == kInt8) return outer;
  if (weight.element != kFp8E4m3) return false;
  const Granularity block = Granularity::block(128);
  return outer || (!activation.is_static && x.granularity == block &&
                   (weight.granularity == block || weight.granularity == Granularity::block(128, 128)));
}

Tensor columns(const Tensor& y, std::int64_t first, std::int64_t n) {
  const std::int64_t rows = y.shape()[0], all = y.shape()[1];
  if (first == 0 && n == all) return y;
  return Tensor::borrow(y.data() + static_cast<std::size_t>(first) * bytes_of(y.dtype()), y.dtype(), {rows, n}, {all, 1}, y.device());
}

InputScratch InputScratch::allocate(std::int64_t rows, std::int64_t widest, std::int64_t most_outputs, std::int64_t most_decoded,
                                    Device device) {
  const bool splits = most_outputs > 0;
  constexpr std::int64_t kSumRows = 256;  // of the layer with most outputs; of the others more
  const std::size_t values = static_cast<std::size_t>(rows * (widest + 64));
  InputScratch scratch;
  scratch.values = Buffer::allocate(values * 4, device);
  scratch.rounded = Buffer::allocate(values * 4, device);
  scratch.codes = Buffer::allocate(values, device);
  scratch.scales =
      Buffer::allocate(static_cast<std::size_t>(cuda::padded_scale_rows(rows) * ((widest + 127) / 128)) * sizeof(float), device);
  // What the widest weight that a layer may have asks for.
  cuda::DeviceWeight weight;
  weight.k = widest;
  weight.is_prepared = true;
  scratch.workspace = Buffer::allocate(cuda::weight_matmul_workspace(splits ? 2 * rows : rows, weight), device);
  scratch.sums = Buffer::allocate(static_cast<std::size_t>(4 * std::min(rows, kSumRows) * most_outputs) * sizeof(float), device);
  scratch.weights = Buffer::allocate(static_cast<std::size_t>(most_decoded) * sizeof(float), device);
  return scratch;
}

DeviceLinear::DeviceLinear(std::span<const Linear* const> layers, Device device, Stream stream, bool keeps_fp32,
                           std::span<const QuantizedTensor* const> replaced) {
  const Linear& first = *layers.front();
  for (const Linear* layer : layers)
    if (!same_rounding(first, *layer))
      throw Unsupported(fmt::format("{} and {} share an input, but round it differently; the CUDA executor rounds an input once",
                                    first.module, layer->module));
  k_ = first.weight.k;
  const auto all = [&](const auto& holds) { return std::all_of(layers.begin(), layers.end(), holds); };
  // Dense bf16 weights that are not asked to round their input to bf16 go with fp16, which holds it better.
  input_ = all([](const Linear* layer) { return layer->rounds_to_bf16; }) ? DType::kBf16 : DType::kF16;
  if (first.rounding) {
    set_rounding(*first.rounding);
    multiplies_codes_ = all([&](const Linear* layer) {
      return layer->weight.scheme.element == first.weight.scheme.element &&
             multiplies_codes(layer->weight.scheme, first.rounding->activation, layer->weight.n, k_);
    });
    multiplies_codes_ = multiplies_codes_ && may_multiply_codes(keeps_fp32);
  }
  in_fp64_ = keeps_fp32 && rounding_ && !multiplies_codes_;
  splits_ = keeps_fp32 && !rounding_;
  if (static_scale_) static_scale_ = cuda::to_device(*static_scale_, device, stream);
  std::vector<StoredWeight> weights;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!replaced.empty() && replaced[i] != nullptr)
      weights.push_back({with_row_scales(*replaced[i])});
    else if (in_fp64_)
      weights.push_back({with_row_scales(unprepare(layers[i]->weight))});
    else
      weights.push_back(weight_of(*layers[i], input_));
  }
  const auto add_joined = [&](std::size_t begin, std::size_t count) {
    const std::span<const Linear* const> some = layers.subspan(begin, count);
    add(join(std::span(weights).subspan(begin, count), device, stream), join_biases(some, device, stream), stream);
    if (!splits_ || std::none_of(some.begin(), some.end(), [](const Linear* layer) { return is_fp32(*layer); })) return;
    std::vector<StoredWeight> low;
    for (const Linear* layer : some) low.push_back(low_weight_of(*layer));
    pieces_.back().low = cuda::prepare_weight(join(low, device, stream), stream);
    cuda::synchronize(stream);
  };
  if (can_join(weights))
    add_joined(0, layers.size());
  else
    for (std::size_t i = 0; i < layers.size(); ++i) add_joined(i, 1);
  cuda::synchronize(stream);  // the host's copies end here
}

DeviceLinear::DeviceLinear(const DeviceQuantized& weight, const std::optional<ActivationScheme>& activation, Stream stream,
                           bool keeps_fp32) {
  k_ = weight.shape[1];
  input_ = weight.scheme.element == kBf16 && is_dense(weight.scheme) ? DType::kBf16 : DType::kF16;
  if (activation) {
    set_rounding({*activation, {}, {}});
    multiplies_codes_ = multiplies_codes(weight.scheme, *activation, weight.shape[0], k_) && may_multiply_codes(keeps_fp32);
  }
  in_fp64_ = keeps_fp32 && rounding_ && !multiplies_codes_;
  splits_ = keeps_fp32 && !rounding_;
  add(weight, std::nullopt, stream);
}

void DeviceLinear::set_rounding(const InputRounding& rounding) {
  const Scheme& scheme = rounding.activation.scheme;
  rounding_ = scheme;
  if (!rounding.activation.is_static) return;
  if (scheme.asymmetric || scheme.has_outer_scale)
    throw Unsupported(fmt::format(
        "the CUDA executor has no static activations in {}; it has those with one symmetric scale, and dynamic ones", scheme.to_string()));
  static_scale_ = Tensor::of({rounding.scale.scale}, {1});
}

void DeviceLinear::add(const DeviceQuantized& weight, const std::optional<Tensor>& bias, Stream stream) {
  Piece piece{{}, n_, weight.shape[0], bias};
  if (multiplies_codes_ && weight.scheme.element == kInt8)
    piece.weight = cuda::prepare_int8(weight, stream, false);
  else if (multiplies_codes_ && weight.scheme.element.bits == 4)
    piece.weight = cuda::prepare_int4(weight, stream);
  else if (multiplies_codes_)
    piece.weight = cuda::prepare_fp8(weight, stream);
  else if (in_fp64_)
    piece.weight = weight;
  else
    piece.weight = cuda::prepare_weight(weight, stream);
  cuda::synchronize(stream);  // canonical bytes may go now
  n_ += piece.n;
  pieces_.push_back(std::move(piece));
}

std::uint64_t DeviceLinear::byte_size() const {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces_) {
    if (const auto* w = std::get_if<cuda::DeviceWeight>(&piece.weight))
      bytes += w->byte_size() + (piece.low ? piece.low->byte_size() : 0);
    else if (const auto* fp8 = std::get_if<cuda::Fp8Matrix>(&piece.weight))
      bytes += fp8->codes.size() + fp8->scales.size();
    else if (const auto* int8 = std::get_if<cuda::Int8Matrix>(&piece.weight))
      bytes += int8->codes.size() + int8->scales.size();
    else if (const auto* int4 = std::get_if<cuda::Int4Weight>(&piece.weight))
      bytes += int4->byte_size();
    else if (const auto* q = std::get_if<DeviceQuantized>(&piece.weight))
      bytes += q->codes.size() + q->scales.size() + q->zero_points.size();
  }
  return bytes;
}

std::int64_t DeviceLinear::decoded_weights(std::int64_t rows) const {
  std::int64_t most = 0;
  for (const Piece& piece : pieces_)
    if (const auto* q = std::get_if<DeviceQuantized>(&piece.weight); q != nullptr && !reads_codes(*q, rows))
      most = std::max(most, piece.n * k_);
  return most;
}

const cuda::DeviceWeight* DeviceLinear::plain_weight() const {
  if (rounding_ || pieces_.size() != 1 || pieces_.front().low) return nullptr;
  return std::get_if<cuda::DeviceWeight>(&pieces_.front().weight);
}

DType DeviceLinear::source_type(bool many) const {
  if (!rounding_ && !splits_) return input_;
  return many ? DType::kF16 : DType::kF32;
}

Tensor source_values(const DeviceSource& source, DType type, const Buffer& to, Stream stream, bool exact) {
  const std::int64_t rows = source.x.shape()[0], width = source.x.shape()[1];
  if (source.op == DeviceSource::Op::kValues && source.x.dtype() == type) return source.x;
  const std::int64_t k = source.op == DeviceSource::Op::kGate ? width / 2 : width;
  const Tensor y = view(to, type, {rows, k});
  switch (source.op) {
    case DeviceSource::Op::kNorm: {
      cuda::NormProblem problem{.rows = rows, .cols = k, .x = source.x.as<float>()};
      if (source.delta) {
        problem.delta = source.delta->data();
        problem.delta_type = source.delta->dtype();
      }
      problem.weight = source.norm->as<float>();
      problem.epsilon = source.epsilon;
      problem.y = y.data();
      problem.y_type = type;
      cuda::check((exact ? cuda::launch_rms_norm_exact : cuda::launch_rms_norm)(problem, stream), "rms_norm");
      break;
    }
    case DeviceSource::Op::kGate:
      cuda::check(cuda::launch_gate(source.x.data(), source.x.dtype(), rows, k, y.data(), type, stream), "gate");
      break;
    case DeviceSource::Op::kValues: cuda::convert(source.x, y, stream); break;
  }
  return y;
}

void DeviceLinear::run(const DeviceSource& source, const InputScratch& scratch, const Tensor& y, Stream stream,
                       const std::optional<Tensor>& residual) const {
  if (multiplies_codes_) return run_codes(source, scratch, y, stream, residual);
  if (!rounding_ && !splits_) return run_values(source_values(source, input_, scratch.values, stream), scratch, y, stream, residual);
  const Tensor values = source_values(source, DType::kF32, scratch.values, stream, in_fp64_);
  if (!rounding_) return run_split(values, scratch.rounded, scratch, y, stream, residual);
  // Rounded to a scheme that no product of codes takes: its values in 16 bits, or exact products of them.
  const Tensor rounded = view(scratch.rounded, DType::kF32, values.shape());
  cuda::QuantizeOptions options;
  options.scales = static_scale_;
  cuda::fake_quantize(values, rounded, *rounding_, stream, options);
  if (in_fp64_) return run_exact(rounded, scratch, y, stream, residual);
  const Tensor x = view(scratch.values, input_, values.shape());
  cuda::convert(rounded, x, stream);
  run_values(x, scratch, y, stream, residual);
}

void DeviceLinear::run_values(const Tensor& x, const InputScratch& scratch, const Tensor& y, Stream stream,
                              const std::optional<Tensor>& residual) const {
  for (const Piece& piece : pieces_) {
    cuda::WeightMatmulOptions options;
    options.bias = piece.bias;
    options.residual = residual;
    cuda::matmul(x, std::get<cuda::DeviceWeight>(piece.weight), columns(y, piece.first, piece.n), stream, options,
                 {scratch.workspace.data(), scratch.workspace.size()});
  }
}

void DeviceLinear::run_split(const Tensor& x, const Buffer& parts, const InputScratch& scratch, const Tensor& y, Stream stream,
                             const std::optional<Tensor>& residual) const {
  const std::int64_t rows = x.shape()[0];
  cuda::check(cuda::launch_split_rows(x.as<float>(), rows, k_, parts.data(), stream), "split_rows");
  for (const Piece& piece : pieces_) {
    // As many rows at a time as there is memory for the sums of their parts.
    const auto room = static_cast<std::int64_t>(scratch.sums.size() / sizeof(float)),
               step = std::min(rows, room / ((piece.low ? 4 : 2) * piece.n));
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const Tensor both = Tensor::borrow(parts.data() + 2 * first * k_ * 2, DType::kF16, {2 * count, k_}, {}, parts.device());
      const auto multiply = [&](const cuda::DeviceWeight& weight, std::int64_t at) {
        const Tensor sums = Tensor::borrow(scratch.sums.data() + at * 4, DType::kF32, {2 * count, piece.n}, {}, y.device());
        cuda::matmul(both, weight, sums, stream, {}, {scratch.workspace.data(), scratch.workspace.size()});
        return sums.as<float>();
      };
      cuda::JoinRowsProblem problem{.rows = count, .cols = piece.n, .pitch = y.shape()[1]};
      problem.sums = multiply(std::get<cuda::DeviceWeight>(piece.weight), 0);
      if (piece.low) problem.low_sums = multiply(*piece.low, 2 * count * piece.n);
      problem.bias = piece.bias ? piece.bias->as<float>() : nullptr;
      const std::int64_t to = first * problem.pitch + piece.first;
      problem.residual = residual ? residual->as<float>() + to : nullptr;
      problem.y = y.as<float>() + to;
      cuda::check(cuda::launch_join_rows(problem, stream), "join_rows");
    }
  }
}

void DeviceLinear::run_exact(const Tensor& x, const InputScratch& scratch, const Tensor& y, Stream stream,
                             const std::optional<Tensor>& residual) const {
  for (const Piece& piece : pieces_) {
    const auto& weight = std::get<DeviceQuantized>(piece.weight);
    cuda::ExactProductProblem problem{.rows = x.shape()[0], .n = piece.n, .k = k_, .x = x.as<float>()};
    if (reads_codes(weight, problem.rows)) {
      const bool by_row = weight.scheme.granularity == Granularity::row();
      problem.codes = weight.codes.as<std::uint8_t>();
      problem.scales = weight.scales.as<float>();
      problem.scale_row_shift = weight.scheme.granularity == Granularity::block(128, 128) ? 7 : 0;
      problem.scale_pitch = by_row ? 1 : (k_ + 127) / 128;
    } else {
      const Tensor values = view(scratch.weights, DType::kF32, weight.shape);
      cuda::dequantize(weight, values, stream);
      problem.w = values.as<float>();
    }
    problem.bias = piece.bias ? piece.bias->as<float>() : nullptr;
    problem.pitch = y.shape()[1];
    problem.residual = residual ? residual->as<float>() + piece.first : nullptr;
    problem.y = y.as<float>() + piece.first;
    cuda::check(cuda::launch_exact_product(problem, stream), "exact_product");
  }
}

void DeviceLinear::run_codes(const DeviceSource& source, const InputScratch& scratch, const Tensor& y, Stream stream,
                             const std::optional<Tensor>& residual) const {
  const std::int64_t rows = source.x.shape()[0];
  FusedInput input;
  input.x = source.x;
  input.epsilon = source.epsilon;
  input.scales = static_scale_;
  if (source.op == DeviceSource::Op::kNorm) {
    input.op = source.delta ? FusedOp::kAddRmsNorm : FusedOp::kRmsNorm;
    if (source.delta) {
      input.x = *source.delta;
      input.other = source.x;
    }
    input.weight = source.norm;
  } else if (source.op == DeviceSource::Op::kGate) {
    input.op = FusedOp::kSiluMul;
    input.x = columns(source.x, 0, k_);
    input.other = columns(source.x, k_, k_);
  }
  const bool blocks = rounding_->granularity == Granularity::block(128);
  cuda::FusedOutput codes{*rounding_, {rows, k_}, Layout::kRow, blocks, {}, {}};
  codes.codes = part_of(scratch.codes, static_cast<std::size_t>(rows * k_));
  const std::int64_t scales =
      rounding_->granularity.kind == Granularity::Kind::kTensor ? 1 : (blocks ? cuda::padded_scale_rows(rows) * ((k_ + 127) / 128) : rows);
  codes.scales = part_of(scratch.scales, static_cast<std::size_t>(scales) * sizeof(float));
  cuda::fused_quantize(input, codes, stream);
  for (const Piece& piece : pieces_) {
    const Tensor part = columns(y, piece.first, piece.n);
    if (const auto* fp8 = std::get_if<cuda::Fp8Matrix>(&piece.weight)) {
      cuda::Fp8MatmulOptions options;
      options.bias = piece.bias;
      options.residual = residual;
      cuda::matmul(cuda::prepare_fp8(codes, stream), *fp8, part, stream, options);
    } else {
      cuda::Int8MatmulOptions options;
      options.bias = piece.bias;
      options.residual = residual;
      const cuda::Int8Matrix x = cuda::prepare_int8(codes, stream);
      if (const auto* int4 = std::get_if<cuda::Int4Weight>(&piece.weight))
        cuda::matmul(x, *int4, part, stream, options);
      else
        cuda::matmul(x, std::get<cuda::Int8Matrix>(piece.weight), part, stream, options);
    }
  }
}

}  // namespace narrow::model
