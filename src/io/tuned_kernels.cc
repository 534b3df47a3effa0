/// The file of measured choices.

#include "narrow/tuned_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/json.h"
#include "narrow/error.h"

namespace narrow {
namespace {

constexpr const char* kFormat = "narrow.tuned_kernels";
constexpr std::int64_t kVersion = 1, kLargestSize = std::int64_t{1} << 30, kMostParts = 64;
constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;

[[noreturn]] void corrupt(const std::filesystem::path& path, std::string_view what) {
  throw CorruptFile(fmt::format("{}: {}", path.string(), what));
}

std::int64_t size_of(const io::Json& choice, const char* key, std::int64_t most) {
  const std::int64_t value = io::whole_number(choice, key);
  if (value < 1 || value > most) throw InvalidArgument(fmt::format("{} is {}, which is not from 1 to {}", key, value, most));
  return value;
}

TunedKernel choice_of(const io::Json& json) {
  TunedKernel choice;
  choice.types = json.at("types").get<std::string>();
  choice.scales = json.at("scales").get<std::string>();
  choice.out = json.at("out").get<std::string>();
  choice.m = size_of(json, "m", kLargestSize);
  choice.n = size_of(json, "n", kLargestSize);
  choice.k = size_of(json, "k", kLargestSize);
  choice.kernel = json.at("kernel").get<std::string>();
  choice.parts = static_cast<int>(size_of(json, "parts", kMostParts));
  choice.microseconds = json.at("microseconds").get<double>();
  if (!(choice.microseconds > 0.0) || !std::isfinite(choice.microseconds)) throw InvalidArgument("microseconds must be positive");
  return choice;
}

}  // namespace

void TunedKernels::add(const TunedKernel& choice) {
  const auto same = std::find_if(choices.begin(), choices.end(), [&](const TunedKernel& other) { return other.is_for(choice); });
  same == choices.end() ? choices.push_back(choice) : static_cast<void>(*same = choice);
}

TunedKernels read_tuned_kernels(const std::filesystem::path& path) {
  const io::Json json = io::parse_json(io::read_text(path, kLargestFile), path);
  TunedKernels kernels;
  std::size_t index = 0;
  bool in_choices = false;
  try {
    if (!json.is_object() || json.value("format", "") != kFormat)
      corrupt(path, fmt::format("it is not a file of tuned kernels ({})", kFormat));
    if (const std::int64_t version = io::whole_number(json, "version"); version != kVersion)
      corrupt(path, fmt::format("its version is {}, this library reads {}", version, kVersion));
    const io::Json& machine = json.at("machine");
    kernels.machine.gpu = machine.at("gpu").get<std::string>();
    kernels.machine.driver = static_cast<int>(size_of(machine, "driver", kLargestSize));
    kernels.machine.narrow = machine.at("narrow").get<std::string>();
    const io::Json& choices = json.at("choices");
    if (!choices.is_array()) corrupt(path, "its choices are no list");
    in_choices = true;
    for (; index < choices.size(); ++index) kernels.add(choice_of(choices[index]));
  } catch (const io::Json::exception& error) {
    corrupt(path, fmt::format("{}: {}", in_choices ? fmt::format("choice {}", index) : "the head", error.what()));
  } catch (const InvalidArgument& error) {
    corrupt(path, fmt::format("{}: {}", in_choices ? fmt::format("choice {}", index) : "the head", error.what()));
  }
  return kernels;
}

void write_tuned_kernels(const std::filesystem::path& path, const TunedKernels& kernels) {
  io::OrderedJson json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["machine"] = {{"gpu", kernels.machine.gpu}, {"driver", kernels.machine.driver}, {"narrow", kernels.machine.narrow}};
  json["choices"] = io::OrderedJson::array();
  for (const TunedKernel& c : kernels.choices)
    json["choices"].push_back({{"types", c.types},
                               {"scales", c.scales},
                               {"out", c.out},
                               {"m", c.m},
                               {"n", c.n},
                               {"k", c.k},
                               {"kernel", c.kernel},
                               {"parts", c.parts},
                               {"microseconds", c.microseconds}});
  io::write_text(path, json.dump(1) + "\n");
}

std::string use_tuned_kernels(const std::filesystem::path& path, const TunedMachine& here) {
  try {
    TunedKernels kernels = read_tuned_kernels(path);
    if (kernels.machine != here)
      return fmt::format("{}: measured on '{}' with driver {} by narrow {}, not on '{}' with driver {} by narrow {}; the file is ignored",
                         path.string(), kernels.machine.gpu, kernels.machine.driver, kernels.machine.narrow, here.gpu, here.driver,
                         here.narrow);
    cuda::set_tuned_kernels(std::move(kernels.choices));
    return {};
  } catch (const Error& error) {
    return fmt::format("{}; the file is ignored", error.what());
  }
}

}  // namespace narrow
