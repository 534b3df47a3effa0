/// plan_quantize: every tensor's fate and every byte, without reading a value.

#include "methods/plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "methods/output_layout.h"
#include "methods/preflight.h"
#include "methods/recipe_match.h"
#include "methods/special_values.h"
#include "methods/whole_scales.h"

namespace narrow {
namespace {

std::uint64_t bytes_of(const RowChunk& chunk, const MatrixShape& matrix, int bits) {
  return static_cast<std::uint64_t>(chunk.count) * static_cast<std::uint64_t>(matrix.cols) * static_cast<std::uint64_t>(bits) / 8;
}

/// The buffers at a tensor's largest run: writing holds input and codes, checking holds input and result in fp32 as well.
std::uint64_t peak_of(const PlannedTensor& tensor, const QuantizeOptions& options) {
  if (tensor.fate == Fate::kCopy) return std::min(tensor.bytes_before, 2 * kChunkBytes);
  const MatrixShape matrix = as_matrices(tensor.shape);
  std::uint64_t peak = 0;
  for (const RowChunk& chunk : plan_reading(tensor.scheme, options, tensor.shape, tensor.dtype).chunks)
    peak = std::max(peak, bytes_of(chunk, matrix, bits_of(tensor.dtype)) + quantized_bytes(tensor.scheme, chunk.shape));
  const std::uint64_t codes = static_cast<std::uint64_t>(matrix.total_rows()) * packed_row_bytes(tensor.scheme, matrix.cols);
  for (const RowChunk& chunk : dequantize_chunks(tensor.scheme, tensor.shape, tensor.dtype)) {
    const std::uint64_t chunk_codes = static_cast<std::uint64_t>(chunk.count) * packed_row_bytes(tensor.scheme, matrix.cols);
    peak = std::max(peak, bytes_of(chunk, matrix, bits_of(tensor.dtype) + 32 + 32) + chunk_codes + (tensor.bytes_after - codes));
  }
  return peak;
}

}  // namespace

Plan plan_quantize(const Checkpoint& input, const Recipe& recipe, const std::filesystem::path& output_place) {
  check_not_quantized(input);
  const RecipeMatcher matcher(recipe, input);
  Plan plan;
  for (const TensorInfo& info : input.stored()) {
    RecipeMatcher::Decision decision = matcher.decide(info.name, info.dtype, info.shape);
    plan.tensors.push_back(
        {info.name, decision.fate, decision.scheme, std::move(decision.reason), info.dtype, info.shape, info.byte_size(), 0});
  }
  count_bytes(input, recipe, plan);
  plan.free_disk = free_disk(output_place);
  return plan;
}

void count_bytes(const Checkpoint& input, const Recipe& recipe, Plan& plan) {
  std::uint64_t weights = 0, narrow_bytes = 0;
  plan.bytes_before = plan.bytes_after = plan.file_bytes = plan.peak_memory = 0;
  for (PlannedTensor& tensor : plan.tensors) {
    tensor.bytes_after = tensor.fate == Fate::kQuantize ? quantized_bytes(tensor.scheme, tensor.shape) : tensor.bytes_before;
    if (tensor.fate == Fate::kQuantize) {
      weights += static_cast<std::uint64_t>(element_count(tensor.shape));
      narrow_bytes += tensor.bytes_after;
    }
    plan.bytes_before += tensor.bytes_before;
    plan.bytes_after += tensor.bytes_after;
    plan.peak_memory = std::max(plan.peak_memory, peak_of(tensor, recipe.options));
  }
  for (const OutputFile& file : layout_output(input, plan.tensors)) plan.file_bytes += file.layout.file_bytes;
  plan.bits_per_weight = weights == 0 ? 0.0 : 8.0 * static_cast<double>(narrow_bytes) / static_cast<double>(weights);
}

std::vector<KeptTensor> keep_nonfinite(const Checkpoint& input, const Recipe& recipe, Plan& plan) {
  std::vector<KeptTensor> kept;
  for (PlannedTensor& tensor : plan.tensors) {
    if (tensor.fate != Fate::kQuantize) continue;
    const std::optional<SpecialValues> values = reason_to_keep(input, input.stored(tensor.name), tensor.scheme, recipe);
    if (!values) continue;
    tensor.fate = Fate::kCopy;
    tensor.reason = fmt::format("kept for {}", nonfinite_text(*values));
    kept.push_back({tensor.name, *values});
  }
  if (!kept.empty()) count_bytes(input, recipe, plan);
  return kept;
}

}  // namespace narrow
