#pragma once
/// narrow bench --model.

#include <string>
#include <vector>

#include "activation_options.h"
#include "commands.h"
#include "model_options.h"
#include "narrow/model_bench.h"

namespace narrow::command {

struct ModelBenchCommand {
  std::string model, device = "cuda", cache = "fp16", compute = "fp16";
  std::vector<std::string> schemes;
  ActivationOptions activations;
  ModelBenchOptions how;
};

void bench_models(Context& context, ModelBenchCommand& options);

}  // namespace narrow::command
