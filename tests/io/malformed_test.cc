// Files that are not what they claim to be: each gives one typed sentence, quickly, and leaves nothing behind.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "io/files.h"
#include "io/json.h"
#include "narrow/error.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

using test::little_endian;
using test::raw_file;

struct Malformed {
  std::string name;
  std::string bytes;
};

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  std::string text = "\"";
  text.append(name)
      .append("\":{\"dtype\":\"")
      .append(dtype)
      .append("\",\"shape\":")
      .append(shape)
      .append(",\"data_offsets\":")
      .append(offsets)
      .append("}");
  return text;
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::vector<Malformed> malformed_files() {
  const std::string good = entry("a", "F32", "[2]", "[0,8]");
  const std::string eight(8, 'x');
  std::vector<Malformed> files;
  const auto add = [&](std::string name, std::string bytes) { files.push_back({std::move(name), std::move(bytes)}); };
  const auto header = [&](std::string name, const std::string& json, std::string_view data = {}) {
    add(std::move(name), raw_file(json, data));
  };
  const auto one = [&](std::string name, const std::string& member, std::string_view data) {
    header(std::move(name), "{" + member + "}", data);
  };

  // 1: the length lies.
  add("empty", "");
  add("seven_bytes", "\x02");
  add("length_only_zero", little_endian(0));
  add("length_one", little_endian(1) + "{");
  add("length_seven_of_eight", little_endian(7) + "{     }x");
  add("length_beyond_file", little_endian(3) + "{}");
  add("length_2_63", little_endian(std::uint64_t{1} << 63) + "{}");
  add("length_all_ones", little_endian(~std::uint64_t{0}) + "{}");
  add("length_wraps", little_endian(~std::uint64_t{0} - 7) + "{}      ");
  add("length_above_limit", little_endian(100'000'001) + "{}");
  add("length_at_limit", little_endian(100'000'000) + "{}");
  // 2: the shape's product wraps.
  one("wraps_to_zero", entry("a", "F32", "[4294967296,4294967296]", "[0,0]"), "");
  one("wraps_to_zero_elements", entry("a", "U8", "[9223372036854775807,2]", "[0,0]"), "");
  one("wraps_in_bits", entry("a", "F64", "[2305843009213693952]", "[0,0]"), "");
  one("wraps_beside_zero", entry("a", "F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), "");
  one("dimension_2_63", entry("a", "U8", "[9223372036854775808]", "[0,0]"), "");
  // 3: shape and offsets disagree.
  one("too_short_range", entry("a", "F32", "[3]", "[0,8]"), eight);
  one("too_long_range", entry("a", "F32", "[1]", "[0,8]"), eight);
  one("scalar_of_wrong_size", entry("a", "F32", "[]", "[0,8]"), eight);
  one("empty_shape_with_bytes", entry("a", "F32", "[0]", "[0,8]"), eight);
  one("half_a_byte", entry("a", "F4", "[1]", "[0,0]"), "");
  one("f6_not_whole", entry("a", "F6_E3M2", "[3]", "[0,3]"), "xxx");
  // 4: past the end of the file.
  one("past_end", good, "xxxx");
  one("no_data", good, "");
  one("huge_offsets", entry("a", "U8", "[8]", "[18446744073709551607,18446744073709551615]"), eight);
  // 5: holes, overlaps, order, counts.
  one("hole_in_front", entry("a", "U8", "[4]", "[4,8]"), eight);
  one("hole_between", entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[4]", "[4,8]"), eight);
  one("overlap", entry("a", "U8", "[5]", "[0,5]") + "," + entry("b", "U8", "[4]", "[4,8]"), eight);
  one("two_names_one_range", entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[8]", "[0,8]"), eight);
  one("trailing_bytes", good, eight + "y");
  one("trailing_zip", good, eight + "PK\x03\x04");
  one("end_before_begin", entry("a", "U8", "[0]", "[8,0]"), eight);
  one("one_offset", entry("a", "U8", "[8]", "[8]"), eight);
  one("three_offsets", entry("a", "U8", "[8]", "[0,8,8]"), eight);
  one("no_offsets", entry("a", "U8", "[8]", "[]"), eight);
  header("many_on_few_bytes", "{" + repeated(entry("a", "U8", "[16]", "[0,16]") + ",", 2000) + good + "}", eight);
  // 6: types.
  one("unknown_dtype", entry("a", "F128", "[2]", "[0,8]"), eight);
  one("lower_case_dtype", entry("a", "f32", "[2]", "[0,8]"), eight);
  header("dtype_number", R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", eight);
  header("dtype_null", R"({"a":{"dtype":null,"shape":[2],"data_offsets":[0,8]}})", eight);
  // 7: rank.
  one("rank_65", entry("a", "U8", "[1" + repeated(",1", 64) + "]", "[0,1]"), "x");
  header("shape_number", R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", eight);
  header("shape_nested", R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", eight);
  // 11: names.
  one("duplicate_tensor", good + "," + good, eight);
  one("duplicate_empty_tensors", entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "F32", "[0]", "[0,0]"), "");
  one("duplicate_by_escape", entry("a", "U8", "[8]", "[0,8]") + "," + entry("\\u0061", "U8", "[0]", "[8,8]"), eight);
  header("duplicate_field", R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", eight);
  header("duplicate_metadata", R"({"__metadata__":{},"__metadata__":{}})");
  header("duplicate_metadata_key", R"({"__metadata__":{"a":"1","a":"2"}})");
  one("empty_name", entry("", "U8", "[8]", "[0,8]"), eight);
  one("nul_in_name", entry("a\\u0000b", "U8", "[8]", "[0,8]"), eight);
  one("bad_utf8_name", entry("a\xFF", "U8", "[8]", "[0,8]"), eight);
  one("overlong_utf8_name", entry("\xC0\xAF", "U8", "[8]", "[0,8]"), eight);
  one("surrogate_name", entry("\\ud800", "U8", "[8]", "[0,8]"), eight);
  one("long_name_and_wrong_dtype", entry(std::string(1'000'000, 'n'), "U9", "[8]", "[0,8]"), eight);
  one("reserved_name", entry("__metadata__", "U8", "[8]", "[0,8]"), eight);
  header("metadata_number", R"({"__metadata__":{"a":1}})");
  header("metadata_nested", R"({"__metadata__":{"a":{"b":"c"}}})");
  header("metadata_text", R"({"__metadata__":"pt"})");
  // 12: JSON.
  header("array", "[]");
  header("text", "\"{}\"");
  header("number", "7");
  header("null", "null");
  header("spaces_only", "        ");
  header("cut", "{\"a\":{\"dtype\":\"U8\"");
  header("cut_in_string", "{\"a");
  header("missing_comma", "{" + entry("a", "U8", "[4]", "[0,4]") + entry("b", "U8", "[4]", "[4,8]") + "}", eight);
  header("trailing_comma", "{" + good + ",}", eight);
  header("two_objects", "{}{}");
  header("nul_padding", std::string("{}") + std::string(6, '\0'));
  header("nul_then_more", std::string("{}\0{\"x\":1}", 10));
  header("byte_order_mark", "\xEF\xBB\xBF{}");
  header("comment", "{}/*x*/");
  header("deep_arrays", "{\"a\":" + std::string(1'000'000, '['));
  header("deep_objects", repeated("{\"a\":", 200'000));
  header("deep_shape", "{\"a\":{\"dtype\":\"U8\",\"shape\":" + std::string(1'000'000, '['));
  one("huge_float", entry("a", "U8", "[1e400]", "[0,8]"), eight);
  one("exponent", entry("a", "U8", "[8e0]", "[0,8]"), eight);
  one("fraction", entry("a", "U8", "[8.0]", "[0,8]"), eight);
  one("minus_zero", entry("a", "U8", "[8]", "[-0,8]"), eight);
  one("negative", entry("a", "U8", "[-8]", "[0,8]"), eight);
  one("two_to_64", entry("a", "U8", "[18446744073709551616]", "[0,8]"), eight);
  one("leading_zero", entry("a", "U8", "[08]", "[0,8]"), eight);
  one("offset_text", entry("a", "U8", "[8]", "[\"0\",8]"), eight);
  header("tensor_not_object", R"({"a":[1,2]})", eight);
  header("tensor_true", R"({"a":true})", eight);
  header("missing_dtype", R"({"a":{"shape":[8],"data_offsets":[0,8]}})", eight);
  header("missing_shape", R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", eight);
  header("missing_offsets", R"({"a":{"dtype":"U8","shape":[8]}})", eight);
  header("empty_tensor_object", R"({"a":{}})", eight);
  header("unknown_field", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"strides":[1]}})", eight);
  header("bad_utf8_between", "{\xFF}");
  // 20: something else under this name.
  add("pickle", std::string("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08"
                            "builtins\x94\x2e",
                            24));
  add("zip", std::string("PK\x03\x04\x14\x00\x00\x00\x08\x00", 10) + std::string(64, 'z'));
  add("gguf", "GGUF" + std::string("\x03\0\0\0", 4) + std::string(64, '\0'));
  add("npy", "\x93NUMPY\x01" + std::string(80, ' '));
  add("html", "<!DOCTYPE html><html><body>404</body></html>");
  add("lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  return files;
}

class MalformedFile : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedFile, GivesOneSentenceQuicklyAndNoOutput) {
  const test::TemporaryDirectory place;
  test::write_bytes(place / "model.safetensors", GetParam().bytes);
  double best = 1.0;  // processor time, of three
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::clock_t begin = std::clock();
    try {
      open_checkpoint(place / "model.safetensors");
      FAIL() << "accepted";
    } catch (const CorruptFile& error) {
      test::expect_sentence(error.what(), "model.safetensors");
    }
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  EXPECT_LT(best, 0.05);
  EXPECT_THROW(quantize_checkpoint(place / "model.safetensors", place / "out", {.scheme = Scheme::parse("int8:row")}), CorruptFile);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place.path()), {}), 1);
  EXPECT_EQ(verify_checkpoint(place / "model.safetensors").problems.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, MalformedFile, testing::ValuesIn(malformed_files()),
                         [](const auto& test_case) { return test_case.param.name; });

TEST(TruncatedFile, EveryLengthIsRejected) {
  const test::TemporaryDirectory place;
  write_safetensors(place / "a.safetensors", {{"w", Tensor::of({1, 2, 3, 4}, {2, 2})}, {"v", Tensor::of({5}, {})}});
  const std::string whole = test::read_bytes(place / "a.safetensors");
  EXPECT_NO_THROW(open_checkpoint(place / "a.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    test::write_bytes(place / "a.safetensors", whole.substr(0, size));
    EXPECT_THROW(open_checkpoint(place / "a.safetensors"), CorruptFile) << size;
  }
}

TEST(TruncatedFile, ShrinkingWhileOpenIsAnErrorAndNoSignal) {
  const test::TemporaryDirectory place;
  write_safetensors(place / "a.safetensors", {{"w", test::random_values(DType::kF32, {64, 64}, 1)}});
  const Checkpoint checkpoint = open_checkpoint(place / "a.safetensors");
  std::filesystem::resize_file(place / "a.safetensors", 1000);
  EXPECT_THROW(checkpoint.tensor("w"), CorruptFile);
}

TEST(OddFile, IsAccepted) {
  const test::TemporaryDirectory place;
  const auto accepted = [&](const std::string& bytes) {
    test::write_bytes(place / "a.safetensors", bytes);
    return open_checkpoint(place / "a.safetensors");
  };
  EXPECT_TRUE(accepted(raw_file("{}")).stored().empty());
  EXPECT_TRUE(accepted(raw_file(" \t\r\n{} \n")).stored().empty());
  EXPECT_EQ(accepted(raw_file("{" + entry("a", "F32", "[]", "[0,4]") + "}", "xxxx")).stored("a").shape, Shape{});
  EXPECT_EQ(accepted(raw_file("{" + entry("a", "F32", "[3,0]", "[0,0]") + "," + entry("b", "F64", "[0]", "[0,0]") + "}")).stored().size(),
            2u);
  EXPECT_EQ(accepted(raw_file("{" + entry("../../etc/x", "F4", "[1,2]", "[0,1]") + "}", "x")).stored().front().name, "../../etc/x");
  EXPECT_EQ(accepted(raw_file("{" + entry("b", "U8", "[4]", "[4,8]") + "," + entry("a", "U8", "[4]", "[0,4]") + "}", "abcdefgh"))
                .read_stored("b")
                .data()[0],
            std::byte{'e'});
  EXPECT_EQ(accepted(raw_file("{" + entry(std::string(1'000'000, 'n'), "U8", "[1]", "[0,1]") + "}", "x")).stored().front().name.size(),
            1'000'000u);
  EXPECT_EQ(accepted(raw_file("{" + entry("\xC3\xA9\\n", "U8", "[1]", "[0,1]") + "}", "x")).stored().front().name, "\xC3\xA9\n");
}

TEST(JsonDocument, HasEveryKeyOnceInAnObject) {
  for (const std::string text :
       {R"({"a": {"a": {"b": 1}, "b": 2}, "b": [{"a": 1}, {"a": 1}]})", R"({"": 1, "a": 2, "ab": 3, "abc": {}})", R"([{}, {}])"}) {
    EXPECT_EQ(io::parse_json(text, "x"), io::Json::parse(text));
    EXPECT_EQ(io::Json(io::parse_ordered_json(text, "x")), io::Json::parse(text));
  }
  for (const std::string text :
       {R"({"a": 1, "b": 2, "a": 3})", R"([{"c": {"a": 1, "\u0061": 1}, "b": 2}])", R"({"": 1, "b": {"a": 1}, "": 2})"}) {
    EXPECT_THROW(io::parse_json(text, "x"), CorruptFile) << text;
    EXPECT_THROW(io::parse_ordered_json(text, "x"), CorruptFile) << text;
  }
}

TEST(OddFile, AMillionTensorsAreNotQuadratic) {
  const test::TemporaryDirectory place;
  std::string json = "{";
  constexpr int kCount = 1'000'000;
  for (int i = 0; i < kCount; ++i) {
    const std::string begin = std::to_string(i), end = std::to_string(i + 1);
    json += (i == 0 ? "\"t" : ",\"t") + std::to_string(kCount - i) + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" + begin + "," +
            end + "]}";
  }
  test::write_bytes(place / "a.safetensors", raw_file(json + "}", std::string(kCount, 'x')));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(open_checkpoint(place / "a.safetensors").stored().size(), static_cast<std::size_t>(kCount));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 30.0);
}

}  // namespace
}  // namespace narrow
