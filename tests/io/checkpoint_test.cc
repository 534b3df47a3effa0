// Directories: single files, shards with an index, and everything an index must not name.
#include <sys/stat.h>

#include "io/checkpoint_directory.h"
#include "io/files.h"
#include "narrow/error.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

TEST(CheckpointDirectory, SingleAndShardedReadTheSame) {
  const test::TemporaryDirectory place;
  const auto model = test::small_model();
  test::write_model(place / "one", model, false);
  test::write_model(place / "two", model, true);
  for (const fs::path& path :
       {place / "one", place / "two", place / "one" / "model.safetensors", fs::path((place / "two").string() + "/")}) {
    const Checkpoint checkpoint = open_checkpoint(path);
    EXPECT_FALSE(checkpoint.is_quantized());
    ASSERT_EQ(checkpoint.names().size(), model.size());
    for (const auto& [name, tensor] : model) {
      ASSERT_TRUE(checkpoint.contains(name));
      const Tensor back = checkpoint.tensor(name);
      EXPECT_TRUE(std::equal(back.data(), back.data() + back.byte_size(), tensor.data())) << name;
      EXPECT_FALSE(checkpoint.quantized_info(name).has_value());
    }
    EXPECT_THROW(checkpoint.quantized("lm_head.weight"), InvalidArgument);
  }
  const Checkpoint two = open_checkpoint(place / "two");
  EXPECT_EQ(two.tensor_files().size(), 2u);
  EXPECT_EQ(two.side_files(), (std::vector<std::string>{"config.json", "tokenizer.json"}));  // not the other weights
  EXPECT_EQ(two.config(), test::kConfig);
  EXPECT_TRUE(open_checkpoint(place / "one" / "model.safetensors").side_files().empty());
  EXPECT_TRUE(verify_checkpoint(place / "two").problems.empty());
}

/// A sharded model whose index is then replaced.
class BadIndex : public testing::Test {
 protected:
  void SetUp() override { test::write_model(place_ / "m", test::small_model(), true); }
  fs::path index() const { return place_ / "m" / "model.safetensors.index.json"; }
  void expect_rejected(const std::string& text, std::string_view named = "model.safetensors.index.json") {
    test::write_bytes(index(), text);
    expect_open_fails(named);
  }
  void expect_open_fails(std::string_view named) {
    try {
      open_checkpoint(place_ / "m");
      ADD_FAILURE() << "accepted";
    } catch (const CorruptFile& error) {
      test::expect_sentence(error.what(), named);
    }
  }
  void expect_file_rejected(const std::string& file) {
    expect_rejected("{\"metadata\":{},\"weight_map\":{\"lm_head.weight\":" + file + "}}");
  }
  test::TemporaryDirectory place_;
};

TEST_F(BadIndex, NamesOnlyPlainFilesOfItsDirectory) {
  fs::create_directory(place_ / "m" / "sub.safetensors");
  ASSERT_EQ(::mkfifo((place_ / "m" / "fifo.safetensors").c_str(), 0600), 0);
  write_safetensors(place_ / "outside.safetensors", {{"lm_head.weight", Tensor::of({1}, {1})}});
  fs::create_symlink(place_ / "outside.safetensors", place_ / "m" / "link.safetensors");
  fs::create_symlink("/dev/zero", place_ / "m" / "zero.safetensors");
  for (const char* file : {"\"/etc/passwd\"",
                           "\"/etc/x.safetensors\"",
                           "\"../outside.safetensors\"",
                           "\"./model-00001-of-00002.safetensors\"",
                           "\"sub/x.safetensors\"",
                           "\"..\"",
                           "\".\"",
                           "\"\"",
                           "\".hidden.safetensors\"",
                           "\"a\\u0000.safetensors\"",
                           "\"a\\\\b.safetensors\"",
                           "\"C:x.safetensors\"",
                           "\"missing.safetensors\"",
                           "\"sub.safetensors\"",
                           "\"fifo.safetensors\"",
                           "\"link.safetensors\"",
                           "\"zero.safetensors\"",
                           "\"config.json\"",
                           "7",
                           "null",
                           "[\"a.safetensors\"]"})
    expect_file_rejected(file);
}

TEST_F(BadIndex, MustAgreeWithTheShards) {
  const std::string good = test::read_bytes(index());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  expect_rejected(with("\"lm_head.weight\": \"model-00002", "\"lm_head.weight\": \"model-00001"));
  expect_rejected(with("\"lm_head.weight\":", "\"lm_tail.weight\":"));
  expect_rejected(with("\"lm_head.weight\": \"model-00002-of-00002.safetensors\", ", ""));
  expect_rejected(with("\"lm_head.weight\": ", "\"model.embed_tokens.weight\": "));
  expect_rejected(with("weight_map", "weight_mop"));
  expect_rejected(with("{\"total_size\"", "[{\"total_size\""));
  expect_rejected("");
  expect_rejected("[]");
  expect_rejected("{\"weight_map\": []}");
  expect_rejected("{\"weight_map\": {}, \"metadata\": 3}");
  expect_rejected("{\"weight_map\":" + std::string(1'000'000, '['));
  expect_rejected(good + std::string(1, '\0'));
  expect_rejected("\xEF\xBB\xBF" + good);
  test::write_bytes(index(), good);
  EXPECT_NO_THROW(open_checkpoint(place_ / "m"));
}

TEST_F(BadIndex, ATensorInTwoShards) {
  const Tensor x = Tensor::of({1}, {1});
  write_safetensors(place_ / "m" / "a.safetensors", {{"w", x}});
  write_safetensors(place_ / "m" / "b.safetensors", {{"w", x}, {"v", x}});
  expect_rejected("{\"weight_map\":{\"w\":\"a.safetensors\",\"v\":\"b.safetensors\"}}", "a.safetensors");
  write_safetensors(place_ / "m" / "A.safetensors", {{"u", x}});
  expect_rejected("{\"weight_map\":{\"w\":\"a.safetensors\",\"u\":\"A.safetensors\"}}");
}

TEST_F(BadIndex, ATruncatedShardIsNamed) {
  const fs::path shard = place_ / "m" / "model-00002-of-00002.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_open_fails("model-00002-of-00002.safetensors");
}

TEST(CheckpointDirectory, AHubCacheOfLinksIsRead) {
  const test::TemporaryDirectory place;
  test::write_model(place / "source", test::small_model(), false);
  const fs::path snapshot = place / "models--a" / "snapshots" / "abc", blobs = place / "models--a" / "blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  for (const char* name : {"model.safetensors", "config.json"}) {
    fs::copy_file(place / "source" / name, blobs / (std::string("hash-of-") + name));
    fs::create_symlink("../../blobs/hash-of-" + std::string(name), snapshot / name);
  }
  EXPECT_EQ(open_checkpoint(snapshot).names().size(), test::small_model().size());
}

TEST(CheckpointDirectory, SaysWhatIsMissing) {
  const test::TemporaryDirectory place;
  const auto sentence = [](const fs::path& path) -> std::string {
    try {
      open_checkpoint(path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(sentence(place / "absent"), (place / "absent").string() + " does not exist");
  EXPECT_NE(sentence("owner-of/some-model").find("narrow downloads nothing"), std::string::npos);
  EXPECT_NE(sentence(place.path()).find("name a safetensors file"), std::string::npos);
  test::write_bytes(place / "pytorch_model.bin", "a pickle");
  EXPECT_NE(sentence(place.path()).find("pytorch_model.bin holds pickled tensors"), std::string::npos);
  fs::rename(place / "pytorch_model.bin", place / "llama.gguf");
  EXPECT_NE(sentence(place.path()).find("llama.gguf OUT --to narrow` makes"), std::string::npos);
  write_safetensors(place / "a.safetensors", {});
  EXPECT_NO_THROW(open_checkpoint(place.path()));
  write_safetensors(place / "b.safetensors", {});
  EXPECT_THROW(open_checkpoint(place.path()), InvalidArgument);
  write_safetensors(place / "model.safetensors", {});
  EXPECT_EQ(open_checkpoint(place.path()).tensor_files().front(), "model.safetensors");
  ASSERT_EQ(::mkfifo((place / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(open_checkpoint(place / "fifo"), IoError);
  EXPECT_THROW(open_checkpoint("/dev/zero"), IoError);
}

TEST(ShardIndex, PrintsWhatItParses) {
  const std::string text = "{\n  \"metadata\": {\n    \"total_size\": 8\n  },\n  \"weight_map\": {\n    \"a\": \"x.safetensors\"\n  }\n}\n";
  EXPECT_EQ(io::print_index(io::parse_index(text, "index")), text);
}

}  // namespace
}  // namespace narrow
