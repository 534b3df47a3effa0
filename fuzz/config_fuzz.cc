// A config.json from any text: a model's configuration within its bounds, or an Error.
#include <cmath>

#include "as_file.h"
#include "narrow/error.h"
#include "narrow/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const narrow::ModelConfig config = narrow::read_model_config(narrow::fuzz::as_file(data, size));
    if (config.layers < 1 || config.windows.size() != static_cast<std::size_t>(config.layers) || config.heads % config.kv_heads != 0 ||
        config.head_dim % 2 != 0 || !std::isfinite(config.norm_epsilon) || config.rope.original_positions < 0)
      std::abort();
    if (config.experts && (config.experts->per_token < 1 || config.experts->per_token > config.experts->count)) std::abort();
  } catch (const narrow::CorruptFile&) {
  } catch (const narrow::Unsupported&) {
  }
  return 0;
}
