#include <array>

#include <fmt/format.h>

#include "format/quoted.h"
#include "narrow/error.h"
#include "narrow/tensor.h"

namespace narrow {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
};

// In the order of the enum, which is safetensors' order of alignment.
constexpr std::array<DTypeRow, 22> kDTypes{
    {{"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
     {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},
     {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},    {"I64", 64}, {"U64", 64}}};

}  // namespace

int bits_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

std::string_view name_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

DType parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  throw InvalidArgument(fmt::format("dtype {} is not known; safetensors' names are BOOL, F4, ..., F32, F64, I64, U64", in_quotes(name)));
}

}  // namespace narrow
