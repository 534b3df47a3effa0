#pragma once
/// Timing of GPU work: calls captured into a graph, whose replays are timed with events; several graphs in turns, so that they meet the
/// same clocks.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "narrow/cuda.h"

namespace narrow::bench {

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

/// `call(i)` works on the i-th of `sets` sets of buffers; one replay takes about `span` microseconds.
class TimedGraph {
 public:
  TimedGraph(cuda::Stream stream, const std::function<void(std::size_t)>& call, std::size_t sets, double span = 1000.0) : stream_(stream) {
    require(cudaEventCreate(&start_), "cudaEventCreate");
    require(cudaEventCreate(&stop_), "cudaEventCreate");
    for (std::size_t i = 0; i < 2; ++i) call(i % sets);
    capture([&] { call(0); });
    const double once = std::max(1.0, sample());
    calls_ = static_cast<int>(std::clamp(span / once, 3.0, 400.0));
    cudaGraphExecDestroy(executable_);
    capture([&] {
      for (int i = 0; i < calls_; ++i) call(static_cast<std::size_t>(i) % sets);
    });
    sample();
  }
  ~TimedGraph() {
    cudaGraphExecDestroy(executable_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  int calls() const { return calls_; }
  /// Microseconds of one call in one replay.
  double sample() {
    require(cudaEventRecord(start_, stream_), "cudaEventRecord");
    require(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
    require(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    cuda::synchronize(stream_);
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds / calls_;
  }

 private:
  void capture(const std::function<void()>& body) {
    cudaGraph_t graph;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    body();
    require(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  cuda::Stream stream_;
  cudaGraphExec_t executable_{};
  cudaEvent_t start_{}, stop_{};
  int calls_ = 1;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Samples of several graphs in turns; their medians.
inline std::vector<double> in_turns(const std::vector<TimedGraph*>& timed, int rounds) {
  std::vector<std::vector<double>> samples(timed.size());
  for (int i = 0; i < rounds; ++i)
    for (std::size_t j = 0; j < timed.size(); ++j) samples[j].push_back(timed[j]->sample());
  std::vector<double> medians;
  for (const auto& s : samples) medians.push_back(median(s));
  return medians;
}

/// In microseconds; the first ones of a turn only warm up.
struct Turns {
  int count = 5;
  double warm = 2000.0, length = 6000.0;
};
/// One after the other, as the peers were measured.
inline constexpr Turns kAlone{1, 15000.0, 41000.0};

/// Medians of several graphs, each in the clocks that it makes for itself. (In turns of one replay each would run in the clocks that the
/// power of the others leaves it.) Every turn has another order: the clocks that a graph leaves are what the next one starts with.
inline std::vector<double> in_long_turns(const std::vector<TimedGraph*>& timed, Turns turns = {}) {
  std::vector<std::vector<double>> samples(timed.size());
  std::vector<std::size_t> order(timed.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 generator(1);
  for (int i = 0; i < turns.count; ++i) {
    std::shuffle(order.begin(), order.end(), generator);
    for (const std::size_t j : order)
      for (double spent = 0.0; spent < turns.length || samples[j].empty();) {
        const double us = timed[j]->sample();
        spent += us * timed[j]->calls();
        if (spent > turns.warm) samples[j].push_back(us);
      }
  }
  std::vector<double> medians;
  for (const auto& s : samples) medians.push_back(median(s));
  return medians;
}

/// A call that is timed beside others.
struct Contender {
  std::string name;
  std::function<void(std::size_t)> call;
  std::size_t sets;
};

/// Each alone, as the peers' harness times: captured, 15 ms to warm up, then the median of 26 ms of samples; then the next one.
inline std::vector<double> one_by_one(cuda::Stream stream, const std::vector<Contender>& contenders) {
  std::vector<double> medians;
  for (const Contender& contender : contenders) {
    TimedGraph graph(stream, contender.call, contender.sets);
    medians.push_back(in_long_turns({&graph}, kAlone)[0]);
  }
  return medians;
}

/// one_by_one in every rotation of their order, medians: the first after a rest meets higher clocks than those that follow it.
inline std::vector<double> one_by_one_rotated(cuda::Stream stream, std::vector<Contender> contenders) {
  const std::size_t count = contenders.size();
  std::vector<std::vector<double>> readings(count);
  for (std::size_t first = 0; first < count; ++first) {
    const std::vector<double> medians = one_by_one(stream, contenders);
    for (std::size_t i = 0; i < count; ++i) readings[(first + i) % count].push_back(medians[i]);
    std::rotate(contenders.begin(), contenders.begin() + 1, contenders.end());
  }
  std::vector<double> medians;
  for (const auto& r : readings) medians.push_back(median(r));
  return medians;
}

/// in_long_turns of all of them.
inline std::vector<double> in_long_turns(cuda::Stream stream, const std::vector<Contender>& contenders, Turns turns = {}) {
  std::vector<std::unique_ptr<TimedGraph>> graphs;
  std::vector<TimedGraph*> timed;
  for (const Contender& contender : contenders) {
    graphs.push_back(std::make_unique<TimedGraph>(stream, contender.call, contender.sets));
    timed.push_back(graphs.back().get());
  }
  return in_long_turns(timed, turns);
}

}  // namespace narrow::bench
