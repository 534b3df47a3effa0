// Attention of single rows against its definition in fp64: every cache, odd heads, no keys, few and many, windows, one and several splits;
// and with sums in fp64 against the CPU's bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "dispatch/attention.h"
#include "harness.h"
#include "kernels/cuda/decoder/exact.h"
#include "narrow/codec.h"

namespace narrow::cuda::testing {
namespace {

struct Shape4 {
  int heads, kv_heads, head_dim, window;
};

/// Keys and values of one layer of `lengths.size()` sequences, on both sides.
class Caches {
 public:
  Caches(CacheKind kind, const Shape4& shape, const std::vector<int>& lengths, Stream stream)
      : kind_(kind), shape_(shape), stream_(stream) {
    const std::int64_t pitch = (shape.head_dim + 7) / 8 * 8;
    for (const int length : lengths) {
      const std::int64_t capacity = length + 3, rows = 2 * shape.kv_heads * capacity;
      std::vector<std::byte> codes(static_cast<std::size_t>(rows * pitch * bytes_of(kind)));
      std::vector<float> scales(static_cast<std::size_t>(rows));
      for (std::int64_t row = 0; row < rows; ++row) {
        scales[static_cast<std::size_t>(row)] = std::exp2(-9.0f + 4.0f * uniform());
        for (std::int64_t i = 0; i < shape.head_dim; ++i) put(codes, row * pitch + i);
      }
      buffers_.push_back(Buffer::allocate(codes.size(), kDevice));
      scale_buffers_.push_back(Buffer::allocate(scales.size() * sizeof(float), kDevice));
      copy_bytes(buffers_.back().data(), codes.data(), codes.size(), stream);
      copy_bytes(scale_buffers_.back().data(), scales.data(), scales.size() * sizeof(float), stream);
      views_.push_back({buffers_.back().data(), scale_buffers_.back().as<float>(), capacity});
      synchronize(stream);
    }
    on_device_ = Buffer::allocate(views_.size() * sizeof(CacheView), kDevice);
    copy_bytes(on_device_.data(), views_.data(), on_device_.size(), stream);
    synchronize(stream);
  }

  const CacheView* views() const { return on_device_.as<CacheView>(); }

  /// What the device's memory holds now.
  struct Values {
    std::vector<double> all;  ///< [keys, values][kv head][position][head_dim]
    std::int64_t capacity, head_dim, kv_heads;
    const double* row(int which, int head, std::int64_t position) const {
      return all.data() + ((which * kv_heads + head) * capacity + position) * head_dim;
    }
  };
  Values read(std::size_t sequence) const {
    const std::int64_t pitch = (shape_.head_dim + 7) / 8 * 8, capacity = views_[sequence].capacity, rows = 2 * shape_.kv_heads * capacity;
    std::vector<std::byte> codes(buffers_[sequence].size());
    std::vector<float> scales(static_cast<std::size_t>(rows));
    copy_bytes(codes.data(), buffers_[sequence].data(), codes.size(), stream_);
    copy_bytes(scales.data(), scale_buffers_[sequence].data(), scales.size() * sizeof(float), stream_);
    synchronize(stream_);
    Values values{{}, capacity, shape_.head_dim, shape_.kv_heads};
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < shape_.head_dim; ++i)
        values.all.push_back(get(codes, row * pitch + i) *
                             (has_scales(kind_) ? static_cast<double>(scales[static_cast<std::size_t>(row)]) : 1.0));
    return values;
  }

 private:
  float uniform() { return std::uniform_real_distribution<float>(0.0f, 1.0f)(random_); }
  void put(std::vector<std::byte>& codes, std::int64_t i) {
    const auto store = [&](auto value) { std::memcpy(codes.data() + i * static_cast<std::int64_t>(sizeof(value)), &value, sizeof(value)); };
    const float value = 4.0f * uniform() - 2.0f;
    switch (kind_) {
      case CacheKind::kFp32: return store(value);
      case CacheKind::kFp16: return store(static_cast<std::uint16_t>(encode(kFp16, value)));
      case CacheKind::kBf16: return store(static_cast<std::uint16_t>(encode(kBf16, value)));
      case CacheKind::kE4m3: return store(static_cast<std::uint8_t>(encode(kFp8E4m3, 200.0f * value)));
      case CacheKind::kInt8: return store(static_cast<std::uint8_t>(encode(kInt8, 60.0f * value)));
    }
  }
  double get(const std::vector<std::byte>& codes, std::int64_t i) const {
    const auto load = [&]<typename T>(T value) {
      std::memcpy(&value, codes.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      return value;
    };
    switch (kind_) {
      case CacheKind::kFp32: return static_cast<double>(load(0.0f));
      case CacheKind::kFp16: return static_cast<double>(decode(kFp16, load(std::uint16_t{})));
      case CacheKind::kBf16: return static_cast<double>(decode(kBf16, load(std::uint16_t{})));
      case CacheKind::kE4m3: return static_cast<double>(decode(kFp8E4m3, load(std::uint8_t{})));
      case CacheKind::kInt8: return static_cast<double>(decode(kInt8, load(std::uint8_t{})));
    }
    return 0.0;
  }

  CacheKind kind_;
  Shape4 shape_;
  Stream stream_;
  std::mt19937 random_{7};
  std::vector<Buffer> buffers_, scale_buffers_;
  std::vector<CacheView> views_;
  Buffer on_device_;
};

template <typename T>
Buffer on_device(const std::vector<T>& values, Stream stream) {
  Buffer buffer = Buffer::allocate(values.size() * sizeof(T), kDevice);
  copy_bytes(buffer.data(), values.data(), buffer.size(), stream);
  synchronize(stream);
  return buffer;
}

/// The definition for one query, and what rounding may add to it: queries and weights have 22 bits or more on the device (with bf16
/// caches 16), each product and sum of fp32 less than that.
struct Expected {
  std::vector<double> values;
  double bound;
};
Expected attend(const std::vector<double>& q, const Caches::Values& cache, int kv, int first, int end, double scale, double unit) {
  const std::size_t dim = q.size();
  std::vector<double> scores;
  double largest = -1e300, most = 0.0, value = 0.0;
  for (int key = first; key < end; ++key) {
    double sum = 0.0, size = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double product = q[i] * cache.row(0, kv, key)[i];
      sum += product;
      size += std::abs(product);
      value = std::max(value, std::abs(cache.row(1, kv, key)[i]));
    }
    scores.push_back(scale * sum);
    largest = std::max(largest, scores.back());
    most = std::max(most, scale * size);
  }
  Expected expected{std::vector<double>(dim), unit * (4.0 * most + 8.0) * value};
  double total = 0.0;
  for (double& score : scores) total += score = std::exp(score - largest);
  for (int key = first; key < end; ++key)
    for (std::size_t i = 0; i < dim; ++i)
      expected.values[i] += scores[static_cast<std::size_t>(key - first)] / total * cache.row(1, kv, key)[i];
  return expected;
}

/// What the CPU's kernels give with sums in fp64, of the query heads that share a key head; nothing where only the definition takes them.
std::vector<float> cpu_attend(const float* q, std::int64_t heads, const Caches::Values& cache, int kv, int position, int window,
                              float scale) {
  const std::vector<float> all(cache.all.begin(), cache.all.end());
  const auto row = [&](int which) { return all.data() + (cache.row(which, kv, 0) - cache.all.data()); };
  std::vector<float> out(static_cast<std::size_t>(heads * cache.head_dim));
  const AttentionProblem problem{.tokens = 1,
                                 .heads = heads,
                                 .head_dim = cache.head_dim,
                                 .first_position = position,
                                 .window = window,
                                 .scale = scale,
                                 .q = q,
                                 .q_stride = heads * cache.head_dim,
                                 .k = row(0),
                                 .v = row(1),
                                 .kv_stride = cache.head_dim,
                                 .out = out.data(),
                                 .out_stride = heads * cache.head_dim,
                                 .in_fp64 = true};
  const AttentionKernel& kernel = find(problem);
  if (kernel.isa == Isa::kScalar) return {};
  std::vector<std::byte> scratch(kernel.scratch_bytes(problem, 0, 1));
  kernel.run(problem, 0, 1, scratch.data());
  return out;
}

class EveryCache : public ::testing::TestWithParam<CacheKind> {};

TEST_P(EveryCache, RowsAreTheDefinition) {
  NARROW_REQUIRE_DEVICE();
  const OwnedStream stream;
  const CacheKind kind = GetParam();
  enum class Way { kPlaced, kRows, kExact };
  const std::vector<int> lengths{0, 1, 15, 16, 17, 63, 64, 65, 200, 777};
  for (const Shape4& shape : {Shape4{1, 1, 128, 0},
                              {4, 4, 64, 0},
                              {8, 2, 128, 0},
                              {12, 1, 64, 0},
                              {10, 2, 128, 50},
                              {16, 1, 128, 0},
                              {6, 2, 72, 0},
                              {2, 1, 192, 0}})
    for (const Way way : {Way::kPlaced, Way::kRows, Way::kExact})
      for (const int repeats : {1, 40}) {
        const bool places = way == Way::kPlaced, exact = way == Way::kExact;
        const double unit = exact ? 0x1p-22 : (kind == CacheKind::kBf16 ? 0x1p-16 : 0x1p-20);
        if (places && repeats > 1) continue;  // every row is another sequence's then
        SCOPED_TRACE(fmt::format("{} heads, {} of keys, of {}, window {}{}, {} times", shape.heads, shape.kv_heads, shape.head_dim,
                                 shape.window, places ? ", placed" : (exact ? ", exact" : ""), repeats));
        const Caches caches(kind, shape, lengths, stream);
        std::vector<std::int32_t> sequences, positions;
        for (int i = 0; i < repeats; ++i)
          for (std::size_t s = 0; s < lengths.size(); ++s) {
            sequences.push_back(static_cast<std::int32_t>(s));
            positions.push_back(std::max(0, lengths[s] - i));
          }
        const int rows = static_cast<int>(sequences.size()), half = shape.head_dim / 2;
        const std::int64_t pitch = (shape.head_dim + 7) / 8 * 8,
                           width = places ? (shape.heads + 2 * shape.kv_heads) * shape.head_dim : shape.heads * pitch;
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        std::vector<float> q(static_cast<std::size_t>(rows * width)), cosine(static_cast<std::size_t>(rows * half)), sine = cosine;
        for (float& x : q) x = normal(random);
        for (std::size_t i = 0; i < cosine.size(); ++i)
          cosine[i] = std::cos(static_cast<float>(i)), sine[i] = std::sin(static_cast<float>(i));
        std::vector<std::int32_t> table_rows(static_cast<std::size_t>(rows));
        for (int i = 0; i < rows; ++i) table_rows[static_cast<std::size_t>(i)] = i;
        const Buffer q_there = on_device(q, stream), cosine_there = on_device(cosine, stream), sine_there = on_device(sine, stream),
                     table_there = on_device(table_rows, stream), sequences_there = on_device(sequences, stream),
                     positions_there = on_device(positions, stream);
        const std::size_t results = static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.heads * shape.head_dim);
        const Guarded out(results * sizeof(float), 0, stream);
        AttendProblem problem;
        problem.shape = {rows,
                         shape.heads,
                         shape.kv_heads,
                         shape.head_dim,
                         0,
                         kind,
                         caches.views(),
                         sequences_there.as<std::int32_t>(),
                         positions_there.as<std::int32_t>()};
        problem.q = q_there.data();
        problem.window = shape.window;
        problem.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        problem.out = out.data();
        problem.places = places;
        problem.place.shape = problem.shape;
        problem.place.qkv = q_there.data();
        problem.place.cosine = cosine_there.as<float>();
        problem.place.sine = sine_there.as<float>();
        problem.place.table_rows = table_there.as<std::int32_t>();
        check(exact ? launch_attend_exact(problem, stream) : launch_attend_rows(problem, stream), "attention");
        out.check(stream, "attention");
        std::vector<float> found(results);
        copy_bytes(found.data(), out.data(), results * sizeof(float), stream);
        synchronize(stream);

        std::vector<Caches::Values> held;
        for (std::size_t s = 0; s < lengths.size(); ++s) held.push_back(caches.read(s));
        const int group = shape.heads / shape.kv_heads;
        for (int row = 0; exact && row < rows; ++row)
          for (int kv = 0; kv < shape.kv_heads; ++kv) {
            const auto r = static_cast<std::size_t>(row);
            const std::vector<float> expected =
                cpu_attend(q.data() + row * width + kv * group * pitch, group, held[static_cast<std::size_t>(sequences[r])], kv,
                           positions[r], shape.window, problem.scale);
            const float* mine = found.data() + (row * shape.heads + kv * group) * shape.head_dim;
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(), mine)) << "row " << row << ", key head " << kv;
          }
        for (int row = 0; row < rows; ++row)
          for (int head = 0; head < shape.heads; ++head) {
            std::vector<double> own(static_cast<std::size_t>(shape.head_dim));
            const float* from = q.data() + row * width + head * (places ? shape.head_dim : pitch);
            for (int i = 0; i < shape.head_dim; ++i) {
              own[static_cast<std::size_t>(i)] = static_cast<double>(from[i]);
              if (!places) continue;
              const std::size_t at = static_cast<std::size_t>(row * half + i % half);
              const double other = static_cast<double>(from[i < half ? i + half : i - half]);
              own[static_cast<std::size_t>(i)] = own[static_cast<std::size_t>(i)] * static_cast<double>(cosine[at]) +
                                                 (i < half ? -other : other) * static_cast<double>(sine[at]);
            }
            const int position = positions[static_cast<std::size_t>(row)],
                      first = shape.window > 0 ? std::max(0, position + 1 - shape.window) : 0;
            const Expected expected =
                attend(own, held[static_cast<std::size_t>(sequences[static_cast<std::size_t>(row)])], head / (shape.heads / shape.kv_heads),
                       first, position + 1, static_cast<double>(problem.scale), unit);
            for (int i = 0; i < shape.head_dim; ++i)
              ASSERT_NEAR(static_cast<double>(found[static_cast<std::size_t>((row * shape.heads + head) * shape.head_dim + i)]),
                          expected.values[static_cast<std::size_t>(i)], expected.bound)
                  << "row " << row << " at " << position << ", head " << head << ", element " << i;
          }
      }
}

INSTANTIATE_TEST_SUITE_P(Attend, EveryCache,
                         ::testing::Values(CacheKind::kFp32, CacheKind::kFp16, CacheKind::kBf16, CacheKind::kE4m3, CacheKind::kInt8));

}  // namespace
}  // namespace narrow::cuda::testing
