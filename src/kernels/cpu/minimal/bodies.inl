// The members of cpu::MatmulBodies that the minimal library has.

template <typename Codes = VectorTile>
constexpr cpu::MatmulBodies minimal_bodies() {
  cpu::MatmulBodies b;
  b.dot8 = integer_run<VectorTile, 8>;
  b.dot4 = integer_run<Codes, 4>;
  b.dot8_scratch = integer_scratch_bytes<VectorTile, 8>;
  b.dot_scratch = integer_scratch_bytes<Codes, 4>;
  b.dot8_packed = kDotBytes == 2 ? cpu::PackedRows::kWords : cpu::PackedRows::kBytes;
  b.dot_rows = kIntegerRows;
  return b;
}
