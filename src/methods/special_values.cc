#include "methods/special_values.h"

#include <cmath>

#include <fmt/format.h>

#include "io/text.h"
#include "methods/row_chunks.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// Of elements with the given exponent bits; the sign is the top bit.
template <typename Bits>
struct Tally {
  std::int64_t nans = 0, infinities = 0, subnormals = 0, zeros = 0, same = 0;

  Tally(const Bits* values, std::int64_t count, Bits exponent, Bits first) {
    constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
    const Bits smallest_normal = static_cast<Bits>(exponent & (~exponent + 1));  // the exponent's lowest bit
    std::int64_t nan = 0, infinite = 0, subnormal = 0, zero = 0, equal = 0;
#pragma omp parallel for schedule(static) reduction(+ : nan, infinite, subnormal, zero, equal)
    for (std::int64_t i = 0; i < count; ++i) {
      const Bits magnitude = values[i] & kMagnitude;
      nan += magnitude > exponent;
      infinite += magnitude == exponent;
      subnormal += magnitude != 0 && magnitude < smallest_normal;
      zero += magnitude == 0;
      equal += values[i] == first;
    }
    nans = nan, infinities = infinite, subnormals = subnormal, zeros = zero, same = equal;
  }
};

}  // namespace

void SpecialValueCounter::add(const Tensor& rows) {
  const std::int64_t count = rows.size();
  if (count == 0) return;
  const auto take = [&](const auto& tally) {
    counts_.nans += tally.nans;
    counts_.infinities += tally.infinities;
    counts_.subnormals += tally.subnormals;
    zeros_ += tally.zeros;
    is_constant_ = is_constant_ && tally.same == count;
  };
  if (rows.dtype() == DType::kF32) {
    const std::uint32_t* values = rows.as<std::uint32_t>();
    if (!first_) first_ = values[0];
    take(Tally<std::uint32_t>(values, count, 0x7f800000u, *first_));
  } else {
    const std::uint16_t* values = rows.as<std::uint16_t>();
    if (!first_) first_ = values[0];
    take(Tally<std::uint16_t>(values, count, rows.dtype() == DType::kBf16 ? 0x7f80 : 0x7c00, static_cast<std::uint16_t>(*first_)));
  }
  elements_ += count;
}

SpecialValues SpecialValueCounter::values() const {
  SpecialValues values = counts_;
  values.is_constant = elements_ > 0 && is_constant_;
  values.is_zero = elements_ > 0 && zeros_ == elements_;
  return values;
}

QuantizeOptions options_of(const Recipe& recipe) {
  QuantizeOptions options = recipe.options;
  if (recipe.on_nonfinite == OnNonFinite::kNearest) options.nonfinite = NonFinite::kSaturate;
  return options;
}

std::optional<SpecialValues> reason_to_keep(const Checkpoint& input, const TensorInfo& info, const Scheme& scheme, const Recipe& recipe) {
  if (recipe.on_nonfinite != OnNonFinite::kKeep || !is_floating(info.dtype)) return std::nullopt;
  const MatrixShape matrix = as_matrices(info.shape);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(matrix.cols) * static_cast<std::uint64_t>(bits_of(info.dtype)) / 8;
  SpecialValueCounter counter;
  ReusedBuffer memory;
  for (const RowChunk& chunk : dequantize_chunks(scheme, info.shape, info.dtype)) {
    const Tensor rows = memory.tensor(info.dtype, chunk.shape);
    input.read_bytes(info, static_cast<std::uint64_t>(chunk.first) * row_bytes, {rows.data(), rows.byte_size()});
    counter.add(rows);
  }
  const SpecialValues values = counter.values();
  const bool loses_nan = values.nans > 0 && !scheme.element.has_nan();
  const bool loses_infinity = values.infinities > 0 && !(scheme.element.has_infinity() && recipe.options.overflow == Overflow::kIeee);
  return loses_nan || loses_infinity ? std::optional(values) : std::nullopt;
}

void leave_out_nonfinite(const Tensor& x, const Tensor& y) {
  for (std::int64_t i = 0; i < x.size(); ++i)
    if (!std::isfinite(x.as<float>()[i])) x.as<float>()[i] = y.as<float>()[i] = 0.0f;
}

std::string nonfinite_text(const SpecialValues& values) {
  const std::string infinities = fmt::format("{} infinit{}", values.infinities, values.infinities == 1 ? "y" : "ies");
  if (values.nans == 0) return infinities;
  return fmt::format("{} NaN{}", values.nans, values.infinities == 0 ? "" : " and " + infinities);
}

std::string_view name_of(OnNonFinite policy) {
  switch (policy) {
    case OnNonFinite::kError: return "error";
    case OnNonFinite::kKeep: return "keep";
    case OnNonFinite::kNearest: return "nearest";
  }
  return "";
}

OnNonFinite parse_on_nonfinite(std::string_view name) {
  for (const OnNonFinite policy : {OnNonFinite::kError, OnNonFinite::kKeep, OnNonFinite::kNearest})
    if (name_of(policy) == name) return policy;
  throw InvalidArgument(fmt::format("{} is no policy for NaN and infinities; use error, keep or nearest", io::in_quotes(name)));
}

}  // namespace narrow
