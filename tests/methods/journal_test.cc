// A killed run goes on where it stopped and ends with the same bytes.
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include <omp.h>

#include "io/files.h"
#include "model/small_model.h"
#include "narrow/error.h"
#include "narrow/methods.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    test::write_decoder(place_ / "in", {});
    for (unsigned seed = 0; seed < 4; ++seed) windows_.push_back(test::random_tokens(32, 96, seed));
  }

  MethodReport quantize(const std::string& output, const MethodRun& run, const char* method = "awq+gptq+clip") {
    return quantize_checkpoint(place_ / "in", place_ / output, Recipe::of("int4:block32:asym"), Method::parse(method),
                               {.windows = windows_}, run);
  }

  /// Runs in a process of its own; this one starts no threads, so that forking is safe. Returns the status of waitpid.
  template <typename Work>
  static int in_process(const Work& work) {
    const pid_t child = fork();
    if (child == 0) {
      omp_set_num_threads(1);
      try {
        work();
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  test::TemporaryDirectory place_;
  std::vector<std::vector<std::int32_t>> windows_;
};

TEST_F(JournalTest, KilledRunsEndWithTheSameBytes) {
  ASSERT_EQ(in_process([&] { quantize("whole", {}); }), 0);
  const std::string expected = test::read_bytes(place_ / "whole" / "model.safetensors");
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(in_process([&] { quantize("timed", {.journal = place_ / "timed-journal"}); }), 0);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(1);
  int killed = 0;
  for (int round = 0; round < 20; ++round) {
    const std::string out = fmt::format("out{}", round);
    const MethodRun run{.journal = place_ / "journal"};
    // Half of the kills hit just after a weight was done, the others at any moment.
    const std::size_t weight = round % 2 == 0 ? random() % 14 : 1000;
    const long moment = static_cast<long>(random() % static_cast<unsigned long>(micros));
    const int status = in_process([&] {
      MethodRun doomed = run;
      std::size_t seen = 0;
      doomed.fitted = [&](const FittedModule&, std::size_t, std::size_t) {
        if (seen++ == weight) kill(getpid(), SIGKILL);
      };
      if (round % 2 == 1) {
        const itimerval timer{{0, 0}, {moment / 1000000, moment % 1000000 + 1}};
        setitimer(ITIMER_REAL, &timer, nullptr);  // SIGALRM ends the process on the spot
      }
      quantize(out, doomed);
    });
    killed += WIFSIGNALED(status) ? 1 : 0;
    if (fs::exists(place_ / out)) {
      fs::remove_all(place_ / "journal");  // the run was complete; only its journal may not have gone
    } else {
      ASSERT_EQ(in_process([&] { quantize(out, run); }), 0) << round;
    }
    EXPECT_TRUE(test::read_bytes(place_ / out / "model.safetensors") == expected) << round;
    EXPECT_FALSE(fs::exists(place_ / "journal"));
  }
  EXPECT_GE(killed, 10);
}

TEST_F(JournalTest, KnownWeightsAreNotComputedAgain) {
  std::vector<std::string> order;
  const auto stop_after = [&](std::size_t count) {
    return MethodRun{.journal = place_ / "journal", .fitted = [&order, count](const FittedModule& module, std::size_t done, std::size_t) {
                       order.push_back(module.module);
                       if (done == count) throw IoError("stop");
                     }};
  };
  EXPECT_THROW(quantize("out", stop_after(5), "gptq"), IoError);
  EXPECT_EQ(std::distance(fs::directory_iterator(place_ / "journal"), fs::directory_iterator{}), 6);  // five weights, the fingerprint
  const auto stamp = [&] {
    std::map<fs::path, fs::file_time_type> times;
    for (const auto& entry : fs::directory_iterator(place_ / "journal")) times[entry.path()] = entry.last_write_time();
    return times;
  };
  const auto before = stamp();
  EXPECT_THROW(quantize("out", stop_after(7), "gptq"), IoError);
  const auto after = stamp();
  EXPECT_EQ(after.size(), before.size() + 2);
  for (const auto& [path, time] : before) EXPECT_EQ(after.at(path), time);
  EXPECT_EQ(std::vector<std::string>(order.begin(), order.begin() + 5), std::vector<std::string>(order.begin() + 5, order.begin() + 10));
}

TEST_F(JournalTest, DamagedWeightsAreRefused) {
  const MethodRun run{.journal = place_ / "journal", .fitted = [](const FittedModule&, std::size_t done, std::size_t) {
                        if (done == 1) throw IoError("stop");
                      }};
  EXPECT_THROW(quantize("out", run, "gptq"), IoError);
  fs::path kept;
  for (const auto& entry : fs::directory_iterator(place_ / "journal"))
    if (entry.path().extension() == ".safetensors") kept = entry.path();
  const Checkpoint good = open_checkpoint(kept);
  const std::map<std::string, std::string> metadata = good.metadata(good.tensor_files().front());
  const auto refuses = [&](const std::string& name, std::optional<Tensor> replacement, const std::string& without = "") {
    std::map<std::string, Tensor> tensors;
    for (const std::string& tensor : good.names()) tensors.emplace(tensor, good.tensor(tensor));
    tensors.erase(name);
    if (replacement) tensors.emplace(name, *replacement);
    std::map<std::string, std::string> about = metadata;
    about.erase(without);
    write_safetensors(kept, tensors, about);
    EXPECT_THROW(quantize("out", run, "gptq"), CorruptFile) << name << without;
  };
  for (const std::string& name : good.names()) {
    refuses(name, std::nullopt);
    refuses(name, Tensor::empty(good.dtype(name), {0}));
  }
  refuses("numbers", Tensor::of({1.0f, 1.0f, 1.0f, 1.0f}, {4}));
  refuses("outer_scale", Tensor::empty(DType::kF64, {1}));
  refuses("", std::nullopt, "module");
  refuses("", std::nullopt, "fallback");
}

TEST_F(JournalTest, AnotherRunsJournalIsRefused) {
  const auto stop = [&] {
    return MethodRun{.journal = place_ / "journal", .fitted = [](const FittedModule&, std::size_t, std::size_t) { throw IoError("stop"); }};
  };
  EXPECT_THROW(quantize("out", stop(), "gptq"), IoError);
  EXPECT_THROW(quantize("out", stop(), "gptq+clip"), InvalidArgument);
  EXPECT_THROW(quantize("out", stop(), "gptq"), IoError);
  fs::create_directory(place_ / "foreign");
  test::write_bytes(place_ / "foreign" / "notes", "mine");
  EXPECT_THROW(quantize("out", {.journal = place_ / "foreign"}, "gptq"), InvalidArgument);
  EXPECT_TRUE(fs::exists(place_ / "foreign" / "notes"));
  windows_[0][3] ^= 1;
  EXPECT_THROW(quantize("out", stop(), "gptq"), InvalidArgument);
}

}  // namespace
}  // namespace narrow
