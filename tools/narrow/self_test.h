#pragma once
/// Every fast kernel that this CPU runs against the reference, on odd shapes: codes and integer sums bit for bit, float products
/// within gamma(K) sum |x||w| and the roundings of both results.

#include <string>
#include <vector>

namespace narrow::command {

/// One row of a kernel table.
struct SelfTestRow {
  std::string op, kernel;
  int cases = 0;          ///< tried
  std::string failure{};  ///< the first case that was not right; empty: none
};

struct SelfTest {
  std::vector<SelfTestRow> rows;  ///< the fast rows that run here
  bool complete = true;           ///< false: the time was up before every case was tried
  double seconds = 0.0;

  /// Whether every row was tried and right.
  bool passed() const;
  int cases() const;
};

SelfTest run_self_test(double most_seconds);

}  // namespace narrow::command
