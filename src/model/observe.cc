/// A text through a model for the sake of what its layers see.

#include "model/text_batches.h"
#include "narrow/model.h"

namespace narrow {

std::vector<WindowRange> text_chunks(std::span<const std::vector<std::int32_t>> windows) {
  constexpr std::size_t kChunkTokens = 8192;
  return cut_windows(windows, {0, windows.size()}, kChunkTokens);
}

std::vector<WindowRange> cut_windows(std::span<const std::vector<std::int32_t>> windows, WindowRange range, std::size_t most_tokens) {
  std::vector<WindowRange> cuts;
  for (std::size_t first = range.first, last = first; first < range.last; first = last) {
    for (std::size_t tokens = 0; last < range.last && (last == first || tokens + windows[last].size() <= most_tokens);)
      tokens += windows[last++].size();
    cuts.push_back({first, last});
  }
  return cuts;
}

void observe_inputs(const Model& model, std::span<const std::vector<std::int32_t>> windows, const InputObserver& observer,
                    const std::function<void(std::size_t windows)>& progress) {
  std::vector<KvCache> caches;
  for (const WindowRange& chunk : text_chunks(windows))
    for (const WindowRange& batch : cut_windows(windows, chunk, kBatchTokens)) {
      std::vector<Sequence> sequences;
      while (caches.size() < batch.last - batch.first) caches.push_back(model.make_cache());
      for (std::size_t i = batch.first; i < batch.last; ++i) {
        caches[i - batch.first].truncate(0);
        sequences.push_back({windows[i], &caches[i - batch.first]});
      }
      model.forward(sequences, Logits::kLast, observer);
      if (progress) progress(batch.last);
    }
}

CalibrationStatistics collect_statistics(const Model& model, std::span<const std::vector<std::int32_t>> windows, bool second_moments,
                                         const std::function<void(std::size_t windows)>& progress) {
  CalibrationStatistics all;
  for (const WindowRange& chunk : text_chunks(windows)) {
    CalibrationStatistics part;
    const auto add = [&](std::span<const std::string> modules, const Tensor& x) { part.add(modules, x, second_moments); };
    const auto tell = [&](std::size_t done) {
      if (progress) progress(chunk.first + done);
    };
    observe_inputs(model, windows.subspan(chunk.first, chunk.last - chunk.first), add, tell);
    all.merge(part);
  }
  return all;
}

}  // namespace narrow
