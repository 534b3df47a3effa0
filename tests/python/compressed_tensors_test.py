"""What `narrow quantize --export ct` writes, loaded and run by transformers with the compressed-tensors package."""
import json
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, TOKENS = ROOT / "examples" / "docs-llama-13m", ROOT / "examples" / "docs_tokens.safetensors"
WINDOWS = 2


def perplexity_there(directory, dtype, windows=WINDOWS):
    from safetensors.torch import load_file

    tokens = load_file(TOKENS)["eval"][:windows].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    with torch.inference_mode():
        scores = torch.log_softmax(model(tokens).logits[:, :-1].double(), -1).gather(-1, tokens[:, 1:, None])
    return float(torch.exp(-scores.mean()))


# int-quantized and float-quantized files announce dynamic activations where narrow has weights alone; the package rounds them by scales of its own
# (amax / 127.5 where narrow has amax / 127): the errors differ, their size does not, which takes more windows to see. The packed ones are weights alone.
@pytest.mark.parametrize(
    "scheme, same, dtype, tolerance, windows",
    [
        ("int4:block128", "int4:block128", "float32", 1e-4, WINDOWS),
        ("int4:block128:asym", "int4:block128:asym", "float32", 1e-4, WINDOWS),
        ("int3:block128", "int3:block128", "float32", 1e-4, WINDOWS),
        ("int8:row", "W8A8", "float32", 1e-2, 8),
        ("fp8_e4m3:row", "FP8_DYNAMIC", "float32", 1e-2, 8),
        ("nvfp4", "nvfp4", "bfloat16", 1e-2, WINDOWS),  # the package decodes it to bf16
        ("mxfp4", "mxfp4", "bfloat16", 1e-2, WINDOWS),
    ],
)
def test_perplexity_is_narrows(bin_dir, tmp_path, scheme, same, dtype, tolerance, windows):
    def narrow(*arguments):
        return subprocess.run([str(bin_dir / "narrow"), *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    narrow("--quiet", "quantize", MODEL, tmp_path / "ct", scheme, "--export", "ct")
    own = json.loads(narrow("eval", MODEL, "--scheme", same, "--tokens", TOKENS, "--windows", windows, "--compute", "fp32", "--json"))
    assert perplexity_there(tmp_path / "ct", getattr(torch, dtype), windows) == pytest.approx(own["perplexity"], rel=tolerance)


def test_rounded_inputs_travel(bin_dir, tmp_path):
    """Static scales are the same on both sides; the package evaluates what narrow evaluates from the same files."""

    def narrow(*arguments):
        return subprocess.run([str(bin_dir / "narrow"), *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    narrow("--quiet", "calibrate", MODEL, "--tokens", TOKENS, "--windows", 8, "-o", tmp_path / "stats.safetensors")
    narrow("--quiet", "quantize", MODEL, tmp_path / "ct", "W8A8-static", "--stats", tmp_path / "stats.safetensors", "--range", "percentile=99.99",
           "--activation-rule", "down_proj=int8:row:dynamic", "--export", "ct")
    groups = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]["config_groups"]
    assert {(group["input_activations"]["strategy"], group["input_activations"]["dynamic"]) for group in groups.values()} == {("tensor", False), ("token", True)}
    own = json.loads(narrow("eval", tmp_path / "ct", "--tokens", TOKENS, "--windows", WINDOWS, "--compute", "fp32", "--json"))
    assert perplexity_there(tmp_path / "ct", torch.float32) == pytest.approx(own["perplexity"], rel=5e-3)


@pytest.mark.parametrize(
    "scheme",
    ["int4:block128", "int4:block128:scale=bf16", "int4:block128:asym", "int4:block128:asym:scale=bf16", "int3:row", "int8:block64:asym"],
)
def test_compat_makes_the_codes_of_the_package(bin_dir, tmp_path, scheme):
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file

    words = ["--quiet", "quantize", MODEL, tmp_path / "ct", scheme, "--export", "ct", "--compat"]
    subprocess.run([str(bin_dir / "narrow"), *map(str, words)], check=True)
    written = {name: tensor for path in sorted((tmp_path / "ct").glob("*.safetensors")) for name, tensor in load_file(path).items()}
    plain = {name: tensor for path in sorted(MODEL.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    arguments = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["weights"]
    arguments = QuantizationArgs(**arguments)
    for module in ("model.layers.0.mlp.up_proj", "model.layers.3.self_attn.k_proj"):
        weight = plain[f"{module}.weight"]
        weight = weight if scheme.endswith("bf16") else weight.float()
        groups = weight.unflatten(1, (-1, arguments.group_size or weight.shape[1]))
        scales, zeros = calculate_qparams(groups.amin(-1), groups.amax(-1), arguments)
        codes = quantize(weight, scales, zeros, arguments, dtype=torch.int8)
        found = unpack_from_int32(written[f"{module}.weight_packed"], arguments.num_bits, weight.shape)
        assert torch.equal(written[f"{module}.weight_scale"], scales)
        assert torch.equal(found, codes)
