#pragma once
/// Quantizing a checkpoint one output file at a time, by any number of processes on any number of machines that see the same files.
///
/// plan -> shards -> finish: the plan follows from the input's headers and the recipe alone, so that every process computes the same one; a
/// shard is written, read back and reported by whoever takes it; index, config and manifest are written last by one of them.
/// quantize_checkpoint does the same in one process: the bytes are the same for any number of workers.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "narrow/methods.h"
#include "narrow/recipe.h"

namespace narrow {

/// One output file, and what making it reads.
struct Shard {
  std::string file{};
  std::size_t tensors = 0;
  std::uint64_t bytes_before = 0;  ///< of the input's tensors
  std::uint64_t file_bytes = 0;    ///< to be written, the header included; exact
};

/// Where a method's codes lie, for the shards that store them: the journal of its run.
struct FittedJournal {
  std::filesystem::path directory{};  ///< empty: everything is rounded to nearest
  std::string fingerprint{};          ///< of the run
  Method method{};
};

class ShardedQuantize {
 public:
  /// Opens the input and plans; throws as quantize_checkpoint does before it writes.
  ShardedQuantize(const std::filesystem::path& input, const Recipe& recipe);

  const Plan& plan() const;                  ///< every tensor's fate
  const std::vector<Shard>& shards() const;  ///< in the order of their files
  /// Of the library's version, the recipe and the input's headers, as 16 hexadecimal digits: processes with the same one write the same.
  const std::string& fingerprint() const;
  /// Throws where `output` is taken, lies in the input or has too little room.
  void check_output(const std::filesystem::path& output) const;

  /// A method over many processes, for what chooses codes: each reads some chunks of the text (walk), their sums are added in the order of
  /// the text, the weights of one input are fitted by whoever is free, and everybody goes on with them. Codes meet in the journal.
  /// check_fit throws where the method cannot be used so.
  void check_fit(const Method& method, bool has_text) const;
  /// The planned weights of these modules, or all planned tensors.
  std::vector<std::string> planned(std::span<const std::string> modules) const;
  std::vector<std::string> planned() const;
  /// Fits one planned tensor and puts it into the journal, where it is not there yet.
  FittedModule fit(const std::string& tensor, const InputMoments& moments, const FittedJournal& journal) const;
  /// Reads some chunks of the text layer by layer. visit gets modules that share an input and the sums of each chunk; when it returns, the
  /// journal has their weights.
  using MomentVisitor = std::function<void(std::span<const std::string> modules, const std::vector<InputMoments>& chunks)>;
  void walk(std::span<const std::vector<std::int32_t>> windows, const FittedJournal& journal, const MomentVisitor& visit) const;

  /// Writes one shard into the directory `place`, durable and under its name, reads it back, and returns its report.
  std::string write(std::size_t shard, const std::filesystem::path& place, const FittedJournal& fitted = {},
                    const ProgressCallback& progress = {}) const;
  /// Adds index, config, side files and the manifest to `place`. Needs the report of every shard once, in any order; throws InvalidArgument
  /// where one is missing or of another plan.
  QuantizeReport finish(const std::filesystem::path& place, std::span<const std::string> reports) const;

  struct State;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace narrow
