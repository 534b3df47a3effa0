/// include/narrow/c.h: checkpoints.

#include <vector>

#include "c_api/objects.h"
#include "narrow/checkpoint.h"
#include "narrow/recipe.h"

struct narrow_checkpoint {
  narrow::Checkpoint value;
  std::vector<std::string> names;
};

namespace narrow::c_api {
namespace {

ProgressCallback callback_of(narrow_progress progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](const TensorProgress& tensor) {
    if (progress(tensor.name.c_str(), tensor.bytes_done, tensor.bytes_total, user) != 0) throw Cancelled{};
  };
}

}  // namespace
}  // namespace narrow::c_api

using namespace narrow;
using namespace narrow::c_api;

extern "C" {

narrow_status narrow_checkpoint_open(const char* path, narrow_checkpoint** checkpoint) {
  return making(checkpoint, [&] {
    Checkpoint opened = open_checkpoint(text(path, "path"));
    std::vector<std::string> names = opened.names();
    return new narrow_checkpoint{std::move(opened), std::move(names)};
  });
}
int64_t narrow_checkpoint_count(const narrow_checkpoint* checkpoint) { return static_cast<int64_t>(checkpoint->names.size()); }
const char* narrow_checkpoint_name(const narrow_checkpoint* checkpoint, int64_t index) {
  return index >= 0 && index < narrow_checkpoint_count(checkpoint) ? checkpoint->names[static_cast<std::size_t>(index)].c_str() : nullptr;
}
int32_t narrow_checkpoint_is_quantized(const narrow_checkpoint* checkpoint, const char* name) {
  int32_t answer = 0;
  guarded([&] { answer = checkpoint->value.quantized_info(text(name, "name")).has_value() ? 1 : 0; });
  return answer;
}
narrow_status narrow_checkpoint_tensor(const narrow_checkpoint* checkpoint, const char* name, narrow_tensor** tensor) {
  return making(tensor, [&] { return handed_out(given(checkpoint, "checkpoint").value.tensor(text(name, "name"))); });
}
narrow_status narrow_checkpoint_quantized(const narrow_checkpoint* checkpoint, const char* name, narrow_quantized** quantized) {
  return making(quantized, [&] { return handed_out(given(checkpoint, "checkpoint").value.quantized(text(name, "name"))); });
}
void narrow_checkpoint_free(narrow_checkpoint* checkpoint) { delete checkpoint; }

narrow_status narrow_checkpoint_quantize(const char* input, const char* output, const char* scheme, const char* const* ignore,
                                         size_t ignore_count, narrow_progress progress, void* user) {
  return guarded([&] {
    Recipe recipe = Recipe::of(text(scheme, "scheme"));
    if (ignore_count > 0) recipe.ignore.clear();
    for (size_t i = 0; i < ignore_count; ++i) recipe.ignore.emplace_back(text((&given(ignore, "ignore"))[i], "a pattern"));
    quantize_checkpoint(text(input, "input"), text(output, "output"), recipe, callback_of(progress, user));
  });
}
narrow_status narrow_checkpoint_dequantize(const char* input, const char* output, const char* dtype, narrow_progress progress, void* user) {
  return guarded([&] {
    dequantize_checkpoint(text(input, "input"), text(output, "output"), parse_dtype(text(dtype, "dtype")), callback_of(progress, user));
  });
}
narrow_status narrow_checkpoint_verify(const char* path) {
  return guarded([&] {
    const VerifyReport report = verify_checkpoint(text(path, "path"));
    if (!report.problems.empty()) throw CorruptFile(report.problems.front());
  });
}

}  // extern "C"
