"""What narrow writes for other runtimes, read by their Python packages or by the formats' own equations in numpy."""
import json
import pathlib
import struct
import subprocess

import ml_dtypes  # noqa: F401  (bfloat16 and float8 for numpy)
import numpy as np
import pytest

MODEL = pathlib.Path(__file__).resolve().parents[2] / "examples" / "docs-llama-13m"
MODULE = "model.layers.3.mlp.down_proj"
ATTENTION = "model.layers.3.self_attn.k_proj"


def narrow(bin_dir, *arguments):
    tool = bin_dir / "narrow"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    return subprocess.run([tool, "--quiet", *map(str, arguments)], check=True, capture_output=True, text=True)


DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I8": "int8", "U8": "uint8", "F8_E4M3": "float8_e4m3fn"}


def tensors_of(directory):
    """By the format's own description: the numpy side of safetensors has no 8-bit floats."""
    result = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, info in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                raw = data[begin + info["data_offsets"][0] : begin + info["data_offsets"][1]]
                result[name] = np.frombuffer(raw, np.dtype(DTYPES[info["dtype"]])).reshape(info["shape"])
    return result


def config_of(directory):
    return json.loads((directory / "config.json").read_text())["quantization_config"]


def exported(bin_dir, tmp_path, form, scheme):
    """The directory, its tensors, and the values that narrow itself reads from it."""
    narrow(bin_dir, "quantize", MODEL, tmp_path / form, scheme, "--export", form)
    narrow(bin_dir, "convert", tmp_path / form, tmp_path / "own", "--to", "narrow")
    narrow(bin_dir, "dequantize", tmp_path / "own", tmp_path / "plain", "--dtype", "fp32")
    return tensors_of(tmp_path / form), config_of(tmp_path / form), tensors_of(tmp_path / "plain")


def bit_stream(words, count, bits):
    """Codes of a dense LSB-first stream along the last axis of 32-bit words."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape[:-1], -1)
    stream = np.unpackbits(raw, axis=-1, bitorder="little")[..., : count * bits]
    return (stream.reshape(*words.shape[:-1], count, bits).astype(np.int64) << np.arange(bits)).sum(-1)


@pytest.mark.parametrize("scheme", ["int4:block128", "int4:block64:asym", "int3:block128", "int8:row", "int2:block32:asym"])
def test_gptq_dequantizes_by_its_equation(bin_dir, tmp_path, scheme):
    tensors, config, plain = exported(bin_dir, tmp_path, "gptq", scheme)
    bits = config["bits"]
    for module in (MODULE, ATTENTION):
        scales, g_idx = tensors[f"{module}.scales"].astype(np.float32), tensors[f"{module}.g_idx"]
        groups, n = scales.shape
        codes = bit_stream(tensors[f"{module}.qweight"].T, len(g_idx), bits).T
        zeros = bit_stream(tensors[f"{module}.qzeros"], n, bits)
        if config["checkpoint_format"] == "gptq":
            zeros = (zeros + 1) & (2**bits - 1)
        weight = (scales[g_idx] * (codes - zeros[g_idx]).astype(np.float32)).T
        np.testing.assert_array_equal(weight, plain[f"{module}.weight"])
    assert json.loads((tmp_path / "gptq" / "quantize_config.json").read_text()) == config


@pytest.mark.parametrize("scheme", ["int4:block128", "int4:block64:asym"])
def test_awq_dequantizes_by_its_equation(bin_dir, tmp_path, scheme):
    tensors, config, plain = exported(bin_dir, tmp_path, "awq", scheme)

    def unpack(words):
        nibbles = np.stack([(words.view(np.uint32) >> (4 * i)) & 15 for i in range(8)], axis=-1)
        return nibbles[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(words.shape[0], -1).astype(np.int64)

    for module in (MODULE, ATTENTION):
        group = np.arange(tensors[f"{module}.qweight"].shape[0]) // config["group_size"]
        difference = unpack(tensors[f"{module}.qweight"]) - unpack(tensors[f"{module}.qzeros"])[group]
        weight = (tensors[f"{module}.scales"].astype(np.float32)[group] * difference.astype(np.float32)).T
        np.testing.assert_array_equal(weight, plain[f"{module}.weight"])


@pytest.mark.parametrize("scheme", ["int4:block128:scale=bf16", "int3:block128:asym", "int8:block64"])
def test_packed_compressed_tensors_dequantize_by_their_equation(bin_dir, tmp_path, scheme):
    tensors, config, plain = exported(bin_dir, tmp_path, "ct", scheme)
    arguments = config["config_groups"]["group_0"]["weights"]
    bits = arguments["num_bits"]
    for module in (MODULE, ATTENTION):
        n, k = tensors[f"{module}.weight_shape"]
        codes = bit_stream(tensors[f"{module}.weight_packed"], k, bits) - 2 ** (bits - 1)
        zeros = np.zeros((n, 1), np.int64)
        if not arguments["symmetric"]:
            zeros = bit_stream(tensors[f"{module}.weight_zero_point"].T, n, bits).T - 2 ** (bits - 1)
            zeros = np.repeat(zeros, arguments["group_size"], axis=1)
        scales = np.repeat(tensors[f"{module}.weight_scale"].astype(np.float32), arguments["group_size"], axis=1)
        np.testing.assert_array_equal(scales * (codes - zeros).astype(np.float32), plain[f"{module}.weight"])


def test_fp8_blocks_dequantize_by_their_equation(bin_dir, tmp_path):
    tensors, config, plain = exported(bin_dir, tmp_path, "fp8-block", "fp8_e4m3:128x128")
    assert config["weight_block_size"] == [128, 128]
    for module in (MODULE, ATTENTION):
        codes = tensors[f"{module}.weight"].astype(np.float32)
        scales = np.kron(tensors[f"{module}.weight_scale_inv"], np.ones((128, 128), np.float32))
        np.testing.assert_array_equal(codes * scales[: codes.shape[0], : codes.shape[1]], plain[f"{module}.weight"])


@pytest.mark.parametrize("scheme, block", [("nvfp4", 16), ("mxfp4", 32)])
def test_fp4_compressed_tensors_dequantize_by_their_equation(bin_dir, tmp_path, scheme, block):
    tensors, _, plain = exported(bin_dir, tmp_path, "ct", scheme)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)
    for module in (MODULE, ATTENTION):
        packed = tensors[f"{module}.weight_packed"]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
        stored = tensors[f"{module}.weight_scale"]
        if scheme == "nvfp4":
            scales = stored.astype(np.float64) / tensors[f"{module}.weight_global_scale"].astype(np.float64)
        else:
            scales = np.exp2(stored.astype(np.float64) - 127)
        expected = values[codes] * np.repeat(scales, block, axis=1)
        np.testing.assert_allclose(plain[f"{module}.weight"], expected, rtol=4e-7, atol=0)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q6_k", "mxfp4"])
def test_gguf_is_read_by_its_package(bin_dir, tmp_path, kind):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    narrow(bin_dir, "convert", MODEL, path, "--to", f"gguf:{kind}")
    reader = gguf.GGUFReader(path)
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    field = {name: reader.fields[name].contents() for name in reader.fields}
    assert field["general.architecture"] == "llama"
    assert field["llama.block_count"] == config["num_hidden_layers"]
    assert field["llama.attention.head_count_kv"] == config["num_key_value_heads"]
    assert field["llama.attention.layer_norm_rms_epsilon"] == np.float32(config["rms_norm_eps"])
    assert {token: i for i, token in enumerate(field["tokenizer.ggml.tokens"])} == tokenizer["model"]["vocab"]
    assert field["tokenizer.ggml.merges"] == [" ".join(merge) for merge in tokenizer["model"]["merges"]]

    source = tensors_of(MODEL)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(stored) == len(source)
    for name, values in source.items():
        tensor = stored[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        expected = values.astype(np.float32)
        if "q_proj" in name or "k_proj" in name:  # as llama.cpp's own conversion orders the rows
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            expected = expected.reshape(heads, 2, expected.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(expected.shape)
        read = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert read.shape == expected.shape
        is_linear = "_proj" in name
        if not is_linear:
            np.testing.assert_array_equal(read, expected)
        elif tensor.tensor_type.name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "BF16"):  # the package encodes these itself
            np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(expected, tensor.tensor_type))
        else:
            noise = np.sum((read - expected) ** 2, dtype=np.float64)
            least = {"F16": 60, "Q6_K": 30, "Q4_K": 18}[tensor.tensor_type.name]
            assert 10 * np.log10(np.sum(expected**2, dtype=np.float64) / noise) > least, name


FORMS = [("ct", "int4:block128:asym"), ("gptq", "int4:block128"), ("awq", "int4:block128"), ("fp8-block", "fp8_e4m3:128x128"), ("modelopt", "nvfp4")]


@pytest.mark.parametrize("form, scheme", FORMS)
def test_commands_read_the_weights_of_others(bin_dir, tmp_path, form, scheme):
    """compare, inspect and verify say of a form what they say of narrow's own with the same codes."""
    narrow(bin_dir, "quantize", MODEL, tmp_path / form, scheme, "--export", form)
    narrow(bin_dir, "convert", tmp_path / form, tmp_path / "own", "--to", "narrow")

    def answer(*arguments):
        return json.loads(narrow(bin_dir, *arguments, "--json").stdout)

    theirs, ours = (answer("compare", MODEL, tmp_path / which) for which in (form, "own"))
    assert theirs["problems"] == [] and theirs["tensors"] == ours["tensors"]
    assert sum(tensor["scheme"] is not None for tensor in theirs["tensors"]) == 42
    assert answer("compare", tmp_path / form, tmp_path / "own")["identical"] == 57

    theirs, ours = (answer("inspect", tmp_path / which) for which in (form, "own"))
    assert (theirs["form"], ours["form"]) == (form, "narrow")
    assert [(t["name"], t["shape"], t["scheme"]) for t in theirs["tensors"]] == [(t["name"], t["shape"], t["scheme"]) for t in ours["tensors"]]
    stored = answer("inspect", tmp_path / form, "--headers")
    assert (stored["bytes"], theirs["bytes"]) == (sum(t.nbytes for t in tensors_of(tmp_path / form).values()),) * 2
    assert answer("inspect", tmp_path / form, "--tensor", MODULE)["shape"] == [384, 1024]

    mark = {"ct": "weight_scale", "fp8-block": "weight_scale_inv", "modelopt": "weight_scale_2"}.get(form, "scales")
    assert answer("verify", tmp_path / form)["ok"]
    damage(tmp_path / form, f"{MODULE}.{mark}")
    report = subprocess.run([bin_dir / "narrow", "verify", tmp_path / form], capture_output=True, text=True)
    assert report.returncode == 1 and MODULE in report.stdout


def damage(directory, name):
    """Makes a number of a tensor one that is none."""
    for path in directory.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        if info := json.loads(data[8:begin]).get(name):
            place = begin + info["data_offsets"][0]
            size = info["data_offsets"][1] - info["data_offsets"][0]
            data[place : place + size] = b"\xff" * size
            path.write_bytes(data)


def test_methods_that_narrow_does_not_read_are_named(bin_dir, tmp_path):
    narrow(bin_dir, "quantize", MODEL, tmp_path / "gptq", "int4:block128", "--export", "gptq")

    def failure(*arguments):
        result = subprocess.run([bin_dir / "narrow", *map(str, arguments)], capture_output=True, text=True)
        assert result.returncode != 0
        return result.stderr

    assert "narrow convert" in failure("quantize", tmp_path / "gptq", tmp_path / "out", "int8:row")
    config = json.loads((tmp_path / "gptq" / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "other"
    (tmp_path / "gptq" / "config.json").write_text(json.dumps(config))
    assert "which narrow does not read" in failure("compare", MODEL, tmp_path / "gptq")
    assert "use its unquantized source\n" in failure("quantize", tmp_path / "gptq", tmp_path / "out", "int8:row")
    assert narrow(bin_dir, "verify", tmp_path / "gptq").returncode == 0
    plain = subprocess.run([bin_dir / "narrow", "verify", MODEL, "--as", "narrow"], capture_output=True, text=True)
    assert plain.returncode == 1 and "it is not quantized by narrow" in plain.stdout


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "mxfp4", "bf16"])
def test_gguf_of_its_package_is_read(bin_dir, tmp_path, kind):
    """Blocks that the gguf package wrote come back as the values that it decodes."""
    gguf = pytest.importorskip("gguf")
    narrow(bin_dir, "convert", MODEL, tmp_path / "ours.gguf", "--to", "gguf:bf16")
    ours = gguf.GGUFReader(tmp_path / "ours.gguf")
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    for name, field in ours.fields.items():
        if name.startswith(("llama.", "tokenizer.")):
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[1] if len(kinds) > 1 else None)
    expected = {}
    for tensor in ours.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kept = len(tensor.shape) < 2 or not tensor.name.startswith("blk.")
        wanted = tensor.tensor_type if kept else gguf.GGMLQuantizationType[kind.upper()]
        data = gguf.quants.quantize(values, wanted)
        writer.add_tensor(tensor.name, data, raw_dtype=wanted)
        expected[tensor.name] = gguf.quants.dequantize(data, wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    narrow(bin_dir, "convert", tmp_path / "theirs.gguf", tmp_path / "own", "--to", "narrow")
    if kind == "bf16":
        read = tensors_of(tmp_path / "own")
    else:
        narrow(bin_dir, "dequantize", tmp_path / "own", tmp_path / "plain", "--dtype", "fp32")
        read = tensors_of(tmp_path / "plain")
    config = json.loads((MODEL / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    assert len(read) == len(expected)
    for name, values in read.items():
        values = values.astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
        np.testing.assert_array_equal(values, expected[names.get_name(name, try_suffixes=(".weight", ".bias"))], err_msg=name)
