// All of a leaf's bodies, in their order. A leaf defines kLanes, includes vector.inl, adds what its instruction set does
// best (load_codes, store_codes, store_low_bytes, widen_*, stream, fence, max_of_each, highest_lane, any_lane, multiply_add,
// lowest_bytes, highest_bytes, sum_with_binade, SumCodes, clamped, Table, LowBytes) and includes this file.

constexpr int kChunk = 2048;  // columns handled at a time: inputs, codes and scales stay in the first-level cache
// Values between what is encoded and what is fetched: two chunks, so that nothing is measured that is still on its way.
constexpr int kFetchAhead = 2 * kChunk;
constexpr int kMaxCells = kChunk;

// What loops must not call; the minimal library, compiled for size, has one copy of it instead.
#ifdef __OPTIMIZE_SIZE__
#define NARROW_FAST_INLINE [[gnu::noinline]] inline
constexpr bool kForSpeed = false;  // nor has it loops for certain sizes of blocks
#else
#define NARROW_FAST_INLINE [[gnu::always_inline]] inline
constexpr bool kForSpeed = true;
#endif

#include "kernels/cpu/quantize/encode.inl"
#include "kernels/cpu/quantize/decode.inl"
#include "kernels/cpu/quantize/pack.inl"
#include "kernels/cpu/quantize/stats.inl"
#include "kernels/cpu/quantize/run_codes.inl"
#include "kernels/cpu/quantize/scales.inl"
#include "kernels/cpu/quantize/runs.inl"
#include "kernels/cpu/quantize/quantize.inl"
#include "kernels/cpu/quantize/dequantize.inl"
