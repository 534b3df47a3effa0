#include "methods/quantize_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "io/atomic_file.h"
#include "io/json.h"
#include "methods/activation_recipe.h"
#include "methods/output_directory.h"
#include "methods/plan.h"
#include "methods/preflight.h"
#include "methods/special_values.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

/// config.json with the object that tells a reader what this is.
std::string config_text(const Checkpoint& input, const Recipe& recipe) {
  const std::string text = input.config();
  io::OrderedJson config = text.empty() ? io::OrderedJson::object() : io::parse_ordered_json(text, input.directory() / io::kConfigFile);
  io::OrderedJson quantization{{"quant_method", "narrow"}, {"version", io::kManifestVersion}, {"scheme", recipe.scheme.to_string()}};
  quantization["targets"] = recipe.targets.empty() ? std::vector<std::string>{"Linear"} : recipe.targets;
  quantization["ignore"] = recipe.ignore;
  quantization["rules"] = io::OrderedJson::array();
  for (const auto& [pattern, scheme] : recipe.rules) quantization["rules"].push_back({{"match", pattern}, {"scheme", scheme.to_string()}});
  if (recipe.activations) quantization["activations"] = activations_json(*recipe.activations);
  config["quantization_config"] = std::move(quantization);
  try {
    return config.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("quantize: a pattern of the recipe is not UTF-8");
  }
}

}  // namespace

QuantizeRun::QuantizeRun(const fs::path& input, Recipe recipe, const fs::path& output)
    : source_(input),
      input_(open_checkpoint(input)),
      recipe_(std::move(recipe)),
      plan_(plan_quantize(input_, recipe_, output)),
      kept_(recipe_.on_nonfinite == OnNonFinite::kKeep ? keep_nonfinite(input_, recipe_, plan_) : std::vector<KeptTensor>{}),
      files_(layout_output(input_, plan_.tensors)),
      config_(config_text(input_, recipe_)) {}

void QuantizeRun::check_output(const fs::path& output) const {
  constexpr std::uint64_t kPerTensor = 1024;  // of manifest and index
  check_output_place(source_, output, plan_.file_bytes + side_file_bytes(input_) + kPerTensor * (plan_.tensors.size() + 1024));
}

ShardResult QuantizeRun::write(const OutputFile& file, const fs::path& place, ShardWork work) const {
  work.options = options_of(recipe_);
  return write_shard(input_, file, place, work);
}

QuantizeReport QuantizeRun::finish(const fs::path& place, std::vector<ShardResult> results) const {
  ShardResult all;
  for (ShardResult& result : results) all.join(std::move(result));
  all.manifest.narrow_version = io::library_version();
  all.manifest.side_files = write_side_files(input_, place, config_, files_);
  io::write_text(place / io::kManifestFile, io::print_manifest(all.manifest));
  QuantizeReport report{plan_, std::move(all.tensors), kept_};
  report.sqnr_db = all.noise == 0.0 ? std::numeric_limits<double>::infinity() : 10.0 * std::log10(all.signal / all.noise);
  std::sort(report.tensors.begin(), report.tensors.end(), [](const TensorResult& a, const TensorResult& b) { return a.name < b.name; });
  return report;
}

}  // namespace narrow
