// The fast dequantizer. Meaning: reference/dequantize.cc, bit for bit.
//   per row and chunk: unpack codes -> decode -> times the scale -> store
// Bound: memory; bits / 8 B read, 4 B (or 2 B) written per element. Included by a leaf inside its own namespace.

struct DequantizeScratch {
  CellScales scales;
  alignas(64) float expanded[kChunk];
  alignas(64) std::int32_t expanded_zero[kChunk];
  alignas(64) std::uint8_t packed[2 * kChunk + kSpare];
  alignas(64) std::uint16_t words[kChunk + kSpare];
  alignas(64) std::uint8_t bytes[kChunk + kSpare];
  alignas(64) float values[kChunk];
};

template <bool kStream, Access kAccess, typename Decoder, typename Code>
inline void decode_loop(const Decoder decoder, const Code* codes, int count, const ChunkScales scales, float* y) {
  for (int i = 0; i < count; i += kLanes) {
    VF factor;
    VI zero;
    if constexpr (kAccess == Access::kShared) {
      const int cell = (i / kLanes + scales.phase) >> scales.shift;
      factor = splat(scales.factor[cell]);
      zero = splat(scales.zero_point[cell]);
    } else {
      factor = load<VF>(scales.factor + i);
      zero = load<VI>(scales.zero_point + i);
    }
    VF value;
    if constexpr (Decoder::kFromBytes) {
      value = decoder(codes + i) * factor;
    } else {
      value = decoder(load_codes(codes + i), zero) * factor;
    }
    if constexpr (kStream) {
      stream(y + i, value);
    } else {
      store(y + i, value);
    }
  }
}

template <typename Decoder, typename Code>
inline void decode_chunk(const Decoder& decoder, const Code* codes, int count, const ChunkScales& scales, bool around_caches, float* y) {
  if (scales.access == Access::kExpanded) return decode_loop<false, Access::kExpanded>(decoder, codes, count, scales, y);
  if (around_caches) return decode_loop<true, Access::kShared>(decoder, codes, count, scales, y);
  return decode_loop<false, Access::kShared>(decoder, codes, count, scales, y);
}

/// The packed bytes of a chunk, readable kSpare bytes beyond: in place, or copied where the row (and perhaps memory) ends.
inline const std::uint8_t* chunk_bytes(const DequantizeProblem& problem, std::int64_t row, std::int64_t col, int count, int bits,
                                       std::uint8_t* scratch) {
  const std::size_t first = static_cast<std::size_t>(col * bits / 8);
  const std::size_t bytes = (static_cast<std::size_t>(count) * static_cast<std::size_t>(bits) + 7) / 8;
  const std::uint8_t* from = problem.codes + static_cast<std::size_t>(row) * problem.row_bytes + first;
  if (first + bytes + kSpare <= problem.row_bytes || row + 1 < problem.rows - kSpare) return from;
  __builtin_memcpy(scratch, from, bytes);
  return scratch;
}

/// 16-bit outputs: one rounding to nearest even, saturating.
inline void narrow_values(const FloatPlan& output, const float* values, int count, std::uint16_t* y) {
  const FloatEncoder<Rounding::kNearestEven> encoder{output};
  int i = 0;
  const auto encode = [&](int at) { return encoder.encode(load<VF>(values + at), load<VF>(values + at), VI{}, VU{}); };
  for (; i + kLanes <= count; i += kLanes) store_codes(y + i, encode(i));
  if (i == count) return;
  std::uint16_t rest[kLanes];
  store_codes(rest, encode(i));
  __builtin_memcpy(y + i, rest, static_cast<std::size_t>(count - i) * 2);
}

/// One chunk of a row, whose scales are known.
template <typename Decoder>
inline void dequantize_chunk(const DequantizeProblem& problem, const DequantizePlan& plan, const Decoder& decoder, const Group& group,
                             std::int64_t row, std::int64_t col, int count, DequantizeScratch& scratch) {
  const int bits = plan.element.bits;
  const ChunkScales scales = scales_of_chunk(scratch.scales.effective, scratch.scales.zero_point, plan.scale.asymmetric,
                                             group.first_cell_col, group.cell_cols, col, count, scratch.expanded, scratch.expanded_zero);
  const std::uint8_t* packed = chunk_bytes(problem, row, col, count, bits, scratch.packed);
  const std::int64_t at = row * problem.cols + col;
  const bool is_fp32 = problem.dtype == DType::kF32, direct = is_fp32 && count % kLanes == 0;
  float* y = direct ? static_cast<float*>(problem.y) + at : scratch.values;
  const bool around_caches = direct && plan.stream && reinterpret_cast<std::uintptr_t>(y) % 64 == 0;
  if (bits <= 8) {
    if (bits < 8) unpack_bytes(packed, count, bits, scratch.bytes);
    decode_chunk(decoder, bits < 8 ? scratch.bytes : packed, count, scales, around_caches, y);
  } else if constexpr (!Decoder::kFromBytes) {
    if (bits < 16) {
      unpack_words(packed, count, bits, scratch.words);
    } else {
      __builtin_memcpy(scratch.words, packed, static_cast<std::size_t>(count) * 2);
    }
    decode_chunk(decoder, scratch.words, count, scales, around_caches, y);
  }
  if (direct) return;
  if (is_fp32) {
    __builtin_memcpy(static_cast<float*>(problem.y) + at, y, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    narrow_values(plan.output, y, count, static_cast<std::uint16_t*>(problem.y) + at);
  }
}

void run_dequantize(const DequantizeProblem& problem, const Tile& tile) {
  const DequantizePlan plan = plan_of(problem);
  DequantizeScratch scratch;
  with_decoder(plan.element, plan.scale.asymmetric, [&](const auto& decoder) {
    for (std::int64_t row = tile.row_begin; row < tile.row_end;) {
      const std::int64_t row_end = stripe_end(problem.grid, row, tile.row_end);
      for (std::int64_t col = tile.col_begin; col < tile.col_end;) {
        const Group group = group_at(problem.grid, row, row_end, col, tile.col_end);
        if (plan.scale.present) {
          load_scales(plan.scale, problem.scales, problem.zero_points, group.first_cell, group.cells, scratch.scales);
        } else {
          scratch.scales.effective[0] = 1.0f;
          scratch.scales.zero_point[0] = 0;
        }
        for (std::int64_t r = row; r < row_end; ++r)
          for (std::int64_t c = group.col; c < group.col_end; c += kChunk)
            dequantize_chunk(problem, plan, decoder, group, r, c, static_cast<int>(min_of(std::int64_t{kChunk}, group.col_end - c)),
                             scratch);
        col = group.col_end;
      }
      row = row_end;
    }
  });
  if (plan.stream) fence();
}

bool accepts_dequantize(const DequantizeProblem&) { return true; }
