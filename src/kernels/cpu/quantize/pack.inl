// Codes, one per byte or one per 16 bits, to and from the canonical packed form (format/packing.h).

/// The three steps of pack_eight and unpack_eight on vectors of 64-bit words: masks and shifts for a width.
struct PackSteps {
  std::uint64_t low[3], high[3];  ///< of a pair the lower and the upper neighbour, packed form
  int shift[3];
};

constexpr PackSteps pack_steps(int bits) {
  constexpr std::uint64_t kPairs[3] = {0x0001000100010001u, 0x0000000100000001u, 0x0000000000000001u};
  PackSteps steps{};
  for (int i = 0; i < 3; ++i) {
    const int width = bits << i, spacing = 8 << i;
    steps.low[i] = ((std::uint64_t{1} << width) - 1u) * kPairs[i];
    steps.high[i] = steps.low[i] << spacing;
    steps.shift[i] = (8 - bits) << i;
  }
  return steps;
}

/// Packs codes of kBits = 1..7 bits, one per byte; `codes` is readable up to a multiple of 4 * kLanes, `packed` has kSpare
/// bytes to spare.
template <int kBits>
inline void pack_bytes(const std::uint8_t* codes, int count, std::uint8_t* packed) {
  constexpr int kWords = kLanes / 2;
  constexpr PackSteps kSteps = pack_steps(kBits);
  const LowBytes<kBits> low_bytes;
  for (int i = 0; i < count; i += 8 * kWords) {
    VL x = load<VL>(codes + i);
#pragma GCC unroll 3
    for (int step = 0; step < 3; ++step) x = (x & kSteps.low[step]) | ((x & kSteps.high[step]) >> kSteps.shift[step]);
    low_bytes.store(packed, x);
    packed += kWords * kBits;
  }
}

/// Two codes of 4 bits are a byte once the upper one is moved down.
template <>
inline void pack_bytes<4>(const std::uint8_t* codes, int count, std::uint8_t* packed) {
  for (int i = 0; i < count; i += 4 * kLanes, packed += 2 * kLanes) {
    const VWords pairs = load<VWords>(codes + i);
    store_low_bytes(packed, pairs | (pairs >> 4));
  }
}

/// The inverse. Reads up to kSpare bytes beyond; writes whole vectors.
template <int kBits>
inline void unpack_bytes(const std::uint8_t* packed, int count, std::uint8_t* codes) {
  constexpr int kWords = kLanes / 2;
  constexpr PackSteps kSteps = pack_steps(kBits);
  const LowBytes<kBits> low_bytes;
  for (int i = 0; i < count; i += 8 * kWords) {
    VL x = low_bytes.load(packed);
#pragma GCC unroll 3
    for (int step = 2; step >= 0; --step) x = (x & kSteps.low[step]) | ((x << kSteps.shift[step]) & kSteps.high[step]);
    store(codes + i, x);
    packed += kWords * kBits;
  }
}

inline void pack_bytes(const std::uint8_t* codes, int count, int bits, std::uint8_t* packed) {
  switch (bits) {
    case 1: return pack_bytes<1>(codes, count, packed);
    case 2: return pack_bytes<2>(codes, count, packed);
    case 3: return pack_bytes<3>(codes, count, packed);
    case 4: return pack_bytes<4>(codes, count, packed);
    case 5: return pack_bytes<5>(codes, count, packed);
    case 6: return pack_bytes<6>(codes, count, packed);
    default: return pack_bytes<7>(codes, count, packed);
  }
}

inline void unpack_bytes(const std::uint8_t* packed, int count, int bits, std::uint8_t* codes) {
  switch (bits) {
    case 1: return unpack_bytes<1>(packed, count, codes);
    case 2: return unpack_bytes<2>(packed, count, codes);
    case 3: return unpack_bytes<3>(packed, count, codes);
    case 4: return unpack_bytes<4>(packed, count, codes);
    case 5: return unpack_bytes<5>(packed, count, codes);
    case 6: return unpack_bytes<6>(packed, count, codes);
    default: return unpack_bytes<7>(packed, count, codes);
  }
}

/// Codes of 9..15 bits, one per 16-bit word: four at a time make a 64-bit word of 4 * bits bits, two of those end on a byte.
inline void pack_words(const std::uint16_t* codes, int count, int bits, std::uint8_t* packed) {
  for (int i = 0; i < count; i += 8, packed += bits) {
    std::uint64_t half[2];
    for (int part = 0; part < 2; ++part) {
      const std::uint16_t* c = codes + i + 4 * part;
      half[part] = c[0] | (std::uint64_t{c[1]} << bits) | (std::uint64_t{c[2]} << (2 * bits)) | (std::uint64_t{c[3]} << (3 * bits));
    }
    const std::uint64_t low = half[0] | (half[1] << (4 * bits)), high = half[1] >> (64 - 4 * bits);
    __builtin_memcpy(packed, &low, 8);
    __builtin_memcpy(packed + 8, &high, 8);
  }
}

/// The inverse; reads up to 8 bytes beyond.
inline void unpack_words(const std::uint8_t* packed, int count, int bits, std::uint16_t* codes) {
  const std::uint32_t mask = (1u << bits) - 1u;
  for (int i = 0; i < count; ++i) {
    std::uint32_t window;
    __builtin_memcpy(&window, packed + (static_cast<std::int64_t>(i) * bits) / 8, sizeof window);
    codes[i] = static_cast<std::uint16_t>((window >> (i * bits % 8)) & mask);
  }
}

/// Copies finished bytes to their place, around the caches where that pays and whole cache lines are written.
inline void write_out(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes, bool around_caches) {
  std::size_t done = 0;
  if (around_caches && reinterpret_cast<std::uintptr_t>(to) % 64 == 0)
    for (; done + 64 <= bytes; done += 64)
      for (std::size_t part = 0; part < 64; part += sizeof(VF))
        stream(reinterpret_cast<float*>(to + done + part), load<VF>(from + done + part));
  __builtin_memcpy(to + done, from + done, bytes - done);
}
