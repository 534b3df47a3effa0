// Vectors of kLanes 32-bit lanes on the compiler's own vector types: operators work lane by lane, comparisons give
// 0 or -1 per lane. Included by a leaf inside its own namespace, after `constexpr int kLanes` = 4, 8 or 16.

using VF [[gnu::vector_size(kLanes * 4)]] = float;
using VI [[gnu::vector_size(kLanes * 4)]] = std::int32_t;
using VU [[gnu::vector_size(kLanes * 4)]] = std::uint32_t;
using VD [[gnu::vector_size(kLanes * 4)]] = double;             // kLanes / 2 lanes
using VL [[gnu::vector_size(kLanes * 4)]] = std::uint64_t;      // kLanes / 2 lanes
using VByte [[gnu::vector_size(kLanes)]] = std::uint8_t;        // kLanes lanes
using VBytes [[gnu::vector_size(kLanes * 4)]] = std::uint8_t;   // 4 * kLanes lanes
using VWords [[gnu::vector_size(kLanes * 4)]] = std::uint16_t;  // 2 * kLanes lanes
using VHalf [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;   // kLanes lanes
using VShort [[gnu::vector_size(kLanes * 2)]] = std::int16_t;

constexpr std::int32_t kInfinityBits = 0x7F800000;
constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;

template <typename V, typename T>
inline V load(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <typename V, typename T>
inline void store(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

inline VF splat(float value) { return value - VF{}; }  // a broadcast: value - 0 is value, also of -0 and NaN
inline VI splat(std::int32_t value) { return value - VI{}; }
inline VU splat(std::uint32_t value) { return value - VU{}; }

template <typename V>
inline V smaller(V a, V b) {
  return a < b ? a : b;
}
template <typename V>
inline V larger(V a, V b) {
  return a > b ? a : b;
}

inline VI as_int(VF value) { return (VI)value; }
inline VU as_bits(VF value) { return (VU)value; }
inline VF as_float(VU bits) { return (VF)bits; }
inline VF as_float(VI bits) { return (VF)bits; }
inline VF to_float(VI value) { return __builtin_convertvector(value, VF); }
inline VI truncated(VF value) { return __builtin_convertvector(value, VI); }
inline VI magnitude_of(VF value) { return (VI)((VU)value & kMagnitude); }

inline VI lane_numbers() {
  VI lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

template <typename T>
inline T min_of(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
inline T max_of(T a, T b) {
  return a > b ? a : b;
}
inline int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }
inline float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline std::uint32_t bits_of_float(float value) { return __builtin_bit_cast(std::uint32_t, value); }
