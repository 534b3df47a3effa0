// Runs a fuzz target without libFuzzer, whose own work is more than half of the time of targets as small as parsers, and which not every
// compiler has: the seeds first, then mutations of them. Where the library is built with counters of its edges (-fsanitize=fuzzer-no-link),
// inputs that reach an edge, or one more often than before, become seeds too. Without counters the inputs follow from the seeds, their
// number and START alone, so a test that passes once passes always.
//
//   driver INPUTS FOLDER [START]      driver 1 FILE.input: the one that crashed
//   NARROW_FUZZ_SECONDS     ends earlier; so does SIGINT, with the exit code 130
//   NARROW_FUZZ_LONGEST     the most bytes of an input (4096)
//   NARROW_FUZZ_DICTIONARY  words to put in, in libFuzzer's format
//   NARROW_FUZZ_KEEP        a folder for the inputs that reached a new edge
//
// The input that runs now lies beside the program, or in that folder, as <program>.input: after a crash it is the one.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int __attribute__((weak)) LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed);
extern "C" std::size_t __attribute__((weak))
LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size, const std::uint8_t* second, std::size_t second_size,
                          std::uint8_t* out, std::size_t most, unsigned seed);

namespace {

constexpr std::size_t kLargest = 65536;
constexpr int kSlowest = 10;  // seconds of one input

std::mt19937 generator;
std::vector<std::string> words;  // of the dictionary
std::atomic<bool> is_over = false;
std::atomic<std::int64_t> executions = 0;

std::size_t below(std::size_t count) { return count == 0 ? 0 : generator() % count; }

std::string text_of(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  char part[4096];
  for (std::size_t count = 0; (count = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, count);
  std::fclose(file);
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}

/// The texts of a folder's files; nothing where it is none.
std::vector<std::string> texts_of(const std::string& folder) {
  std::vector<std::string> texts;
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return texts;
  for (const dirent* entry = nullptr; (entry = readdir(open)) != nullptr;)
    if (entry->d_name[0] != '.') texts.push_back(text_of(folder + "/" + entry->d_name));
  closedir(open);
  return texts;
}

const char* setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// ---- counters of edges ----

using Line = std::array<std::uint64_t, 8>;  // of counters, a byte each

struct Counters {
  std::uint8_t *begin, *end;
  std::vector<Line> seen;  // a bit for each power of two that a counter has had
};
std::vector<Counters>& counters() {
  static std::vector<Counters> all;
  return all;
}

enum class News { kNone, kOftener, kEdge };

/// What mutators reach does not count.
void clear_counters() {
  for (const Counters& part : counters()) std::memset(part.begin, 0, static_cast<std::size_t>(part.end - part.begin));
}

/// The highest bit of each of eight bytes.
std::uint64_t highest_bits(std::uint64_t bytes) {
  bytes |= bytes >> 1 & 0x7F7F7F7F7F7F7F7Fu;
  bytes |= bytes >> 2 & 0x3F3F3F3F3F3F3F3Fu;
  bytes |= bytes >> 4 & 0x0F0F0F0F0F0F0F0Fu;
  return bytes ^ (bytes >> 1 & 0x7F7F7F7F7F7F7F7Fu);
}

/// What the last input reached that none had before. Most counters are zero: lines of them are passed over at once.
News news() {
  News found = News::kNone;
  for (Counters& part : counters()) {
    for (std::size_t line = 0; line < part.seen.size(); ++line) {
      Line now, fresh;
      const std::size_t place = line * sizeof now, rest = static_cast<std::size_t>(part.end - part.begin) - place;
      if (rest >= sizeof now) {
        std::memcpy(&now, part.begin + place, sizeof now);
      } else {
        now = {};
        std::memcpy(&now, part.begin + place, rest);
      }
      if (std::accumulate(now.begin(), now.end(), std::uint64_t{0}, std::bit_or<>()) == 0) continue;
      Line& seen = part.seen[line];
      for (std::size_t i = 0; i < now.size(); ++i) fresh[i] = highest_bits(now[i]) & ~seen[i];
      if (std::accumulate(fresh.begin(), fresh.end(), std::uint64_t{0}, std::bit_or<>()) == 0) continue;
      for (std::size_t i = 0; i < now.size(); ++i) {
        for (int bit = 0; bit < 64; bit += 8)
          if ((fresh[i] >> bit & 0xFFu) != 0) found = std::max(found, (seen[i] >> bit & 0xFFu) == 0 ? News::kEdge : News::kOftener);
        seen[i] |= fresh[i];
      }
    }
  }
  return found;
}

std::size_t edges() {
  std::size_t count = 0;
  for (const Counters& part : counters())
    for (const Line& line : part.seen)
      for (const std::uint64_t bits : line)
        for (int bit = 0; bit < 64; bit += 8) count += (bits >> bit & 0xFFu) != 0 ? 1 : 0;
  return count;
}

// ---- running ----

/// The input that runs now, in a mapped file, where a crash leaves it.
class Kept {
 public:
  explicit Kept(const std::string& path) : path_(path) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0 || ftruncate(descriptor, kRoom) != 0) std::abort();
    place_ = static_cast<char*>(mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
    if (place_ == MAP_FAILED) std::abort();
  }
  ~Kept() { unlink(path_.c_str()); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  /// Its size first, as eight bytes: a file of another length each time would be a system call each time.
  void put(const std::string& input) {
    const std::uint64_t size = input.size();
    std::memcpy(place_, &size, sizeof size);
    std::memcpy(place_ + sizeof size, input.data(), input.size());
  }
  static std::string taken(const std::string& file) {
    std::uint64_t size = 0;
    if (file.size() >= sizeof size) std::memcpy(&size, file.data(), sizeof size);
    return file.substr(std::min(sizeof size, file.size()), size);
  }

 private:
  static constexpr std::size_t kRoom = sizeof(std::uint64_t) + kLargest;
  std::string path_;
  char* place_;
};

void run(const std::string& input, Kept& kept) {
  // Memory of exactly this size, so that a read past the end is seen.
  const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[std::max<std::size_t>(input.size(), 1)]);
  std::memcpy(bytes.get(), input.data(), input.size());
  kept.put(input);
  clear_counters();
  LLVMFuzzerTestOneInput(bytes.get(), input.size());
  executions.fetch_add(1, std::memory_order_relaxed);
}

/// Ends a run whose input takes too long.
void watch(int) {
  static std::int64_t last = -1;
  static int seconds = 0;
  const std::int64_t now = executions.load(std::memory_order_relaxed);
  seconds = now == last ? seconds + 1 : 0;
  last = now;
  if (seconds < kSlowest) return;
  constexpr char kText[] = "an input takes too long\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
  std::abort();
}

/// The words of a dictionary: lines [NAME=]"TEXT" with \\, \" and \xNN.
std::vector<std::string> words_of(const std::string& path) {
  std::vector<std::string> found;
  const std::string text = text_of(path);
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t first = line.find('"'), last = line.rfind('"');
    if (line.starts_with('#') || first == std::string::npos || first == last) continue;
    std::string word;
    for (std::size_t i = first + 1; i < last; ++i) {
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[i + 1] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        word += line[++i];
      }
    }
    found.push_back(word);
  }
  return found;
}

/// Of an input that is kept: no two runs have the same.
std::string name_of_find(const std::string& program, std::int64_t number) {
  return program + "-" + std::to_string(getpid()) + "-" + std::to_string(number);
}

std::string mutated(const std::string& input, const std::string& other, std::size_t longest) {
  static std::array<std::uint8_t, kLargest> buffer;
  const auto seed = static_cast<unsigned>(generator());
  const std::size_t most = std::min(std::max(longest, input.size()), kLargest);
  std::size_t size = 0;
  if (LLVMFuzzerCustomCrossOver != nullptr && below(8) == 0)
    size = LLVMFuzzerCustomCrossOver(reinterpret_cast<const std::uint8_t*>(input.data()), input.size(),
                                     reinterpret_cast<const std::uint8_t*>(other.data()), other.size(), buffer.data(), most, seed);
  if (size == 0) {
    std::memcpy(buffer.data(), input.data(), input.size());
    size = LLVMFuzzerCustomMutator(buffer.data(), input.size(), most, seed);
  }
  return {buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(size)};
}

const std::string& one_of(const std::vector<std::string>& inputs, std::size_t first) {
  return inputs[below(2) == 0 ? first + below(inputs.size() - first) : below(inputs.size())];
}

/// Of two inputs mostly the one that takes less time.
const std::string& shorter(const std::string& a, const std::string& b) {
  const bool wanted = below(4) != 0;
  return (a.size() <= b.size()) == wanted ? a : b;
}

}  // namespace

extern "C" void __sanitizer_cov_8bit_counters_init(std::uint8_t* begin, std::uint8_t* end) {
  for (const Counters& part : counters())
    if (part.begin == begin) return;
  const std::size_t lines = (static_cast<std::size_t>(end - begin) + sizeof(Line) - 1) / sizeof(Line);
  if (begin != end) counters().push_back({begin, end, std::vector<Line>(lines)});
}
extern "C" thread_local std::uintptr_t __sancov_lowest_stack;
thread_local std::uintptr_t __sancov_lowest_stack = 0;  // how deep the stack was is not used
extern "C" void __sanitizer_cov_pcs_init(const std::uintptr_t*, const std::uintptr_t*) {}
extern "C" void __sanitizer_cov_trace_pc_indir(std::uintptr_t) {}

/// What libFuzzer has under this name: a few bytes changed, put in or taken out, or a word of the dictionary.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t place = below(size);
    switch (below(words.empty() ? 5 : 7)) {
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
      case 4:
        if (size > 0) std::memmove(data + below(size), data + place, 1);
        break;
      default: {
        const std::string& word = words[below(words.size())];
        if (size + word.size() > most) break;
        std::memmove(data + place + word.size(), data + place, size - place);
        std::memcpy(data + place, word.data(), word.size());
        size += word.size();
      }
    }
  }
  return size;
}

int main(int count, char** arguments) {
  if (count != 3 && count != 4) {
    std::fputs("usage: driver INPUTS FOLDER [START]\n", stderr);
    return 2;
  }
  const std::int64_t wanted = std::atoll(arguments[1]);
  generator.seed(count == 4 ? static_cast<unsigned>(std::atoi(arguments[3])) : 20240607u);
  const std::size_t longest = std::min<std::size_t>(std::strtoull(setting("NARROW_FUZZ_LONGEST", "4096"), nullptr, 10), kLargest);
  const std::string keep = setting("NARROW_FUZZ_KEEP", ""), dictionary = setting("NARROW_FUZZ_DICTIONARY", "");
  if (!dictionary.empty()) words = words_of(dictionary);
  const std::string path = arguments[0], program = path.substr(path.rfind('/') + 1);
  Kept kept((keep.empty() ? path : keep + "/" + program + "." + std::to_string(getpid())) + ".input");

  std::vector<std::string> inputs = texts_of(arguments[2]);
  if (inputs.empty()) inputs.push_back(Kept::taken(text_of(arguments[2])));
  std::erase_if(inputs, [](const std::string& input) { return input.size() > kLargest; });
  std::sort(inputs.begin(), inputs.end());  // folders have no order of their own
  if (inputs.empty()) {
    std::fprintf(stderr, "%s holds no seeds\n", arguments[2]);
    return 2;
  }
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&count, &arguments);
  const double seconds = std::atof(setting("NARROW_FUZZ_SECONDS", "1e9"));
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  signal(SIGINT, [](int) { is_over = true; });
  signal(SIGALRM, watch);
  const itimerval each_second{{1, 0}, {1, 0}};
  setitimer(ITIMER_REAL, &each_second, nullptr);

  for (const std::string& input : inputs) {
    run(input, kept);
    news();
  }
  const std::size_t seeds = inputs.size();
  const bool is_guided = !counters().empty();
  std::size_t first = 0;  // of the inputs to begin with: those that were found last count for more
  while (executions < wanted && !is_over && (executions % 256 != 0 || passed() < seconds)) {
    const std::string& input = is_guided ? shorter(one_of(inputs, first), one_of(inputs, first)) : one_of(inputs, first);
    const std::string next = mutated(input, inputs[below(inputs.size())], is_guided ? longest : std::max(2 * input.size(), longest));
    run(next, kept);
    if (!is_guided) {
      if (inputs.size() < 2 * seeds + 64 && below(64) == 0) inputs.push_back(next);  // some mutations of mutations
      continue;
    }
    const News reached = news();
    if (reached == News::kNone) continue;
    inputs.push_back(next);
    first = inputs.size() - inputs.size() / 4;
    if (reached == News::kEdge && !keep.empty()) write_text(keep + "/" + name_of_find(program, executions), next);
  }
  std::printf("%zu seeds, %lld inputs, %.0f a second, %zu found, %zu edges\n", seeds, static_cast<long long>(executions),
              static_cast<double>(executions) / passed(), inputs.size() - seeds, edges());
  return is_over ? 130 : 0;
}
