#pragma once
/// Attention of the query heads that share one key and value head: the problem, and the rows of its table.

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu_features.h"

namespace narrow {

/// out[t, h] = sum_j p_j v[j],  p = softmax over j of scale * (q[t, h] . k[j]),  j <= position of t, and j > position - window where
/// there is a window. Token t has position first_position + t; keys and values are there for every position up to the last token's.
struct AttentionProblem {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;  ///< query heads of a token, one after the other
  std::int64_t head_dim = 0;
  std::int64_t first_position = 0;
  std::int64_t window = 0;  ///< keys that a token sees, itself included; 0: all before it
  float scale = 1.0f;
  const float* q = nullptr;   ///< [tokens][heads][head_dim]
  std::int64_t q_stride = 0;  ///< from token to token, in elements
  const float* k = nullptr;   ///< [first_position + tokens][head_dim]
  const float* v = nullptr;
  std::int64_t kv_stride = 0;
  float* out = nullptr;  ///< as q
  std::int64_t out_stride = 0;
  /// Scores and weighted values are summed in fp64 and rounded once, so that the result does not depend on the order of sums, and so on
  /// neither instruction set nor device; slower. The reference does so always, with weights in fp64 as well.
  bool in_fp64 = false;

  std::int64_t first_key(std::int64_t token) const {
    const std::int64_t position = first_position + token;
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
  }
  std::int64_t end_key(std::int64_t token) const { return first_position + token + 1; }
};

/// A row of the table. run computes the tokens [begin, end); pure: no allocation, no exception; tokens are independent.
struct AttentionKernel {
  const char* name;
  Isa isa;
  bool (*accepts)(const AttentionProblem&);
  std::size_t (*scratch_bytes)(const AttentionProblem&, std::int64_t begin, std::int64_t end);
  void (*run)(const AttentionProblem&, std::int64_t begin, std::int64_t end, std::byte* scratch);
};

/// The rows, best first; the last is the reference, which takes everything.
std::span<const AttentionKernel> attention_kernels();

namespace reference {
extern const AttentionKernel kAttention;
}  // namespace reference

}  // namespace narrow
