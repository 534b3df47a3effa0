#pragma once
/// Rotary position embedding: its frequencies, and turning the heads of a row.

#include <cstdint>
#include <vector>

#include "narrow/model.h"

namespace narrow::model {

/// Frequencies of the pairs of a head, and the factor on cosine and sine (yarn).
struct RopeFrequencies {
  std::vector<float> values;
  float factor = 1.0f;
};
/// `length`: positions of the sequence so far; the dynamic kind stretches with it beyond max_positions.
RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t head_dim, std::int64_t max_positions, std::int64_t length);

/// Cosines and sines of positions [first, first + count), one row of head_dim / 2 each.
struct RopeTable {
  std::int64_t pairs = 0;
  std::vector<float> cosine, sine;
};
RopeTable rope_table(const RopeFrequencies& frequencies, std::int64_t first, std::int64_t count);

/// Turns one head in place by row `row` of the table: (x_i, x_{i+h}) -> (x_i c - x_{i+h} s, x_{i+h} c + x_i s), h = head_dim / 2.
void turn_head(const RopeTable& table, std::int64_t row, float* head);

}  // namespace narrow::model
