#pragma once
/// From packed codes to pairs of fp16 or bf16 in the registers of a fragment: shifts, masks and at most two 16-bit operations per pair.
///
/// floats:    the bits of a code are laid into fp16's sign, exponent and mantissa: fp16 = value * 2^(bias - 15), subnormals included; the
///            power of two is in the row's factor. bf16 has the same fields three bits lower: bf16 * 2^112 is the same number.
/// integers:  1024 + code (bf16: 128 + code) is the code below an exponent; the zero point is taken off with it. In fp16 there is room for
///            two codes of up to 4 bits: those in bits 4 and up give 1024 + 16 code, and are divided by 16 on the way. Exact.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <utility>

#include "kernels/cuda/weight_layout.h"

namespace narrow::cuda::sm90 {

/// The moves that bring the bits of one pair to their places: (word << shift) & mask, each mask in both halves.
struct Moves {
  int count = 0;
  int word[kMostBits] = {}, shift[kMostBits] = {};
  std::uint32_t mask[kMostBits] = {};
};

/// `lowest`: the bit of a float's 16-bit value where its magnitude begins; 10 - M of fp16, 7 - M of bf16.
NARROW_HOST_DEVICE constexpr Moves moves_of(const Placement& placement, WeightKind kind, int bits, int lowest, int pair) {
  Moves moves;
  for (int i = 0; i < bits; ++i) {
    const int target = kind == WeightKind::kInteger ? i : (i == bits - 1 ? 15 : lowest + i);
    const int word = placement.word[pair][i], shift = target - placement.bit[pair][i];
    int found = 0;
    while (found < moves.count && (moves.word[found] != word || moves.shift[found] != shift)) ++found;
    if (found == moves.count) {
      moves.word[found] = word;
      moves.shift[found] = shift;
      moves.mask[found] = 0;
      ++moves.count;
    }
    moves.mask[found] |= 0x00010001u << target;
  }
  return moves;
}

/// Whether the lowest `bits` bits of a pair lie side by side in one word.
NARROW_HOST_DEVICE constexpr bool is_one_piece(const Placement& placement, int bits, int pair) {
  for (int i = 1; i < bits; ++i)
    if (placement.word[pair][i] != placement.word[pair][0] || placement.bit[pair][i] != placement.bit[pair][0] + i) return false;
  return true;
}

/// (a & mask) | b in one instruction; left to itself the compiler takes two where b is a constant as well.
__device__ inline std::uint32_t and_or(std::uint32_t a, std::uint32_t mask, std::uint32_t b) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(a), "r"(mask), "r"(b));
  return result;
}

/// (~a & mask) | b.
__device__ inline std::uint32_t and_not_or(std::uint32_t a, std::uint32_t mask, std::uint32_t b) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xAE;" : "=r"(result) : "r"(a), "r"(mask), "r"(b));
  return result;
}

/// A pair whose pieces lie in one word, by one multiplication: (word & sources) * factor & places, the factor a sum of powers of two.
struct Multiplication {
  std::uint32_t sources = 0, factor = 0, places = 0;
  bool is_right = false;  ///< whatever the bits are: what pieces become by each other's powers, and the carries, miss the places
};
NARROW_HOST_DEVICE constexpr Multiplication multiplication_of(const Moves& moves) {
  Multiplication one;
  if (moves.count < 2) return one;
  for (int i = 0; i < moves.count; ++i) {
    if (moves.word[i] != moves.word[0] || moves.shift[i] <= 0) return one;
    one.sources |= moves.mask[i] >> moves.shift[i];
    one.factor += 1u << moves.shift[i];
    one.places |= moves.mask[i];
  }
  int carry = 0;  // the most that comes from the bits below
  for (int bit = 0; bit < 32; ++bit) {
    int count = carry;
    for (int i = 0; i < moves.count; ++i) count += bit >= moves.shift[i] ? static_cast<int>(one.sources >> (bit - moves.shift[i]) & 1u) : 0;
    if ((one.places >> bit & 1u) != 0 && count != 1) return one;
    carry = count / 2;
  }
  one.is_right = true;
  return one;
}

/// The bits of a pair at their places, or-ed to `start`. kMultiplies: two pieces by one multiplication where that is right; more always.
template <WeightKind kKind, int kBits, int kMantissa, int kLowest, int kPair, bool kMultiplies = false>
__device__ inline std::uint32_t gather_bits(const std::uint32_t* words, std::uint32_t start) {
  constexpr Moves kMoves = moves_of(kPlacement<kKind, kBits, kMantissa>, kKind, kBits, kLowest, kPair);
  if constexpr (kKind == WeightKind::kFloat && (kMultiplies || kMoves.count > 2)) {
    constexpr Multiplication kOne = multiplication_of(kMoves);
    if constexpr (kOne.is_right) return (words[kMoves.word[0]] & kOne.sources) * kOne.factor & kOne.places;
  }
  std::uint32_t result = start;
#pragma unroll
  for (int i = 0; i < kMoves.count; ++i) {
    const std::uint32_t word = words[kMoves.word[i]];
    const std::uint32_t moved = kMoves.shift[i] >= 0 ? word << kMoves.shift[i] : word >> -kMoves.shift[i];
    result = kKind == WeightKind::kInteger || i > 0 ? and_or(moved, kMoves.mask[i], result) : moved & kMoves.mask[i];
  }
  return result;
}

__device__ inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("{\n.reg .b32 zero;\nmov.b32 zero, 0x80008000;\nfma.rn.bf16x2 %0, %1, %2, zero;\n}\n" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
/// A value as fp16 or bf16, twice.
template <bool kBf16>
__device__ inline std::uint32_t twice(float value) {
  std::uint32_t result;
  if constexpr (kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(result) : "f"(value));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(result) : "f"(value));
  return result;
}
/// One half of a pair, twice; instructions on pairs can read it so.
template <int kHalf>
__device__ inline std::uint32_t half_twice(std::uint32_t pair) {
  std::uint32_t result;
  if constexpr (kHalf == 0)
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}\n" : "=r"(result) : "r"(pair));
  else
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}\n" : "=r"(result) : "r"(pair));
  return result;
}
template <bool kBf16>
__device__ inline std::uint32_t multiply_pair(std::uint32_t a, std::uint32_t b) {
  if constexpr (kBf16) return multiply_bf16(a, b);
  std::uint32_t result;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {  // a - b
  std::uint32_t result;
  asm("{\n.reg .b32 minus;\nmov.b32 minus, 0xBF80BF80;\nfma.rn.bf16x2 %0, %2, minus, %1;\n}\n" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline std::uint32_t subtract_f16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline std::uint32_t f16_to_bf16(std::uint32_t pair) {
  const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  std::uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(two.y), "f"(two.x));
  return result;
}

__device__ inline std::uint32_t multiply_add_f16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// What decoding needs besides the codes: known per launch, and per row and block (integers).
struct DecodeState {
  std::uint32_t magic = 0;  ///< integers: 1024 (or 128) in both halves; a register, so that it and a mask go into one instruction
  std::uint32_t sixteenth = 0x2C002C00u;
  std::uint32_t shift = 0;      ///< floats stored for another mantissa than theirs: rotation to their place, 0 .. 31
  std::uint32_t magnitude = 0;  ///< and the mask of their exponent and mantissa, in both halves
  /// integers: what is taken off, 1024 (or 128, or 64 of codes in bits 4 and up) + zero point, of rows t / 4 and t / 4 + 8, in both halves
  std::uint32_t zero[2] = {}, zero_high[2] = {};
};

/// kMantissa: the mantissa for whose place floats are stored. kAny: theirs is another one, known at run time.
template <WeightKind kKind_, int kBits_, bool kAny_ = false, int kMantissa_ = stored_mantissa(kBits_)>
struct Decoder {
  static constexpr WeightKind kKind = kKind_;
  static constexpr int kBits = kBits_;
  static constexpr bool kAny = kAny_;
  static constexpr int kMantissa = kMantissa_;

  /// Whether codes in bits 4 and up are decoded in place.
  template <bool kBf16>
  static constexpr bool kHigh = !kBf16 && kKind == WeightKind::kInteger && kBits <= 4 && has_even_fields(kKind, kBits);

  /// Whether 128 is taken off codes while they are decoded: then `zero` is what is left, and take_off's.
  template <bool kBf16>
  static constexpr bool kCentred = kBf16&& kKind == WeightKind::kInteger&& kBits == 8;
  /// From the four pairs of a fragment.
  __device__ static void take_off(const DecodeState& state, std::uint32_t* a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = subtract_bf16(a[i], state.zero[i % 2]);
  }

  /// Sets what is taken off row t / 4 (0) or t / 4 + 8 (1).
  template <bool kBf16>
  __device__ static void set_zero(DecodeState& state, int row, int zero) {
    const auto value = static_cast<std::uint32_t>(zero);
    if constexpr (!kBf16)
      state.zero[row] = (0x6400u + value) * 0x00010001u;
    else if constexpr (kBits < 8)
      state.zero[row] = (0x4300u + value) * 0x00010001u;
    else
      state.zero[row] = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(zero - 128))) * 0x00010001u;
    if constexpr (kHigh<kBf16>) state.zero_high[row] = (0xD400u + 16 * value) * 0x00010001u;  // -(64 + zero), in steps of 1/16
  }

  /// An integer in one of its word's even fields, below an exponent, at bit 0 or 4.
  template <int kPair>
  __device__ static std::uint32_t even_field(const std::uint32_t* words, std::uint32_t magic) {
    constexpr int kField = kPair % (16 / kBits) * kBits, kShift = kField / 8 * 8 + kField % 4, kPlace = kField - kShift;
    constexpr std::uint32_t kMask = ((1u << kBits) - 1u) * 0x00010001u << kPlace;
    return and_or(words[kPair / (16 / kBits)] >> kShift, kMask, magic);
  }

  /// A float as fp16 that is stored for another mantissa than its own. A magnitude in one piece is moved and turned at once.
  template <int kPair, bool kMultiplies>
  __device__ static std::uint32_t any_pair(const std::uint32_t* words, const DecodeState& state) {
    constexpr Placement kPlaces = kPlacement<kKind, kBits, kMantissa>;
    constexpr int kWord = kPlaces.word[kPair][0], kShift = 10 - kMantissa - kPlaces.bit[kPair][0];
    constexpr int kSignWord = kPlaces.word[kPair][kBits - 1], kSignShift = 15 - kPlaces.bit[kPair][kBits - 1];
    constexpr bool kIsOnePiece = is_one_piece(kPlaces, kBits - 1, kPair);
    if constexpr (kIsOnePiece) {
      const std::uint32_t turned = __funnelshift_l(words[kWord], words[kWord], state.shift + static_cast<std::uint32_t>(kShift));
      return and_or(words[kSignWord] << kSignShift, 0x80008000u, turned & state.magnitude);
    }
    const std::uint32_t stored = gather_bits<kKind, kBits, kMantissa, 10 - kMantissa, kPair, kMultiplies>(words, 0);
    return and_or(stored, 0x80008000u, __funnelshift_l(stored, stored, state.shift) & state.magnitude);
  }

  template <bool kBf16, int kPair, bool kMultiplies = false>
  __device__ static std::uint32_t pair(const std::uint32_t* words, const DecodeState& state) {
    if constexpr (kKind == WeightKind::kDense) {
      return words[kPair];
    } else if constexpr (kKind == WeightKind::kInteger) {
      const std::uint32_t zero = state.zero[kPair % 2];
      if constexpr (kHigh<kBf16>) {
        const std::uint32_t value = even_field<kPair>(words, state.magic);
        constexpr bool kAtBit4 = kPair % (16 / kBits) * kBits % 8 >= 4;
        return kAtBit4 ? multiply_add_f16(value, state.sixteenth, state.zero_high[kPair % 2]) : subtract_f16(value, zero);
      }
      if constexpr (!kBf16) return subtract_f16(gather_bits<kKind, kBits, kMantissa, 0, kPair>(words, state.magic), zero);
      if constexpr (kBits < 8) return subtract_bf16(gather_bits<kKind, kBits, kMantissa, 0, kPair>(words, state.magic), zero);
      // Seven bits fit below 128; the eighth decides whether 128 or 256 is taken off.
      const std::uint32_t code = words[kPair / 2] >> kPair % 2 * 8;
      return subtract_bf16(and_or(code, 0x007F007Fu, state.magic), and_not_or(code, 0x00800080u, state.magic));
    } else if constexpr (kAny) {
      const std::uint32_t half = any_pair<kPair, kMultiplies>(words, state);
      return kBf16 ? f16_to_bf16(half) : half;
    } else if constexpr (kBf16) {
      return multiply_bf16(gather_bits<kKind, kBits, kMantissa, 7 - kMantissa, kPair, kMultiplies>(words, 0), 0x77807780u);  // 2^112
    } else {
      return gather_bits<kKind, kBits, kMantissa, 10 - kMantissa, kPair, kMultiplies>(words, 0);
    }
  }

  /// The four pairs of one fragment of 16 columns. kMultiplies spares instructions and takes registers, which streams do not have.
  template <bool kBf16, int kStep, bool kMultiplies = false>
  __device__ static void decode_step(const std::uint32_t* words, const DecodeState& state, std::uint32_t* a) {
    a[0] = pair<kBf16, kStep * 4, kMultiplies>(words, state);
    a[1] = pair<kBf16, kStep * 4 + 1, kMultiplies>(words, state);
    a[2] = pair<kBf16, kStep * 4 + 2, kMultiplies>(words, state);
    a[3] = pair<kBf16, kStep * 4 + 3, kMultiplies>(words, state);
  }
};

}  // namespace narrow::cuda::sm90
