// All of a leaf's bodies, in their order. A leaf defines kLanes, includes vector.inl, adds what its instruction set does
// best (load_codes, store_codes, store_low_bytes, widen_*, stream, fence, max_of_each, any_lane, multiply_add,
// lowest_bytes, highest_bytes, Table, LowBytes) and includes this file.

constexpr int kChunk = 2048;        // columns handled at a time: inputs, codes and scales stay in the first-level cache
// Columns measured before they are encoded: few where the next ones are fetched meanwhile, many where the hardware has to foresee them.
constexpr int kFetchedGroup = 4096, kUnfetchedGroup = 16384;
constexpr int kMaxCells = kChunk;

#include "kernels/cpu/quantize/encode.inl"
#include "kernels/cpu/quantize/decode.inl"
#include "kernels/cpu/quantize/pack.inl"
#include "kernels/cpu/quantize/stats.inl"
#include "kernels/cpu/quantize/scales.inl"
#include "kernels/cpu/quantize/run_codes.inl"
#include "kernels/cpu/quantize/runs.inl"
#include "kernels/cpu/quantize/quantize.inl"
#include "kernels/cpu/quantize/dequantize.inl"
