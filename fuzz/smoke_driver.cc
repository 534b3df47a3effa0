// Runs a fuzz target without libFuzzer, for compilers that have none and for a quick look in every test run: the seeds first, then their
// mutations, without coverage to guide them. The inputs follow from the seeds, their number and START alone, so a test that passes once
// passes always; another START looks elsewhere. smoke INPUTS FOLDER [START]; the last input is kept beside the program.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);

namespace {

std::mt19937 generator;
std::filesystem::path kept;

std::size_t below(std::size_t count) { return count == 0 ? 0 : generator() % count; }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The input that runs now, where a crash leaves it.
void keep(const std::string& input) {
  static const int descriptor = open(kept.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const auto size = static_cast<off_t>(input.size());
  if (pwrite(descriptor, input.data(), input.size(), 0) != size || ftruncate(descriptor, size) != 0) std::abort();
}

void run(const std::string& input) {
  // Memory of exactly this size, so that a read past the end is seen.
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  bytes.reserve(1);  // no bytes still have a place
  keep(input);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

/// What libFuzzer has under this name: a few bytes changed, put in or taken out.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t place = below(size);
    switch (below(5)) {
      case 0:
        if (size > 0) data[place] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (size > 0) data[place] = static_cast<std::uint8_t>(generator());
        break;
      case 2:
        if (size < most) {
          std::memmove(data + place + 1, data + place, size - place);
          data[place] = static_cast<std::uint8_t>(generator());
          ++size;
        }
        break;
      case 3:
        if (size > 1) {
          std::memmove(data + place, data + place + 1, size - place - 1);
          --size;
        }
        break;
      default:
        if (size > 0) std::memmove(data + below(size), data + place, 1);
    }
  }
  return size;
}

int main(int count, char** arguments) {
  if (count != 3 && count != 4) {
    std::fputs("usage: smoke INPUTS FOLDER [START]\n", stderr);
    return 2;
  }
  kept = std::string(arguments[0]) + ".input";
  constexpr std::size_t kLargest = 4096;
  const std::int64_t wanted = std::atoll(arguments[1]);
  generator.seed(count == 4 ? static_cast<unsigned>(std::atoi(arguments[3])) : 20240607u);
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) inputs.push_back(text_of(entry.path()));
  std::sort(inputs.begin(), inputs.end());  // folders have no order of their own
  if (inputs.empty()) {
    std::fprintf(stderr, "%s holds no seeds\n", arguments[2]);
    return 2;
  }
  for (const std::string& input : inputs) run(input);
  const std::size_t seeds = inputs.size();
  for (std::int64_t executions = static_cast<std::int64_t>(seeds); executions < wanted; ++executions) {
    std::string input = inputs[below(inputs.size())];
    const std::size_t size = input.size();
    input.resize(std::max(2 * size, kLargest));
    input.resize(
        LLVMFuzzerCustomMutator(reinterpret_cast<std::uint8_t*>(input.data()), size, input.size(), static_cast<unsigned>(generator())));
    run(input);
    if (inputs.size() < 2 * seeds + 64 && below(64) == 0) inputs.push_back(input);  // some mutations of mutations
  }
  std::filesystem::remove(kept);
  std::printf("%zu seeds, %lld inputs\n", seeds, static_cast<long long>(wanted));
  return 0;
}
