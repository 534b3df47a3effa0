// GGUF files: ggml's own bytes, both ways, and what its reader refuses.
#include "io/gguf_file.h"

#include "io/files.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::string golden_file() {
  std::string bytes = from_hex(
      "4747554603000000010000000000000002000000000000001400000000000000"
      "67656e6572616c2e6172636869746563747572650800000003000000000000007473741c0000000000000067656e6572616c2e7175616e74697a6174696f6e5f7665"
      "7273696f6e0400000002000000"
      "010000000000000077010000002000000000000000080000000000000000000000");
  bytes.resize(0xa0, '\0');
  bytes += from_hex("4d269dfb59b61472d02e8be947a50361be1c7ad73593f14fac0a68c62481df3d9af8");
  bytes.resize(0xe0, '\0');
  return bytes;
}

GgufHeader golden_header() {
  return layout_gguf({{"general.architecture", std::string("tst")}, {"general.quantization_version", std::uint32_t{2}}},
                     {{"w", {32}, &ggml_type(GgmlType::kQ8_0)}});
}

TEST(GgufFile, HeaderIsGgmlsBytes) {
  const GgufHeader header = golden_header();
  EXPECT_EQ(header.text, golden_file().substr(0, 0xa0));
  EXPECT_EQ(header.file_bytes, 0xe0u);
  EXPECT_EQ(header.tensors[0].begin, 0xa0u);
}

TEST(GgufFile, ReadsBack) {
  const test::TemporaryDirectory place;
  test::write_bytes(place / "a.gguf", golden_file());
  const GgufHeader header = read_gguf(FileReader(place / "a.gguf"));
  EXPECT_EQ(header.metadata, golden_header().metadata);
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "w");
  EXPECT_EQ(header.tensors[0].shape, Shape{32});
  EXPECT_EQ(header.tensors[0].type->name, "q8_0");
  EXPECT_EQ(header.tensors[0].begin, 0xa0u);
  EXPECT_EQ(header.tensors[0].bytes, 34u);
}

TEST(GgufFile, EveryKindOfValueReturns) {
  const test::TemporaryDirectory place;
  const GgufHeader header =
      layout_gguf({{"a", 1.5f}, {"b", true}, {"c", std::vector<std::string>{"x", "", "y z"}}, {"d", std::vector<std::int32_t>{-1, 7}}},
                  {{"one", {2, 3}, &ggml_type(GgmlType::kF32)}, {"two", {2, 64}, &ggml_type(GgmlType::kQ4_0)}});
  std::string bytes = header.text;
  bytes.resize(static_cast<std::size_t>(header.file_bytes));
  test::write_bytes(place / "a.gguf", bytes);
  const GgufHeader read = read_gguf(FileReader(place / "a.gguf"));
  EXPECT_EQ(read.metadata, header.metadata);
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[1].shape, (Shape{2, 64}));
  EXPECT_EQ(read.tensors[1].begin, header.text.size() + 32);
}

TEST(GgufFile, OtherArraysOfNumbersAreSteppedOver) {
  const test::TemporaryDirectory place;
  const std::size_t count = 100'000;  // more than the reader holds at a time
  const GgufHeader header = layout_gguf({{"a", std::vector<std::int32_t>(count, 7)}, {"b", std::string("behind")}}, {});
  std::string bytes = header.text;
  const std::size_t type = bytes.find("a", 24) + 1 + 4;
  ASSERT_EQ(bytes[type], 5);  // i32
  bytes[type] = 6;            // f32
  test::write_bytes(place / "a.gguf", bytes);
  const GgufHeader read = read_gguf(FileReader(place / "a.gguf"));
  ASSERT_EQ(read.metadata.size(), 2u);
  EXPECT_EQ(std::get<std::string>(read.metadata[0].second), "100000 numbers");
  EXPECT_EQ(std::get<std::string>(read.metadata[1].second), "behind");
  test::write_bytes(place / "whole.gguf", header.text);
  EXPECT_EQ(read_gguf(FileReader(place / "whole.gguf")).metadata, header.metadata);
}

TEST(GgufFile, RefusesWhatGgmlRefuses) {
  const test::TemporaryDirectory place;
  const auto rejects = [&](std::size_t at, std::string_view replacement) {
    std::string bytes = golden_file();
    bytes.replace(at, replacement.size(), replacement);
    test::write_bytes(place / "bad.gguf", bytes);
    try {
      read_gguf(FileReader(place / "bad.gguf"));
      ADD_FAILURE() << "accepted with other bytes at " << at;
    } catch (const CorruptFile& error) {
      test::expect_sentence(error.what(), "bad.gguf");
    }
  };
  rejects(0, "GGML");
  rejects(4, std::string(1, '\x04'));
  rejects(4, std::string("\0\0\0\3", 4));        // the other order of bytes
  rejects(8, std::string(8, '\xff'));            // tensors
  rejects(16, std::string(7, '\xff'));           // pairs
  rejects(24, std::string(1, '\0'));             // an empty key: what follows is out of step
  rejects(24 + 8 + 20, std::string(1, '\x63'));  // a type of value
  rejects(0x78, std::string(1, '\x09'));         // dimensions
  rejects(0x7c, std::string(1, '\x21'));         // 33 values are no whole block
  rejects(0x88, std::string(1, '\x20'));         // an offset with a gap
  for (std::size_t cut = 0; cut < 0xa0 + 34; ++cut) {
    test::write_bytes(place / "cut.gguf", std::string_view(golden_file()).substr(0, cut));
    EXPECT_THROW(read_gguf(FileReader(place / "cut.gguf")), CorruptFile) << cut;
  }
}

}  // namespace
}  // namespace narrow::io
