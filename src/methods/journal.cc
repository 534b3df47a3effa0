#include "methods/journal.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/hash.h"
#include "io/manifest.h"
#include "methods/output_directory.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFingerprint = "fingerprint";
constexpr std::uint64_t kLongestFingerprint = 4096;

Tensor bytes_tensor(const Buffer& buffer) {
  return Tensor::borrow(static_cast<const void*>(buffer.data()), DType::kU8, {static_cast<std::int64_t>(buffer.size())});
}

void copy_bytes(const Tensor& from, const Buffer& to) {
  if (from.byte_size() != to.size()) throw CorruptFile("the journal has a weight of another size; remove it");
  std::memcpy(to.data(), from.data(), to.size());
}

fs::path file_of(const fs::path& directory, const std::string& tensor) { return directory / (io::hash_of(tensor) + ".safetensors"); }

}  // namespace

std::string fingerprint_of(const Checkpoint& input, const Plan& plan, const Method& method, const Calibration& calibration, Device device) {
  io::Hasher hasher;
  const auto add = [&](std::string_view text) {
    hasher.add(std::as_bytes(std::span(text)));
    hasher.add(std::as_bytes(std::span("\n", 1)));
  };
  add(io::library_version());
  for (const PlannedTensor& tensor : plan.tensors)
    add(fmt::format("{} {} {}", tensor.name, tensor.fate == Fate::kQuantize ? tensor.scheme.to_string() : "as it is",
                    stream_tensor(input, input.stored(tensor.name), [](std::span<const std::byte>) {})));
  add(fmt::format("{} {} {} {} {}", method.to_string(), method.act_order, method.damping, method.sweeps, method.passes));
  if (!device.is_cpu()) add("on a CUDA device");
  for (const auto& window : calibration.windows) {
    add(fmt::format("{} tokens", window.size()));
    hasher.add(std::as_bytes(std::span(window)));
  }
  if (calibration.windows.empty() && calibration.statistics != nullptr)
    for (const auto& [module, seen] : calibration.statistics->inputs) {
      add(module);
      hasher.add(std::as_bytes(std::span(seen.second_moment)));
    }
  return hasher.digits();
}

Journal::Journal(fs::path directory, const std::string& fingerprint) : directory_(std::move(directory)) {
  if (directory_.empty()) return;
  const fs::path file = directory_ / kFingerprint;
  if (fs::exists(file)) {
    if (io::read_text(file, kLongestFingerprint) != fingerprint)
      throw InvalidArgument(fmt::format(
          "{} is the journal of another run: the model, the recipe, the method or the calibration differ; remove it or name another",
          directory_.string()));
    return;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error))  // none where there is no directory yet
    if (entry.path().filename().string().find(io::kPartialMark) == std::string::npos)
      throw InvalidArgument(
          fmt::format("{} is no journal, and not empty; name a directory that is, or that does not exist", directory_.string()));
  fs::create_directory(directory_, error);
  if (error) throw IoError(fmt::format("the journal {} cannot be made: {}", directory_.string(), error.message()));
  io::write_text(file, fingerprint);
}

std::optional<Journal::Entry> Journal::find(const std::string& tensor, const Scheme& scheme, const Shape& shape) const {
  if (directory_.empty() || !fs::exists(file_of(directory_, tensor))) return std::nullopt;
  const fs::path path = file_of(directory_, tensor);
  const Checkpoint file = open_checkpoint(path);
  const auto& metadata = file.metadata(file.tensor_files().front());
  const auto corrupt = [&] { return CorruptFile(fmt::format("{}: it is no weight of a journal; remove the journal", path.string())); };
  for (const char* name : {"codes", scheme.has_scales() ? "scales" : "codes", scheme.asymmetric ? "zero_points" : "codes"})
    if (!file.contains(name)) throw corrupt();
  for (const auto& [name, dtype, count] : {std::tuple{"outer_scale", DType::kF32, 1}, {"numbers", DType::kF64, 4}})
    if (!file.contains(name) || file.dtype(name) != dtype || element_count(file.shape(name)) != count) throw corrupt();
  if (!metadata.contains("module") || !metadata.contains("fallback")) throw corrupt();
  Entry entry;
  entry.quantized = allocate_quantized(scheme, shape);
  copy_bytes(file.tensor("codes"), entry.quantized.codes);
  if (scheme.has_scales()) copy_bytes(file.tensor("scales"), entry.quantized.scales);
  if (scheme.asymmetric) copy_bytes(file.tensor("zero_points"), entry.quantized.zero_points);
  entry.quantized.outer_scale = *file.tensor("outer_scale").as<float>();
  const Tensor numbers = file.tensor("numbers");
  const double* n = numbers.as<double>();
  if (!(n[3] >= 0.0 && n[3] <= 0x1p53)) throw corrupt();  // a count of columns
  entry.module = {metadata.at("module"), scheme, n[0], n[1], n[2], static_cast<std::int64_t>(n[3]), metadata.at("fallback")};
  return entry;
}

void Journal::add(const std::string& tensor, const Entry& entry) const {
  if (directory_.empty()) return;
  const QuantizedTensor& q = entry.quantized;
  const FittedModule& m = entry.module;
  std::map<std::string, Tensor> tensors{{"codes", bytes_tensor(q.codes)}, {"outer_scale", Tensor::of({q.outer_scale}, {1})}};
  if (q.scheme.has_scales()) tensors.emplace("scales", bytes_tensor(q.scales));
  if (q.scheme.asymmetric) tensors.emplace("zero_points", bytes_tensor(q.zero_points));
  const double numbers[] = {m.loss_before, m.loss_after, m.damping, static_cast<double>(m.dead_columns)};
  tensors.emplace("numbers", Tensor::borrow(static_cast<const void*>(numbers), DType::kF64, {4}));
  write_safetensors(file_of(directory_, tensor), tensors, {{"module", m.module}, {"fallback", m.fallback}});
}

void Journal::keep(const std::string& step, const std::map<std::string, Tensor>& state) const {
  if (!directory_.empty()) write_safetensors(file_of(directory_, step), state);
}

std::optional<Checkpoint> Journal::kept(const std::string& step) const {
  if (directory_.empty() || !fs::exists(file_of(directory_, step))) return std::nullopt;
  return open_checkpoint(file_of(directory_, step));
}

void Journal::remove() const {
  if (directory_.empty()) return;
  for (const auto& entry : fs::directory_iterator(directory_))  // the fingerprint last: weights never stand without it
    if (entry.path().filename() != kFingerprint) fs::remove(entry.path());
  fs::remove_all(directory_);
}

}  // namespace narrow
