#pragma once
/// Block types of GGUF whose codes narrow has, code by code, and the way between the two:
///   q8_0   int8:block32:scale=fp16
///   q4_0   int4:block32:scale=fp16   the scale may be negative: ggml gives the element of largest magnitude the code -8
///   mxfp4  mxfp4

#include <cstdint>
#include <optional>
#include <span>

#include "io/gguf_blocks.h"
#include "narrow/quantize.h"

namespace narrow::io {

/// The scheme whose codes a block type holds, and the block type that holds a scheme's codes; nothing where there is none.
std::optional<Scheme> scheme_of_blocks(const GgmlTypeInfo& type);
const GgmlTypeInfo* blocks_of_scheme(const Scheme& scheme);

/// The same tensor in the other form; the scheme is the type's. Throws InvalidArgument for a scale that is not finite.
QuantizedTensor quantized_of_blocks(const GgmlTypeInfo& type, std::span<const std::uint8_t> blocks, const Shape& shape);
void put_blocks(const QuantizedTensor& q, const GgmlTypeInfo& type, std::span<std::uint8_t> blocks);

}  // namespace narrow::io
