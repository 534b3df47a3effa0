#include "methods/fit.h"

#include <cmath>

#include <fmt/format.h>

#include "calibrate/second_moment.h"
#include "io/text.h"
#include "methods/gptq.h"
#include "methods/hessian.h"
#include "narrow/error.h"
#include "narrow/model.h"

namespace narrow {
namespace {

constexpr std::string_view kWeight = ".weight";

void subtract(Tensor& x, const Tensor& y) {
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] -= y.as<float>()[i];
}

double relative_loss(const Hessian& hessian, const Tensor& w, const QuantizedTensor& q, double energy) {
  Tensor error = dequantize(q);
  subtract(error, w);
  return energy > 0.0 ? hessian.energy(error) / energy : 0.0;
}

/// The factor is shared by all weights with this input; null: it could not be made, or is not wanted.
FittedWeight fit(const Tensor& w, const Scheme& scheme, const Hessian& hessian, const HessianFactor* factor, const Method& method) {
  FittedWeight result;
  const QuantizedTensor rounded = quantize(w, scheme);
  if (method.gptq && factor == nullptr)
    result.fallback = hessian.is_known() ? "the Hessian is not positive definite" : "its input was not seen";
  const std::vector<double>& diagonal = hessian.diagonal();
  result.quantized = factor == nullptr && !method.clip ? rounded : quantize_columns(w, scheme, factor, method.clip, diagonal);
  if (!hessian.is_known()) return result;
  const double energy = hessian.energy(w);
  result.loss_before = relative_loss(hessian, w, rounded, energy);
  result.loss_after = relative_loss(hessian, w, result.quantized, energy);
  result.damping = factor != nullptr ? factor->damping : 0.0;
  result.dead_columns = hessian.dead_columns();
  return result;
}

std::optional<HessianFactor> factor_of(const Hessian& hessian, const Method& method) {
  return method.gptq && hessian.is_known() ? hessian.factor(method.damping, method.act_order) : std::nullopt;
}

void check_numbers(const Method& method) {
  if (!(method.damping >= 0.0 && method.damping <= 1.0))
    throw InvalidArgument(fmt::format(
        "damping {} is not between 0 and 1; it is the share of the Hessian's mean diagonal that is added to it", method.damping));
  if (method.act_order && !method.gptq)
    throw InvalidArgument(fmt::format("the order of columns is GPTQ's; the method is {}", method.to_string()));
}

}  // namespace

Method Method::parse(std::string_view text) {
  if (text == "rtn") return {};
  if (text == "gptq") return {.gptq = true};
  if (text == "clip") return {.clip = true};
  if (text == "gptq+clip" || text == "clip+gptq") return {.gptq = true, .clip = true};
  throw InvalidArgument(fmt::format("method {} is none of rtn, gptq, clip, gptq+clip", io::in_quotes(std::string(text))));
}

std::string Method::to_string() const {
  if (gptq) return clip ? "gptq+clip" : "gptq";
  return clip ? "clip" : "rtn";
}

FittedWeight fit_weight(const Tensor& w, const Scheme& scheme, std::span<const double> second_moment, const Method& method) {
  check_numbers(method);
  if (w.rank() != 2) throw InvalidArgument(fmt::format("a weight is a matrix [n, k], not {}", to_string(w.shape())));
  const std::int64_t k = w.shape()[1];
  if (!second_moment.empty() && static_cast<std::int64_t>(second_moment.size()) != k * k)
    throw InvalidArgument(
        fmt::format("the second moment of an input of {} channels has {} numbers, not {}", k, k * k, second_moment.size()));
  if (method.gptq && second_moment.empty()) throw InvalidArgument("GPTQ needs the second moment of the layer's input");
  const Hessian hessian(second_moment, k);
  const std::optional<HessianFactor> factor = factor_of(hessian, method);
  return fit(convert(w, DType::kF32).contiguous(), scheme, hessian, factor ? &*factor : nullptr, method);
}

void check_method(const Method& method, const Recipe& recipe, std::span<const std::vector<std::int32_t>> windows) {
  check_numbers(method);
  if (method.gptq && windows.empty()) throw InvalidArgument("GPTQ needs a text to calibrate with; give tokens or text");
  if (method.is_rounding()) return;
  const QuantizeOptions& options = recipe.options;
  if (options.rounding != Rounding::kNearestEven || options.overflow != Overflow::kSaturate)
    throw InvalidArgument(
        fmt::format("the method {} rounds to nearest even and saturates; leave rounding and overflow as they are", method.to_string()));
}

std::map<std::string, QuantizedTensor> fit_weights(const Checkpoint& input, const std::filesystem::path& path, const Plan& plan,
                                                   const Method& method, std::span<const std::vector<std::int32_t>> windows,
                                                   const FitCallback& callback, std::vector<FittedModule>& modules) {
  std::map<std::string, const PlannedTensor*> planned;
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.fate == Fate::kQuantize) planned.emplace(tensor.name, &tensor);
  const std::size_t count = planned.size();
  std::map<std::string, QuantizedTensor> result;
  const auto tell = [&](FittedModule fitted) {
    modules.push_back(std::move(fitted));
    if (callback) callback(modules.back(), modules.size(), count);
  };
  const auto take = [&](const PlannedTensor& tensor, const std::string& module, const Hessian& hessian, const HessianFactor* factor) {
    FittedWeight made = fit(convert(input.tensor(tensor.name), DType::kF32), tensor.scheme, hessian, factor, method);
    result.emplace(tensor.name, made.quantized);
    tell({module, tensor.scheme, made.loss_before, made.loss_after, made.damping, made.dead_columns, made.fallback});
    planned.erase(tensor.name);
  };
  if (!windows.empty())
    walk_layers(path, windows, [&](std::span<const std::string> names, std::span<const Tensor> inputs) {
      std::map<std::string, QuantizedTensor> replaced;
      std::vector<std::pair<std::string, const PlannedTensor*>> wanted;
      for (const std::string& module : names)
        if (const auto found = planned.find(module + std::string(kWeight)); found != planned.end())
          wanted.emplace_back(module, found->second);
      if (wanted.empty()) return replaced;
      std::vector<double> second_moment;
      for (const Tensor& x : inputs) add_second_moment(x, second_moment);
      const Hessian hessian(second_moment, inputs.front().shape().back());
      const std::optional<HessianFactor> factor = factor_of(hessian, method);
      for (const auto& [module, tensor] : wanted) {
        take(*tensor, module, hessian, factor ? &*factor : nullptr);
        replaced.emplace(module, result.at(tensor->name));
      }
      return replaced;
    });
  const std::map<std::string, const PlannedTensor*> unseen = planned;
  for (const auto& [name, tensor] : unseen) {
    const std::string module = name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
    if (tensor->shape.size() == 2) {
      take(*tensor, module, Hessian({}, tensor->shape[1]), nullptr);
    } else {
      tell({.module = module, .scheme = tensor->scheme, .fallback = "it is not a matrix"});
    }
  }
  return result;
}

}  // namespace narrow
