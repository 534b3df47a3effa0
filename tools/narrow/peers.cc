#include "peers.h"

#include <dlfcn.h>

namespace narrow::command {
namespace {

/// A function of a shared library, or null. The library stays open: its threads may outlive any call.
template <typename Function>
Function* function_of(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

void add_openblas(std::vector<Peer>& peers, int threads) {
  using Multiply = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;  // cblas.h
  void* library = open_first({"libopenblas.so.0", "libopenblas.so"});
  auto* multiply = function_of<Multiply>(library, "cblas_sgemm");
  auto* set_threads = function_of<void(int)>(library, "openblas_set_num_threads");
  if (multiply == nullptr || set_threads == nullptr) return;
  set_threads(threads);
  peers.push_back(
      {"OpenBLAS, fp32", false, [multiply](std::int64_t m, std::int64_t n, std::int64_t k, const void* x, const void* w, void* y) {
         multiply(kRowMajor, kPlain, kTransposed, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0f,
                  static_cast<const float*>(x), static_cast<int>(k), static_cast<const float*>(w), static_cast<int>(k), 0.0f,
                  static_cast<float*>(y), static_cast<int>(n));
       }});
}

void add_onednn(std::vector<Peer>& peers) {
  // dnnl.h: C = alpha (op(A) - ao)(op(B) - bo) + beta C + co, row-major, int8 into int32. It takes its threads from OpenMP.
  using Multiply = int(char, char, char, std::int64_t, std::int64_t, std::int64_t, float, const std::int8_t*, std::int64_t, std::int8_t,
                       const std::int8_t*, std::int64_t, std::int8_t, float, std::int32_t*, std::int64_t, const std::int32_t*);
  auto* multiply = function_of<Multiply>(open_first({"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"}), "dnnl_gemm_s8s8s32");
  if (multiply == nullptr) return;
  peers.push_back({"oneDNN, int8", true, [multiply](std::int64_t m, std::int64_t n, std::int64_t k, const void* x, const void* w, void* y) {
                     const std::int32_t nothing = 0;
                     multiply('N', 'T', 'F', m, n, k, 1.0f, static_cast<const std::int8_t*>(x), k, 0, static_cast<const std::int8_t*>(w), k,
                              0, 0.0f, static_cast<std::int32_t*>(y), n, &nothing);
                   }});
}

}  // namespace

std::vector<Peer> find_peers(int threads) {
  std::vector<Peer> peers;
  add_openblas(peers, threads);
  add_onednn(peers);
  return peers;
}

}  // namespace narrow::command
