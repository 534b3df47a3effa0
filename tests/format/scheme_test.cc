#include "narrow/scheme.h"

#include <gtest/gtest.h>

#include "narrow/error.h"

namespace narrow {
namespace {

TEST(Scheme, AFormatHasOneName) {
  for (const char* text : {"fp8_e5m02", "fp08_e5m2", "fp8_e05m2", "fp8_e4m3:block0128", "int08"})
    EXPECT_THROW(Scheme::parse(text), InvalidArgument) << text;
}

TEST(Scheme, PrintsWhatItParses) {
  for (const Scheme& scheme : standard_schemes()) EXPECT_EQ(Scheme::parse(scheme.to_string()), scheme) << scheme.to_string();
}

TEST(Scheme, DefaultsFollowTheContract) {
  EXPECT_EQ(Scheme::parse("fp6_e3m2").to_string(), "fp6_e3m2:row");
  EXPECT_EQ(Scheme::parse("int8").to_string(), "int8:row");
  EXPECT_EQ(Scheme::parse("int1").to_string(), "int1:row");
  EXPECT_EQ(Scheme::parse("int4").to_string(), "int4:block128");
  EXPECT_EQ(Scheme::parse("int2:asym").to_string(), "int2:block128:asym");
  EXPECT_EQ(Scheme::parse("fp8_e4m3:1x128").to_string(), "fp8_e4m3:block128");
  EXPECT_EQ(Scheme::parse("int4:block32:asym:scale=fp16").to_string(), "int4:block32:asym:scale=fp16");
}

TEST(Scheme, ErrorsPointAtTheWrongPart) {
  const auto sentence = [](const char* text) -> std::string {
    try {
      Scheme::parse(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(sentence("").find("empty"), std::string::npos);
  EXPECT_NE(sentence("int5:row").find("'int5' is not a format; write int1, int2, int3, int4 or int8"), std::string::npos);
  EXPECT_NE(sentence("int8row").find("write int8:row"), std::string::npos);
  EXPECT_NE(sentence("int4block64").find("write int4:block64"), std::string::npos);
  EXPECT_NE(sentence("int8:rows").find("'rows' is not a granularity"), std::string::npos);
  EXPECT_NE(sentence("int8:block0").find("'block0'"), std::string::npos);
  EXPECT_NE(sentence("int8:asym:row").find("'row' is repeated or out of order"), std::string::npos);
  EXPECT_NE(sentence("fp8_e4m3:asym").find("'asym' needs an integer format"), std::string::npos);
  EXPECT_NE(sentence("mxfp4:block16").find("'block16' cannot follow mxfp4"), std::string::npos);
  EXPECT_NE(sentence("uint8:row").find("write int8:asym"), std::string::npos);
  EXPECT_NE(sentence("fp9_e9m0").find("outside of fpN_eEmM"), std::string::npos);
  EXPECT_NE(sentence("fp7_e3m2").find("make 6"), std::string::npos);
  EXPECT_NE(sentence("int4:scale=int8").find("'scale=int8' is not a scale format"), std::string::npos);
  EXPECT_NE(sentence("e8m0").find("holds scales only"), std::string::npos);
}

}  // namespace
}  // namespace narrow
