#pragma once
/// The block types of GGUF files: bytes of a block from its values by ggml's own rules, and the values of its bytes.
/// d, m are fp16; q are unsigned unless said otherwise; "halves" means that byte j holds elements j and j + 16.
///   Q8_0   34 B / 32   d, i8 q[32]                 x = d q             d = amax / 127; ties away from zero
///   Q4_0   18 B / 32   d, halves                   x = d (q - 8)       d = (the element of largest magnitude) / -8
///   Q4_1   20 B / 32   d, m, halves                x = d q + m         d = (max - min) / 15, m = min
///   Q5_0   22 B / 32   d, fifth bits u32, halves   x = d (q - 16)      d = (the element of largest magnitude) / -16
///   Q5_1   24 B / 32   d, m, fifth bits, halves    x = d q + m         d = (max - min) / 31, m = min
///   Q4_K  144 B / 256  d, m, 12 B of 6-bit s, t    x = d s q - m t     eight runs of 32; s and t by a search
///   Q6_K  210 B / 256  q, i8 s[16], d              x = d s (q - 32)    sixteen runs of 16; s by a search
///   MXFP4  17 B / 32   e8m0, halves                x = 2^(e-127) fp4   e = floor(log2 amax) - 2 + 127; ties to the lower code
///   F32, F16, BF16     blocks of one value

#include <cstdint>
#include <span>
#include <string_view>

namespace narrow::io {

/// ggml's numbers of the types.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4K = 12,
  kQ6K = 14,
  kBf16 = 30,
  kMxfp4 = 39
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  ///< "q4_k"
  std::int64_t values;    ///< of one block
  std::size_t bytes;
  void (*encode)(const float* x, std::uint8_t* block);
  void (*decode)(const std::uint8_t* block, float* x);
};

/// Every type that narrow reads and writes.
std::span<const GgmlTypeInfo> ggml_types();
/// Throws Unsupported for a number that is none of them.
const GgmlTypeInfo& ggml_type(std::uint32_t number);
inline const GgmlTypeInfo& ggml_type(GgmlType type) { return ggml_type(static_cast<std::uint32_t>(type)); }
/// Throws InvalidArgument with the names that there are.
const GgmlTypeInfo& parse_ggml_type(std::string_view name);

/// x.size() is a multiple of the block's values; blocks.size() is what they take.
void encode_blocks(const GgmlTypeInfo& type, std::span<const float> x, std::span<std::uint8_t> blocks);
void decode_blocks(const GgmlTypeInfo& type, std::span<const std::uint8_t> blocks, std::span<float> x);

}  // namespace narrow::io
