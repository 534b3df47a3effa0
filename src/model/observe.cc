/// observe_inputs: a text through a model for the sake of what its layers see.

#include "narrow/model.h"

namespace narrow {

void observe_inputs(const Model& model, std::span<const std::vector<std::int32_t>> windows, const InputObserver& observer,
                    const std::function<void(std::size_t windows)>& progress) {
  constexpr std::size_t kBatchTokens = 1024;  // memory does not grow with the text
  std::vector<KvCache> caches;
  for (std::size_t first = 0, last = 0; first < windows.size(); first = last) {
    for (std::size_t tokens = 0; last < windows.size() && (last == first || tokens + windows[last].size() <= kBatchTokens);
         tokens += windows[last++].size()) {
      if (caches.size() <= last - first) caches.push_back(model.make_cache());
    }
    std::vector<Sequence> sequences;
    for (std::size_t i = first; i < last; ++i) {
      caches[i - first].truncate(0);
      sequences.push_back({windows[i], &caches[i - first]});
    }
    model.forward(sequences, Logits::kLast, observer);
    if (progress) progress(last);
  }
}

}  // namespace narrow
