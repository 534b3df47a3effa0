/// All 2^32 fp32 inputs through every float format (and int8, int4, NF4, int1), in every instruction-set leaf, against the
/// oracle of sweep_oracle.h: no mismatch is allowed. The constexpr encode, which is slow, takes one run of 65,536 in 16.
/// NARROW_SWEEP_STEP=N takes one run in N of all (`make test`; `make test-sweep` and `make test-sweep-arm` take every one), and
/// NARROW_SWEEP_PART=I/N of these only the I-th of N parts (from 1): long sweeps are shared by processes and machines.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <gtest/gtest.h>

#include "device/float_environment.h"
#include "format/sweep_oracle.h"
#include "kernels/quantize.h"
#include "narrow/codec.h"
#include "narrow/quantize.h"

namespace narrow::sweep {
namespace {

constexpr std::uint32_t kChunkBits = 16;
constexpr std::uint32_t kChunk = 1u << kChunkBits;
constexpr std::uint64_t kSeed = 0x5EED0F2026u;

// name, E, M, bias, code of the largest value, of infinity, of NaN
constexpr FloatCase kFloats[] = {
    {"fp16", 5, 10, 15, 0x7BFF, 0x7C00, 0x7E00},
    {"bf16", 8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0},
    {"fp8_e5m2", 5, 2, 15, 0x7B, 0x7C, 0x7E},
    {"fp8_e4m3", 4, 3, 7, 0x7E, 0, 0x7F},
    {"fp6_e3m2", 3, 2, 3, 0x1F, 0, 0},
    {"fp6_e2m3", 2, 3, 1, 0x1F, 0, 0},
    {"fp5_e3m1", 3, 1, 3, 0xF, 0, 0},
    {"fp5_e2m2", 2, 2, 1, 0xF, 0, 0},
    {"fp4_e2m1", 2, 1, 1, 0x7, 0, 0},
    {"fp4_e3m0", 3, 0, 3, 0x7, 0, 0},
    {"fp3_e2m0", 2, 0, 1, 0x3, 0, 0},
    {"fp2_e1m0", 1, 0, 0, 0x1, 0, 0},
    {"fp7_e3m3", 3, 3, 3, 0x3F, 0, 0},
    {"fp9_e8m0", 8, 0, 127, 0xFE, 0, 0},
    {"fp8_e3m4", 3, 4, 3, 0x7F, 0, 0},
    {"fp12_e5m6", 5, 6, 15, 0x7FF, 0, 0},
    {"fp16_e7m8", 7, 8, 63, 0x7FFF, 0, 0},
    {"fp14_e8m5", 8, 5, 127, 0x1FDF, 0, 0},
};

using CodecFunction = void (*)(const float*, const std::uint32_t*, std::uint16_t*);

/// One format under one policy, its oracle, and how each implementation is called.
struct Case {
  std::string name;
  Scheme scheme;
  bool in_kernels = true;
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  Oracle oracle;
  CodecFunction codec = nullptr;
};

template <Format kFormat, Rounding kRounding = Rounding::kNearestEven, Overflow kOverflow = Overflow::kSaturate>
void codec_chunk(const float* x, const std::uint32_t* random, std::uint16_t* codes) {
  for (std::uint32_t i = 0; i < kChunk; ++i) codes[i] = static_cast<std::uint16_t>(encode(kFormat, x[i], kRounding, kOverflow, random[i]));
}

constexpr std::array<CodecFunction, std::size(kFloats)> kCodecs{codec_chunk<kFp16>,
                                                                codec_chunk<kBf16>,
                                                                codec_chunk<kFp8E5m2>,
                                                                codec_chunk<kFp8E4m3>,
                                                                codec_chunk<kFp6E3m2>,
                                                                codec_chunk<kFp6E2m3>,
                                                                codec_chunk<kFp5E3m1>,
                                                                codec_chunk<kFp5E2m2>,
                                                                codec_chunk<kFp4E2m1>,
                                                                codec_chunk<kFp4E3m0>,
                                                                codec_chunk<kFp3E2m0>,
                                                                codec_chunk<float_format(1, 0)>,
                                                                codec_chunk<float_format(3, 3)>,
                                                                codec_chunk<float_format(8, 0)>,
                                                                codec_chunk<float_format(3, 4)>,
                                                                codec_chunk<float_format(5, 6)>,
                                                                codec_chunk<float_format(7, 8)>,
                                                                codec_chunk<float_format(8, 5)>};

template <Format kFormat>
void add_policies(std::vector<Case>& cases, const FloatCase& f) {
  const auto add = [&](const char* policy, Round round, Rounding rounding, Overflow overflow, CodecFunction codec) {
    cases.push_back({std::string(f.name) + " " + policy, Scheme::parse(std::string(f.name) + ":none"), true, rounding, overflow,
                     float_oracle(f, round, overflow == Overflow::kIeee), codec});
  };
  add("toward zero", Round::kTowardZero, Rounding::kTowardZero, Overflow::kSaturate, codec_chunk<kFormat, Rounding::kTowardZero>);
  add("stochastic", Round::kStochastic, Rounding::kStochastic, Overflow::kSaturate, codec_chunk<kFormat, Rounding::kStochastic>);
  add("ieee", Round::kNearestEven, Rounding::kNearestEven, Overflow::kIeee, codec_chunk<kFormat, Rounding::kNearestEven, Overflow::kIeee>);
  add("toward zero ieee", Round::kTowardZero, Rounding::kTowardZero, Overflow::kIeee,
      codec_chunk<kFormat, Rounding::kTowardZero, Overflow::kIeee>);
  add("stochastic ieee", Round::kStochastic, Rounding::kStochastic, Overflow::kIeee,
      codec_chunk<kFormat, Rounding::kStochastic, Overflow::kIeee>);
}

Oracle exponent_oracle() {
  std::vector<double> values;
  std::vector<std::uint32_t> codes;
  std::vector<int> ranks;
  for (int code = 0; code <= 0xFE; ++code) {
    values.push_back(std::ldexp(1.0, code - 127));
    codes.push_back(static_cast<std::uint32_t>(code));
    ranks.push_back(code);
  }
  Oracle oracle = table_oracle(values, codes, ranks, 8, 0xFF);
  oracle.runs[1] = {{0, 0xFF, 0xFF, 0.0, 0.0}};  // no negative values, not even -0
  return oracle;
}

Oracle nf4_oracle() {
  // clang-format off
  const std::vector<double> values{
      -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
      -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
      0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
  // clang-format on
  return table_oracle(values, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 4, 0);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (std::size_t i = 0; i < std::size(kFloats); ++i)
    cases.push_back({kFloats[i].name, Scheme::parse(std::string(kFloats[i].name) + ":none"), true, Rounding::kNearestEven,
                     Overflow::kSaturate, float_oracle(kFloats[i], Round::kNearestEven, false), kCodecs[i]});
  add_policies<kFp8E5m2>(cases, kFloats[2]);
  add_policies<kFp8E4m3>(cases, kFloats[3]);
  const auto add = [&](const char* name, const char* scheme, Oracle oracle, CodecFunction codec) {
    cases.push_back({name, Scheme::parse(scheme), true, Rounding::kNearestEven, Overflow::kSaturate, std::move(oracle), codec});
  };
  add("int8", "int8:tensor", integer_oracle(8, 127), codec_chunk<kInt8>);
  add("int4", "int4:tensor", integer_oracle(4, 7), codec_chunk<kInt4>);
  add("mxint8", "mxint8", integer_oracle(8, 127, 6), codec_chunk<kMxInt8>);
  add("nf4", "nf4:tensor", nf4_oracle(), codec_chunk<kNf4>);
  add("int1", "int1:tensor", table_oracle({-1.0, 1.0}, {0, 1}, {0, 1}, 1, 0), codec_chunk<kInt1>);
  add("e8m0", "fp16", exponent_oracle(), codec_chunk<kE8m0>);
  cases.back().in_kernels = false;  // a scale format: no element is stored in it
  return cases;
}

/// Philox 2x32 with ten rounds, written after the paper: counter (i, 0), key = the seed's low half, high half xored in.
std::uint32_t philox(std::uint64_t index) {
  std::uint32_t c0 = static_cast<std::uint32_t>(index),
                c1 = static_cast<std::uint32_t>(index >> 32) ^ static_cast<std::uint32_t>(kSeed >> 32);
  std::uint32_t key = static_cast<std::uint32_t>(kSeed);
  for (int i = 0; i < 10; ++i, key += 0x9E3779B9u) {
    const std::uint64_t product = static_cast<std::uint64_t>(c0) * 0xD256D193u;
    const std::uint32_t low = static_cast<std::uint32_t>(product);
    c0 = static_cast<std::uint32_t>(product >> 32) ^ key ^ c1;
    c1 = low;
  }
  return c0;
}

struct Codes;

struct Inputs {
  std::vector<float> x = std::vector<float>(kChunk);
  std::vector<std::uint32_t> random = std::vector<std::uint32_t>(kChunk);
  std::vector<double> share = std::vector<double>(kChunk);  ///< (random + 1) / 2^32
  std::vector<std::uint8_t> packed = std::vector<std::uint8_t>(2 * kChunk + 16);
  std::vector<std::uint16_t> codes = std::vector<std::uint16_t>(kChunk + 16);

  Codes plain() const;  ///< codes, one per 16 bits

  Inputs() {
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      random[i] = philox(i);
      share[i] = (static_cast<double>(random[i]) + 1.0) / 4294967296.0;
    }
  }
  void fill(std::uint32_t first) {
    for (std::uint32_t i = 0; i < kChunk; ++i) x[i] = std::bit_cast<float>(first + i);
  }
};

/// Codes in packed form, 16 bytes readable beyond the end.
struct Codes {
  const std::uint8_t* data;
  int bits;

  std::uint64_t word(std::size_t byte) const {
    std::uint64_t value;
    std::memcpy(&value, data + byte, sizeof value);
    return value;
  }
  std::uint32_t at(std::uint32_t i) const {
    const std::size_t bit = static_cast<std::size_t>(i) * static_cast<std::size_t>(bits);
    return static_cast<std::uint32_t>(word(bit / 8) >> (bit % 8)) & ((1u << bits) - 1u);
  }

  /// How many of [begin, end) are not `code`; eight at a time where all eight are.
  std::uint64_t count_other(std::uint32_t begin, std::uint32_t end, std::uint32_t code) const {
    const std::size_t bytes = static_cast<std::size_t>(bits);  // of eight codes
    std::uint8_t pattern[24] = {};
    for (std::uint32_t i = 0; i < 8; ++i)
      for (int bit = 0; bit < bits; ++bit) {
        const std::uint32_t at = i * static_cast<std::uint32_t>(bits) + static_cast<std::uint32_t>(bit);
        pattern[at / 8] = static_cast<std::uint8_t>(pattern[at / 8] | ((code >> bit & 1u) << (at % 8)));
      }
    const Codes expected{pattern, bits};
    const std::uint64_t mask = bits >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * bits)) - 1u;
    const std::size_t last = bits > 8 ? bytes - 8 : 0;
    const std::uint64_t low = expected.word(0) & mask, high = expected.word(last) & mask;
    std::uint64_t wrong = 0;
    std::uint32_t i = begin;
    for (; i < end && i % 8 != 0; ++i) wrong += at(i) != code;
    for (; i + 8 <= end; i += 8) {
      const std::size_t byte = i / 8 * bytes;
      if (((word(byte) ^ low) & mask) == 0 && ((word(byte + last) ^ high) & mask) == 0) continue;
      for (std::uint32_t j = i; j < i + 8; ++j) wrong += at(j) != code;
    }
    for (; i < end; ++i) wrong += at(i) != code;
    return wrong;
  }
};

Codes Inputs::plain() const { return {reinterpret_cast<const std::uint8_t*>(codes.data()), 16}; }

/// Elements [begin, end) of the chunk against one run; the number that differ.
std::uint64_t check_run(const Inputs& in, const Codes& codes, std::uint32_t begin, std::uint32_t end, const Run& run) {
  if (run.code == run.next) return codes.count_other(begin, end, run.code);
  std::uint64_t wrong = 0;
  for (std::uint32_t i = begin; i < end; ++i)
    wrong += codes.at(i) != (std::fabs(static_cast<double>(in.x[i])) >= run.low + run.gap * in.share[i] ? run.next : run.code);
  return wrong;
}

/// A chunk of consecutive bit patterns against the oracle.
std::uint64_t check_chunk(const Oracle& oracle, const Inputs& in, const Codes& codes, std::uint32_t first) {
  const int sign = static_cast<int>(first >> 31);
  const std::uint32_t magnitude = first & 0x7FFFFFFFu;
  const std::vector<Run>& runs = oracle.runs[sign];
  std::size_t at = 0;  // the last run that begins at or before the chunk
  for (std::size_t low = 0, high = runs.size(); low < high;) {
    const std::size_t middle = (low + high) / 2;
    if (runs[middle].begin <= magnitude) {
      at = middle;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  std::uint64_t wrong = 0;
  for (std::uint32_t i = 0; i < kChunk;) {
    const std::uint32_t here = magnitude + i;
    if (here > kInfinity) return wrong + check_run(in, codes, i, kChunk, {0, oracle.nan[sign], oracle.nan[sign], 0.0, 0.0});
    while (at + 1 < runs.size() && runs[at + 1].begin <= here) ++at;
    const std::uint32_t run_end = at + 1 < runs.size() ? runs[at + 1].begin : kInfinity + 1u;
    const std::uint32_t end = std::min(kChunk, run_end - magnitude);
    wrong += check_run(in, codes, i, end, runs[at]);
    i = end;
  }
  return wrong;
}

Codes run_kernel(const QuantizeKernel& kernel, const Case& c, Inputs& in) {
  float one = 1.0f;
  std::uint8_t exponent_one = 127;
  QuantizeProblem problem;
  problem.x = in.x.data();
  problem.rows = 1;
  problem.cols = problem.row_stride = kChunk;
  problem.scheme = c.scheme;
  problem.grid = ScaleGrid{1, 1, 1, kChunk, 1, 1, true};
  problem.rounding = c.rounding;
  problem.overflow = c.overflow;
  problem.seed = kSeed;
  problem.codes = in.packed.data();
  problem.row_bytes = packed_row_bytes(c.scheme, kChunk);
  problem.scales = c.scheme.scale == kE8m0 ? static_cast<void*>(&exponent_one) : &one;
  problem.scales_given = true;
  kernel.run(problem, {0, 1, 0, kChunk});
  return {in.packed.data(), c.oracle.bits};
}

struct Failure {
  std::uint64_t wrong = 0;
  std::uint32_t first_chunk = 0;
};

std::int64_t step() {
  const char* text = std::getenv("NARROW_SWEEP_STEP");
  return text == nullptr ? 1 : std::max<std::int64_t>(1, std::atoll(text));
}

/// The groups of chunks, of `count`, that are this process's.
struct Groups {
  std::int64_t begin, end;
};
Groups groups_of(std::int64_t count) {
  long long index = 1, parts = 1;
  const char* text = std::getenv("NARROW_SWEEP_PART");
  if (text != nullptr && (std::sscanf(text, "%lld/%lld", &index, &parts) != 2 || index < 1 || index > parts)) {
    ADD_FAILURE() << "NARROW_SWEEP_PART=" << text << " is not I/N with I from 1 to N";
    return {0, 0};
  }
  return {count * (index - 1) / parts, count * index / parts};
}

/// Sweeps one chunk of every `step` that follow each other, another one each time: work(case, inputs) makes the codes.
template <typename Work>
void sweep(const std::vector<Case>& cases, const char* who, std::int64_t step, const Work& work) {
  std::vector<Failure> failures(cases.size());
  std::mutex mutex;
  const Groups groups = groups_of((std::int64_t{1} << (32 - kChunkBits)) / step);
#pragma omp parallel
  {
    const FloatEnvironment environment;
    Inputs in;
#pragma omp for schedule(dynamic, 16)
    for (std::int64_t group = groups.begin; group < groups.end; ++group) {
      const std::uint32_t first = static_cast<std::uint32_t>(group * step + group * 5 % step) << kChunkBits;
      in.fill(first);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::uint64_t wrong = check_chunk(cases[i].oracle, in, work(cases[i], in), first);
        if (wrong == 0) continue;
        const std::lock_guard lock(mutex);
        if (failures[i].wrong == 0) failures[i].first_chunk = first;
        failures[i].wrong += wrong;
      }
    }
  }
  for (std::size_t i = 0; i < cases.size(); ++i)
    EXPECT_EQ(failures[i].wrong, 0u) << who << " " << cases[i].name << ", among the inputs from 0x" << std::hex << failures[i].first_chunk;
}

TEST(Sweep, EveryInputInEveryLeaf) {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) { return !c.in_kernels; });
  int leaves = 0;
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (kernel.isa == Isa::kScalar || !cpu_supports(kernel.isa)) continue;
    ++leaves;
    sweep(cases, kernel.name, step(), [&](const Case& c, Inputs& in) { return run_kernel(kernel, c, in); });
  }
  EXPECT_GT(leaves, 0);
}

/// The short way for runs of finite values under a scale made from them: every row begins with the largest value, so that its scale is 1.
TEST(Sweep, EveryFiniteInputInRuns) {
  constexpr std::uint32_t kHead = 64;
  std::vector<Case> cases;
  std::vector<float> largest;
  const auto add = [&](const char* name, Oracle oracle) {
    cases.push_back(
        {name, Scheme::parse(std::string(name) + ":row"), true, Rounding::kNearestEven, Overflow::kSaturate, std::move(oracle)});
    largest.push_back(static_cast<float>(cases.back().scheme.element.largest()));
  };
  for (const FloatCase& f : kFloats)
    if (std::string(f.name).starts_with("fp8_") || std::string(f.name).starts_with("fp6_") || std::string(f.name) == "fp5_e3m1" ||
        std::string(f.name) == "fp4_e2m1")
      add(f.name, float_oracle(f, Round::kNearestEven, false));
  add("int8", integer_oracle(8, 127));
  add("int4", integer_oracle(4, 7));
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (kernel.isa == Isa::kScalar || !cpu_supports(kernel.isa)) continue;
    sweep(cases, kernel.name, step(), [&](const Case& c, Inputs& in) {
      const float top = largest[static_cast<std::size_t>(&c - cases.data())];
      const std::size_t head_bytes = kHead * static_cast<std::size_t>(c.oracle.bits) / 8;
      if (!(std::max(std::fabs(in.x.front()), std::fabs(in.x.back())) <=
            top)) {  // beyond the largest, or not finite: the scale would be another
        run_kernel(kernel, c, in);
        return Codes{in.packed.data(), c.oracle.bits};
      }
      std::vector<float> row(kHead, top);
      row.insert(row.end(), in.x.begin(), in.x.end());
      float scale = 0.0f;
      QuantizeProblem problem;
      problem.x = row.data();
      problem.rows = 1;
      problem.cols = problem.row_stride = kHead + kChunk;
      problem.scheme = c.scheme;
      problem.grid = ScaleGrid{1, 1, 1, problem.cols, 1, 1, false};
      std::vector<std::uint8_t> packed(head_bytes + in.packed.size());
      problem.codes = packed.data();
      problem.row_bytes = packed_row_bytes(c.scheme, problem.cols);
      problem.scales = &scale;
      kernel.run(problem, {0, 1, 0, problem.cols});
      std::copy(packed.begin() + static_cast<std::ptrdiff_t>(head_bytes), packed.end(), in.packed.begin());
      if (scale != 1.0f) std::fill(in.packed.begin(), in.packed.end(), std::uint8_t{0xAA});  // counted as mismatches
      return Codes{in.packed.data(), c.oracle.bits};
    });
  }
}

TEST(Sweep, ManyInputsInTheCodec) {
  sweep(all_cases(), "encode", std::max<std::int64_t>(step(), 16), [](const Case& c, Inputs& in) {
    c.codec(in.x.data(), in.random.data(), in.codes.data());
    return in.plain();
  });
}

TEST(Sweep, TheOracleSeesAnError) {
  Inputs in;
  const std::uint32_t first = std::bit_cast<std::uint32_t>(1.0f);
  in.fill(first);
  codec_chunk<kFp8E4m3>(in.x.data(), in.random.data(), in.codes.data());
  const Oracle oracle = float_oracle(kFloats[3], Round::kNearestEven, false);
  EXPECT_EQ(check_chunk(oracle, in, in.plain(), first), 0u);
  in.codes[77] ^= 1u;
  EXPECT_EQ(check_chunk(oracle, in, in.plain(), first), 1u);
}

}  // namespace
}  // namespace narrow::sweep
