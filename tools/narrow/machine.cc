#include "machine.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "bench/copy_bandwidth.h"
#include "bench/limits.h"
#include "build_facts.h"
#include "device/cpu_features.h"
#include "device/cuda/runtime.h"
#include "narrow/error.h"

namespace narrow::command {
namespace {

/// The value of "key : value" in one of the kernel's text files; empty where there is none.
std::string field_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::size_t kilobytes_of(const char* path, std::string_view key) {
  const std::string text = field_of(path, key);
  return text.empty() ? 0 : static_cast<std::size_t>(std::strtoull(text.c_str(), nullptr, 10)) * 1024;
}

std::string version_of(int number) { return number == 0 ? "" : fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

void inspect_gpus(Machine& machine) {
  machine.cuda_driver = version_of(cuda::versions().driver);
  const int count = cuda::device_count();
  for (int i = 0; i < count; ++i) {
    const cuda::DeviceFacts facts = cuda::device_facts(i);
    machine.gpus.push_back({facts.name, fmt::format("{}.{}", facts.major, facts.minor), facts.multiprocessors, facts.memory});
  }
  if (count > 0) return;
  try {
    cuda::require_device(0);
  } catch (const Error&) {
    machine.gpu_reason = build_facts().cuda.empty()    ? "this build has no CUDA; `cmake --preset cuda` compiles it where nvcc is installed"
                         : machine.cuda_driver.empty() ? "no NVIDIA driver was found"
                                                       : fmt::format("the driver ({}) shows no device", machine.cuda_driver);
  }
}

/// What the first python3 on the path has installed; nothing is imported.
PythonFacts inspect_python() {
  constexpr const char* kQuestion =
      "python3 -c 'import importlib.metadata as m, json, platform\n"
      "found = {}\n"
      "for name in (\"narrow\", \"torch\", \"numpy\"):\n"
      "    try: found[name] = m.version(name)\n"
      "    except m.PackageNotFoundError: found[name] = \"\"\n"
      "print(json.dumps(dict(found, python=platform.python_version())))' 2> /dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(kQuestion, "r"), pclose);
  std::string text;
  char buffer[512];
  while (pipe && std::fgets(buffer, sizeof buffer, pipe.get()) != nullptr) text += buffer;
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
  if (!answer.is_object()) return {};
  return {answer.value("python", ""), answer.value("narrow", ""), answer.value("torch", ""), answer.value("numpy", "")};
}

}  // namespace

Machine inspect_machine() {
  Machine machine;
  machine.cpu = field_of("/proc/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = build_facts().architecture;
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.threads = omp_get_max_threads();
  for (const Isa isa : all_isas()) {
    const std::string name(name_of(isa));
    if (isa == Isa::kScalar) continue;
    if (cpu_supports(isa))
      machine.instruction_sets.push_back(name);
    else if (build_facts().leaves.find(name) != std::string_view::npos)
      machine.missing_sets.push_back(name);
  }
  machine.memory = kilobytes_of("/proc/meminfo", "MemTotal");
  machine.free_memory = kilobytes_of("/proc/meminfo", "MemAvailable");
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE) > 0 ? sysconf(_SC_LEVEL3_CACHE_SIZE) : sysconf(_SC_LEVEL2_CACHE_SIZE);
  machine.last_cache = cache > 0 ? static_cast<std::size_t>(cache) : 0;
  inspect_gpus(machine);
  machine.python = inspect_python();
  return machine;
}

Roofline measure_roofline(int threads) {
  const bench::Limits limits = bench::measure_limits(threads);
  constexpr std::size_t kCopied = std::size_t{64} << 20;
  return {bench::copy_bandwidth(kCopied, 7), limits.read, limits.vnni, limits.fma};
}

}  // namespace narrow::command
