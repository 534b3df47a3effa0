#pragma once
/// Files for the tests of checkpoints: a directory that goes away, raw safetensors bytes, small models.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "narrow/checkpoint.h"

namespace narrow::test {

/// A new directory under the system's place for temporary files; removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "narrow-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary directory";
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of every file of a directory, by its name.
inline std::map<std::string, std::string> contents(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(directory))
    files[entry.path().filename().string()] = read_bytes(entry.path());
  return files;
}

inline std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFFu);
  return bytes;
}

/// A safetensors file of this header and these bytes, whatever they are.
inline std::string raw_file(std::string_view json, std::string_view data = {}) {
  return little_endian(json.size()) + std::string(json) + std::string(data);
}

/// Normal values; every 97th column of a matrix is an outlier.
inline Tensor random_values(DType dtype, Shape shape, unsigned seed, float spread = 0.05f) {
  Tensor x = Tensor::empty(DType::kF32, std::move(shape));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = normal(generator) * (i % 97 == 5 ? 8.0f : 1.0f);
  return convert(x, dtype);
}

/// A transformer in small: embeddings, two layers of odd sizes, norms, a head, and a tensor of integers.
inline std::map<std::string, Tensor> small_model(DType dtype = DType::kBf16) {
  std::map<std::string, Tensor> tensors;
  unsigned seed = 1;
  const auto add = [&](const std::string& name, Shape shape) { tensors.emplace(name, random_values(dtype, std::move(shape), seed++)); };
  add("model.embed_tokens.weight", {64, 96});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    add(std::string(layer) + "self_attn.q_proj.weight", {96, 96});
    add(std::string(layer) + "self_attn.q_proj.bias", {96});
    add(std::string(layer) + "mlp.up_proj.weight", {131, 96});
    add(std::string(layer) + "mlp.down_proj.weight", {96, 131});
    add(std::string(layer) + "input_layernorm.weight", {96});
  }
  add("model.experts.weight", {3, 70, 33});
  add("lm_head.weight", {64, 96});
  Tensor ids = Tensor::empty(DType::kI64, {7});
  for (std::int64_t i = 0; i < 7; ++i) ids.as<std::int64_t>()[i] = i * i;
  tensors.emplace("model.position_ids", ids);
  return tensors;
}

inline constexpr std::string_view kConfig = R"({"model_type": "llama", "torch_dtype": "bfloat16", "rms_norm_eps": 1e-05})";

/// The small model as a directory: one file, or two shards and an index.
inline void write_model(const std::filesystem::path& directory, const std::map<std::string, Tensor>& tensors, bool sharded) {
  std::filesystem::create_directories(directory);
  write_bytes(directory / "config.json", kConfig);
  write_bytes(directory / "tokenizer.json", "{\"version\": \"1.0\"}");
  write_bytes(directory / "pytorch_model.bin", "other weights");
  if (!sharded) return write_safetensors(directory / "model.safetensors", tensors, {{"format", "pt"}});
  std::map<std::string, Tensor> shards[2];
  std::string map;
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    const int shard = name.find("layers.1") != std::string::npos || name.starts_with("lm_head") ? 1 : 0;
    shards[shard].emplace(name, tensor);
    total += tensor.byte_size();
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors\"";
  }
  for (int i = 0; i < 2; ++i)
    write_safetensors(directory / ("model-0000" + std::to_string(i + 1) + "-of-00002.safetensors"), shards[i], {{"format", "pt"}});
  write_bytes(directory / "model.safetensors.index.json",
              "{\"metadata\": {\"total_size\": " + std::to_string(total) + "}, \"weight_map\": {" + map + "}}");
}

/// One sentence: no line break, and it names the file.
inline void expect_sentence(const std::string& text, std::string_view named) {
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_NE(text.find(named), std::string::npos) << text;
  EXPECT_LT(text.size(), 500u) << text;
}

}  // namespace narrow::test
