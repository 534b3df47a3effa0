#pragma once
/// Handing a quantization over to the Python package, which knows Ray.

#include <string>

#include "context.h"
#include "narrow/evaluate.h"
#include "narrow/methods.h"

namespace narrow::command {

struct ClusterOptions {
  std::string address;             ///< local:N, ray://HOST:PORT, HOST:PORT, auto; empty: this process alone
  std::string python = "python3";  ///< that has narrow and Ray
};

/// Throws InvalidArgument where an address has none of the forms above: a typing error shall not wait for Python.
void check_cluster_address(const std::string& address);

/// Becomes `python -m narrow.ray`, with the request on its standard input. Throws Unsupported where that is no Python; that the package
/// or Ray is missing is said by the Python that finds so, in one sentence.
[[noreturn]] void quantize_on_cluster(const Context& context, const ClusterOptions& cluster, const std::string& input,
                                      const std::string& output, const Recipe& recipe, const Method& method, const TokenWindows& windows);

}  // namespace narrow::command
