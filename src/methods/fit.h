#pragma once
/// From a method and a plan to quantized weights: layer by layer where there is a text to calibrate with.

#include <map>

#include "methods/journal.h"
#include "narrow/methods.h"
#include "narrow/model.h"

namespace narrow {

/// Throws InvalidArgument in one sentence where a method cannot be used so; computes nothing.
void check_method(const Method& method, const Recipe& recipe, const Plan& plan, const Calibration& calibration);
/// Throws Unsupported where a step cannot go through the model's layers.
void check_layers(const Method& method, const Checkpoint& input);

/// The sums of each chunk of a text over the inputs of a layer, in order.
std::vector<InputMoments> chunk_moments(const LayerInputs& layer);

/// One planned tensor by a method, as a journal keeps it. Throws InvalidArgument naming what is no matrix.
Journal::Entry fit_tensor(const Checkpoint& input, const PlannedTensor& planned, const InputMoments& moments, const Method& method);

/// The planned tensors that the method quantizes, by name; `modules` receives what became of each, fallbacks included. Tensors that are not
/// in the result are rounded to nearest as they are written. What the journal has is not computed again. Of `how` callback, spill and
/// device count.
std::map<std::string, QuantizedTensor> fit_weights(const Checkpoint& input, const std::filesystem::path& path, const Plan& plan,
                                                   const Method& method, const Calibration& calibration, const Journal& journal,
                                                   const MethodRun& how, std::vector<FittedModule>& modules);

}  // namespace narrow
