// The product loop of AVX-512 VNNI for 6 rows x 64 outputs of 8-bit codes, as assembly: 24 sums, 4 vectors of weights and a broadcast stay
// in 29 registers. What compilers make of the same intrinsics reaches 83 % of the instruction's rate, this loop 100 %.
// Included in a leaf's namespace after matmul_decode.inl.

/// Rows of activations, where k ends, and what the sums start from; the loop reads the members by their offsets.
struct DotLoopTask {
  const std::int8_t* x[6];
  std::int64_t end;
  std::int32_t starts[6];
};
static_assert(offsetof(DotLoopTask, end) == 48 && offsetof(DotLoopTask, starts) == 56);

/// Fetches the line `ahead` bytes after the first of every four that it reads.
/// sum[r] = starts[r] + sum over k in [begin, end) of x[r][k] w[k][64]; begin < end are multiples of 4, w points at k = begin.
[[gnu::always_inline]] inline void dot_loop(const std::byte* w, const std::int8_t* const* x, std::int64_t begin, std::int64_t end,
                                            const std::int32_t* starts, std::int64_t ahead, I (&sum)[6][4]) {
  DotLoopTask task;
  for (int r = 0; r < 6; ++r) {
    task.x[r] = x[r];
    task.starts[r] = starts[r];
  }
  task.end = end;
  std::int64_t k = begin;
  asm volatile(
      "mov 0(%[task]), %%r8; mov 8(%[task]), %%r9; mov 16(%[task]), %%r10\n"
      "mov 24(%[task]), %%r11; mov 32(%[task]), %%r12; mov 40(%[task]), %%r13\n"
      "vpbroadcastd 56(%[task]), %[s00]; vpbroadcastd 56(%[task]), %[s01]\n"
      "vpbroadcastd 56(%[task]), %[s02]; vpbroadcastd 56(%[task]), %[s03]\n"
      "vpbroadcastd 60(%[task]), %[s10]; vpbroadcastd 60(%[task]), %[s11]\n"
      "vpbroadcastd 60(%[task]), %[s12]; vpbroadcastd 60(%[task]), %[s13]\n"
      "vpbroadcastd 64(%[task]), %[s20]; vpbroadcastd 64(%[task]), %[s21]\n"
      "vpbroadcastd 64(%[task]), %[s22]; vpbroadcastd 64(%[task]), %[s23]\n"
      "vpbroadcastd 68(%[task]), %[s30]; vpbroadcastd 68(%[task]), %[s31]\n"
      "vpbroadcastd 68(%[task]), %[s32]; vpbroadcastd 68(%[task]), %[s33]\n"
      "vpbroadcastd 72(%[task]), %[s40]; vpbroadcastd 72(%[task]), %[s41]\n"
      "vpbroadcastd 72(%[task]), %[s42]; vpbroadcastd 72(%[task]), %[s43]\n"
      "vpbroadcastd 76(%[task]), %[s50]; vpbroadcastd 76(%[task]), %[s51]\n"
      "vpbroadcastd 76(%[task]), %[s52]; vpbroadcastd 76(%[task]), %[s53]\n"
      "1:\n"
      "prefetcht1 (%[w],%[ahead])\n"
      "vmovdqu64 0(%[w]), %%zmm27; vmovdqu64 64(%[w]), %%zmm28; vmovdqu64 128(%[w]), %%zmm29; vmovdqu64 192(%[w]), %%zmm30\n"
      "vpbroadcastd (%%r8,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s00]; vpdpbusd %%zmm31, %%zmm28, %[s01]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s02]; vpdpbusd %%zmm31, %%zmm30, %[s03]\n"
      "vpbroadcastd (%%r9,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s10]; vpdpbusd %%zmm31, %%zmm28, %[s11]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s12]; vpdpbusd %%zmm31, %%zmm30, %[s13]\n"
      "vpbroadcastd (%%r10,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s20]; vpdpbusd %%zmm31, %%zmm28, %[s21]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s22]; vpdpbusd %%zmm31, %%zmm30, %[s23]\n"
      "vpbroadcastd (%%r11,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s30]; vpdpbusd %%zmm31, %%zmm28, %[s31]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s32]; vpdpbusd %%zmm31, %%zmm30, %[s33]\n"
      "vpbroadcastd (%%r12,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s40]; vpdpbusd %%zmm31, %%zmm28, %[s41]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s42]; vpdpbusd %%zmm31, %%zmm30, %[s43]\n"
      "vpbroadcastd (%%r13,%[k]), %%zmm31; vpdpbusd %%zmm31, %%zmm27, %[s50]; vpdpbusd %%zmm31, %%zmm28, %[s51]\n"
      "vpdpbusd %%zmm31, %%zmm29, %[s52]; vpdpbusd %%zmm31, %%zmm30, %[s53]\n"
      "add $256, %[w]; add $4, %[k]; cmp 48(%[task]), %[k]; jne 1b\n"
      : [w] "+r"(w), [k] "+r"(k), [s00] "=&v"(sum[0][0]), [s01] "=&v"(sum[0][1]), [s02] "=&v"(sum[0][2]), [s03] "=&v"(sum[0][3]),
        [s10] "=&v"(sum[1][0]), [s11] "=&v"(sum[1][1]), [s12] "=&v"(sum[1][2]), [s13] "=&v"(sum[1][3]), [s20] "=&v"(sum[2][0]),
        [s21] "=&v"(sum[2][1]), [s22] "=&v"(sum[2][2]), [s23] "=&v"(sum[2][3]), [s30] "=&v"(sum[3][0]), [s31] "=&v"(sum[3][1]),
        [s32] "=&v"(sum[3][2]), [s33] "=&v"(sum[3][3]), [s40] "=&v"(sum[4][0]), [s41] "=&v"(sum[4][1]), [s42] "=&v"(sum[4][2]),
        [s43] "=&v"(sum[4][3]), [s50] "=&v"(sum[5][0]), [s51] "=&v"(sum[5][1]), [s52] "=&v"(sum[5][2]), [s53] "=&v"(sum[5][3])
      : [task] "r"(&task), [ahead] "r"(ahead)
      : "cc", "memory", "r8", "r9", "r10", "r11", "r12", "r13", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
}
