// What an instruction set may do better than the compiler, in plain form. A leaf includes this file or has its own.

/// The low kBytes bytes of every 64-bit lane, side by side in memory.
template <int kBytes>
struct LowBytes {
  void store(std::uint8_t* to, VL words) const {
    for (int i = 0; i < kLanes / 2; ++i) {
      const std::uint64_t word = words[i];
      __builtin_memcpy(to + i * kBytes, &word, 8);  // the next store overwrites what is not of this word
    }
  }

  VL load(const std::uint8_t* from) const {
    VL words{};
    for (int i = 0; i < kLanes / 2; ++i) {
      std::uint64_t word;
      __builtin_memcpy(&word, from + i * kBytes, 8);
      words[i] = word;
    }
    return words;
  }
};
