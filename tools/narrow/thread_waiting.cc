#include "thread_waiting.h"

#include <cstdlib>

#include <unistd.h>

namespace narrow::command {

void wait_politely(char** argv) {
  constexpr const char* kSpins = "5000";  // about 10 microseconds
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", kSpins, 1);
  execv("/proc/self/exe", argv);  // the runtime has read its environment already; where this fails, threads spin as ever
}

}  // namespace narrow::command
