#include "io/checkpoint_directory.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "io/file_reader.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTensorSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
// Weights in other containers, and indices over them: not carried along.
constexpr std::string_view kOtherWeights[] = {
    ".bin", ".pt",  ".pth", ".gguf",   ".ggml",           ".onnx",          ".onnx_data",         ".h5", ".msgpack", ".ckpt",
    ".npz", ".npy", ".pkl", ".tflite", ".bin.index.json", ".h5.index.json", ".msgpack.index.json"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// A hub cache holds links into the blobs of the same model: <model>/snapshots/<revision>/FILE -> <model>/blobs/HASH.
bool is_hub_blob(const fs::path& directory, const fs::path& target) {
  return directory.parent_path().filename() == "snapshots" && target.parent_path() == directory.parent_path().parent_path() / "blobs";
}

/// A regular file of the directory itself: a link must not lead out of it.
void check_member(const fs::path& directory, const std::string& name, const fs::path& named_by) {
  const fs::path path = directory / name;
  std::error_code error;
  const fs::path root = fs::canonical(directory, error), target = fs::canonical(path, error);
  if (error)
    throw CorruptFile(fmt::format("{}: it names the file {}, which is missing: {}", named_by.string(), in_quotes(name), error.message()));
  if (!fs::is_regular_file(target, error))
    throw CorruptFile(fmt::format("{}: it names {}, which is not a regular file", named_by.string(), in_quotes(name)));
  if (target.parent_path() != root && !is_hub_blob(root, target))
    throw CorruptFile(fmt::format("{}: it names {}, a link that leads out of the directory", named_by.string(), in_quotes(name)));
}

void list_side_files(CheckpointFiles& files) {
  for (const fs::directory_entry& entry : fs::directory_iterator(files.directory)) {
    const std::string name = entry.path().filename().string();
    std::error_code error;
    if (!is_plain_file_name(name) || !entry.is_regular_file(error)) continue;
    if (name.ends_with(kTensorSuffix) || name.ends_with(kIndexSuffix) || name == kManifestFile) continue;
    if (std::any_of(std::begin(kOtherWeights), std::end(kOtherWeights),
                    [&](std::string_view suffix) { return lower(name).ends_with(suffix); }))
      continue;
    check_member(files.directory, name, files.directory);
    files.side_files.push_back(name);
  }
  std::sort(files.side_files.begin(), files.side_files.end());
}

/// What to do about a directory whose weights are in a file of another kind, by that file's name; empty for any other file.
std::string way_out(const fs::path& directory, std::string_view name) {
  if (name.ends_with(".gguf"))
    return fmt::format("`narrow convert {} OUT --to narrow` makes a checkpoint of one", (directory / name).string());
  for (const std::string_view pickled : {".bin", ".pt", ".pth"})
    if (name.ends_with(pickled))
      return fmt::format("{} holds pickled tensors: save the model as safetensors, for example with transformers' save_pretrained", name);
  return {};
}

void list_tensor_files(CheckpointFiles& files) {
  std::vector<std::string> tensors, indices;
  std::string way;
  for (const fs::directory_entry& entry : fs::directory_iterator(files.directory)) {
    const std::string name = entry.path().filename().string();
    if (!is_plain_file_name(name)) continue;
    if (name.ends_with(kIndexSuffix)) indices.push_back(name);
    if (name.ends_with(kTensorSuffix)) tensors.push_back(name);
    if (way.empty()) way = way_out(files.directory, name);
  }
  const auto has = [](const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string default_index = "model" + std::string(kIndexSuffix), default_file = "model" + std::string(kTensorSuffix);
  if (!indices.empty()) {
    if (indices.size() > 1 && !has(indices, default_index))
      throw InvalidArgument(fmt::format("{} has {} indices over safetensors files and none is {}; name one model", files.directory.string(),
                                        indices.size(), default_index));
    files.index_file = indices.size() > 1 ? default_index : indices.front();
    const fs::path path = files.directory / files.index_file;
    check_member(files.directory, files.index_file, files.directory);
    files.index = parse_index(read_text(path, kLargestJsonFile), path);
    std::set<std::string> named, folded;
    for (const auto& [tensor, file] : files.index.weight_map) named.insert(file);
    for (const std::string& file : named) {
      if (!folded.insert(lower(file)).second)
        throw CorruptFile(fmt::format("{}: two files differ from {} by case alone", path.string(), in_quotes(file)));
      check_member(files.directory, file, path);
    }
    files.tensor_files.assign(named.begin(), named.end());
    return;
  }
  if (tensors.empty())
    throw IoError(fmt::format("{} has no safetensors file; {}", files.directory.string(),
                              way.empty() ? "name a safetensors file or a directory with one" : way));
  if (tensors.size() > 1 && !has(tensors, default_file))
    throw InvalidArgument(
        fmt::format("{} has {} safetensors files and no index; name one of the files", files.directory.string(), tensors.size()));
  files.tensor_files = {tensors.size() > 1 ? default_file : tensors.front()};
  check_member(files.directory, files.tensor_files.front(), files.directory);
}

/// OWNER/NAME, as models are called where they are downloaded from.
bool is_hub_name(const fs::path& path) {
  return path.is_relative() && std::distance(path.begin(), path.end()) == 2 && path.has_filename() && *path.begin() != "." &&
         *path.begin() != ".." && !fs::exists(path.parent_path());
}

}  // namespace

CheckpointFiles find_checkpoint_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    throw IoError(fmt::format("{} does not exist{}", path.string(),
                              is_hub_name(path) ? "; narrow downloads nothing: fetch a model first, for example with `hf download`" : ""));
  if (error) throw IoError(fmt::format("{} cannot be read: {}", path.string(), error.message()));
  CheckpointFiles files;
  if (!fs::is_directory(status)) {
    files.directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    files.tensor_files = {path.filename().string()};
    return files;
  }
  files.directory = path.has_filename() ? path : path.parent_path();
  try {
    list_tensor_files(files);
    list_side_files(files);
  } catch (const fs::filesystem_error& failure) {
    throw IoError(fmt::format("{} cannot be listed: {}", path.string(), failure.code().message()));
  }
  return files;
}

}  // namespace narrow::io
