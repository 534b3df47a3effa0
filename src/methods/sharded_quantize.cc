#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "io/hash.h"
#include "io/text.h"
#include "methods/fit.h"
#include "methods/quantize_run.h"
#include "narrow/error.h"
#include "narrow/shards.h"

namespace narrow {

namespace fs = std::filesystem;

struct ShardedQuantize::State {
  State(const fs::path& input, const Recipe& recipe) : run(input, recipe, fs::path()) {
    for (const OutputFile& file : run.files()) {
      Shard& shard = shards.emplace_back(Shard{file.name, file.tensors.size(), 0, file.layout.file_bytes});
      for (const PlannedTensor* tensor : file.tensors) shard.bytes_before += tensor->bytes_before;
    }
    for (const PlannedTensor& tensor : run.plan().tensors)
      if (tensor.fate == Fate::kQuantize) quantized.emplace(tensor.name, &tensor);
    io::Hasher hasher;
    const auto add = [&](std::string text) {
      text += '\n';
      hasher.add(std::as_bytes(std::span(text)));
    };
    add(std::string(io::library_version()));
    add(recipe.to_json());
    for (const TensorInfo& info : run.input().stored())
      add(fmt::format("{} {} {} {} {} {}", info.file, info.name, name_of(info.dtype), to_string(info.shape), info.begin, info.end));
    fingerprint = hasher.digits();
  }

  QuantizeRun run;
  std::vector<Shard> shards;
  std::map<std::string, const PlannedTensor*> quantized;  ///< by name
  std::string fingerprint;
};

ShardedQuantize::ShardedQuantize(const fs::path& input, const Recipe& recipe) : state_(std::make_shared<State>(input, recipe)) {}

const Plan& ShardedQuantize::plan() const { return state_->run.plan(); }
const std::vector<Shard>& ShardedQuantize::shards() const { return state_->shards; }
const std::string& ShardedQuantize::fingerprint() const { return state_->fingerprint; }
void ShardedQuantize::check_output(const fs::path& output) const { state_->run.check_output(output); }

void ShardedQuantize::check_fit(const Method& method, bool has_text) const {
  if (method.folds() || method.tune)
    throw Unsupported(fmt::format("the method {} changes several layers at once; on a cluster there are correct, gptq, clip and refine",
                                  method.to_string()));
  if (!method.chooses_codes()) throw InvalidArgument(fmt::format("the method {} fits nothing", method.to_string()));
  const std::vector<std::vector<std::int32_t>> some(1);
  check_method(method, state_->run.recipe(), state_->run.plan(), {.windows = has_text ? std::span(some) : std::span(some).first(0)});
  check_layers(method, state_->run.input());
}

std::vector<std::string> ShardedQuantize::planned(std::span<const std::string> modules) const {
  std::vector<std::string> names;
  for (const std::string& module : modules)
    if (state_->quantized.contains(module + ".weight")) names.push_back(module + ".weight");
  return names;
}

std::vector<std::string> ShardedQuantize::planned() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_->quantized) names.push_back(name);
  return names;
}

FittedModule ShardedQuantize::fit(const std::string& tensor, const InputMoments& moments, const FittedJournal& fitted) const {
  const auto found = state_->quantized.find(tensor);
  if (found == state_->quantized.end()) throw InvalidArgument(fmt::format("the plan does not quantize {}", io::in_quotes(tensor)));
  const PlannedTensor& planned = *found->second;
  const Journal journal(fitted.directory, fitted.fingerprint);
  if (auto entry = journal.find(tensor, planned.scheme, planned.shape)) return std::move(entry->module);
  if (planned.shape.size() != 2) return {.module = tensor, .scheme = planned.scheme, .fallback = "it is not a matrix"};
  const Journal::Entry entry = fit_tensor(state_->run.input(), planned, moments, fitted.method);
  journal.add(tensor, entry);
  return entry.module;
}

void ShardedQuantize::walk(std::span<const std::vector<std::int32_t>> windows, const FittedJournal& fitted,
                           const MomentVisitor& visit) const {
  const Journal journal(fitted.directory, fitted.fingerprint);
  walk_layers(state_->run.input().directory(), windows, fitted.method.correct, [&](const LayerInputs& layer) {
    std::map<std::string, QuantizedTensor> replaced;
    const auto take = [&] {
      bool complete = true;
      for (const std::string& module : layer.modules) {
        const auto found = state_->quantized.find(module + ".weight");
        if (found == state_->quantized.end() || replaced.contains(module)) continue;
        auto entry = journal.find(found->first, found->second->scheme, found->second->shape);
        complete = complete && entry.has_value();
        if (entry) replaced.emplace(module, std::move(entry->quantized));
      }
      return complete;
    };
    if (take()) return replaced;  // an earlier run went as far
    visit(layer.modules, chunk_moments(layer));
    if (!take()) throw InvalidArgument(fmt::format("the weights of {} are not in the journal", layer.modules.front()));
    return replaced;
  });
}

std::string ShardedQuantize::write(std::size_t shard, const fs::path& place, const FittedJournal& fitted,
                                   const ProgressCallback& progress) const {
  if (shard >= state_->shards.size())
    throw InvalidArgument(fmt::format("shard {} is not one of the {} of the plan", shard, state_->shards.size()));
  ShardWork work{.fits_to_inputs = fitted.method.needs_hessian()};
  std::optional<Journal> journal;
  if (!fitted.directory.empty()) {
    journal.emplace(fitted.directory, fitted.fingerprint);
    work.fitted = [&](const PlannedTensor& planned) {
      auto entry = journal->find(planned.name, planned.scheme, planned.shape);
      return entry ? std::optional(std::move(entry->quantized)) : std::nullopt;
    };
  }
  std::uint64_t done = 0;
  work.tell = [&](const PlannedTensor& planned, Stage stage, const ErrorMetrics& error) {
    done += planned.bytes_before;
    if (progress) progress({planned.name, stage, planned.fate == Fate::kQuantize, done, 2 * state_->shards[shard].bytes_before, error});
  };
  return print_shard_result(state_->run.write(state_->run.files()[shard], place, std::move(work)));
}

QuantizeReport ShardedQuantize::finish(const fs::path& place, std::span<const std::string> reports) const {
  std::map<std::string, ShardResult> by_file;
  for (const std::string& text : reports) {
    ShardResult result = parse_shard_result(text, "the report of a shard");
    if (result.manifest.files.size() != 1) throw InvalidArgument("the report of a shard is of one file");
    const std::string file = result.manifest.files.begin()->first;
    if (!by_file.emplace(file, std::move(result)).second)
      throw InvalidArgument(fmt::format("the shard {} is reported twice", io::in_quotes(file)));
  }
  std::vector<ShardResult> results;
  for (const OutputFile& file : state_->run.files()) {
    const auto found = by_file.find(file.name);
    if (found == by_file.end()) throw InvalidArgument(fmt::format("the shard {} is not reported", io::in_quotes(file.name)));
    if (found->second.manifest.files.begin()->second.header_hash != io::hash_of(file.layout.header) ||
        found->second.manifest.tensors.size() != file.tensors.size())
      throw InvalidArgument(fmt::format("the shard {} is of another plan", io::in_quotes(file.name)));
    results.push_back(std::move(found->second));
  }
  if (results.size() != by_file.size()) throw InvalidArgument("a report is of a file that the plan does not have");
  return state_->run.finish(place, std::move(results));
}

}  // namespace narrow
