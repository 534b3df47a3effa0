#pragma once
/// How this narrow was built: the same sources and options give the same facts, and the same bytes.

#include <string>
#include <string_view>

namespace narrow::command {

struct BuildFacts {
  std::string_view version;
  std::string_view commit;        ///< what `git describe` said; empty outside of a repository
  std::string_view compiler;      ///< "GNU 12.2.0"
  std::string_view build_type;    ///< "Release"
  std::string_view architecture;  ///< "x86_64"
  std::string_view leaves;        ///< instruction sets that kernels were compiled for: "avx2, avx512, ..."
  std::string_view cuda;          ///< "13.0 for 90a-real"; empty in a build without CUDA
};
const BuildFacts& build_facts();

/// The text of `narrow --version`: the version on the first line, a fact on each further one.
std::string version_text();

}  // namespace narrow::command
