// The writer's bytes and the reader's values.
#include "io/safetensors_writer.h"

#include <sys/resource.h>

#include <csignal>

#include "io/files.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow {
namespace {

std::string written(const std::map<std::string, Tensor>& tensors, const std::map<std::string, std::string>& metadata = {}) {
  const test::TemporaryDirectory place;
  write_safetensors(place / "a.safetensors", tensors, metadata);
  return test::read_bytes(place / "a.safetensors");
}

TEST(SafetensorsWriter, GoldenBytes) {
  EXPECT_EQ(written({}), test::little_endian(8) + "{}      ");
  EXPECT_EQ(written({}, {{"framework", "pt"}}), test::little_endian(40) + "{\"__metadata__\":{\"framework\":\"pt\"}}     ");
  const std::byte zero{0};
  EXPECT_EQ(written({{"attn.0", Tensor::borrow(static_cast<const void*>(&zero), DType::kF4, {1, 2})}}),
            test::little_endian(64) + "{\"attn.0\":{\"dtype\":\"F4\",\"shape\":[1,2],\"data_offsets\":[0,1]}}    " + std::string(1, '\0'));
}

TEST(SafetensorsWriter, OrdersByTypeThenNameAndSortsMetadata) {
  const std::map<std::string, Tensor> tensors{{"a", Tensor::empty(DType::kU8, {1})},
                                              {"b", Tensor::empty(DType::kF32, {})},
                                              {"c", Tensor::empty(DType::kU8, {0, 3})},
                                              {"z", Tensor::empty(DType::kI64, {1})}};
  const std::string bytes = written(tensors, {{"z", "1"}, {"a\"\n\x01\x7f\xC3\xA9", "2"}});
  EXPECT_NE(
      bytes.find(
          "{\"__metadata__\":{\"a\\\"\\n\\u0001\x7f\xC3\xA9\":\"2\",\"z\":\"1\"},\"z\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":["
          "0,8]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[12,13]},"
          "\"c\":{\"dtype\":\"U8\",\"shape\":[0,3],\"data_offsets\":[13,13]}}"),
      std::string::npos)
      << bytes;
}

TEST(SafetensorsWriter, ReadsBackEveryType) {
  const test::TemporaryDirectory place;
  std::map<std::string, Tensor> tensors;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType dtype = static_cast<DType>(i);
    Tensor tensor = Tensor::empty(dtype, {2, 12});
    for (std::size_t k = 0; k < tensor.byte_size(); ++k) tensor.data()[k] = static_cast<std::byte>(k * 37 + static_cast<std::size_t>(i));
    tensors.emplace(std::string(name_of(dtype)), tensor);
  }
  write_safetensors(place / "a.safetensors", tensors, {{"k", "v"}});
  const Checkpoint checkpoint = open_checkpoint(place / "a.safetensors");
  EXPECT_EQ(checkpoint.metadata("a.safetensors").at("k"), "v");
  ASSERT_EQ(checkpoint.stored().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor back = checkpoint.read_stored(name);
    EXPECT_EQ(back.dtype(), tensor.dtype());
    EXPECT_EQ(back.shape(), tensor.shape());
    EXPECT_TRUE(std::equal(back.data(), back.data() + back.byte_size(), tensor.data())) << name;
    std::byte last{};
    checkpoint.read_bytes(checkpoint.stored(name), tensor.byte_size() - 1, {&last, 1});
    EXPECT_EQ(last, tensor.data()[tensor.byte_size() - 1]);
    EXPECT_THROW(checkpoint.read_bytes(checkpoint.stored(name), tensor.byte_size(), {&last, 1}), InvalidArgument);
  }
  EXPECT_THROW(checkpoint.stored("absent"), InvalidArgument);
}

TEST(SafetensorsWriter, WritesStridedTensorsInOrder) {
  const Tensor x = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  const test::TemporaryDirectory place;
  write_safetensors(place / "a.safetensors", {{"t", Tensor::borrow(x.data(), DType::kF32, {3, 2}, {1, 3})}});
  const Tensor back = open_checkpoint(place / "a.safetensors").tensor("t");
  EXPECT_EQ(std::vector<float>(back.as<float>(), back.as<float>() + 6), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST(SafetensorsWriter, RefusesNamesThatReadersRefuse) {
  const Tensor x = Tensor::of({1}, {1});
  for (const std::string& name : {std::string(), std::string("__metadata__"), std::string("a\0b", 3), std::string("\xFF")})
    EXPECT_THROW(written({{name, x}}), InvalidArgument) << name;
  EXPECT_THROW(written({}, {{"\xFF", "v"}}), InvalidArgument);
  EXPECT_THROW(written({{"f4", Tensor::empty(DType::kF4, {3})}}), InvalidArgument);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereItFails) {
  const test::TemporaryDirectory place;
  EXPECT_THROW(write_safetensors(place / "missing" / "a.safetensors", {}), IoError);
  {
    io::SafetensorsWriter writer(place / "a.safetensors", io::layout_safetensors({{.name = "x", .dtype = DType::kU8, .shape = {4}}}, {}));
    const std::byte three[3]{};
    writer.append("x", three);
    EXPECT_THROW(writer.commit(), InvalidArgument);
    EXPECT_THROW(writer.append("x", three), InvalidArgument);
    EXPECT_THROW(writer.append("y", three), InvalidArgument);
  }
  EXPECT_TRUE(std::filesystem::is_empty(place.path()));
  test::write_bytes(place / "old.safetensors", "old");
  {
    const io::AtomicFile file(place / "old.safetensors");
    EXPECT_EQ(test::read_bytes(place / "old.safetensors"), "old");
  }
  EXPECT_EQ(test::read_bytes(place / "old.safetensors"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place.path()), {}), 1);
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorWithTheOffset) {
  const test::TemporaryDirectory place;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};  // a file that may not grow stands for a disk without space
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string sentence;
  try {
    write_safetensors(place / "a.safetensors", {{"w", test::random_values(DType::kF32, {64, 64}, 1)}});
  } catch (const IoError& error) {
    sentence = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  test::expect_sentence(sentence, "offset 4096 failed");
  EXPECT_TRUE(std::filesystem::is_empty(place.path()));
}

TEST(Text, Utf8) {
  for (const std::string_view good : {"", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(io::is_utf8(good)) << good;
  for (const std::string_view bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                                     "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
    EXPECT_FALSE(io::is_utf8(bad)) << bad;
  EXPECT_EQ(io::in_quotes("a\nb\x1b"), "'a?b?'");
  EXPECT_EQ(io::in_quotes(std::string(99, 'a') + "\xC3\xA9xxx"), "'" + std::string(99, 'a') + "...'");
}

}  // namespace
}  // namespace narrow
