"""Every family of schemes against an oracle written here in numpy and ml_dtypes: the real command quantizes a file,
the safetensors package reads the result, and every code, scale and zero point must be the one computed here."""
import subprocess

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save_file

ROWS, COLS = 37, 300  # odd rows, and blocks of every size end in a shorter one


def weights():
    generator = np.random.default_rng(7)
    x = generator.standard_normal((ROWS, COLS)).astype(np.float32) * np.exp2(generator.integers(-9, 9, (ROWS, 1))).astype(np.float32)
    x[3] = 0.0
    x[5, ::7] *= 50.0
    x[6, 16:48] = 0.0
    return x


def quantize(bin_dir, folder, x, scheme):
    (folder / "in").mkdir()
    save_file({"layer.weight": x}, folder / "in" / "model.safetensors")
    subprocess.run([bin_dir / "narrow", "quantize", "--quiet", folder / "in", folder / "out", scheme], check=True)
    (written,) = (folder / "out").glob("*.safetensors")
    return {name: np.frombuffer(bytes(info["data"]), DTYPES[info["dtype"]]).reshape(info["shape"]) for name, info in deserialize(written.read_bytes())}


# What numpy has no name for (8-bit floats) stays bytes.
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}


def unpack(codes, bits, cols):
    stream = np.unpackbits(codes, axis=1, bitorder="little")[:, : cols * bits].reshape(codes.shape[0], cols, bits)
    return (stream.astype(np.uint32) << np.arange(bits, dtype=np.uint32)).sum(axis=2)


def blocks_of(x, size):
    """[(begin, end), ...] over the columns."""
    return [(begin, min(begin + size, x.shape[1])) for begin in range(0, x.shape[1], size)]


def int_codes(quotient, bits):
    limit = 2 ** (bits - 1) - 1
    return np.clip(np.rint(quotient), -limit, limit).astype(np.int64) & (2**bits - 1)


def float_codes(quotient, dtype, largest):
    return np.clip(quotient, -largest, largest).astype(dtype).view(np.uint8).astype(np.uint32)


def amax_scales(x, size, largest):
    scales = np.empty((x.shape[0], len(blocks_of(x, size))), np.float32)
    for i, (begin, end) in enumerate(blocks_of(x, size)):
        scales[:, i] = np.abs(x[:, begin:end]).max(axis=1) / np.float32(largest)
    scales[scales == 0] = 1.0
    return scales


def spread(scales, size, cols):
    return np.repeat(scales, size, axis=1)[:, :cols]


@pytest.mark.parametrize("bits,size", [(8, COLS), (8, 128), (4, 128), (4, 32), (3, 128), (2, 64)])
def test_symmetric_integers(bin_dir, tmp_path, bits, size):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, f"int{bits}:{'row' if size == COLS else f'block{size}'}")
    scales = amax_scales(x, size, 2 ** (bits - 1) - 1)
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], bits, COLS), int_codes(x / spread(scales, size, COLS), bits))


@pytest.mark.parametrize("bits,size", [(8, COLS), (4, 128), (2, 32)])
def test_asymmetric_integers(bin_dir, tmp_path, bits, size):
    x = weights() + np.float32(0.3)
    stored = quantize(bin_dir, tmp_path, x, f"int{bits}:{'row' if size == COLS else f'block{size}'}:asym")
    top = np.float32(2**bits - 1)
    scales, zeros = [], []
    for begin, end in blocks_of(x, size):
        low, high = np.minimum(x[:, begin:end].min(axis=1), 0), np.maximum(x[:, begin:end].max(axis=1), 0)
        scale = (high - low) / top
        scale[scale == 0] = 1.0
        scales.append(scale)
        zeros.append(np.clip(np.rint(-low / scale), 0, top))
    scales, zeros = np.stack(scales, axis=1).astype(np.float32), np.stack(zeros, axis=1)
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    np.testing.assert_array_equal(stored["layer.weight.zero_points"], zeros.astype(np.uint8))
    expected = np.clip(np.rint(x / spread(scales, size, COLS)) + spread(zeros, size, COLS), 0, top)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], bits, COLS), expected.astype(np.uint32))


FLOATS = [("fp8_e4m3", 8, ml_dtypes.float8_e4m3fn, 448), ("fp8_e5m2", 8, ml_dtypes.float8_e5m2, 57344), ("fp6_e3m2", 6, ml_dtypes.float6_e3m2fn, 28),
          ("fp6_e2m3", 6, ml_dtypes.float6_e2m3fn, 7.5), ("fp4_e2m1", 4, ml_dtypes.float4_e2m1fn, 6)]


@pytest.mark.parametrize("name,bits,dtype,largest", FLOATS)
@pytest.mark.parametrize("size", [COLS, 128])
def test_floats(bin_dir, tmp_path, name, bits, dtype, largest, size):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, f"{name}:{'row' if size == COLS else f'block{size}'}")
    scales = amax_scales(x, size, largest)
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    expected = float_codes(x / spread(scales, size, COLS), dtype, largest)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], bits, COLS), expected)


def test_tiles(bin_dir, tmp_path):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, "fp8_e4m3:16x128")
    scales = np.empty((3, 3), np.float32)
    whole = np.empty_like(x)
    for i in range(3):
        for j, (begin, end) in enumerate(blocks_of(x, 128)):
            scales[i, j] = np.abs(x[16 * i : 16 * i + 16, begin:end]).max() / np.float32(448)
            whole[16 * i : 16 * i + 16, begin:end] = scales[i, j]
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    np.testing.assert_array_equal(stored["layer.weight.codes"], float_codes(x / whole, ml_dtypes.float8_e4m3fn, 448))


def shared_exponents(x, size, offset, zero_code):
    codes = []
    for begin, end in blocks_of(x, size):
        amax = np.abs(x[:, begin:end]).max(axis=1)
        exponent = np.floor(np.log2(amax, where=amax > 0, out=np.zeros_like(amax, np.float64), dtype=np.float64)) - offset
        codes.append(np.where(amax > 0, exponent + 127, zero_code))
    return np.stack(codes, axis=1).astype(np.uint8)


@pytest.mark.parametrize("name,bits,dtype,largest,offset",
                         [("mxfp8_e4m3", 8, ml_dtypes.float8_e4m3fn, 448, 8), ("mxfp8_e5m2", 8, ml_dtypes.float8_e5m2, 57344, 15),
                          ("mxfp6_e3m2", 6, ml_dtypes.float6_e3m2fn, 28, 4), ("mxfp6_e2m3", 6, ml_dtypes.float6_e2m3fn, 7.5, 2),
                          ("mxfp4", 4, ml_dtypes.float4_e2m1fn, 6, 2)])
def test_mx(bin_dir, tmp_path, name, bits, dtype, largest, offset):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, name)
    codes = shared_exponents(x, 32, offset, 127)
    np.testing.assert_array_equal(stored["layer.weight.scales"], codes)
    scales = np.exp2(codes.astype(np.float32) - 127)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], bits, COLS), float_codes(x / spread(scales, 32, COLS), dtype, largest))


def test_mxint8(bin_dir, tmp_path):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, "mxint8")
    codes = shared_exponents(x, 32, 0, 127)
    np.testing.assert_array_equal(stored["layer.weight.scales"], codes)
    scales = np.exp2(codes.astype(np.float32) - 127)
    np.testing.assert_array_equal(stored["layer.weight.codes"], int_codes(64 * (x / spread(scales, 32, COLS)), 8))


@pytest.mark.parametrize("bits", range(11, 17))
def test_msfp(bin_dir, tmp_path, bits):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, f"msfp{bits}")
    magnitude = bits - 9
    codes = shared_exponents(x, 16, 0, 0)
    np.testing.assert_array_equal(stored["layer.weight.scales"], codes)
    unit = np.exp2(spread(codes, 16, COLS).astype(np.float64) - 127 - (magnitude - 1))
    k = np.minimum(np.rint(np.abs(x) / unit), 2**magnitude - 1).astype(np.uint32)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], magnitude + 1, COLS), k | (np.signbit(x).astype(np.uint32) << magnitude))


def test_nvfp4(bin_dir, tmp_path):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, "nvfp4")
    outer = np.abs(x).max() / np.float32(6 * 448)
    assert stored["layer.weight.outer_scale"] == outer
    wanted = np.empty((ROWS, len(blocks_of(x, 16))), np.float32)
    for i, (begin, end) in enumerate(blocks_of(x, 16)):
        amax = np.abs(x[:, begin:end]).max(axis=1)
        wanted[:, i] = np.where(amax > 0, amax / np.float32(6) / outer, 1.0)
    scales = np.minimum(wanted, 448).astype(ml_dtypes.float8_e4m3fn)
    codes = scales.view(np.uint8)
    codes = np.where((codes == 0) & (wanted > 0), 1, codes).astype(np.uint8)
    np.testing.assert_array_equal(stored["layer.weight.scales"], codes)
    effective = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * outer
    expected = float_codes(x / spread(effective, 16, COLS), ml_dtypes.float4_e2m1fn, 6)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], 4, COLS), expected)


def test_int1(bin_dir, tmp_path):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, "int1:row")
    np.testing.assert_allclose(stored["layer.weight.scales"][:, 0], np.abs(x.astype(np.float64)).mean(axis=1), rtol=1e-7)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], 1, COLS), (x > 0).astype(np.uint32))


def test_nf4(bin_dir, tmp_path):
    table = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                      -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                      0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, "nf4:block64")
    scales = amax_scales(x, 64, 1)
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    quotient = (x / spread(scales, 64, COLS)).astype(np.float64)
    nearest = np.abs(quotient[..., None] - table).argmin(axis=-1)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], 4, COLS), nearest)


@pytest.mark.parametrize("storage,dtype", [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_rounded_scales(bin_dir, tmp_path, storage, dtype):
    x = weights()
    stored = quantize(bin_dir, tmp_path, x, f"int4:block64:scale={storage}")
    scales = amax_scales(x, 64, 7).astype(dtype)
    np.testing.assert_array_equal(stored["layer.weight.scales"], scales)
    np.testing.assert_array_equal(unpack(stored["layer.weight.codes"], 4, COLS), int_codes(x / spread(scales.astype(np.float32), 64, COLS), 4))
