// same_bytes GOLDEN EXAMPLES: what every standard scheme makes of the example's tensors has the hashes of the file GOLDEN, for 1, 2, 3, 7
// and 16 threads, for every instruction set of this CPU, with flush-to-zero and another rounding mode set, and in a locale with decimal
// commas. same_bytes --print EXAMPLES: the lines of GOLDEN.
#include <clocale>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <omp.h>

#include "device/cpu_features.h"
#include "io/hash.h"
#include "narrow/checkpoint.h"
#include "narrow/error.h"
#include "narrow/matmul.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;
using Hashes = std::map<std::string, std::string>;

/// Rounds toward zero and flushes subnormals, as a library built with -ffast-math leaves the process.
class HostileEnvironment {
 public:
#if defined(__x86_64__)
  HostileEnvironment() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040u | 0x6000u); }
  ~HostileEnvironment() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#else
  HostileEnvironment() {}
#endif
};

/// Odd sizes; rows whose scales are subnormal, rows of one value, rows of zeros. Whole-number arithmetic: the same on every machine.
Tensor odd_values() {
  Tensor x = Tensor::empty(DType::kF32, {67, 301});
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const std::int64_t row = i / 301;
    const float unit = static_cast<float>(static_cast<std::int32_t>(state >> 8) - (1 << 23)) * 0x1p-23f;
    x.as<float>()[i] = row % 7 == 3 ? unit * 0x1p-130f : row % 7 == 4 ? 0.75f : row % 7 == 5 ? 0.0f : i % 97 == 5 ? unit * 64.0f : unit;
  }
  return x;
}

void add(io::Hasher& hasher, const Buffer& buffer) { hasher.add(buffer.bytes()); }

std::string hash_of(const QuantizedTensor& q) {
  io::Hasher hasher;
  add(hasher, q.codes);
  add(hasher, q.scales);
  add(hasher, q.zero_points);
  hasher.add(std::as_bytes(std::span(&q.outer_scale, 1)));
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Tensor y = dequantize(q, dtype);
    hasher.add({y.data(), y.byte_size()});
  }
  return hasher.digits();
}

/// Codes, scales and values of every scheme; products of whole numbers, whose sums are exact.
Hashes hashes_of(const std::vector<Tensor>& tensors) {
  Hashes hashes;
  for (const Scheme& scheme : standard_schemes())
    for (std::size_t i = 0; i < tensors.size(); ++i)
      hashes[scheme.to_string() + " " + std::to_string(i)] = hash_of(quantize(tensors[i], scheme));
  const Tensor& wide = tensors.back();
  for (const char* scheme : {"int8:row", "int4:row", "int2:block64", "int8:row:asym"})
    for (const char* inputs : {"int8:row", "int8:row:asym"}) {
      const PreparedWeight weight = prepare(quantize(wide, Scheme::parse(scheme)));
      const Tensor y = matmul(wide, weight, {.quantize = ActivationQuantization{.scheme = Scheme::parse(inputs)}});
      hashes[std::string("product ") + inputs + " " + scheme] = io::hash_of(std::span<const std::byte>(y.data(), y.byte_size()));
    }
  return hashes;
}

/// Every byte of the tensor files of a quantized directory.
Hashes directory_hashes(const fs::path& model, const fs::path& place) {
  Hashes hashes;
  for (const char* scheme : {"int4:block128:asym", "nvfp4", "fp8_e4m3:128x128"}) {
    const fs::path output = place / "same-bytes-output";
    fs::remove_all(output);
    quantize_checkpoint(model, output, Recipe::of(scheme));
    io::Hasher hasher;
    std::map<std::string, fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(output))
      if (entry.path().extension() == ".safetensors") files[entry.path().filename().string()] = entry.path();
    for (const auto& [name, path] : files) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      hasher.add(std::as_bytes(std::span(name)));
      hasher.add(std::as_bytes(std::span(text)));
    }
    hashes[std::string("checkpoint ") + scheme] = hasher.digits();
    fs::remove_all(output);
  }
  return hashes;
}

Hashes read_golden(const char* path) {
  Hashes hashes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const std::size_t tab = line.find('\t'); tab != std::string::npos) hashes[line.substr(0, tab)] = line.substr(tab + 1);
  return hashes;
}

class Comparison {
 public:
  explicit Comparison(Hashes golden) : golden_(std::move(golden)) {}
  void setting(const std::string& name, const Hashes& found) {
    ++settings_;
    for (const auto& [what, hash] : found) {
      ++compared_;
      const auto expected = golden_.find(what);
      if (expected != golden_.end() && expected->second == hash) continue;
      ++differences_;
      std::printf("difference: %s: %s has %s\n", name.c_str(), what.c_str(), hash.c_str());
    }
  }
  int finish() const {
    std::printf("same bytes: %zu golden hashes, %d settings, %d comparisons, %d differences\n", golden_.size(), settings_, compared_,
                differences_);
    return differences_ == 0 && !golden_.empty() ? 0 : 1;
  }

 private:
  Hashes golden_;
  int settings_ = 0, compared_ = 0, differences_ = 0;
};

int run(const char* golden, const fs::path& examples) {
  const fs::path model = examples / "docs-llama-13m";
  const Checkpoint checkpoint = open_checkpoint(model);
  const std::vector<Tensor> tensors{checkpoint.tensor("model.layers.0.self_attn.k_proj.weight"),
                                    checkpoint.tensor("model.layers.5.self_attn.v_proj.weight"), odd_values()};
  const fs::path place = fs::temp_directory_path() / ("narrow-same-bytes-" + std::to_string(omp_get_wtime()));
  fs::create_directory(place);
  if (std::strcmp(golden, "--print") == 0) {
    Hashes all = hashes_of(tensors);
    all.merge(directory_hashes(model, place));
    for (const auto& [what, hash] : all) std::printf("%s\t%s\n", what.c_str(), hash.c_str());
    fs::remove_all(place);
    return 0;
  }
  Comparison comparison(read_golden(golden));
  for (const int threads : {1, 2, 3, 7, 16}) {
    omp_set_num_threads(threads);
    comparison.setting(std::to_string(threads) + " threads", hashes_of(tensors));
    comparison.setting(std::to_string(threads) + " threads, checkpoint", directory_hashes(model, place));
  }
  omp_set_num_threads(2);
  for (const Isa isa : all_isas()) {
    if (!cpu_supports(isa)) continue;
    limit_cpu(isa);
    comparison.setting(std::string(name_of(isa)), hashes_of(tensors));
    unlimit_cpu();
  }
  {
    const HostileEnvironment hostile;
    comparison.setting("flush to zero, toward zero", hashes_of(tensors));
  }
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr) {
    comparison.setting("decimal commas", hashes_of(tensors));
    comparison.setting("decimal commas, checkpoint", directory_hashes(model, place));
  } else {
    std::printf("note: there is no locale de_DE.UTF-8 here; decimal commas were not tried\n");
  }
  fs::remove_all(place);
  return comparison.finish();
}

}  // namespace
}  // namespace narrow

int main(int count, char** words) { return count == 3 ? narrow::run(words[1], words[2]) : 2; }
