// The members of cpu::MatmulBodies from the templates of a leaf; kFloats: whether the instruction set adds something to float products;
// Codes, Bytes: the tiles of integers of at most 4 bits and of 8.

template <bool kFloats, typename Codes = VectorTile, typename Bytes = VectorTile>
constexpr cpu::MatmulBodies matmul_bodies() {
  cpu::MatmulBodies b;
  if constexpr (kFloats) {
    b.fp32 = float_run<Fp32Decoder>;
    b.float16 = float_run<FloatDecoder<16>>;
    b.float8 = float_run<FloatDecoder<8>>;
    b.float6 = float_run<Float6Decoder>;
    b.int8 = float_run<Int8Decoder>;
    b.int4 = float_run<SymmetricDecoder<4>>;
    b.int3 = float_run<SymmetricDecoder<3>>;
    b.code5 = float_run<TableDecoder<5>>;
    b.code4 = float_run<TableDecoder<4>>;
    b.code3 = float_run<TableDecoder<3>>;
    b.code2 = float_run<TableDecoder<2>>;
    b.code1 = float_run<TableDecoder<1>>;
    b.code4_zero = float_run<TableDecoder<4, true>>;
    b.code3_zero = float_run<TableDecoder<3, true>>;
    b.code2_zero = float_run<TableDecoder<2, true>>;
    b.float_pack = kFloatPack;
    b.float_scratch = float_scratch_bytes;
    b.float_rows = kFloatRows;
  }
  b.dot8 = integer_run<Bytes, 8>;
  b.dot4 = integer_run<Codes, 4>;
  b.dot3 = integer_run<Codes, 3>;
  b.dot2 = integer_run<Codes, 2>;
  b.dot1 = integer_run<Codes, 1>;
  b.dot8_scratch = integer_scratch_bytes<Bytes, 8>;
  b.dot_scratch = integer_scratch_bytes<Codes, 1>;  // that of every width below 8
  b.dot8_packed = kDotBytes == 2 ? cpu::PackedRows::kWords : cpu::PackedRows::kBytes;
  b.dot_rows = kIntegerRows;
  return b;
}

/// `b` and the rows of one row of fp32 by digits.
template <typename Bodies>
constexpr Bodies with_digit_rows(Bodies b) {
  b.int8 = row_run<Int8Decoder>;
  b.int4 = row_run<SymmetricDecoder<4>>;
  b.int3 = row_run<SymmetricDecoder<3>>;
  b.code4 = row_run<TableDecoder<4>>;
  b.code3 = row_run<TableDecoder<3>>;
  b.code2 = row_run<TableDecoder<2>>;
  b.code4_zero = row_run<TableDecoder<4, true>>;
  b.code3_zero = row_run<TableDecoder<3, true>>;
  b.float_pack = kFloatPack;
  b.float_scratch = float_scratch_bytes;
  b.float_rows = 1;
  return b;
}
