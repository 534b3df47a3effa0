#include "model/cuda/device_score.h"

#include "device/cuda/runtime.h"
#include "kernels/cuda/decoder/decoder.h"

namespace narrow::model {

std::vector<RowSums> sums_on_device(const Tensor& x, const Tensor* y, std::span<const LogitRow> rows) {
  const cuda::DeviceGuard guard(x.device().index);
  const cuda::OwnedStream stream(x.device().index);
  const std::size_t count = rows.size();
  std::vector<std::int32_t> named;  // rows, then tokens
  for (const LogitRow& row : rows) named.push_back(row.row);
  for (const LogitRow& row : rows) named.push_back(row.token);
  const Buffer names = Buffer::allocate(named.size() * sizeof(std::int32_t), x.device()),
               sums = Buffer::allocate(count * sizeof(LogitSums), x.device()), logits = Buffer::allocate(count * sizeof(float), x.device());
  cuda::copy_bytes(names.data(), named.data(), names.size(), stream);
  cuda::check(cuda::launch_score({.x = x.as<float>(),
                                  .y = y != nullptr ? y->as<float>() : nullptr,
                                  .vocabulary = x.shape().back(),
                                  .rows = static_cast<std::int64_t>(count),
                                  .rows_of = names.as<std::int32_t>(),
                                  .tokens = names.as<std::int32_t>() + count,
                                  .sums = sums.as<LogitSums>(),
                                  .logits = logits.as<float>()},
                                 stream),
              "score");
  std::vector<LogitSums> all(count);
  std::vector<float> chosen(count);
  cuda::copy_bytes(all.data(), sums.data(), sums.size(), stream);
  cuda::copy_bytes(chosen.data(), logits.data(), logits.size(), stream);
  cuda::synchronize(stream);
  std::vector<RowSums> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back({all[i], chosen[i]});
  return result;
}

}  // namespace narrow::model
