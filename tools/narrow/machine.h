#pragma once
/// What this machine has, as far as narrow can use it.

#include <cstddef>
#include <string>
#include <vector>

namespace narrow::command {

struct Gpu {
  std::string name;
  std::string capability;  ///< "9.0"
  int multiprocessors = 0;
  std::size_t memory = 0;
};

struct PythonFacts {
  std::string version;                                       ///< empty: no python3 on the path
  std::string narrow_version, torch_version, numpy_version;  ///< empty: not installed there
};

struct Machine {
  std::string cpu;
  int cores = 0, threads = 0;                               ///< that this process may use; that narrow will use
  std::vector<std::string> instruction_sets, missing_sets;  ///< of this architecture, worst first
  std::size_t memory = 0, free_memory = 0, last_cache = 0;
  std::vector<Gpu> gpus;
  std::string gpu_reason;   ///< why there is no GPU; empty where there is one
  std::string cuda_driver;  ///< "13.0"; empty: none
  PythonFacts python;
};
Machine inspect_machine();

/// What it can do at best, measured: GB/s of a copy (read + written) and of reading, 8-bit integer GOP/s, fp32 GFLOP/s; 0 where the CPU has
/// no such instructions.
struct Roofline {
  double copy = 0.0, read = 0.0, int8 = 0.0, fp32 = 0.0;
};
Roofline measure_roofline(int threads);

}  // namespace narrow::command
