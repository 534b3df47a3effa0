#include "methods/fit.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "calibrate/second_moment.h"
#include "device/cuda/runtime.h"
#include "io/text.h"
#include "io/weight_suffix.h"
#include "methods/cuda/device_fit.h"
#include "methods/gptq.h"
#include "methods/hessian.h"
#include "methods/recipe_match.h"
#include "methods/refine.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

void subtract(Tensor& x, const Tensor& y) {
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] -= y.as<float>()[i];
}

double relative_loss(const Hessian& hessian, const Tensor& w, const QuantizedTensor& q, double energy) {
  Tensor error = dequantize(q);
  subtract(error, w);
  return energy > 0.0 ? hessian.energy(error) / energy : 0.0;
}

/// What is known of the input of some weights, and made once for all of them.
struct Input {
  Input(std::span<const double> second_moment, std::int64_t k, const Method& method) : hessian(second_moment, k) {
    if (method.gptq && hessian.is_known()) factor = hessian.factor(method.damping, method.act_order);
  }
  Hessian hessian;
  std::optional<HessianFactor> factor;  ///< none: it could not be made, or is not wanted
};

/// `target` is what the codes aim at: the weight w, or its corrected form.
FittedWeight fit(const Tensor& w, const Tensor& target, const Scheme& scheme, const Input& input, const Method& method) {
  FittedWeight result;
  const Hessian& hessian = input.hessian;
  const QuantizedTensor rounded = quantize(w, scheme);
  if (method.needs_hessian() && !hessian.is_known()) result.fallback = "its input was not seen";
  if (method.gptq && hessian.is_known() && !input.factor) result.fallback = "the Hessian is not positive definite";
  const HessianFactor* factor = input.factor && result.fallback.empty() ? &*input.factor : nullptr;
  const bool is_rounded = !result.fallback.empty() || (factor == nullptr && !method.clip);
  if (is_rounded && !method.clip) {
    result.quantized = result.fallback.empty() ? quantize(target, scheme) : rounded;
  } else {
    result.quantized = quantize_columns(result.fallback.empty() ? target : w, scheme, factor, method.clip, hessian.diagonal());
  }
  if (!hessian.is_known()) return result;
  if (method.refine && result.fallback.empty()) refine(target, hessian, method.damping, method.sweeps, result.quantized);
  const double energy = hessian.energy(target);
  result.loss_before = relative_loss(hessian, target, rounded, energy);
  result.loss_after = relative_loss(hessian, target, result.quantized, energy);
  result.damping = factor != nullptr ? factor->damping : 0.0;
  result.dead_columns = hessian.dead_columns();
  return result;
}

/// W + M (X^T X + d I)^-1 with M the cross moment of X and what W X^T lacks: the weight whose outputs for X are nearest to the plain
/// model's. W itself where the Hessian cannot be factored.
Tensor corrected(const Tensor& w, const Hessian& hessian, std::span<const double> input_change, std::span<const double> missing,
                 double damping) {
  const std::int64_t n = w.shape()[0], k = w.shape()[1];
  std::vector<double> cross(missing.begin(), missing.end());
  cross.resize(static_cast<std::size_t>(n * k), 0.0);
  const Tensor change = Tensor::empty(DType::kF32, {k, k});  // [column of X, column of the change]: matmul takes its rows
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < k; ++j)
      change.as<float>()[j * k + i] = static_cast<float>(input_change[static_cast<std::size_t>(i * k + j)]);
  const Tensor product = matmul(w, prepare(change));
  for (std::int64_t i = 0; i < n * k; ++i) cross[static_cast<std::size_t>(i)] += static_cast<double>(product.as<float>()[i]);
  const auto step = hessian.solve(cross, damping);
  if (!step) return w;
  Tensor result = Tensor::empty(DType::kF32, w.shape());
  for (std::int64_t i = 0; i < n * k; ++i)
    result.as<float>()[i] = static_cast<float>(static_cast<double>(w.as<float>()[i]) + (*step)[static_cast<std::size_t>(i)]);
  return result;
}

void check_numbers(const Method& method) {
  if (!(method.damping >= 0.0 && method.damping <= 1.0))
    throw InvalidArgument(fmt::format(
        "damping {} is not between 0 and 1; it is the share of the Hessian's mean diagonal that is added to it", method.damping));
  if (method.act_order && !method.gptq)
    throw InvalidArgument(fmt::format("the order of columns is GPTQ's; the method is {}", method.to_string()));
  if (method.awq && method.smoothquant)
    throw InvalidArgument(
        "awq and smoothquant both scale the channels of inputs; choose awq for weights alone, smoothquant for rounded inputs");
  if (method.strength && !method.smoothquant)
    throw InvalidArgument(fmt::format("the strength is smoothquant's; the method is {}", method.to_string()));
  if (method.strength && !(*method.strength >= 0.0 && *method.strength <= 1.0))
    throw InvalidArgument(fmt::format("the strength {} is not between 0 and 1", *method.strength));
  if (method.sweeps < 1) throw InvalidArgument("refine needs at least one sweep");
  if (method.passes < 1) throw InvalidArgument("tune needs at least one pass over the text");
}

}  // namespace

FittedWeight fit_weight(const Tensor& w, const Scheme& scheme, std::span<const double> second_moment, const Method& method, Device device) {
  check_numbers(method);
  if (w.rank() != 2) throw InvalidArgument(fmt::format("a weight is a matrix [n, k], not {}", to_string(w.shape())));
  const std::int64_t k = w.shape()[1];
  if (!second_moment.empty() && static_cast<std::int64_t>(second_moment.size()) != k * k)
    throw InvalidArgument(
        fmt::format("the second moment of an input of {} channels has {} numbers, not {}", k, k * k, second_moment.size()));
  if (method.needs_hessian() && second_moment.empty())
    throw InvalidArgument(fmt::format("the method {} needs the second moment of the layer's input", method.to_string()));
  if (method.folds()) throw InvalidArgument("rotate, smoothquant and awq change several layers at once; they are of whole models");
  if (method.correct) throw InvalidArgument("correct makes good what other layers did; it is of whole models");
  if (method.tune) throw InvalidArgument("tune follows the gradient of a model's answers; it is of whole models");
  if (!device.is_cpu()) {
    check_device_method(method);
    cuda::require_device(device.index);
    const cuda::OwnedStream stream(device.index);
    return fit_on_device(w.contiguous(), scheme, DeviceInput(DeviceHessian(second_moment, k, device, stream), method));
  }
  const Tensor values = convert(w, DType::kF32).contiguous();
  return fit(values, values, scheme, Input(second_moment, k, method), method);
}

void InputMoments::add(const InputMoments& next) {
  const auto join = [](std::vector<double>& sum, const std::vector<double>& part) {
    if (sum.empty()) {
      sum = part;
      return;
    }
    if (sum.size() != part.size()) throw InvalidArgument("moments of inputs with other channels cannot be added");
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  };
  channels = next.channels;
  join(second_moment, next.second_moment);
  join(change, next.change);
  join(missing, next.missing);
}

namespace {

/// What a weight aims at: itself, or, by the step correct, the plain model's outputs.
Tensor target_of(const Tensor& w, const Hessian& hessian, const InputMoments& moments, const Method& method) {
  return method.correct && hessian.is_known() ? corrected(w, hessian, moments.change, moments.missing, method.damping) : w;
}

Tensor difference(const Tensor& x, const Tensor& y) {
  Tensor result = Tensor::empty(DType::kF32, x.shape());
  std::copy_n(x.as<float>(), x.size(), result.as<float>());
  subtract(result, y);
  return result;
}

std::string module_of(const std::string& tensor) {
  return tensor.ends_with(io::kWeightSuffix) ? tensor.substr(0, tensor.size() - io::kWeightSuffix.size()) : tensor;
}

Journal::Entry entry_of(const PlannedTensor& planned, FittedWeight made) {
  return {{module_of(planned.name), planned.scheme, made.loss_before, made.loss_after, made.damping, made.dead_columns, made.fallback},
          std::move(made.quantized)};
}

Journal::Entry fit_planned(const Checkpoint& input, const PlannedTensor& planned, const Input& known, const InputMoments& moments,
                           const Method& method) {
  const Tensor w = convert(input.tensor(planned.name), DType::kF32);
  return entry_of(planned, fit(w, target_of(w, known.hessian, moments, method), planned.scheme, known, method));
}

}  // namespace

std::vector<InputMoments> chunk_moments(const LayerInputs& layer) {
  std::vector<InputMoments> chunks;
  std::size_t i = 0;
  for (const std::size_t end : layer.chunk_ends) {
    InputMoments& sums = chunks.emplace_back();
    sums.channels = layer.inputs.front().shape().back();
    for (; i < end; ++i) {
      add_second_moment(layer.inputs[i], sums.second_moment);
      if (!layer.plain.empty()) add_cross_moment(difference(layer.plain[i], layer.inputs[i]), layer.inputs[i], sums.change);
      if (!layer.missing.empty()) add_cross_moment(layer.missing[i], layer.inputs[i], sums.missing);
      for (const std::span<const Tensor> parts : {layer.inputs, layer.plain, layer.missing})
        if (layer.read && !parts.empty()) layer.read(parts[i]);
    }
  }
  return chunks;
}

Journal::Entry fit_tensor(const Checkpoint& input, const PlannedTensor& planned, const InputMoments& moments, const Method& method) {
  if (planned.shape.size() != 2)
    throw InvalidArgument(fmt::format("{} is not a matrix; it is rounded to nearest", io::in_quotes(planned.name)));
  return fit_planned(input, planned, Input(moments.second_moment, planned.shape[1], method), moments, method);
}

namespace {

/// Blocks that share a scale must divide the columns of what a method quantizes.
void check_blocks(const Method& method, const Plan& plan) {
  for (const PlannedTensor& tensor : plan.tensors) {
    const Granularity& granularity = tensor.scheme.granularity;
    if (tensor.fate != Fate::kQuantize || granularity.kind != Granularity::Kind::kRectangle || granularity.cols == 0) continue;
    if (tensor.shape.back() % granularity.cols != 0)
      throw InvalidArgument(fmt::format("blocks of {} do not divide the {} columns of {}; the method {} needs blocks that do",
                                        granularity.cols, tensor.shape.back(), io::in_quotes(tensor.name), method.to_string()));
  }
}

/// Statistics of another model have inputs of other sizes; what follows counts on theirs.
void check_statistics(const CalibrationStatistics& statistics, const Plan& plan) {
  for (const PlannedTensor& tensor : plan.tensors) {
    const std::string module = module_of(tensor.name);
    const auto shared = statistics.shared.find(module);
    for (const std::string& entry : {module, shared == statistics.shared.end() ? module : shared->second}) {
      const auto input = statistics.inputs.find(entry);
      if (!tensor.name.ends_with(io::kWeightSuffix) || input == statistics.inputs.end()) continue;
      const std::size_t channels = input->second.channel_max.size(), numbers = input->second.second_moment.size();
      const bool fits = tensor.shape.size() == 2 && static_cast<std::size_t>(tensor.shape[1]) == channels;
      if (!fits || (numbers != 0 && numbers != channels * channels))
        throw InvalidArgument(fmt::format("the statistics of {} are of {} channels, and its weight is {}: they are of another model",
                                          io::in_quotes(module), channels, to_string(tensor.shape)));
    }
  }
}

/// A rule for a layer that is not there is a mistake.
void check_rules(const Recipe& recipe, const Plan& plan) {
  for (const auto& [pattern, scheme] : recipe.rules)
    if (std::none_of(plan.tensors.begin(), plan.tensors.end(), [&pattern = pattern](const PlannedTensor& tensor) {
          return pattern == "Linear" || pattern_matches(pattern, tensor.name);
        }))
      throw InvalidArgument(fmt::format("the rule for {} matches no tensor of the model", io::in_quotes(pattern)));
}

}  // namespace

void check_method(const Method& method, const Recipe& recipe, const Plan& plan, const Calibration& calibration) {
  check_numbers(method);
  if (method.is_rounding()) return;
  if (recipe.on_nonfinite != OnNonFinite::kError)
    throw InvalidArgument(fmt::format(
        "the policy {} for NaN and infinities is of plain rounding; the method {} computes with the weights, which must be finite",
        name_of(recipe.on_nonfinite), method.to_string()));
  const std::string name = method.to_string();
  if (method.needs_calibration() && calibration.is_empty())
    throw InvalidArgument(fmt::format("the method {} needs a text to calibrate with; give tokens or text", name));
  if (method.smoothquant && !recipe.activations)
    throw InvalidArgument(
        "smoothquant helps inputs that are rounded, and the recipe leaves them as they are; name activations, or use awq");
  if (method.folds() && recipe.activations && !recipe.activations->scales.empty())
    throw InvalidArgument(fmt::format(
        "the method {} changes the inputs, so that static scales of the plain model do not fit; give tokens or text in place of statistics",
        name));
  const CalibrationStatistics* statistics = calibration.windows.empty() ? calibration.statistics : nullptr;
  if (statistics != nullptr && method.correct)
    throw InvalidArgument("the step correct compares two models on a text; give tokens or text, not statistics");
  if (statistics != nullptr && method.tune)
    throw InvalidArgument("the step tune compares the answers of two models on a text; give tokens or text, not statistics");
  if (statistics != nullptr && method.rotate && method.needs_calibration())
    throw InvalidArgument("rotation changes all inputs, so that statistics of the plain model do not fit; give tokens or text");
  if (statistics != nullptr && method.smoothquant && !method.strength)
    throw InvalidArgument("smoothquant searches its strength on a text; give tokens or text, or a strength");
  if (statistics != nullptr && (method.needs_hessian() || method.awq))
    for (const auto& [module, input] : statistics->inputs)
      if (input.second_moment.empty())
        throw InvalidArgument(fmt::format("the statistics have no second moment of the input of {}; run narrow calibrate --second-moments",
                                          io::in_quotes(module)));
  if (statistics != nullptr) check_statistics(*statistics, plan);
  const QuantizeOptions& options = recipe.options;
  if (options.rounding != Rounding::kNearestEven || options.overflow != Overflow::kSaturate)
    throw InvalidArgument(fmt::format("the method {} rounds to nearest even and saturates; leave rounding and overflow as they are", name));
  check_blocks(method, plan);
  check_rules(recipe, plan);
}

void check_layers(const Method& method, const Checkpoint& input) {
  if ((method.correct || method.tune) && read_model_config(input).experts)
    throw Unsupported(fmt::format("the step {} goes through layers with one MLP, and the model has mixtures of experts; leave it out",
                                  method.correct ? "correct" : "tune"));
}

namespace {

/// Takes planned tensors one group of modules at a time, in any order.
class Fitter {
 public:
  Fitter(const Checkpoint& input, const Plan& plan, const Method& method, const Journal& journal, const FitCallback& callback,
         std::vector<FittedModule>& modules)
      : input_(input), method_(method), journal_(journal), callback_(callback), modules_(modules) {
    for (const PlannedTensor& tensor : plan.tensors)
      if (tensor.fate == Fate::kQuantize) planned_.emplace(tensor.name, &tensor);
    count_ = planned_.size();
  }

  /// The group's planned weights, quantized.
  std::map<std::string, QuantizedTensor> take(std::span<const std::string> group, const InputMoments& moments) {
    const Input known(moments.second_moment, moments.channels, method_);
    return take(group, [&](const PlannedTensor& tensor) { return fit_planned(input_, tensor, known, moments, method_); });
  }
  std::map<std::string, QuantizedTensor> take(std::span<const std::string> group, DeviceHessian moment) {
    const DeviceInput known(std::move(moment), method_);
    return take(group, [&](const PlannedTensor& tensor) {
      return entry_of(tensor, fit_on_device(input_.tensor(tensor.name), tensor.scheme, known));
    });
  }
  /// What the journal has of the group, put in place; `rest`: whether anything is left to compute.
  std::map<std::string, QuantizedTensor> take_known(std::span<const std::string> group, bool& rest) {
    std::map<std::string, QuantizedTensor> replaced;
    rest = false;
    for (const std::string& module : group) {
      const auto found = planned_.find(module + std::string(io::kWeightSuffix));
      if (found == planned_.end()) continue;
      if (auto entry = journal_.find(found->first, found->second->scheme, found->second->shape)) {
        replaced.emplace(module, accept(found->first, std::move(*entry)));
      } else {
        rest = true;
      }
    }
    return replaced;
  }

  /// All that no calibration has seen.
  void take_rest() {
    const std::map<std::string, const PlannedTensor*> unseen = planned_;
    for (const auto& [name, tensor] : unseen) {
      if (tensor->shape.size() == 2) {
        take(*tensor, [&](const PlannedTensor& one) { return fit_planned(input_, one, Input({}, one.shape[1], method_), {}, method_); });
      } else {
        tell({.module = module_of(name), .scheme = tensor->scheme, .fallback = "it is not a matrix"});
      }
    }
  }

  std::map<std::string, QuantizedTensor> result() { return std::move(result_); }

 private:
  using Fit = std::function<Journal::Entry(const PlannedTensor& tensor)>;

  std::map<std::string, QuantizedTensor> take(std::span<const std::string> group, const Fit& fit) {
    std::map<std::string, QuantizedTensor> replaced;
    for (const std::string& module : group) {
      const auto found = planned_.find(module + std::string(io::kWeightSuffix));
      if (found != planned_.end()) replaced.emplace(module, take(*found->second, fit));
    }
    return replaced;
  }
  QuantizedTensor take(const PlannedTensor& tensor, const Fit& fit) {
    if (auto entry = journal_.find(tensor.name, tensor.scheme, tensor.shape)) return accept(tensor.name, std::move(*entry));
    Journal::Entry entry = fit(tensor);
    journal_.add(tensor.name, entry);
    return accept(tensor.name, std::move(entry));
  }
  QuantizedTensor accept(std::string name, Journal::Entry entry) {
    tell(std::move(entry.module));
    planned_.erase(name);
    return result_.emplace(name, std::move(entry.quantized)).first->second;
  }
  void tell(FittedModule fitted) {
    modules_.push_back(std::move(fitted));
    if (callback_) callback_(modules_.back(), modules_.size(), count_);
  }

  const Checkpoint& input_;
  const Method& method_;
  const Journal& journal_;
  const FitCallback& callback_;
  std::vector<FittedModule>& modules_;
  std::map<std::string, const PlannedTensor*> planned_;
  std::size_t count_ = 0;
  std::map<std::string, QuantizedTensor> result_;
};

}  // namespace

namespace {

/// From the second moments of the plain model.
void fit_by_statistics(Fitter& fitter, const CalibrationStatistics& statistics, Device device) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const auto& [module, entry] : statistics.shared) groups[entry].push_back(module);
  std::optional<cuda::OwnedStream> stream;
  if (!device.is_cpu()) stream.emplace(device.index);
  for (const auto& [entry, group] : groups) {
    const InputStatistics& seen = statistics.inputs.at(entry);
    const std::int64_t channels = static_cast<std::int64_t>(seen.channel_max.size());
    bool rest = false;
    fitter.take_known(group, rest);
    if (!rest) continue;
    if (stream)
      fitter.take(group, DeviceHessian(seen.second_moment, channels, device, *stream));
    else
      fitter.take(group, {channels, seen.second_moment});
  }
}

/// Layer by layer, with the weights that are quantized already.
void fit_by_text(Fitter& fitter, const std::filesystem::path& path, const Method& method, const Calibration& calibration,
                 const std::filesystem::path& spill) {
  const LayerVisitor visit = [&](const LayerInputs& layer) {
    bool rest = false;
    std::map<std::string, QuantizedTensor> replaced = fitter.take_known(layer.modules, rest);
    if (!rest) return replaced;
    InputMoments moments;
    for (const InputMoments& chunk : chunk_moments(layer)) moments.add(chunk);
    replaced.merge(fitter.take(layer.modules, moments));
    return replaced;
  };
  walk_layers(path, calibration.windows, method.correct, visit, spill);
}

void fit_by_text_on_device(Fitter& fitter, const std::filesystem::path& path, const Calibration& calibration, Device device) {
  const DeviceLayerVisitor visit = [&](const DeviceLayerInputs& layer) {
    bool rest = false;
    std::map<std::string, QuantizedTensor> replaced = fitter.take_known(layer.modules, rest);
    if (!rest) return replaced;
    DeviceHessian moment(layer.channels, layer.device, layer.stream);
    layer.read([&](const Tensor& x) { moment.add(x); });
    replaced.merge(fitter.take(layer.modules, std::move(moment)));
    return replaced;
  };
  walk_layers(path, calibration.windows, device, visit);
}

}  // namespace

std::map<std::string, QuantizedTensor> fit_weights(const Checkpoint& input, const std::filesystem::path& path, const Plan& plan,
                                                   const Method& method, const Calibration& calibration, const Journal& journal,
                                                   const MethodRun& how, std::vector<FittedModule>& modules) {
  Fitter fitter(input, plan, method, journal, how.fitted, modules);
  if (calibration.windows.empty() && calibration.statistics != nullptr)
    fit_by_statistics(fitter, *calibration.statistics, how.device);
  else if (!calibration.windows.empty() && method.fits_layers() && how.device.is_cpu())
    fit_by_text(fitter, path, method, calibration, how.spill);
  else if (!calibration.windows.empty() && method.fits_layers())
    fit_by_text_on_device(fitter, path, calibration, how.device);
  fitter.take_rest();
  return fitter.result();
}

}  // namespace narrow
