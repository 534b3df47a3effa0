"""Formats against ml_dtypes: the value of every code, and the code of a large sample of values."""
import json
import math
import subprocess

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save_file

BYTES = [("fp8_e4m3", ml_dtypes.float8_e4m3fn), ("fp8_e5m2", ml_dtypes.float8_e5m2), ("fp6_e3m2", ml_dtypes.float6_e3m2fn),
         ("fp6_e2m3", ml_dtypes.float6_e2m3fn), ("fp4_e2m1", ml_dtypes.float4_e2m1fn), ("e8m0", ml_dtypes.float8_e8m0fnu),
         ("int4", ml_dtypes.int4), ("int2", ml_dtypes.int2), ("uint4", ml_dtypes.uint4), ("uint2", ml_dtypes.uint2)]


@pytest.mark.parametrize("name,dtype", BYTES)
def test_every_code_has_the_value_of_ml_dtypes(bin_dir, name, dtype):
    described = json.loads(subprocess.run([bin_dir / "narrow", "formats", name, "--json"], check=True, capture_output=True, text=True).stdout)
    codes = described["codes"]
    assert [entry["code"] for entry in codes] == list(range(2 ** described["bits"]))
    expected = np.arange(len(codes), dtype=np.uint8).view(dtype).astype(np.float32)
    for entry, value in zip(codes, expected):
        mine = entry["value"]  # JSON has no NaN and no infinity: null, or their names
        if math.isfinite(value):
            assert mine == value and (mine != 0 or math.copysign(1, mine) == math.copysign(1, value)), entry
        else:
            assert not isinstance(mine, (int, float)), entry


def hard_values():
    """All exponents with random mantissas, every midpoint between codes and its neighbours, and random bits."""
    generator = np.random.default_rng(3)
    random = generator.integers(0, 2**32, 2_000_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ties = []
    for _, dtype in BYTES[:5]:
        values = np.unique(np.arange(256, dtype=np.uint8).astype(np.uint8).view(dtype).astype(np.float32)) if dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2) \
            else np.unique(np.arange(64, dtype=np.uint8).view(dtype).astype(np.float32))
        values = np.sort(values[np.isfinite(values)])
        middle = (values[1:] + values[:-1]) / 2
        ties += [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf)), values]
    x = np.concatenate(ties + [random]).astype(np.float32)
    x = x[np.isfinite(x)]
    return x[: len(x) // 64 * 64].reshape(64, -1)


@pytest.mark.parametrize("name,bits,dtype,largest", [("fp8_e4m3", 8, ml_dtypes.float8_e4m3fn, 448), ("fp8_e5m2", 8, ml_dtypes.float8_e5m2, 57344),
                                                     ("fp6_e3m2", 6, ml_dtypes.float6_e3m2fn, 28), ("fp6_e2m3", 6, ml_dtypes.float6_e2m3fn, 7.5),
                                                     ("fp4_e2m1", 4, ml_dtypes.float4_e2m1fn, 6)])
def test_codes_of_values(bin_dir, tmp_path, name, bits, dtype, largest):
    x = hard_values()
    (tmp_path / "in").mkdir()
    save_file({"layer.weight": x}, tmp_path / "in" / "model.safetensors")
    subprocess.run([bin_dir / "narrow", "quantize", "--quiet", tmp_path / "in", tmp_path / "out", f"{name}:none"], check=True)
    stored = dict(deserialize((tmp_path / "out" / "model.safetensors").read_bytes()))["layer.weight.codes"]
    packed = np.frombuffer(bytes(stored["data"]), np.uint8).reshape(stored["shape"])
    stream = np.unpackbits(packed, axis=1, bitorder="little")[:, : x.shape[1] * bits].reshape(x.shape[0], x.shape[1], bits)
    codes = (stream.astype(np.uint32) << np.arange(bits, dtype=np.uint32)).sum(axis=2)
    np.testing.assert_array_equal(codes, np.clip(x, -largest, largest).astype(dtype).view(np.uint8))


def test_e8m0_scales_round_as_ml_dtypes(bin_dir, tmp_path):
    x = np.abs(hard_values())
    x = x[:, : x.shape[1] // 32 * 32] * (np.arange(x.shape[1] // 32 * 32) % 32 == 0)  # one value per block: the scale is value / 7
    (tmp_path / "in").mkdir()
    save_file({"layer.weight": np.ascontiguousarray(x, np.float32)}, tmp_path / "in" / "model.safetensors")
    subprocess.run([bin_dir / "narrow", "quantize", "--quiet", tmp_path / "in", tmp_path / "out", "int4:block32:scale=e8m0"], check=True)
    stored = dict(deserialize((tmp_path / "out" / "model.safetensors").read_bytes()))["layer.weight.scales"]
    scales = np.frombuffer(bytes(stored["data"]), np.uint8).reshape(stored["shape"])
    values = x[:, ::32].astype(np.float32)
    wanted = np.where(values > 0, np.maximum(values / np.float32(7), np.float32(1e-45)), np.float32(1)).astype(np.float32)
    normal = wanted >= np.float32(2.0**-126)  # below, ml_dtypes flushes to its smallest code
    np.testing.assert_array_equal(scales[normal], wanted.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)[normal])
