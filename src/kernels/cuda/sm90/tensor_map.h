#pragma once
/// Tensor maps of matrices, for the launches of kernels that copy boxes of them.

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace narrow::cuda::sm90 {

/// cuTensorMapEncodeTiled, from the driver that is there: the library does not link it.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found) != cudaSuccess)
      return PFN_cuTensorMapEncodeTiled_v12000{};
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
  }();
  return function;
}

/// A matrix of `rows` rows of `columns` elements, `pitch` bytes apart, copied in boxes of box_bytes x box_rows; or stripes of such
/// matrices, several of which make a box.
struct MatrixMap {
  const void* data;
  int element_bytes;  ///< 1, 2, 4
  std::int64_t columns, rows, pitch;
  int box_bytes, box_rows;
  bool swizzled = true;       ///< as wide as the box where that is 128, 64 or 32 bytes
  bool fetches_ahead = true;  ///< the second-level cache fetches 256 bytes where less is asked for
  struct {
    std::int64_t pitch = 0, count = 1;
    int box = 0;  ///< 0: no stripes
  } stripes{};
  int span = 0;  ///< > 0: of every 8 * span rows, which divide the matrix and the box, row span * p + i comes as number 8 * i + p
};

inline bool encode_matrix_map(CUtensorMap& map, const MatrixMap& m) {
  if (tensor_map_encoder() == nullptr) return false;
  const CUtensorMapDataType type = m.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : m.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const CUtensorMapSwizzle swizzle = !m.swizzled          ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : m.box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : m.box_bytes == 64  ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : m.box_bytes == 32  ? CU_TENSOR_MAP_SWIZZLE_32B
                                                          : CU_TENSOR_MAP_SWIZZLE_NONE;
  const auto rows = static_cast<cuuint64_t>(m.rows), pitch = static_cast<cuuint64_t>(m.pitch);
  cuuint64_t sizes[4] = {static_cast<cuuint64_t>(m.columns), rows, static_cast<cuuint64_t>(m.stripes.count)},
             strides[3] = {pitch, static_cast<cuuint64_t>(m.stripes.pitch)};
  cuuint32_t box[4] = {static_cast<cuuint32_t>(m.box_bytes / m.element_bytes), static_cast<cuuint32_t>(m.box_rows),
                       static_cast<cuuint32_t>(m.stripes.box)};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  if (m.span > 0) {
    const auto span = static_cast<cuuint32_t>(m.span);
    sizes[1] = box[1] = 8, strides[0] = pitch * span;
    sizes[2] = box[2] = span, strides[1] = pitch;
    sizes[3] = rows / (8 * span), strides[2] = pitch * 8 * span, box[3] = static_cast<cuuint32_t>(m.box_rows) / (8 * span);
  }
  return tensor_map_encoder()(&map, type,
                              m.span > 0          ? 4
                              : m.stripes.box > 0 ? 3
                                                  : 2,
                              const_cast<void*>(m.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                              m.fetches_ahead ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace narrow::cuda::sm90
