#include "io/awq.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kSuffixes[] = {".qweight", ".qzeros", ".scales"};
constexpr int kBits = 4;

std::string refusal(const Scheme& scheme, const Shape& shape, bool is_ordered) {
  if (shape.size() != 2) return "it holds matrices alone";
  if (!is_grouped_integer(scheme) || scheme.element.bits != kBits || scheme.scale != kFp16)
    return "it holds integers of 4 bits with one fp16 scale per row or block of columns";
  if (is_ordered) return "its groups lie in the order of the columns";
  if (shape[0] % 8 != 0 || shape[1] % group_size(scheme, shape) != 0)
    return fmt::format("its rows are a multiple of 8 and its columns whole groups, not {}", to_string(shape));
  return {};
}

std::vector<StoredBytes> parts(const std::string& module, const Scheme& scheme, const Shape& shape, bool) {
  const std::int64_t n = shape[0], k = shape[1], groups = scale_grid(scheme, shape).cols;
  return {{module + ".qweight", DType::kI32, {k, n / 8}},
          {module + ".qzeros", DType::kI32, {groups, n / 8}},
          {module + ".scales", DType::kF16, {groups, n}}};
}

void pack(const InteropTensor& tensor, const Json&, std::span<StoredBytes> stored) {
  const ScaleGrid grid = tensor.q.grid();
  stored[0].bytes = bytes_of(pack_awq(transposed(unsigned_codes(tensor.q))));
  stored[1].bytes = bytes_of(pack_awq(transposed(zero_points_of(tensor.q))));
  stored[2].bytes = transposed(tensor.q.scales, grid.rows, grid.cols, 2);
}

InteropTensor unpack(const ModuleReader& module) {
  const Json& config = module.config();
  const std::int64_t bits = config.contains("bits")    ? whole_number(config, "bits")
                            : config.contains("w_bit") ? whole_number(config, "w_bit")
                                                       : kBits;
  if (config.value("version", std::string("gemm")) != "gemm" || bits != kBits)
    throw Unsupported("of AWQ's forms narrow reads version gemm with 4 bits");
  const std::int64_t given_group = whole_number(config, config.contains("group_size") ? "group_size" : "q_group_size");
  const Tensor qweight = module.read(".qweight", DType::kI32, 2), qzeros = module.read(".qzeros", DType::kI32, 2),
               scales = module.read(".scales", DType::kF16, 2);
  const std::int64_t k = qweight.shape()[0], n = qweight.shape()[1] * 8, groups = scales.shape()[0],
                     group = given_group > 0 ? block_edge(given_group) : k;
  if (k == 0 || n == 0 || k % group != 0 || groups != k / group || scales.shape()[1] != n || qzeros.shape() != Shape{groups, n / 8})
    module.reject(fmt::format("qweight {}, qzeros {} and scales {} do not fit groups of {}", to_string(qweight.shape()),
                              to_string(qzeros.shape()), to_string(scales.shape()), given_group));
  const CodeMatrix zeros = transposed(unpack_awq(words_in(qzeros), groups, n));
  const bool asymmetric = std::any_of(zeros.codes.begin(), zeros.codes.end(), [](std::uint8_t zero) { return zero != 8; });
  const Scheme scheme = integer_scheme(kBits, asymmetric, given_group > 0 ? given_group : 0, kFp16);
  Buffer zero_points = Buffer::allocate(asymmetric ? zeros.codes.size() : 0);
  if (asymmetric) std::memcpy(zero_points.data(), zeros.codes.data(), zeros.codes.size());
  return {assemble(scheme, {n, k}, packed_codes(scheme, transposed(unpack_awq(words_in(qweight), k, n))),
                   transposed(buffer_of(scales), groups, n, 2), zero_points, 1.0f)};
}

Json config(const std::vector<ModuleScheme>& modules) {
  const Scheme scheme = prevailing_scheme(modules).value_or(integer_scheme(kBits, true, 128, kFp16));
  for (const ModuleScheme& module : modules)
    if (module.scheme && module.scheme->granularity != scheme.granularity)
      throw InvalidArgument(
          fmt::format("awq: one group size serves the whole model, not {} and {}", scheme.to_string(), module.scheme->to_string()));
  const std::int64_t group = scheme.granularity.cols > 0 ? scheme.granularity.cols : -1;
  return {{"quant_method", "awq"}, {"bits", kBits},     {"group_size", group},
          {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", plain_modules(modules)}};
}

}  // namespace

InteropFormat awq_format() {
  return {Ecosystem::kAwq, "awq", "awq", ".qweight", kSuffixes, refusal, with_half_scales, parts, pack, unpack, config};
}

}  // namespace narrow::io
