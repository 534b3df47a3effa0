#pragma once
/// All kernels of this machine, timed beside what the machine can do at best and beside the libraries that it has.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"
#include "report/json.h"

namespace narrow::command {

/// One kernel at one task.
struct Timing {
  std::string op{}, kernel{}, task{};
  std::int64_t m = 0, n = 0, k = 0;  ///< of products
  double seconds = 0.0;
  double bytes = 0.0;       ///< that must be read and written
  double operations = 0.0;  ///< multiplications and additions
  std::string limit{};      ///< what bounds it: "copy", "read", "int8", "fp32"
  double share = 0.0;       ///< of that limit that it reaches; 0: the limit was not measured
  std::string peer{};       ///< the library that has the same task
  double peer_ratio = 0.0;  ///< its time over ours
};

struct BenchReport {
  Machine machine;
  Roofline roofline;
  std::vector<std::string> peers;
  std::vector<Timing> timings;
  double seconds = 0.0;
};

/// seconds_each: how long each kernel is repeated. begun: called with the name of what is timed next.
BenchReport measure_kernels(double seconds_each, const std::function<void(std::string_view)>& begun);

report::Json bench_object(const BenchReport& report);
/// One file of HTML; nothing is loaded.
std::string bench_page(const BenchReport& report);

}  // namespace narrow::command
