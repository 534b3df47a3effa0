// The tile of AVX-512 VNNI for 8-bit codes, 6 rows x 64 outputs. Its loop is assembly: 24 sums and 4 vectors of weights stay in registers.
// What compilers make of the same intrinsics reaches 83 % of the instruction's rate. Plain tiles, whose values are scaled sums and a bias
// and go straight to y, are not finished where they end: their last products and 24 conversions, scales and biases would wait for one
// another. Their sums are kept, and the first 24 steps of the next tile finish them beside its own products. Included in a leaf's namespace
// after matmul_integer.inl.

constexpr int kLoopRows = 6;

/// The sums of the last tile, what becomes of them, and what the loop multiplies; it finds the members by their offsets.
struct LoopTask {
  alignas(64) std::int32_t sums[kLoopRows][kLanes];
  float scales[kLanes], bias[kLanes];
  float* y = nullptr;       // the first row of the values of `sums`; null where they are finished
  std::int64_t y_step = 0;  // bytes
  const std::int8_t* x[kLoopRows];
  std::int64_t end;
  std::int32_t starts[kLoopRows];
  float x_scales[kLoopRows];
};
static_assert(offsetof(LoopTask, sums) == 0 && offsetof(LoopTask, scales) == 1536 && offsetof(LoopTask, bias) == 1792 &&
              offsetof(LoopTask, y_step) == 2056 && offsetof(LoopTask, x) == 2064 && offsetof(LoopTask, end) == 2112 &&
              offsetof(LoopTask, starts) == 2120 && offsetof(LoopTask, x_scales) == 2144);
constexpr std::int64_t kFinishGroups = 3;  // of 32 k: 24 steps

// clang-format off
// The pieces of the loop. s0..s3: the sums of a row; x: the register that points at it.
#define DOT_START(row, x, s0, s1, s2, s3)                                                                 \
  "mov 2064+8*" #row "(%[task]), %%" #x "; vpbroadcastd 2120+4*" #row "(%[task]), %%zmm" #s0 "\n"          \
  "vmovdqa64 %%zmm" #s0 ", %%zmm" #s1 "; vmovdqa64 %%zmm" #s0 ", %%zmm" #s2 "; vmovdqa64 %%zmm" #s0 ", %%zmm" #s3 "\n"
#define DOT_STORE(row, s0, s1, s2, s3)                                                                    \
  "vmovdqa64 %%zmm" #s0 ", 256*" #row "(%[task]); vmovdqa64 %%zmm" #s1 ", 256*" #row "+64(%[task])\n"      \
  "vmovdqa64 %%zmm" #s2 ", 256*" #row "+128(%[task]); vmovdqa64 %%zmm" #s3 ", 256*" #row "+192(%[task])\n"
#define DOT_ROW(at, x, s0, s1, s2, s3)                                                                    \
  "vpbroadcastd " #at "(%%" #x ",%[k]), %%zmm28\n"                                                        \
  "vpdpbusd %%zmm28, %%zmm24, %%zmm" #s0 "; vpdpbusd %%zmm28, %%zmm25, %%zmm" #s1 "\n"                    \
  "vpdpbusd %%zmm28, %%zmm26, %%zmm" #s2 "; vpdpbusd %%zmm28, %%zmm27, %%zmm" #s3 "\n"
// Four k, `at` of them and `from` bytes further, with something after each row but the last.
#define DOT_STEP(from, at, after0, after1, after2, after3, after4)                                        \
  "prefetcht1 " #from "(%[w],%[ahead]); prefetcht1 " #from "(%[w],%[further])\n"                            \
  "vmovdqu64 " #from "(%[w]), %%zmm24; vmovdqu64 " #from "+64(%[w]), %%zmm25\n"                           \
  "vmovdqu64 " #from "+128(%[w]), %%zmm26; vmovdqu64 " #from "+192(%[w]), %%zmm27\n"                      \
  DOT_ROW(at, r8, 0, 1, 2, 3) after0                                                                      \
  DOT_ROW(at, r9, 4, 5, 6, 7) after1                                                                      \
  DOT_ROW(at, r10, 8, 9, 10, 11) after2                                                                   \
  DOT_ROW(at, r11, 12, 13, 14, 15) after3                                                                 \
  DOT_ROW(at, r12, 16, 17, 18, 19) after4                                                                 \
  DOT_ROW(at, r13, 20, 21, 22, 23)
// The same, and 16 sums, `part` bytes after the first of row r14 / 256, become float(sum) * (x scale * scale) + bias.
#define DOT_STEP_AND_FINISH(from, at, part)                                                               \
  DOT_STEP(from, at,                                                                                      \
           "vbroadcastss 2144(%[task],%%r15), %%zmm29; vmulps 1536+" #part "(%[task]), %%zmm29, %%zmm29\n", \
           "vcvtdq2ps " #part "(%[task],%%r14), %%zmm30\n",                                              \
           "vmulps %%zmm29, %%zmm30, %%zmm30\n",                                                         \
           "vaddps 1792+" #part "(%[task]), %%zmm30, %%zmm30\n",                                         \
           "vmovups %%zmm30, " #part "(%[y])\n")
// clang-format on

/// sums[r] = starts[r] + sum over k in [begin, end) of x[r][k] w[k][64], after the sums that were there are finished, where y says so;
/// begin < end are multiples of 4, and there are kFinishGroups between them if something is to finish. w points at k = begin.
/// Fetches the lines `ahead` and `further` bytes after the first of every four that it reads.
[[gnu::always_inline]] inline void dot_loop(const std::byte* w, std::int64_t begin, std::int64_t ahead, std::int64_t further,
                                            LoopTask& task) {
  std::int64_t k = begin;
  float* y = task.y;
  // clang-format off
  asm volatile(
      DOT_START(0, r8, 0, 1, 2, 3) DOT_START(1, r9, 4, 5, 6, 7) DOT_START(2, r10, 8, 9, 10, 11)
      DOT_START(3, r11, 12, 13, 14, 15) DOT_START(4, r12, 16, 17, 18, 19) DOT_START(5, r13, 20, 21, 22, 23)
      "test %[y], %[y]; je 2f; xor %%r14d, %%r14d; xor %%r15d, %%r15d\n"
      ".p2align 6\n"
      "1:\n"  // r14, r15: bytes from the first row's sums and x scale to those that are finished
      DOT_STEP_AND_FINISH(0, 0, 0) DOT_STEP_AND_FINISH(256, 4, 64) DOT_STEP_AND_FINISH(512, 8, 128) DOT_STEP_AND_FINISH(768, 12, 192)
      "add $1024, %[w]; add $16, %[k]; add 2056(%[task]), %[y]; add $4, %%r15; add $256, %%r14; cmp $1536, %%r14; jne 1b\n"
      "cmp 2112(%[task]), %[k]; je 3f\n"
      ".p2align 6\n"
      "2:\n"
      DOT_STEP(0, 0, , , , , )
      "add $256, %[w]; add $4, %[k]; cmp 2112(%[task]), %[k]; jne 2b\n"
      "3:\n"
      DOT_STORE(0, 0, 1, 2, 3) DOT_STORE(1, 4, 5, 6, 7) DOT_STORE(2, 8, 9, 10, 11)
      DOT_STORE(3, 12, 13, 14, 15) DOT_STORE(4, 16, 17, 18, 19) DOT_STORE(5, 20, 21, 22, 23)
      : [w] "+r"(w), [k] "+r"(k), [y] "+r"(y)
      : [task] "r"(&task), [ahead] "r"(ahead), [further] "r"(further)
      : "cc", "memory", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
        "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",
        "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30");
  // clang-format on
}
#undef DOT_START
#undef DOT_ROW
#undef DOT_STEP
#undef DOT_STEP_AND_FINISH
#undef DOT_STORE

struct LoopTile : VectorTile {
  static constexpr bool kHasPlainRows = true;
  static_assert(kRows == kLoopRows);

  static void finish(LoopTask& task) {
    for (int r = 0; r < kLoopRows; ++r)
      for (int column = 0; column < kLanes; column += kPart) {
        const F value = mul(to_float(load_lanes(task.sums[r] + column)), mul(broadcast(task.x_scales + r), load(task.scales + column)));
        store(reinterpret_cast<float*>(reinterpret_cast<std::byte*>(task.y) + r * task.y_step) + column,
              plus(value, load(task.bias + column)));
      }
  }

  /// The rows of whole tiles, where y takes their scaled sums and a bias; returns the first row that is left.
  static std::int64_t plain_rows(const MatmulProblem& problem, const MatmulTile& part, const std::byte* packed, const std::byte* bytes,
                                 std::int64_t next_panel, const IntegerPanel& panel) {
    const auto& task = *reinterpret_cast<const cpu::IntegerTask*>(packed);
    const std::int64_t tiles = (part.m_end - part.m_begin) / kLoopRows;
    if (tiles == 0 || task.segments > 1 || task.x_has_zeros || task.w_has_zeros || task.groups < kFinishGroups ||
        !is_scaled_sum(problem.epilogue) || part.n_end - part.n_begin < kLanes)
      return part.m_begin;
    LoopTask loop;
    loop.end = task.groups * 32;
    loop.y_step = problem.epilogue.y_stride * 4;
    const float* bias = problem.epilogue.bias;
    for (int column = 0; column < kLanes; column += kPart) {
      store(loop.scales + column, load_scales(task.scales, problem.w.scales, panel.first_scale + column));
      store(loop.bias + column, bias != nullptr ? load(bias + part.n_begin + column) : set(-0.0f));  // v + -0 is v
    }
    const std::int8_t* x = task.x + part.m_begin * task.x_stride;
    const auto* x_sums = reinterpret_cast<const std::int32_t*>(packed + task.sums_offset) + part.m_begin;
    const auto* x_scales = reinterpret_cast<const float*>(packed + task.x_scales_offset) + part.m_begin;
    float* y = static_cast<float*>(problem.epilogue.y) + part.m_begin * problem.epilogue.y_stride + part.n_begin;
    const std::uint32_t per_sum = kDotOffset - static_cast<std::uint32_t>(task.w_zero);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (int r = 0; r < kLoopRows; ++r) {
        loop.x[r] = x + r * task.x_stride;
        loop.starts[r] = static_cast<std::int32_t>(per_sum * static_cast<std::uint32_t>(x_sums[r]));
      }
      // Each of the first four tiles fetches a line of four, of two or three tiles the first a second one; 0: a line that is there.
      const std::int64_t ahead = tile < kParts ? next_panel + tile * 64 : 0;
      dot_loop(bytes, 0, ahead, tiles > 1 && tile + tiles < kParts ? ahead + tiles * 64 : 0, loop);
      for (int r = 0; r < kLoopRows; ++r) loop.x_scales[r] = x_scales[r];
      loop.y = y;
      x += kLoopRows * task.x_stride;
      x_sums += kLoopRows;
      x_scales += kLoopRows;
      y += kLoopRows * problem.epilogue.y_stride;
    }
    finish(loop);
    return part.m_begin + tiles * kLoopRows;
  }

  template <int kBits>
  static void run(int rows, const std::byte* panel, std::int64_t begin, std::int64_t end, const std::int8_t* const* x,
                  const std::int32_t* starts, const Segment& to) {
    if (kBits != 8 || rows < kLoopRows) return VectorTile::run<kBits>(rows, panel, begin, end, x, starts, to);
    LoopTask loop;
    for (int r = 0; r < kLoopRows; ++r) {
      loop.x[r] = x[r];
      loop.starts[r] = starts[r];
    }
    loop.end = end * 32;
    dot_loop(panel + begin * (8 * kVectorBytes), begin * 32, to.ahead, 0, loop);
    I sum[kLoopRows][kParts];
    for (int r = 0; r < kLoopRows; ++r)
      for (int p = 0; p < kParts; ++p) sum[r][p] = load_lanes(loop.sums[r] + p * kPart);
    end_segment<kLoopRows>(sum, to, 0);
  }
};
