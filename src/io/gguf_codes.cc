#include "io/gguf_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "format/packing.h"
#include "kernels/storage.h"
#include "narrow/codec.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

constexpr std::int64_t kBlock = 32;

struct Twin {
  GgmlType type;
  const char* scheme;
  std::uint32_t offset;  ///< ggml's code is narrow's with these bits turned over
};
constexpr Twin kTwins[] = {
    {GgmlType::kQ8_0, "int8:block32:scale=fp16", 0}, {GgmlType::kQ4_0, "int4:block32:scale=fp16", 8}, {GgmlType::kMxfp4, "mxfp4", 0}};

const Twin* twin_of(const GgmlTypeInfo& type) {
  for (const Twin& twin : kTwins)
    if (twin.type == type.type) return &twin;
  return nullptr;
}

/// Where element i of a block's codes lies: 8 bits one after the other, 4 bits as halves (byte j holds j and j + 16).
constexpr std::int64_t place_of(std::int64_t i, int bits) { return bits == 8 ? i : i < kBlock / 2 ? 2 * i : 2 * (i - kBlock / 2) + 1; }

}  // namespace

std::optional<Scheme> scheme_of_blocks(const GgmlTypeInfo& type) {
  const Twin* twin = twin_of(type);
  return twin != nullptr ? std::optional(Scheme::parse(twin->scheme)) : std::nullopt;
}

const GgmlTypeInfo* blocks_of_scheme(const Scheme& scheme) {
  for (const Twin& twin : kTwins)
    if (Scheme::parse(twin.scheme) == scheme) return &ggml_type(twin.type);
  return nullptr;
}

QuantizedTensor quantized_of_blocks(const GgmlTypeInfo& type, std::span<const std::uint8_t> blocks, const Shape& shape) {
  const Scheme scheme = scheme_of_blocks(type).value();
  const std::uint32_t offset = twin_of(type)->offset;
  const int bits = scheme.element.bits;
  const std::size_t scale_bytes = static_cast<std::size_t>(scheme.scale.bits / 8);
  QuantizedTensor q = allocate_quantized(scheme, shape);
  std::fill_n(q.codes.as<std::uint8_t>(), q.codes.size(), std::uint8_t{0});
  const std::int64_t count = static_cast<std::int64_t>(blocks.size() / type.bytes);  // rows are whole blocks, so codes lie without gaps
  for (std::int64_t cell = 0; cell < count; ++cell) {
    const std::uint8_t* block = blocks.data() + static_cast<std::size_t>(cell) * type.bytes;
    std::memcpy(q.scales.as<std::uint8_t>() + static_cast<std::size_t>(cell) * scale_bytes, block, scale_bytes);
    if (!std::isfinite(decode(scheme.scale, load_scale_code(q.scales.data(), scheme.scale, cell))))
      throw InvalidArgument(fmt::format("the scale of block {} is not finite", cell));
    for (std::int64_t i = 0; i < kBlock; ++i)
      write_code(q.codes.as<std::uint8_t>(), cell * kBlock + i, bits, read_code(block + scale_bytes, place_of(i, bits), bits) ^ offset);
  }
  return q;
}

void put_blocks(const QuantizedTensor& q, const GgmlTypeInfo& type, std::span<std::uint8_t> blocks) {
  const std::uint32_t offset = twin_of(type)->offset;
  const int bits = q.scheme.element.bits;
  const std::size_t scale_bytes = static_cast<std::size_t>(q.scheme.scale.bits / 8);
  const std::int64_t count = static_cast<std::int64_t>(blocks.size() / type.bytes);
  std::fill(blocks.begin(), blocks.end(), std::uint8_t{0});
  for (std::int64_t cell = 0; cell < count; ++cell) {
    std::uint8_t* block = blocks.data() + static_cast<std::size_t>(cell) * type.bytes;
    std::memcpy(block, q.scales.as<std::uint8_t>() + static_cast<std::size_t>(cell) * scale_bytes, scale_bytes);
    for (std::int64_t i = 0; i < kBlock; ++i)
      write_code(block + scale_bytes, place_of(i, bits), bits, read_code(q.codes.as<std::uint8_t>(), cell * kBlock + i, bits) ^ offset);
  }
}

}  // namespace narrow::io
