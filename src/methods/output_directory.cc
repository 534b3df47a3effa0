#include "methods/output_directory.h"

#include <algorithm>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/hash.h"
#include "methods/row_chunks.h"

namespace narrow {
namespace {

constexpr std::size_t kPiece = std::size_t{8} << 20;

io::Manifest::SideFile copy_side_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const io::FileReader source(from);
  io::AtomicFile target(to);
  io::Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, source.size())));
  for (std::uint64_t offset = 0; offset < source.size(); offset += piece.size()) {
    const std::span<std::byte> part(piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), source.size() - offset)));
    source.read(offset, part);
    target.write(offset, part);
    hasher.add(part);
  }
  target.commit(io::Names::kLeftToDirectory);
  return {source.size(), hasher.digits()};
}

std::string index_text(const Checkpoint& input, const std::vector<OutputFile>& files) {
  const std::filesystem::path path = input.directory() / input.index_file();
  io::ShardIndex index = io::parse_index(io::read_text(path, io::kLargestJsonFile), path);
  index.weight_map.clear();
  std::uint64_t total = 0;
  for (const OutputFile& file : files)
    for (const TensorInfo& info : file.layout.tensors) {
      index.weight_map[info.name] = file.name;
      total += info.byte_size();
    }
  index.metadata["total_size"] = total;
  return io::print_index(index);
}

}  // namespace

std::map<std::string, io::Manifest::SideFile> write_side_files(const Checkpoint& input, const std::filesystem::path& place,
                                                               const std::string& config, const std::vector<OutputFile>& files) {
  std::map<std::string, io::Manifest::SideFile> written;
  const auto write = [&](const std::string& name, const std::string& text) {
    io::write_text(place / name, text, io::Names::kLeftToDirectory);
    written[name] = {text.size(), io::hash_of(text)};
  };
  for (const std::string& name : input.side_files())
    if (name != io::kConfigFile) written[name] = copy_side_file(input.directory() / name, place / name);
  if (!input.index_file().empty()) write(input.index_file(), index_text(input, files));
  if (!config.empty()) write(std::string(io::kConfigFile), config);
  return written;
}

std::string stream_tensor(const Checkpoint& checkpoint, const TensorInfo& info,
                          const std::function<void(std::span<const std::byte>)>& take) {
  io::Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, info.byte_size())));
  for (std::uint64_t offset = 0; offset < info.byte_size(); offset += piece.size()) {
    const std::span<std::byte> part(piece.data(),
                                    static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), info.byte_size() - offset)));
    checkpoint.read_bytes(info, offset, part);
    hasher.add(part);
    take(part);
  }
  return hasher.digits();
}

}  // namespace narrow
