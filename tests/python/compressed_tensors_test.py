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


def perplexity_there(directory, dtype):
    from safetensors.torch import load_file

    tokens = load_file(TOKENS)["eval"][:WINDOWS].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    with torch.inference_mode():
        scores = torch.log_softmax(model(tokens).logits[:, :-1].double(), -1).gather(-1, tokens[:, 1:, None])
    return float(torch.exp(-scores.mean()))


# int-quantized and float-quantized files announce dynamic activations, which the package rounds by scales of its own (amax / 127.5 where narrow has
# amax / 127): the errors differ, their size does not. The packed ones are weights alone.
@pytest.mark.parametrize(
    "scheme, same, dtype, tolerance",
    [
        ("int4:block128", "int4:block128", "float32", 1e-4),
        ("int4:block128:asym", "int4:block128:asym", "float32", 1e-4),
        ("int3:block128", "int3:block128", "float32", 1e-4),
        ("int8:row", "W8A8", "float32", 1e-2),
        ("fp8_e4m3:row", "FP8_DYNAMIC", "float32", 1e-2),
        ("nvfp4", "nvfp4", "bfloat16", 1e-2),  # the package decodes it to bf16
        ("mxfp4", "mxfp4", "bfloat16", 1e-2),
    ],
)
def test_perplexity_is_narrows(bin_dir, tmp_path, scheme, same, dtype, tolerance):
    def narrow(*arguments):
        return subprocess.run([str(bin_dir / "narrow"), *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    narrow("--quiet", "quantize", MODEL, tmp_path / "ct", scheme, "--export", "ct")
    own = json.loads(narrow("eval", MODEL, "--scheme", same, "--tokens", TOKENS, "--windows", WINDOWS, "--compute", "fp32", "--json"))
    assert perplexity_there(tmp_path / "ct", getattr(torch, dtype)) == pytest.approx(own["perplexity"], rel=tolerance)
