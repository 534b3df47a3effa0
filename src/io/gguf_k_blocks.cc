/// The searches follow ggml's order of operations in fp32, so that their bytes are its bytes.

#include "io/gguf_k_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace narrow::io {
namespace {

constexpr float kTiny = 1e-15f;  // what ggml takes for a run of zeros

int nearest(float value, int low, int high) {
  return detail::round_to_integer(std::bit_cast<std::uint32_t>(value), 0, low, high, Rounding::kNearestEven, 0);
}

// ---- Q4_K ----

constexpr int kRuns = 8, kRun = 32, kMostCode = 15, kMostScale = 63;

struct ScaleAndMinimum {
  float scale = 0.0f, minimum = 0.0f;  ///< x = scale q - minimum, minimum >= 0
};

struct Weighted {
  const float* x;
  float weights[kRun];
  float total = 0.0f, total_x = 0.0f;  ///< sum w, sum w x
};

/// sum w (scale q + offset - x)^2
float error_of(const Weighted& run, const int* codes, float scale, float offset) {
  float sum = 0.0f;
  for (int i = 0; i < kRun; ++i) {
    const float difference = scale * static_cast<float>(codes[i]) + offset - run.x[i];
    sum += run.weights[i] * (difference * difference);
  }
  return sum;
}

/// The codes of 21 steps around the range's own, each with the scale and minimum that fit it best; the least weighted error wins, and its
/// minimum is where the following steps begin.
ScaleAndMinimum search_q4(const Weighted& run, int* chosen) {
  const auto [least, most] = std::minmax_element(run.x, run.x + kRun);
  const float high = *most;
  float low = std::min(*least, 0.0f);
  std::fill_n(chosen, kRun, 0);
  if (high == low) return {0.0f, -low};
  int codes[kRun];
  const auto encode_with = [&](float inverse_scale) {
    for (int i = 0; i < kRun; ++i) codes[i] = nearest(inverse_scale * (run.x[i] - low), 0, kMostCode);
  };
  const float first = static_cast<float>(kMostCode) / (high - low);
  encode_with(first);
  std::copy_n(codes, kRun, chosen);
  float scale = 1.0f / first;
  float best = error_of(run, codes, scale, low);
  for (int step = 0; step <= 20; ++step) {
    encode_with((-1.0f + 0.1f * static_cast<float>(step) + static_cast<float>(kMostCode)) / (high - low));
    float sum_q = 0.0f, sum_qq = 0.0f, sum_xq = 0.0f;
    for (int i = 0; i < kRun; ++i) {
      const float q = static_cast<float>(codes[i]), w = run.weights[i];
      sum_q += w * q;
      sum_qq += w * q * q;
      sum_xq += w * q * run.x[i];
    }
    const float determinant = run.total * sum_qq - sum_q * sum_q;
    if (!(determinant > 0.0f)) continue;
    float fitted_scale = (run.total * sum_xq - run.total_x * sum_q) / determinant;
    float fitted_offset = (sum_qq * run.total_x - sum_q * sum_xq) / determinant;
    if (fitted_offset > 0.0f) {
      fitted_offset = 0.0f;
      fitted_scale = sum_xq / sum_qq;
    }
    const float error = error_of(run, codes, fitted_scale, fitted_offset);
    if (error < best) {
      best = error;
      std::copy_n(codes, kRun, chosen);
      scale = fitted_scale;
      low = fitted_offset;
    }
  }
  return {scale, -low};
}

Weighted weigh(const float* x) {
  Weighted run{.x = x, .weights = {}};
  float squares = 0.0f;
  for (int i = 0; i < kRun; ++i) squares += x[i] * x[i];
  const float rms = std::sqrt(squares / static_cast<float>(kRun));
  for (int i = 0; i < kRun; ++i) {
    run.weights[i] = rms + std::fabs(x[i]);
    run.total += run.weights[i];
    run.total_x += run.weights[i] * x[i];
  }
  return run;
}

/// Eight pairs of 6-bit numbers in 12 bytes: those of runs 0..3 in the low bits of bytes 0..7; of runs 4..7 the low four bits in bytes
/// 8..11 and the upper two over them.
void put_pair(std::uint8_t* bytes, int run, int scale, int minimum) {
  const auto add = [&](int index, int value) { bytes[index] = static_cast<std::uint8_t>(bytes[index] | value); };
  if (run < 4) {
    add(run, scale);
    add(run + 4, minimum);
  } else {
    add(run + 4, (scale & 15) | (minimum & 15) << 4);
    add(run - 4, scale >> 4 << 6);
    add(run, minimum >> 4 << 6);
  }
}

struct Pair {
  int scale, minimum;
};
Pair get_pair(const std::uint8_t* bytes, int run) {
  if (run < 4) return {bytes[run] & 63, bytes[run + 4] & 63};
  return {(bytes[run + 4] & 15) | (bytes[run - 4] >> 6) << 4, bytes[run + 4] >> 4 | (bytes[run] >> 6) << 4};
}

// ---- Q6_K ----

constexpr int kShortRuns = 16, kShortRun = 16, kMiddle = 32;

/// The scale of x = scale q, q in -32..31: of 19 steps the one that explains most of sum x^4; negative where the extreme is positive.
float search_q6(const float* x, int* chosen) {
  float extreme = 0.0f;
  std::fill_n(chosen, kShortRun, 0);
  for (int i = 0; i < kShortRun; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (std::fabs(extreme) < kTiny) return 0.0f;
  float scale = 0.0f, best = 0.0f;
  const auto attempt = [&](float inverse_scale, bool is_first) {
    float sum_xq = 0.0f, sum_qq = 0.0f;
    int codes[kShortRun];
    for (int i = 0; i < kShortRun; ++i) {
      codes[i] = nearest(inverse_scale * x[i], -kMiddle, kMiddle - 1) + kMiddle;
      const float q = static_cast<float>(codes[i] - kMiddle), w = x[i] * x[i];
      sum_xq += w * x[i] * q;
      sum_qq += w * q * q;
    }
    if (!is_first && !(sum_qq > 0.0f && sum_xq * sum_xq > best * sum_qq)) return;
    std::copy_n(codes, kShortRun, chosen);
    scale = sum_qq != 0.0f ? sum_xq / sum_qq : 0.0f;
    best = scale * sum_xq;
  };
  attempt(static_cast<float>(-kMiddle) / extreme, true);
  for (int step = -9; step <= 9; ++step)
    if (step != 0) attempt(-(static_cast<float>(kMiddle) + 0.1f * static_cast<float>(step)) / extreme, false);
  return scale;
}

}  // namespace

void encode_q4_k(const float* x, std::uint8_t* block) {
  ScaleAndMinimum runs[kRuns];
  int codes[kRuns][kRun];
  float most_scale = 0.0f, most_minimum = 0.0f;
  for (int run = 0; run < kRuns; ++run) {
    runs[run] = search_q4(weigh(x + run * kRun), codes[run]);
    most_scale = std::max(most_scale, runs[run].scale);
    most_minimum = std::max(most_minimum, runs[run].minimum);
  }
  const float to_scale = most_scale > 0.0f ? static_cast<float>(kMostScale) / most_scale : 0.0f;
  const float to_minimum = most_minimum > 0.0f ? static_cast<float>(kMostScale) / most_minimum : 0.0f;
  put_half(block, most_scale / static_cast<float>(kMostScale));
  put_half(block + 2, most_minimum / static_cast<float>(kMostScale));
  std::uint8_t *pairs = block + 4, *bytes = block + 16;
  std::memset(pairs, 0, 12);
  for (int run = 0; run < kRuns; ++run)
    put_pair(pairs, run, nearest(to_scale * runs[run].scale, 0, kMostScale), nearest(to_minimum * runs[run].minimum, 0, kMostScale));

  const float d = get_half(block), m = get_half(block + 2);
  for (int run = 0; run < kRuns; ++run) {
    const Pair pair = get_pair(pairs, run);
    const float scale = d * static_cast<float>(pair.scale), minimum = m * static_cast<float>(pair.minimum);
    for (int i = 0; i < kRun; ++i) {
      // A run whose scale rounds to zero decodes to its minimum, whatever its codes are; ggml leaves those of the search.
      const int code = scale != 0.0f ? nearest((x[run * kRun + i] + minimum) / scale, 0, kMostCode) : codes[run][i];
      std::uint8_t& byte = bytes[run / 2 * kRun + i];
      byte = static_cast<std::uint8_t>(run % 2 == 0 ? code : byte | code << 4);
    }
  }
}

void decode_q4_k(const std::uint8_t* block, float* x) {
  const float d = get_half(block), m = get_half(block + 2);
  for (int run = 0; run < kRuns; ++run) {
    const Pair pair = get_pair(block + 4, run);
    const float scale = d * static_cast<float>(pair.scale), minimum = m * static_cast<float>(pair.minimum);
    for (int i = 0; i < kRun; ++i) {
      const int code = block[16 + run / 2 * kRun + i] >> 4 * (run % 2) & 15;
      x[run * kRun + i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

/// ql[128], qh[64], i8 scales[16], d. Of each half of 128 values: ql byte l of two rows of 32 holds the low four bits of elements l (+32)
/// and l + 64 (+32), qh byte l the upper two bits of l, l + 32, l + 64, l + 96.
void encode_q6_k(const float* x, std::uint8_t* block) {
  float scales[kShortRuns], widest = 0.0f;
  int codes[kShortRuns][kShortRun];
  for (int run = 0; run < kShortRuns; ++run) {
    scales[run] = search_q6(x + run * kShortRun, codes[run]);
    if (std::fabs(scales[run]) > std::fabs(widest)) widest = scales[run];
  }
  std::memset(block, 0, 210);
  if (std::fabs(widest) < kTiny) return;
  const float to_scale = -128.0f / widest;
  put_half(block + 208, 1.0f / to_scale);
  const float d = get_half(block + 208);
  for (int run = 0; run < kShortRuns; ++run) {
    const int stored = nearest(to_scale * scales[run], -128, 127);
    block[192 + run] = static_cast<std::uint8_t>(stored);
    const float scale = d * static_cast<float>(stored);
    for (int i = 0; i < kShortRun; ++i) {
      const int element = run * kShortRun + i;
      const int code = scale != 0.0f ? nearest(x[element] / scale, -kMiddle, kMiddle - 1) + kMiddle : codes[run][i];
      const int half = element / 128, quarter = element % 128 / 32, l = element % 32;
      std::uint8_t &low = block[64 * half + 32 * (quarter % 2) + l], &high = block[128 + 32 * half + l];
      low = static_cast<std::uint8_t>(low | (code & 15) << 4 * (quarter / 2));
      high = static_cast<std::uint8_t>(high | code >> 4 << 2 * quarter);
    }
  }
}

void decode_q6_k(const std::uint8_t* block, float* x) {
  const float d = get_half(block + 208);
  for (int element = 0; element < 256; ++element) {
    const int half = element / 128, quarter = element % 128 / 32, l = element % 32;
    const int low = block[64 * half + 32 * (quarter % 2) + l] >> 4 * (quarter / 2) & 15,
              high = block[128 + 32 * half + l] >> 2 * quarter & 3;
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(block[192 + element / kShortRun]));
    x[element] = scale * static_cast<float>((low | high << 4) - kMiddle);
  }
}

}  // namespace narrow::io
