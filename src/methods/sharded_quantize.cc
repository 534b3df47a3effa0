#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "io/hash.h"
#include "io/text.h"
#include "methods/journal.h"
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
  std::string fingerprint;
};

ShardedQuantize::ShardedQuantize(const fs::path& input, const Recipe& recipe) : state_(std::make_shared<State>(input, recipe)) {}

const Plan& ShardedQuantize::plan() const { return state_->run.plan(); }
const std::vector<Shard>& ShardedQuantize::shards() const { return state_->shards; }
const std::string& ShardedQuantize::fingerprint() const { return state_->fingerprint; }
void ShardedQuantize::check_output(const fs::path& output) const { state_->run.check_output(output); }

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
