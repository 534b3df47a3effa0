/// verify_checkpoint: every byte of narrow's own checkpoint against its manifest.

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "io/checkpoint_directory.h"
#include "io/file_reader.h"
#include "io/hash.h"
#include "io/manifest.h"
#include "io/safetensors_header.h"
#include "io/text.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{8} << 20;

std::string hash_range(const io::FileReader& file, std::uint64_t begin, std::uint64_t end) {
  io::Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, end - begin)));
  for (std::uint64_t offset = begin; offset < end; offset += piece.size()) {
    const std::span<std::byte> part(piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), end - offset)));
    file.read(offset, part);
    hasher.add(part);
  }
  return hasher.digits();
}

/// Collects problems; a file that cannot be read is one too.
class Verifier {
 public:
  Verifier(fs::path directory, const io::Manifest& manifest) : directory_(std::move(directory)), manifest_(manifest) {
    for (const auto& [logical, tensor] : manifest.tensors)
      for (const auto& [name, part] : tensor.stored) expected_[part.file][name] = {&logical, &part.hash};
  }

  VerifyReport run() {
    report_.tensors = static_cast<std::int64_t>(manifest_.tensors.size());
    for (const auto& [name, file] : manifest_.side_files) guarded([&, &name = name, &file = file] { check_side_file(name, file); });
    for (const auto& [name, file] : manifest_.files) guarded([&, &name = name, &file = file] { check_tensor_file(name, file); });
    return std::move(report_);
  }

 private:
  struct Expected {
    const std::string* logical;
    const std::string* hash;
  };

  void problem(const std::string& file, std::string_view why) {
    report_.problems.push_back(fmt::format("{}: {}", (directory_ / file).string(), why));
  }

  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      report_.problems.emplace_back(error.what());
    }
  }

  void check_side_file(const std::string& name, const io::Manifest::SideFile& expected) {
    const io::FileReader file(directory_ / name);
    report_.bytes += static_cast<std::int64_t>(file.size());
    if (file.size() != expected.bytes) return problem(name, fmt::format("it has {} bytes instead of {}", file.size(), expected.bytes));
    if (hash_range(file, 0, file.size()) != expected.hash) problem(name, "its contents do not have the hash of the manifest");
  }

  void check_tensor_file(const std::string& name, const io::Manifest::TensorFile& expected) {
    const io::FileReader file(directory_ / name);
    report_.bytes += static_cast<std::int64_t>(file.size());
    if (file.size() != expected.bytes) return problem(name, fmt::format("it has {} bytes instead of {}", file.size(), expected.bytes));
    if (expected.header_bytes > file.size() || hash_range(file, 0, expected.header_bytes) != expected.header_hash)
      return problem(name, fmt::format("its header, bytes 0 to {}, does not have the hash of the manifest", expected.header_bytes));
    const io::SafetensorsHeader header = io::read_safetensors_header(file);
    const std::map<std::string, Expected>& tensors = expected_[name];
    if (header.tensors.size() != tensors.size())
      problem(name, fmt::format("it has {} tensors, the manifest {}", header.tensors.size(), tensors.size()));
    for (const TensorInfo& info : header.tensors) {
      const auto known = tensors.find(info.name);
      if (known == tensors.end()) {
        problem(name, fmt::format("tensor {} is not in the manifest", io::in_quotes(info.name)));
      } else if (hash_range(file, info.begin, info.end) != *known->second.hash) {
        problem(name, fmt::format("tensor {}, stored as {} in bytes {} to {}, does not have the hash of the manifest",
                                  io::in_quotes(*known->second.logical), io::in_quotes(info.name), info.begin, info.end));
      }
    }
  }

  fs::path directory_;
  const io::Manifest& manifest_;
  std::map<std::string, std::map<std::string, Expected>> expected_;
  VerifyReport report_;
};

VerifyReport verify_structure(const fs::path& path) {
  VerifyReport report;
  const Checkpoint checkpoint = open_checkpoint(path);
  report.tensors = static_cast<std::int64_t>(checkpoint.stored().size());
  for (const TensorInfo& info : checkpoint.stored()) report.bytes += static_cast<std::int64_t>(info.byte_size());
  return report;
}

}  // namespace

VerifyReport verify_checkpoint(const fs::path& path) {
  VerifyReport report;
  try {
    const fs::path manifest_path = path / io::kManifestFile;
    if (!fs::is_directory(path) || !fs::exists(manifest_path)) return verify_structure(path);
    const io::Manifest manifest = io::parse_manifest(io::read_text(manifest_path, io::kLargestJsonFile), manifest_path);
    report = Verifier(path, manifest).run();
    report.has_hashes = true;
    if (report.problems.empty()) open_checkpoint(path);  // what no hash sees: files that were added
  } catch (const CorruptFile& error) {
    report.problems.emplace_back(error.what());
  }
  return report;
}

}  // namespace narrow
