#include "model/cuda/device_cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "device/cuda/runtime.h"
#include "narrow/error.h"

namespace narrow::model {
namespace {

constexpr std::int64_t kFirstCapacity = 64;

cuda::CacheKind kind_of(const Scheme& scheme) {
  if (scheme.element.bits == 32) return cuda::CacheKind::kFp32;
  if (!scheme.has_scales() && scheme.element == kFp16) return cuda::CacheKind::kFp16;
  if (!scheme.has_scales() && scheme.element == kBf16) return cuda::CacheKind::kBf16;
  const bool by_row = scheme.granularity == Granularity::row() && scheme.scale == kFp32 && !scheme.asymmetric && !scheme.has_outer_scale;
  if (by_row && scheme.element == kFp8E4m3) return cuda::CacheKind::kE4m3;
  if (by_row && scheme.element == kInt8) return cuda::CacheKind::kInt8;
  throw Unsupported(
      fmt::format("a KV cache on a CUDA device is fp32, fp16, bf16, fp8_e4m3:row or int8:row, not {}; use one of these, or the CPU",
                  scheme.to_string()));
}

}  // namespace

DeviceCache::DeviceCache(const ModelConfig& config, const Scheme& scheme, Device device)
    : device_(device), kind_(kind_of(scheme)), rows_per_position_(config.layers * 2 * config.kv_heads) {
  row_bytes_ = (config.head_dim + 7) / 8 * 8 * cuda::bytes_of(kind_);
}

void DeviceCache::reserve(std::int64_t positions, std::int64_t size, cuda::Stream stream) {
  if (positions <= capacity_) return;
  const std::int64_t capacity = std::max({positions, 2 * capacity_, kFirstCapacity});
  Buffer codes = Buffer::allocate(static_cast<std::size_t>(rows_per_position_ * capacity * row_bytes_), device_);
  Buffer scales =
      Buffer::allocate(cuda::has_scales(kind_) ? static_cast<std::size_t>(rows_per_position_ * capacity) * sizeof(float) : 0, device_);
  const auto move = [&](const Buffer& from, const Buffer& to, std::int64_t bytes) {
    for (std::int64_t i = 0; i < rows_per_position_ && from.size() > 0 && to.size() > 0; ++i)
      cuda::copy_bytes(to.data() + i * capacity * bytes, from.data() + i * capacity_ * bytes, static_cast<std::size_t>(size * bytes),
                       stream);
  };
  if (size > 0) {
    move(codes_, codes, row_bytes_);
    move(scales_, scales, static_cast<std::int64_t>(sizeof(float)));
    cuda::synchronize(stream);
  }
  capacity_ = capacity;
  codes_ = std::move(codes);
  scales_ = std::move(scales);
}

}  // namespace narrow::model
