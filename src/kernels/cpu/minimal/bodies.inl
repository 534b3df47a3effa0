// The members of cpu::MatmulBodies that the minimal library has.

constexpr cpu::MatmulBodies minimal_bodies() {
  cpu::MatmulBodies b;
  b.dot8 = integer_run<VectorTile, 8>;
  b.dot4 = integer_run<VectorTile, 4>;
  b.dot8_scratch = integer_scratch_bytes<VectorTile, 8>;
  b.dot_scratch = integer_scratch_bytes<VectorTile, 4>;
  b.dot_rows = kIntegerRows;
  return b;
}
