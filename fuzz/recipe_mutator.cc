// Lines of a recipe, moved, changed, or taken from good ones.
#include "piece_mutator.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  constexpr std::string_view kLines[] = {"scheme: int4:block128",
                                         "targets: [Linear, 're:.*up_proj']",
                                         "ignore:",
                                         "  - lm_head",
                                         "rules:",
                                         "  - {match: down_proj, scheme: int8:row}",
                                         "  - down_proj=int8:row",
                                         "on_nonfinite: keep",
                                         "on_nonfinite: nearest",
                                         "activations: int8:row:dynamic",
                                         "activation_rules: [down_proj=none]",
                                         "scheme: FP8_DYNAMIC",
                                         "scheme: &a int8:row",
                                         "ignore: *a",
                                         "targets: {}",
                                         "---",
                                         "# x",
                                         "  - match: 're:.*(a|b)+'",
                                         "    scheme: nvfp4"};
  return narrow::fuzz::mutate_pieces(data, size, most, seed, '\n', kLines);
}
