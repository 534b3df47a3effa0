"""Files of narrow and of the Python package safetensors: each reads the other's, and both write the same bytes."""
import json
import struct
import subprocess

import numpy as np
import pytest

safetensors_numpy = pytest.importorskip("safetensors.numpy")
from safetensors import safe_open  # noqa: E402


def resave(bin_dir, source, target):
    tool = bin_dir / "resave"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    subprocess.run([tool, source, target], check=True)


def header_of(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def arrays():
    random = np.random.default_rng(1)
    result = {}
    for i, dtype in enumerate(["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]):
        result[f"layer.{i}.weight"] = (random.standard_normal((3, i + 1)) * 50).astype(dtype)
        result[f"b.{i}"] = np.zeros((0, i), dtype)
    result["flags"] = random.integers(0, 2, 13).astype(bool)
    result["scalar"] = np.array(2.5, "float32")
    result['odd "name" \\ \t é 😀'] = np.arange(5, dtype="float32")
    return result


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"key \"é\"\n": "välue"}])
@pytest.mark.parametrize("tensors", [{}, {"one": np.arange(7, dtype="uint8")}, arrays()], ids=["none", "one", "many"])
def test_both_writers_give_the_same_bytes(bin_dir, tmp_path, tensors, metadata):
    safetensors_numpy.save_file(tensors, tmp_path / "theirs.safetensors", metadata=metadata)
    resave(bin_dir, tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_our_files_load_with_equal_values(bin_dir, tmp_path):
    tensors = arrays()
    safetensors_numpy.save_file(tensors, tmp_path / "theirs.safetensors")
    resave(bin_dir, tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors")
    loaded = safetensors_numpy.load_file(tmp_path / "ours.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array), name


def test_narrow_types_survive(bin_dir, tmp_path):
    """bf16, fp8 and e8m0 as the package's own low-level writer stores them."""
    from safetensors import serialize_file

    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
    widths = {"bfloat16": 2}
    tensors = {}
    for name in names:
        raw = bytes(range(24)) * widths.get(name, 1)
        tensors[name] = {"dtype": name, "shape": [4, 6], "data": raw}
    try:
        serialize_file(tensors, tmp_path / "theirs.safetensors", {"format": "pt"})
    except Exception as error:  # an older package without these types
        pytest.skip(str(error))
    resave(bin_dir, tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def write_model(directory):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(2)
    directory.mkdir()
    tensors = {
        "model.layers.0.mlp.up_proj.weight": (random.standard_normal((64, 48)) * 0.1).astype(ml_dtypes.bfloat16),
        "model.layers.0.input_layernorm.weight": np.ones(48, ml_dtypes.bfloat16),
    }
    safetensors_numpy.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return tensors


@pytest.mark.parametrize("scheme", ["int8:row", "int4:block16:asym", "fp8_e4m3:row"])
def test_a_quantized_checkpoint_is_plain_safetensors(bin_dir, tmp_path, scheme):
    """What the command writes is opened by the package, and its parts give the values back by the documented equation."""
    tool = bin_dir / "narrow"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    source = write_model(tmp_path / "in")
    done = subprocess.run([tool, "quantize", tmp_path / "in", tmp_path / "out", scheme, "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if not (tmp_path / "out").exists():
        pytest.skip("this build of the command has no quantize")
    name = "model.layers.0.mlp.up_proj.weight"
    weight = source[name].astype(np.float32)
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        parts = {key[len(name) + 1 :]: file.get_tensor(key) for key in file.keys() if key.startswith(name + ".")}
        assert np.array_equal(file.get_tensor("model.layers.0.input_layernorm.weight"), source["model.layers.0.input_layernorm.weight"])
    codes, scales = parts["codes"], parts["scales"]
    if scheme == "int8:row":
        values = codes.view(np.int8).astype(np.float32) * scales
    elif scheme == "fp8_e4m3:row":
        import ml_dtypes

        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
    else:
        nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(64, 48).astype(np.float32)
        values = (nibbles - np.repeat(parts["zero_points"].astype(np.float32), 16, 1)) * np.repeat(scales, 16, 1)
    steps = np.abs(weight).max() / (7 if scheme.startswith("int4") else 15)
    assert np.abs(values - weight).max() <= steps
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["scheme"] == scheme
