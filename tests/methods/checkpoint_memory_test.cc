// An 8 GiB checkpoint passes through less than 1.5 GiB of memory. Alone in its binary: it measures the process.
#include <algorithm>
#include <fstream>

#include "io/files.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// The most memory this process ever had resident.
std::uint64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

struct Planned {
  std::string name;
  std::int64_t rows, cols;
};

/// A shard of bf16 matrices: zeros that take no disk, with a stretch of values at the front of each matrix.
void write_shard(const fs::path& path, const std::vector<Planned>& tensors) {
  std::string json = "{";
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> begins;
  for (const Planned& tensor : tensors) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.rows * tensor.cols) * 2;
    json += json.size() > 1 ? ",\"" : "\"";
    json += tensor.name + "\":{\"dtype\":\"BF16\",\"shape\":[" + std::to_string(tensor.rows) + "," + std::to_string(tensor.cols) +
            "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}";
    begins.push_back(offset);
    offset += bytes;
  }
  json += "}";
  const Tensor values = test::random_values(DType::kBf16, {1 << 20}, 11);
  {
    std::ofstream file(path, std::ios::binary);
    file << test::little_endian(json.size()) << json;
    for (const std::uint64_t begin : begins) {
      file.seekp(static_cast<std::streamoff>(8 + json.size() + begin));
      file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.byte_size()));
    }
  }
  fs::resize_file(path, 8 + json.size() + offset);
}

/// Eight shards of a GiB: an embedding that is copied, layers, and one single matrix.
std::uint64_t write_large_model(const fs::path& directory) {
  fs::create_directories(directory);
  std::string map;
  std::uint64_t total = 0;
  for (int shard = 0; shard < 8; ++shard) {
    std::vector<Planned> tensors;
    if (shard == 0) tensors.push_back({"model.embed_tokens.weight", 65536, 8192});
    if (shard == 7) tensors.push_back({"model.layers.9.mlp.up_proj.weight", 65536, 8192});
    for (int i = 0; tensors.size() < 4 && shard % 7 != 0; ++i)
      tensors.push_back({"model.layers." + std::to_string(4 * shard + i) + ".mlp.down_proj.weight", 16384, 8192});
    const std::string file = "model-0000" + std::to_string(shard + 1) + "-of-00008.safetensors";
    write_shard(directory / file, tensors);
    for (const Planned& tensor : tensors) {
      map += (map.empty() ? "\"" : ",\"") + tensor.name + "\":\"" + file + "\"";
      total += static_cast<std::uint64_t>(tensor.rows * tensor.cols) * 2;
    }
  }
  test::write_bytes(directory / "model.safetensors.index.json",
                    "{\"metadata\":{\"total_size\":" + std::to_string(total) + "},\"weight_map\":{" + map + "}}");
  return total;
}

TEST(CheckpointMemory, EightGibibytesInLessThanOneAndAHalf) {
  const test::TemporaryDirectory place;
  ASSERT_EQ(write_large_model(place / "in"), 8 * kGiB);
  if (fs::space(place.path()).available < 6 * kGiB) GTEST_SKIP() << "not enough disk";
  ASSERT_LT(peak_resident(), kGiB / 4);
  const QuantizeReport report = quantize_checkpoint(place / "in", place / "out", {.scheme = Scheme::parse("int4:block128")});
  const std::uint64_t by_rows = peak_resident();
  RecordProperty("peak_mib", static_cast<int>(by_rows >> 20));
  EXPECT_LT(by_rows, kGiB / 2);
  EXPECT_LT(report.plan.peak_memory, kGiB / 2);
  EXPECT_EQ(report.tensors.size(), 25u);
  fs::remove_all(place / "out");

  // Schemes with scales over the whole tensor read it twice instead.
  fs::create_directory(place / "largest");
  fs::rename(place / "in" / "model-00008-of-00008.safetensors", place / "largest" / "model.safetensors");
  quantize_checkpoint(place / "largest", place / "out", {.scheme = Scheme::parse("nvfp4")});
  EXPECT_LT(peak_resident(), kGiB / 2);
  std::printf("peak resident: %llu MiB by rows, %llu MiB in two passes\n", static_cast<unsigned long long>(by_rows >> 20),
              static_cast<unsigned long long>(peak_resident() >> 20));
}

}  // namespace
}  // namespace narrow
