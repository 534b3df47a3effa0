#include "io/gptq.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "io/bounded_regex.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::string_view kSuffixes[] = {".qweight", ".qzeros", ".scales", ".g_idx"};

std::string refusal(const Scheme& scheme, const Shape& shape, bool) {
  if (shape.size() != 2) return "it holds matrices alone";
  if (!is_grouped_integer(scheme) || scheme.scale != kFp16)
    return "it holds integers of 2, 3, 4 or 8 bits with one fp16 scale per row or block of columns";
  if (shape[0] % 32 != 0 || shape[1] % 32 != 0) return fmt::format("its rows and columns are multiples of 32, not {}", to_string(shape));
  return {};
}

std::vector<StoredBytes> parts(const std::string& module, const Scheme& scheme, const Shape& shape, bool) {
  const int bits = scheme.element.bits;
  const std::int64_t n = shape[0], k = shape[1], groups = scale_grid(scheme, shape).cols;
  return {{module + ".qweight", DType::kI32, {words_of(k, bits), n}},
          {module + ".qzeros", DType::kI32, {groups, words_of(n, bits)}},
          {module + ".scales", DType::kF16, {groups, n}},
          {module + ".g_idx", DType::kI32, {k}}};
}

/// Zero points as v1 stores them: one less, modulo 2^bits.
CodeMatrix shifted(CodeMatrix zeros, int bits, int by) {
  for (std::uint8_t& zero : zeros.codes) zero = static_cast<std::uint8_t>((zero + by) & ((1 << bits) - 1));
  return zeros;
}

/// Whether the configuration says v2; without a word it is v1.
bool stores_zero_points_as_they_are(const Json& config) {
  const std::string format = config.value("checkpoint_format", config.value("format", std::string("gptq")));
  if (format != "gptq" && format != "gptq_v2")
    throw Unsupported(fmt::format("GPTQ's checkpoint_format {} is not read; gptq and gptq_v2 are", in_quotes(format)));
  return format == "gptq_v2";
}

void pack(const InteropTensor& tensor, const Json& config, std::span<StoredBytes> stored) {
  const QuantizedTensor& q = tensor.q;
  const int bits = q.scheme.element.bits;
  const ScaleGrid grid = q.grid();
  const std::int64_t k = q.shape[1], group = group_size(q.scheme, q.shape);
  const CodeMatrix zeros = transposed(zero_points_of(q));
  stored[0].bytes = bytes_of(pack_along_rows(transposed(unsigned_codes(q)), bits));
  stored[1].bytes = bytes_of(pack_along_columns(stores_zero_points_as_they_are(config) ? zeros : shifted(zeros, bits, -1), bits));
  stored[2].bytes = transposed(q.scales, grid.rows, grid.cols, 2);
  std::vector<std::uint32_t> index(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < k; ++i)
    index[static_cast<std::size_t>(i)] =
        static_cast<std::uint32_t>(tensor.order.empty() ? i / group : tensor.order[static_cast<std::size_t>(i)]);
  stored[3].bytes = bytes_of(index);
}

/// The settings of a module: those of the model, replaced by the first "+:pattern" of `dynamic` that matches its name.
Json settings_of(const ModuleReader& module) {
  Json settings = module.config();
  const auto dynamic = settings.find("dynamic");
  if (dynamic == settings.end() || !dynamic->is_object()) return settings;
  for (const auto& [pattern, values] : dynamic->items()) {
    if (pattern.starts_with("-:") || !values.is_object()) continue;
    if (!BoundedRegex(pattern.starts_with("+:") ? pattern.substr(2) : pattern).matches(module.module())) continue;
    const Json found = values;
    settings.update(found);
    break;
  }
  return settings;
}

InteropTensor unpack(const ModuleReader& module) {
  const Json settings = settings_of(module);
  const std::int64_t given_bits = whole_number(settings, "bits"), given_group = whole_number(settings, "group_size");
  if (given_bits < 2 || given_bits > 8) module.reject(fmt::format("{} bits are none of 2, 3, 4 and 8", given_bits));
  const int bits = static_cast<int>(given_bits);
  const Tensor qweight = module.read(".qweight", DType::kI32, 2), qzeros = module.read(".qzeros", DType::kI32, 2),
               scales = module.read(".scales", DType::kF16, 2);
  const std::int64_t groups = scales.shape()[0], n = scales.shape()[1];
  if (qweight.shape()[0] * 32 % bits != 0)
    module.reject(fmt::format("qweight {} does not hold codes of {} bits", to_string(qweight.shape()), bits));
  const std::int64_t k = qweight.shape()[0] * 32 / bits, group = given_group > 0 ? block_edge(given_group) : k;
  if (k == 0 || n == 0 || qweight.shape()[1] != n || groups != (k + group - 1) / group ||
      qzeros.shape() != Shape{groups, words_of(n, bits)})
    module.reject(fmt::format("qweight {}, qzeros {} and scales {} do not fit {} bits and groups of {}", to_string(qweight.shape()),
                              to_string(qzeros.shape()), to_string(scales.shape()), bits, given_group));
  const CodeMatrix codes = transposed(unpack_along_rows(words_in(qweight), k, n, bits));
  CodeMatrix zeros = unpack_along_columns(words_in(qzeros), groups, n, bits);
  if (!stores_zero_points_as_they_are(module.config())) zeros = shifted(std::move(zeros), bits, 1);
  zeros = transposed(zeros);
  const bool asymmetric = std::any_of(zeros.codes.begin(), zeros.codes.end(), [&](std::uint8_t zero) { return zero != 1u << (bits - 1); });
  const Scheme scheme = integer_scheme(bits, asymmetric, given_group > 0 ? given_group : 0, kFp16);
  Buffer zero_points = Buffer::allocate(asymmetric ? zeros.codes.size() : 0);
  if (asymmetric) std::memcpy(zero_points.data(), zeros.codes.data(), zeros.codes.size());
  InteropTensor tensor{
      assemble(scheme, {n, k}, packed_codes(scheme, codes), transposed(buffer_of(scales), groups, n, 2), zero_points, 1.0f)};
  if (!module.has(".g_idx")) return tensor;
  const Tensor index = module.read(".g_idx", DType::kI32, 1);
  if (index.size() != k) module.reject(fmt::format("g_idx has {} entries for {} columns", index.size(), k));
  bool in_order = true;
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int32_t g = index.as<std::int32_t>()[i];
    if (g < 0 || g >= groups) module.reject(fmt::format("g_idx has group {} of {}", g, groups));
    in_order = in_order && g == i / group;
  }
  if (!in_order) tensor.order.assign(index.as<std::int32_t>(), index.as<std::int32_t>() + k);
  return tensor;
}

std::string exactly(const std::string& module) {
  std::string pattern = "^";
  for (const char c : module) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return pattern + "$";
}

Json settings(const Scheme& scheme) {
  return {{"bits", scheme.element.bits},
          {"group_size", scheme.granularity.cols > 0 ? scheme.granularity.cols : -1},
          {"sym", !scheme.asymmetric}};
}

Json config(const std::vector<ModuleScheme>& modules) {
  const Scheme scheme = prevailing_scheme(modules).value_or(integer_scheme(4, false, 128, kFp16));
  const bool any_asymmetric =
      std::any_of(modules.begin(), modules.end(), [](const ModuleScheme& module) { return module.scheme && module.scheme->asymmetric; });
  const bool any_ordered = std::any_of(modules.begin(), modules.end(), [](const ModuleScheme& module) { return module.is_ordered; });
  const char* format = any_asymmetric ? "gptq_v2" : "gptq";
  Json json = settings(scheme);
  json.update({{"quant_method", "gptq"},
               {"method", "gptq"},
               {"checkpoint_format", format},
               {"format", format},
               {"desc_act", any_ordered},
               {"lm_head", false},
               {"pack_dtype", "int32"}});
  Json dynamic = Json::object();
  for (const ModuleScheme& module : modules) {
    if (module.module == "lm_head") {
      json["lm_head"] = module.scheme.has_value();
      if (!module.scheme) continue;
    }
    if (!module.scheme) dynamic["-:" + exactly(module.module)] = Json::object();
    if (module.scheme && *module.scheme != scheme) dynamic["+:" + exactly(module.module)] = settings(*module.scheme);
  }
  json["dynamic"] = dynamic;
  return json;
}

}  // namespace

InteropFormat gptq_format() {
  return {Ecosystem::kGptq, "gptq", "gptq", ".qweight", kSuffixes, refusal, with_half_scales, parts, pack, unpack, config};
}

}  // namespace narrow::io
