/// cuBLASLt, loaded with dlopen; only the functions and constants that these products take are declared here. No workspace, so that
/// products on several streams share nothing.

#include "kernels/cuda/library_product.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "device/cuda/runtime.h"

namespace narrow::cuda {
namespace {

// Of cublasLt.h and library_types.h.
constexpr int kCompute32F = 68, kCompute32I = 72;
constexpr int kReal32F = 0, kReal16F = 2, kReal8I = 3, kReal32I = 10, kReal16Bf = 14, kRealE4m3 = 28, kRealE5m2 = 29;
constexpr int kTransposeA = 3, kScaleA = 17, kScaleB = 18, kFastAccumulation = 25, kScaleModeA = 31, kScaleModeB = 32;
constexpr int kMostWorkspace = 1, kAlignmentA = 5, kAlignmentD = 8, kScalePerRow = 3;

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

/// The library's functions; `found` says whether all are there.
struct Library {
  int (*create)(void**) = nullptr;
  int (*desc_create)(void**, int, int) = nullptr;
  int (*desc_set)(void*, int, const void*, std::size_t) = nullptr;
  int (*desc_destroy)(void*) = nullptr;
  int (*layout_create)(void**, int, std::uint64_t, std::uint64_t, std::int64_t) = nullptr;
  int (*layout_destroy)(void*) = nullptr;
  int (*preference_create)(void**) = nullptr;
  int (*preference_set)(void*, int, const void*, std::size_t) = nullptr;
  int (*preference_destroy)(void*) = nullptr;
  int (*heuristic)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*) = nullptr;
  int (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
                const Algorithm*, void*, std::size_t, cudaStream_t) = nullptr;
  bool found = false;

  Library() {
    void* file = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (file == nullptr) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
      return function != nullptr;
    };
    found = load(create, "cublasLtCreate") && load(desc_create, "cublasLtMatmulDescCreate") &&
            load(desc_set, "cublasLtMatmulDescSetAttribute") && load(desc_destroy, "cublasLtMatmulDescDestroy") &&
            load(layout_create, "cublasLtMatrixLayoutCreate") && load(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
            load(preference_create, "cublasLtMatmulPreferenceCreate") && load(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
            load(preference_destroy, "cublasLtMatmulPreferenceDestroy") && load(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
            load(matmul, "cublasLtMatmul");
  }
};
const Library& library() {
  static const Library one;
  return one;
}

int type_of(DType type) {
  return type == DType::kI32 ? kReal32I : (type == DType::kF32 ? kReal32F : (type == DType::kF16 ? kReal16F : kReal16Bf));
}

/// One call's descriptors. The library's matrices are stored by columns, so it computes D^T = B * A^T.
struct Call {
  void *desc = nullptr, *w = nullptr, *x = nullptr, *d = nullptr;
  bool good = false;

  explicit Call(const ByteProblem& p) {
    const Library& lt = library();
    const int transposed = 1, type_x = p.is_int8 ? kReal8I : (p.a_is_e5m2 ? kRealE5m2 : kRealE4m3),
              type_w = p.is_int8 ? kReal8I : (p.b_is_e5m2 ? kRealE5m2 : kRealE4m3);
    good = lt.desc_create(&desc, p.is_int8 ? kCompute32I : kCompute32F, p.is_int8 ? kReal32I : kReal32F) == 0 &&
           lt.desc_set(desc, kTransposeA, &transposed, sizeof transposed) == 0;
    if (good && !p.is_int8) {
      const std::int8_t fast = p.scaling == ByteScaling::kOuterFast ? 1 : 0;
      good = lt.desc_set(desc, kFastAccumulation, &fast, sizeof fast) == 0 &&
             lt.desc_set(desc, kScaleA, &p.b_scales, sizeof p.b_scales) == 0 &&
             lt.desc_set(desc, kScaleB, &p.a_scales, sizeof p.a_scales) == 0;
      if (good && p.a_scale_step == 1)
        good = lt.desc_set(desc, kScaleModeA, &kScalePerRow, sizeof kScalePerRow) == 0 &&
               lt.desc_set(desc, kScaleModeB, &kScalePerRow, sizeof kScalePerRow) == 0;
    }
    const auto k = static_cast<std::uint64_t>(p.k), m = static_cast<std::uint64_t>(p.m), n = static_cast<std::uint64_t>(p.n);
    good = good && lt.layout_create(&w, type_w, k, n, p.b_pitch) == 0 && lt.layout_create(&x, type_x, k, m, p.a_pitch) == 0 &&
           lt.layout_create(&d, type_of(p.epilogue.out), n, m, p.d_pitch) == 0;
  }
  ~Call() {
    const Library& lt = library();
    if (desc != nullptr) lt.desc_destroy(desc);
    for (void* layout : {w, x, d})
      if (layout != nullptr) lt.layout_destroy(layout);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

std::mutex cache_mutex;

/// The library's handle of the current device; null: it gave none.
void* handle_of(int device) {
  static std::map<int, void*> handles;
  const auto [at, is_new] = handles.try_emplace(device, nullptr);
  if (is_new && library().create(&at->second) != 0) at->second = nullptr;
  return at->second;
}

struct Choice {
  void* handle = nullptr;
  std::optional<Algorithm> algorithm{};
};

/// The library's first choice for a product of this shape.
Choice choose(const ByteProblem& p, const Call& call) {
  using Key = std::array<std::int64_t, 12>;
  static std::map<Key, Choice> choices;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  const Key key = {device,
                   p.m,
                   p.n,
                   p.k,
                   p.a_pitch,
                   p.b_pitch,
                   p.d_pitch,
                   static_cast<std::int64_t>(p.epilogue.out),
                   p.is_int8,
                   p.a_is_e5m2 + 2 * p.b_is_e5m2,
                   p.a_scale_step,
                   p.scaling == ByteScaling::kOuterFast};
  const std::lock_guard lock(cache_mutex);
  const auto [at, is_new] = choices.try_emplace(key);
  if (!is_new) return at->second;
  Choice& choice = at->second;
  choice.handle = handle_of(device);
  void* preference = nullptr;
  if (choice.handle == nullptr || library().preference_create(&preference) != 0) return choice;
  const std::size_t no_workspace = 0;
  const std::uint32_t alignment = 16;
  bool good = library().preference_set(preference, kMostWorkspace, &no_workspace, sizeof no_workspace) == 0;
  for (int which = kAlignmentA; which <= kAlignmentD; ++which)
    good = good && library().preference_set(preference, which, &alignment, sizeof alignment) == 0;
  Heuristic best{};
  int count = 0;
  if (good && library().heuristic(choice.handle, call.desc, call.w, call.x, call.d, call.d, preference, 1, &best, &count) == 0 && count > 0)
    choice.algorithm = best.algorithm;
  library().preference_destroy(preference);
  return choice;
}

}  // namespace

std::string_view library_refuses(const ByteProblem& p) {
  if (!library().found) return "cuBLASLt is not installed";
  const ByteEpilogue& e = p.epilogue;
  if (p.grouping != ByteGrouping::kNone || p.a_is_col32 || p.d_is_col32) return "it takes rows, without groups";
  if (e.bias != nullptr || e.activation != Activation::kNone || e.residual != nullptr || e.accumulate) return "it takes no such epilogue";
  if (p.is_int8 && (e.out != DType::kI32 || p.a_zeros != nullptr || p.b_zeros != nullptr))
    return "of int8 it gives int32 sums without zero points; its int8 results are not rounded as narrow's are";
  if (!p.is_int8 && !is_outer(p.scaling)) return "its kernels for blocks of 128 are slower";
  if (!p.is_int8 && p.a_scale_step != p.b_scale_step) return "both sides have a scale per tensor, or both per row";
  if (!p.is_int8 && e.out != DType::kBf16 && e.out != DType::kF16 && e.out != DType::kF32) return "its one-byte results have other scales";
  const std::int64_t element = e.out == DType::kF32 || e.out == DType::kI32 ? 4 : 2;
  if (p.k % 16 != 0 || p.n % 16 != 0 || p.d_pitch * element % 16 != 0 || reinterpret_cast<std::uintptr_t>(p.d) % 16 != 0)
    return "it takes multiples of 16";
  return {};
}

bool library_takes(const ByteProblem& p) {
  if (!library_refuses(p).empty()) return false;
  const RelaxedCapture relaxed;  // the library may allocate and load code when it is first used
  const Call call(p);
  return call.good && choose(p, call).algorithm.has_value();
}

/// Fitted to measurements on an H200 (docs/kernels/cuda_fp8_products.md): microseconds to start and end, then the products or the bytes of
/// B.
double estimate_library_product(const ByteProblem& p) {
  const double work = 2.0 * p.m * p.n * p.k, bytes = static_cast<double>(p.n) * p.k;
  constexpr double kStart = 4.3, kBytes = 4.67e6, kInt8 = 757e6, kFast = 1350e6, kPromoted = 1200e6;
  const double rate = p.is_int8 ? kInt8 : (p.scaling == ByteScaling::kOuterFast ? kFast : kPromoted);
  const double passes = p.is_int8 || p.a_scale_step == 0 ? 1.0 : 2.0;  // with scales of rows its kernels for few rows take twice as long
  return kStart + std::max(work / rate, passes * bytes / kBytes);
}

int launch_library_product(const ByteProblem& p, Stream stream) {
  const RelaxedCapture relaxed;
  const Call call(p);
  if (!call.good) return cudaErrorNotSupported;
  const Choice choice = choose(p, call);
  if (!choice.algorithm) return cudaErrorNotSupported;
  const float one = 1.0f, zero = 0.0f;
  const std::int32_t whole_one = 1, whole_zero = 0;
  const void* alpha = p.is_int8 ? static_cast<const void*>(&whole_one) : &one;
  const void* beta = p.is_int8 ? static_cast<const void*>(&whole_zero) : &zero;
  const int status = library().matmul(choice.handle, call.desc, alpha, p.b, call.w, p.a, call.x, beta, p.d, call.d, p.d, call.d,
                                      &*choice.algorithm, nullptr, 0, stream);
  return status == 0 ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace narrow::cuda
