#pragma once
/// cuBLASLt as a peer, loaded at run time where it is installed: D[m, n] = X[m, k] * W[n, k]^T, fp8 with one scale per tensor and fast
/// accumulation, bf16, or int8 to int32 or int8. Only the handful of C functions and constants that this takes is declared here.

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace narrow::bench {

class CublasLt {
 public:
  CublasLt() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if ((library_ = dlopen(name, RTLD_NOW)) != nullptr) break;
    if (library_ == nullptr) return;
    load(create_, "cublasLtCreate");
    load(desc_create_, "cublasLtMatmulDescCreate");
    load(desc_set_, "cublasLtMatmulDescSetAttribute");
    load(layout_create_, "cublasLtMatrixLayoutCreate");
    load(preference_create_, "cublasLtMatmulPreferenceCreate");
    load(preference_set_, "cublasLtMatmulPreferenceSetAttribute");
    load(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
    load(matmul_, "cublasLtMatmul");
    if (create_(&handle_) != 0 || cudaMalloc(&workspace_, kWorkspace) != cudaSuccess) library_ = nullptr;
  }
  bool available() const { return library_ != nullptr; }

  struct Algorithm {
    std::uint64_t data[8];
  };
  /// A product of one shape and its candidates, best guess first. Descriptors live as long as the process.
  struct Product {
    void *desc, *w, *x, *d;
    bool int32;  ///< factors are int32, else fp32
    std::vector<Algorithm> algorithms;
  };

  enum class Kind { kFp8, kBf16, kInt8ToInt32, kInt8ToInt8 };

  Product product(std::int64_t m, std::int64_t n, std::int64_t k, Kind kind, const float* scale_x, const float* scale_w) const {
    constexpr int kCompute32F = 68, kCompute32I = 72, kReal32F = 0, kReal32I = 10, kReal8I = 3, kBf16 = 14, kE4m3 = 28;
    constexpr int kTransA = 3, kTransB = 4, kScaleA = 17, kScaleB = 18, kFastAccumulation = 25;
    const bool fp8 = kind == Kind::kFp8, int32 = kind == Kind::kInt8ToInt32, integer = int32 || kind == Kind::kInt8ToInt8;
    Product p{};
    p.int32 = int32;
    require(desc_create_(&p.desc, integer ? kCompute32I : kCompute32F, int32 ? kReal32I : kReal32F));
    const int transposed = 1, plain = 0, type = integer ? kReal8I : (fp8 ? kE4m3 : kBf16);
    require(desc_set_(p.desc, kTransA, &transposed, sizeof transposed));
    require(desc_set_(p.desc, kTransB, &plain, sizeof plain));
    if (fp8) {
      const std::int8_t fast = 1;
      require(desc_set_(p.desc, kFastAccumulation, &fast, sizeof fast));
      require(desc_set_(p.desc, kScaleA, &scale_w, sizeof scale_w));
      require(desc_set_(p.desc, kScaleB, &scale_x, sizeof scale_x));
    }
    require(layout_create_(&p.w, type, k, n, k));
    require(layout_create_(&p.x, type, k, m, k));
    require(layout_create_(&p.d, integer ? (int32 ? kReal32I : kReal8I) : kBf16, n, m, n));
    add_algorithms(p);
    return p;
  }

  /// X, W and D in bf16 or fp16.
  Product dense_product(std::int64_t m, std::int64_t n, std::int64_t k, bool bf16) const {
    constexpr int kCompute32F = 68, kReal32F = 0, kFp16 = 2, kBf16 = 14, kTransA = 3, kTransposed = 1;
    const int type = bf16 ? kBf16 : kFp16;
    Product p{};
    require(desc_create_(&p.desc, kCompute32F, kReal32F));
    require(desc_set_(p.desc, kTransA, &kTransposed, sizeof kTransposed));
    require(layout_create_(&p.w, type, k, n, k));
    require(layout_create_(&p.x, type, k, m, k));
    require(layout_create_(&p.d, type, n, m, n));
    add_algorithms(p);
    return p;
  }

  void run(const Product& p, std::size_t algorithm, const void* x, const void* w, void* d, cudaStream_t stream) const {
    const float one = 1.0f, zero = 0.0f;
    const std::int32_t whole_one = 1, whole_zero = 0;
    const void* alpha = p.int32 ? static_cast<const void*>(&whole_one) : &one;
    const void* beta = p.int32 ? static_cast<const void*>(&whole_zero) : &zero;
    require(
        matmul_(handle_, p.desc, alpha, w, p.w, x, p.x, beta, d, p.d, d, p.d, &p.algorithms[algorithm], workspace_, kWorkspace, stream));
  }

 private:
  /// The best ones first, as the library sees them.
  void add_algorithms(Product& p) const {
    constexpr int kMaxWorkspace = 1;
    void* preference = nullptr;
    require(preference_create_(&preference));
    require(preference_set_(preference, kMaxWorkspace, &kWorkspace, sizeof kWorkspace));
    struct Result {
      Algorithm algorithm;
      std::size_t workspace;
      int state;
      float waves;
      int reserved[4];
    };
    std::vector<Result> results(8);
    int found = 0;
    require(heuristic_(handle_, p.desc, p.w, p.x, p.d, p.d, preference, static_cast<int>(results.size()), results.data(), &found));
    for (int i = 0; i < found; ++i) p.algorithms.push_back(results[static_cast<std::size_t>(i)].algorithm);
  }
  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("cuBLASLt has no ") + name);
  }
  static void require(int status) {
    if (status != 0) throw std::runtime_error("cuBLASLt answered with status " + std::to_string(status));
  }

  static constexpr std::size_t kWorkspace = std::size_t{64} << 20;
  void* library_ = nullptr;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  int (*create_)(void**) = nullptr;
  int (*desc_create_)(void**, int, int) = nullptr;
  int (*desc_set_)(void*, int, const void*, std::size_t) = nullptr;
  int (*layout_create_)(void**, int, std::uint64_t, std::uint64_t, std::int64_t) = nullptr;
  int (*preference_create_)(void**) = nullptr;
  int (*preference_set_)(void*, int, const void*, std::size_t) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, void*, int*) = nullptr;
  int (*matmul_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*, void*, void*,
                 const Algorithm*, void*, std::size_t, cudaStream_t) = nullptr;
};

}  // namespace narrow::bench
