"""narrow.torch: QuantizedLinear and quantize_ beside the command on the example model, compiled, saved, copied, cast; the direct calls."""

import copy
import json
import pathlib
import pickle
import subprocess
import warnings

import pytest

torch = pytest.importorskip("torch")
narrow = pytest.importorskip("narrow", reason="the Python package is not built")
from torch import nn  # noqa: E402

import narrow.torch as nt  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "docs-llama-13m"
TOKENS = EXAMPLES / "docs_tokens.safetensors"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


def mlp(dtype=torch.float32, bias=True):
    return nn.Sequential(nn.Linear(64, 96, bias=bias), nn.SiLU(), nn.Linear(96, 32, bias=bias)).to(dtype)


# ---- the model ----


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokens():
    from safetensors.torch import load_file

    return load_file(TOKENS)["eval"][:2, :128].long()


def perplexity(model, tokens):
    with torch.inference_mode():
        logits = model(tokens).logits[:, :-1].double()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)).exp().item()


SCHEMES = [
    "int8:row",
    "int4:block128:asym",
    "fp8_e4m3:128x128",
    "fp6_e3m2:row",
    "fp5_e2m2:row",
    "fp4_e2m1:row",
    "nvfp4",
    "mxfp4",
    "msfp12",
    "nf4:block64",
    "int3:block32:asym",
]


@pytest.fixture(scope="module")
def command_perplexity(bin_dir, tmp_path_factory, tokens):
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tokens")

    def run(*arguments, tokens=tokens):
        save_file({"eval": tokens.to(torch.int32).contiguous()}, folder / "tokens.safetensors")
        done = subprocess.run(
            [
                bin_dir / "narrow",
                "eval",
                *map(str, arguments),
                "--tokens",
                folder / "tokens.safetensors",
                "--compute",
                "fp32",
                "--json",
                "--quiet",
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["perplexity"]

    return run


@pytest.mark.parametrize("scheme", SCHEMES)
def test_perplexity_is_that_of_the_command(llama, tokens, command_perplexity, scheme):
    """Four digits, of the same windows."""
    model = nt.quantize_(copy.deepcopy(llama), scheme)
    assert perplexity(model, tokens) == pytest.approx(command_perplexity(MODEL, "--scheme", scheme), rel=5e-5)


@pytest.mark.parametrize("scheme", ["W8A8", "FP8_DYNAMIC"])
def test_rounded_inputs_are_near_the_command(llama, command_perplexity, scheme):
    """Rounding an input turns the last bit of a sum into a whole code, so perplexities agree in the mean over 2,048 tokens, not in their
    digits; a layer does."""
    from safetensors.torch import load_file

    model = nt.quantize_(copy.deepcopy(llama), scheme)
    many = load_file(TOKENS)["eval"][:8, :256].long()
    assert perplexity(model, many) == pytest.approx(command_perplexity(MODEL, "--scheme", scheme, tokens=many), rel=2.5e-3)
    layer, x = model.model.layers[0].mlp.up_proj, torch.randn(2, 5, 384)
    exact = narrow.fake_quantize(x, layer.inputs.removesuffix(":dynamic")).double() @ layer.weight.dequantize().double().T
    assert (layer(x).double() - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("scheme", [*SCHEMES, "W8A8"])
def test_a_compiled_model_is_the_same(llama, tokens, scheme):
    """One graph, no break, the same perplexity to four digits. aot_eager runs the traced operators; inductor compiles the small model
    below. All schemes on the first of the layers, which are alike; one on all of them."""
    model = nt.quantize_(copy.deepcopy(llama), scheme)
    if scheme != "fp6_e3m2:row":
        model.model.layers = model.model.layers[:1]
    model.config.use_cache = False
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert perplexity(compiled, tokens) == pytest.approx(perplexity(model, tokens), rel=5e-5)


@pytest.mark.parametrize("scheme", ["int8:row", "nvfp4", "W8A8"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_tracers_see_one_operator_a_layer(tmp_path, scheme):
    model, x = nt.quantize_(mlp().eval(), scheme), torch.randn(3, 64)
    y = model(x)

    graph = torch.fx.symbolic_trace(model)
    assert sum(node.target is torch.ops.narrow.linear.default for node in graph.graph.nodes) == 2
    assert torch.equal(graph(x), y)
    with pytest.raises(narrow.InvalidArgument, match="x must end in 64"):
        graph(x[:, :63])

    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(x), y)
    assert torch.allclose(loaded(torch.cat((x, x)))[3:], y, atol=1e-5)

    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), y)
    with pytest.raises(narrow.Unsupported, match="torch.jit.trace"):
        torch.jit.script(model)


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_onnx_export_names_the_way(tmp_path, dynamo):
    pytest.importorskip("onnxscript")
    model, x = nt.quantize_(mlp().eval(), "int8:row"), torch.randn(3, 64)
    with pytest.raises(Exception, match="narrow.torch.dequantize_"):
        torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=dynamo, verbose=False)
    torch.onnx.export(nt.dequantize_(model), (x,), tmp_path / "model.onnx", dynamo=False, verbose=False)
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("scheme", ["W8A8-static", "nvfp4"])
def test_a_checkpoint_loads_with_transformers(llama, tokens, command_perplexity, tmp_path, scheme):
    transformers = pytest.importorskip("transformers")
    from narrow.torch import huggingface

    folder = tmp_path / "small"
    if "static" in scheme:
        statistics = narrow.calibrate(MODEL, tokens.tolist())
        statistics.save(tmp_path / "stats.safetensors")
        expected = command_perplexity(MODEL, "--scheme", scheme, "--stats", tmp_path / "stats.safetensors")
        same = nt.quantize_(copy.deepcopy(llama), nt.QuantizeConfig(scheme, statistics=tmp_path / "stats.safetensors"))
        assert perplexity(same, tokens) == pytest.approx(expected, rel=5e-3)
        expected = perplexity(same, tokens)
        huggingface.save_pretrained(same, folder)
    else:
        narrow.quantize_checkpoint(MODEL, folder, scheme)
        expected = command_perplexity(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert isinstance(model.model.layers[0].mlp.up_proj, nt.QuantizedLinear) and isinstance(model.lm_head, nn.Linear)
    assert perplexity(model, tokens) == pytest.approx(expected, rel=5e-5)
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
    assert perplexity(again, tokens) == pytest.approx(expected, rel=1e-6)
    assert command_perplexity(tmp_path / "again") == pytest.approx(expected, rel=5e-3 if "static" in scheme else 5e-5)


def test_the_command_reads_what_transformers_saved(bin_dir, tmp_path):
    """Of a model that was quantized as it was loaded, in files so small that the parts of a weight lie apart."""
    transformers = pytest.importorskip("transformers")
    from narrow.torch.huggingface import NarrowConfig

    rules = [{"match": "re:.*down_proj", "scheme": "fp6_e3m2:row"}]
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, quantization_config=NarrowConfig("int4:block128:asym", rules=rules))
    model.save_pretrained(tmp_path / "saved", max_shard_size="300KB")
    narrow.quantize_checkpoint(MODEL, tmp_path / "own", "int4:block128:asym", rules={"re:.*down_proj": "fp6_e3m2:row"})

    def command(*arguments):
        done = subprocess.run([bin_dir / "narrow", *map(str, arguments), "--json", "--quiet"], capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    code, answer, _ = command("compare", tmp_path / "own", tmp_path / "saved")
    assert code == 0 and answer["identical"] == len(answer["tensors"]) == 57
    schemes = {tensor["scheme"] for tensor in command("inspect", tmp_path / "saved", "--headers")[1]["tensors"]}
    assert schemes == {None, "int4:block128:asym", "fp6_e3m2:row"}
    code, answer, _ = command("verify", tmp_path / "saved")
    assert code == 0 and not answer["hashes"]
    assert command("convert", tmp_path / "saved", tmp_path / "sealed", "--to", "narrow")[1]["exact"] == 42
    assert command("verify", tmp_path / "sealed")[1]["hashes"]

    index = tmp_path / "saved" / "model.safetensors.index.json"
    file = json.loads(index.read_text())["weight_map"]["model.layers.2.mlp.up_proj.weight.scales"]
    path = tmp_path / "saved" / file
    data = path.read_bytes()
    path.write_bytes(data.replace(b'fp6_e3m2:row', b'fp6_e2m3:row'))  # files that contradict each other are not guessed at
    assert command("inspect", tmp_path / "saved")[0] == 3
    path.write_bytes(data.replace(b"narrow_tensors", b"other_tensors_"))
    assert "narrow_manifest.json" in command("inspect", tmp_path / "saved")[2]


def test_save_pretrained_of_a_model_that_quantize_made(llama, tokens, command_perplexity, tmp_path):
    transformers = pytest.importorskip("transformers")
    from narrow.torch import huggingface

    model = nt.quantize_(copy.deepcopy(llama), {r".*gate_proj": "int4:block128", r".*(up|q)_proj": "W8A8", r".*layers.1.*v_proj": "nvfp4"})
    huggingface.save_pretrained(model, tmp_path / "saved")
    assert not hasattr(model, "hf_quantizer") and not hasattr(model.config, "quantization_config")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    assert torch.equal(again(tokens[:1, :32]).logits, model(tokens[:1, :32]).logits)
    read = nt.load_checkpoint_(copy.deepcopy(llama), tmp_path / "saved").eval()
    assert torch.equal(read(tokens[:1, :32]).logits, model(tokens[:1, :32]).logits)
    assert command_perplexity(tmp_path / "saved") == pytest.approx(perplexity(model, tokens), rel=5e-3)
    with pytest.raises(narrow.InvalidArgument, match="no QuantizedLinear"):
        huggingface.save_pretrained(copy.deepcopy(llama), tmp_path / "plain")


def test_rules_of_the_command_are_read(llama, tokens, tmp_path, bin_dir):
    """Schemes and rounded inputs of some layers alone, as narrow quantize writes them into config.json."""
    transformers = pytest.importorskip("transformers")
    import narrow.torch.huggingface  # noqa: F401

    subprocess.run([bin_dir / "narrow", "quantize", MODEL, tmp_path / "small", "W8A8", "--rule", "re:.*up_proj=int4:block128",
                    "--activation-rule", "down_proj=none", "--quiet"], check=True)  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    layers = model.model.layers[0].mlp
    assert [(layer.scheme, layer.inputs) for layer in (layers.gate_proj, layers.up_proj, layers.down_proj)] == [
        ("int8:row", "int8:row:dynamic"), ("int4:block128", "int8:row:dynamic"), ("int8:row", "")]  # fmt: skip
    read = nt.load_checkpoint_(copy.deepcopy(llama), tmp_path / "small").eval()
    assert torch.equal(read(tokens[:1, :32]).logits, model(tokens[:1, :32]).logits)


def test_a_checkpoint_loads_into_any_model(llama, tokens, tmp_path):
    """By names alone, without transformers' loading: the same codes as quantize_ makes."""
    narrow.quantize_checkpoint(MODEL, tmp_path / "small", "int4:block128:asym", rules={"re:.*down_proj": "fp6_e3m2:row"})
    model = nt.load_checkpoint_(copy.deepcopy(llama), tmp_path / "small").eval()
    expected = nt.quantize_(copy.deepcopy(llama), nt.QuantizeConfig("int4:block128:asym", rules={"down_proj": "fp6_e3m2:row"}))
    assert torch.equal(model(tokens[:1, :32]).logits, expected(tokens[:1, :32]).logits)
    with pytest.raises(narrow.InvalidArgument, match="differ"):
        nt.load_checkpoint_(nn.ModuleDict({"model": copy.deepcopy(llama.model)}), tmp_path / "small")
    with pytest.raises(narrow.InvalidArgument, match="which the model has not"):
        nt.load_checkpoint_(mlp(), tmp_path / "small")
    narrow.quantize_checkpoint(MODEL, tmp_path / "w8a8", "W8A8")
    model = nt.load_checkpoint_(copy.deepcopy(llama), tmp_path / "w8a8").eval()  # inputs are rounded too, as the files say
    assert torch.equal(model(tokens[:1, :32]).logits, nt.quantize_(copy.deepcopy(llama), "W8A8")(tokens[:1, :32]).logits)


def test_quantizes_as_transformers_loads(tokens, llama):
    transformers = pytest.importorskip("transformers")
    from narrow.torch.huggingface import NarrowConfig

    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, quantization_config=NarrowConfig("int8:row")
    ).eval()
    expected = nt.quantize_(copy.deepcopy(llama), "int8:row")
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight.codes, expected.model.layers[0].mlp.up_proj.weight.codes)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, quantization_config=NarrowConfig("FP8_DYNAMIC")
    ).eval()
    expected = nt.quantize_(copy.deepcopy(llama), "FP8_DYNAMIC")
    assert model.model.layers[0].mlp.up_proj.inputs == expected.model.layers[0].mlp.up_proj.inputs != ""
    with torch.inference_mode():
        assert torch.equal(model(tokens[:1, :16]).logits, expected(tokens[:1, :16]).logits)


# ---- the layer ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "scheme", ["int8:row", "int4:block32:asym", "fp6_e3m2:row", "nvfp4", "mxfp8_e5m2", "msfp16", "fp16:none", "int1:row"]
)
def test_the_layer_multiplies_its_values(scheme, dtype):
    linear, x = nn.Linear(64, 48).to(dtype), torch.randn(2, 3, 64, dtype=dtype)
    layer = nt.QuantizedLinear.from_linear(linear, scheme)
    exact = x.double() @ layer.weight.dequantize().double().T + linear.bias.double()
    y = layer(x)
    assert y.dtype == dtype and y.shape == (2, 3, 48)
    assert (y.double() - exact).abs().max() <= {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype] * exact.abs().max()
    assert torch.equal(layer.weight.dequantize(), narrow.fake_quantize(linear.weight.detach().float(), scheme)) or dtype != torch.float32


def test_operators_pass_torch_own_checks():
    """Schema, fake implementation, autograd registration and AOT dispatch, by torch.library.opcheck."""
    layer = nt.QuantizedLinear.from_linear(nn.Linear(32, 16), "int4:block32:asym")
    w, x = layer.weight, torch.randn(3, 32, requires_grad=True)
    arguments = (x, w.codes, w.scales, w.zero_points, None, layer.bias, w.scheme, "", None, None)
    torch.library.opcheck(torch.ops.narrow.linear.default, arguments)
    torch.library.opcheck(torch.ops.narrow.quantize.default, (x.detach(), w.scheme, None, None))
    torch.library.opcheck(torch.ops.narrow.dequantize.default, (w.codes, w.scales, w.zero_points, None, w.scheme, [16, 32], torch.float32))
    torch.library.opcheck(torch.ops.narrow.fake_quantize.default, (x, "int8:row", "nearest_even", 0))
    torch.library.opcheck(
        torch.ops.narrow.fake_quantize_learned.default, (x, torch.full((3, 1), 0.1, requires_grad=True), None, "int4:row", 1.0)
    )


def test_compiles_with_inductor():
    model, x = nt.quantize_(mlp(), "fp6_e3m2:row"), torch.randn(4, 64)
    with torch.inference_mode():
        assert torch.allclose(torch.compile(model, fullgraph=True)(x), model(x), atol=1e-5)


def test_state_dict_and_safetensors(tmp_path):
    from safetensors.torch import load_file, save_file

    source = nt.quantize_(mlp(), {"0": "nvfp4", "2": "int4:block32:asym"})
    x = torch.randn(5, 64)
    assert {"0.weight.codes", "0.weight.scales", "0.weight.outer_scale", "2.weight.zero_points", "2.bias"} <= set(source.state_dict())
    save_file(source.state_dict(), tmp_path / "m.safetensors")
    other = nt.quantize_(mlp(), {"0": "nvfp4", "2": "int4:block32:asym"})
    before = other(x)
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert torch.equal(other(x), source(x)) and not torch.equal(before, source(x))  # the prepared weight was made anew
    torch.save(source, tmp_path / "m.pt")
    assert torch.equal(torch.load(tmp_path / "m.pt", weights_only=False)(x), source(x))


def test_copies_casts_and_moves():
    model, x = nt.quantize_(mlp(), "int8:row"), torch.randn(5, 64)
    twin = copy.deepcopy(model)
    twin[0].weight.scales.mul_(2.0)
    assert not torch.equal(twin(x), model(x))
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half[0].weight.scales.dtype == torch.float32 and half[0].bias.dtype == torch.bfloat16
    assert half(x.bfloat16()).dtype == torch.bfloat16 and half.to("cpu")[0].weight.device.type == "cpu"
    static = nt.QuantizedLinear.from_linear(nn.Linear(64, 8), "int8:row", "int8:tensor:static", (0.03, 0)).half()
    assert static.input_scale.dtype == torch.float32 and static(x.half()).dtype == torch.float16
    meta = copy.deepcopy(model).to("meta")
    assert meta(torch.empty(5, 64, device="meta")).shape == (5, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    assert "int8:row" in repr(model)


def test_gradients_reach_the_input_and_the_bias():
    layer, x = nt.QuantizedLinear.from_linear(nn.Linear(32, 16), "fp8_e4m3:row"), torch.randn(4, 32, requires_grad=True)
    weight = layer.weight.dequantize()
    layer(x).square().sum().backward()
    y = x.detach() @ weight.T + layer.bias.detach()
    assert torch.allclose(x.grad, 2 * y @ weight, atol=1e-3) and torch.allclose(layer.bias.grad, 2 * y.sum(0), atol=1e-3)


def test_who_is_quantized_and_how():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.lm_head = mlp(), nn.Linear(32, 8)

    kinds = lambda model: {name: module.scheme for name, module in model.named_modules() if isinstance(module, nt.QuantizedLinear)}
    assert kinds(nt.quantize_(Net(), "int8")) == {"body.0": "int8:row", "body.2": "int8:row"}
    assert kinds(nt.quantize_(Net(), {r"body\.2": "fp6_e3m2", "lm.*": "W8A16"})) == {"body.2": "fp6_e3m2:row", "lm_head": "int8:row"}
    config = nt.QuantizeConfig("W4A16", ignore=(), rules={"body.0": None, "re:.*head": "FP8_DYNAMIC"})
    model = nt.quantize_(Net(), config)
    assert kinds(model) == {"body.2": "int4:block128", "lm_head": "fp8_e4m3:row"} and model.lm_head.inputs == "fp8_e4m3:row:dynamic"
    with pytest.raises(narrow.InvalidArgument, match="none of the model's 3 Linear layers: body.0, body.2, lm_head"):
        nt.quantize_(Net(), {"nothing": "int8"})
    with pytest.warns(UserWarning, match="'bodi' matches none"):
        nt.quantize_(Net(), {"bodi": "int8", r"body\.2": "int8"})
    with pytest.warns(UserWarning, match="'head' matches none"):
        nt.quantize_(Net(), nt.QuantizeConfig("int8", ignore=("head",)))
    with pytest.raises(narrow.InvalidArgument, match="no regular expression"):
        nt.quantize_(Net(), {"(": "int8"})
    with pytest.raises(narrow.InvalidArgument, match="quantized already"):
        nt.quantize_(nt.quantize_(mlp(), "int8"), "int8")
    with pytest.raises(narrow.InvalidArgument, match="no nn.Linear"):
        nt.quantize_(nn.Sequential(nn.Conv2d(3, 8, 3)), "int8")
    with pytest.raises(ValueError, match="calibration"):
        nt.quantize_(Net(), "W8A8-static")
    with pytest.raises(ValueError, match="int99"):
        nt.quantize_(Net(), "int99")


@pytest.mark.parametrize("change", [lambda m: nt.quantize_(m, "int8"), lambda m: nt.convert_(nt.prepare_qat_(m, "int8"))])
def test_a_layer_that_stands_in_two_places_stays_one(change):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.again = nn.ModuleList([self.first])

    model = change(Shared())
    assert isinstance(model.first, nt.QuantizedLinear) and model.again[0] is model.first


def test_a_layer_alone_is_refused():
    """Nothing holds it, so that nothing can be put in its place."""
    for call in (lambda m: nt.quantize_(m, "int8"), lambda m: nt.prepare_qat_(m, "int8"), nt.fp8_training_):
        with pytest.raises(narrow.InvalidArgument, match="nn.Sequential"):
            call(nn.Linear(8, 8))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_attention_of_torch_keeps_working(mode):
    """It reads weights beside its layers: of its own projection, which stays as it is, and in a fused call for inference."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    small, x = nt.quantize_(copy.deepcopy(encoder), "int8:row"), torch.randn(2, 3, 32)
    assert type(small.layers[0].self_attn.out_proj) is type(encoder.layers[0].self_attn.out_proj)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    with mode():
        got, expected = (model(x, src_key_padding_mask=mask)[:, :2].contiguous() for model in (small, encoder))
        assert narrow.compare(expected, got)["sqnr_db"] > 35
        layer = small.layers[0].linear1
        assert torch.allclose(nn.functional.linear(x, layer.weight, layer.bias), layer(x), atol=1e-5)


def test_models_on_the_device_meta():
    """The layers are made there, and filled as torch fills others."""
    source, x = nt.quantize_(mlp(), "nvfp4"), torch.randn(5, 64)
    with torch.device("meta"):
        model = nt.quantize_(mlp(), "nvfp4")
    assert all(part.is_meta for part in model.state_dict().values())
    model.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(model(x), source(x))
    with pytest.raises(narrow.InvalidArgument, match="meta"):
        nt.quantize_(mlp().to("meta"), nt.QuantizeConfig("int8", statistics=nt.calibrate(mlp(), [x]), method="clip"))
    assert nt.quantize_(mlp().to("meta"), "W8A8-static")[0].input_scale.is_meta


def test_layers_that_compute_more_stay_as_they_are():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Linear(16, 16), Doubled(16, 16), nt.BinaryLinear(16, 16))
    expected = [model[1](torch.ones(16)), model[2](torch.ones(16))]
    with pytest.warns(UserWarning, match="1 stays as it is: a Doubled computes more"):
        nt.quantize_(model, "int8:row")
    assert isinstance(model[0], nt.QuantizedLinear) and isinstance(model[1], Doubled) and isinstance(model[2], nt.BinaryLinear)
    assert torch.equal(model[1](torch.ones(16)), expected[0]) and torch.equal(model[2](torch.ones(16)), expected[1])
    with pytest.raises(narrow.InvalidArgument, match="QATLinear.*convert_"):
        nt.quantize_(nt.prepare_qat_(mlp(), "int4:row"), "int4:row")
    assert isinstance(nt.quantize_(nt.fp8_training_(mlp()), "int8:row")[0], nt.QuantizedLinear)  # its weight is as ever


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_hooks_make_are_refused():
    with pytest.raises(narrow.InvalidArgument, match="remove_weight_norm"):
        nt.quantize_(nn.Sequential(nn.utils.weight_norm(nn.Linear(16, 16))), "int8:row")
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)))  # of these the weight is always current
    values = model[0].weight.detach().clone()
    assert torch.allclose(nt.quantize_(model, "int8:row")[0].weight.dequantize(), values, atol=0.01)


def test_hooks_stay_with_their_layer():
    model, seen = mlp(), []
    before = model[0].register_forward_pre_hook(lambda _, arguments: seen.append("before"))
    model[0].register_forward_hook(lambda _, arguments, keywords, y: seen.append("after"), with_kwargs=True)
    nt.quantize_(model, "int8:row")(torch.randn(2, 64))
    assert seen == ["before", "after"]
    before.remove()
    model(torch.randn(2, 64))
    assert seen == ["before", "after", "after"]


def test_a_state_of_another_scheme_is_refused(tmp_path):
    """fp4 and int4 have codes and scales of the same shapes."""
    torch.save(nt.quantize_(mlp(), "int4:row").state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    nt.quantize_(mlp(), "int4:row").load_state_dict(state)
    with pytest.raises(RuntimeError, match="0.weight is int4:row in the state and fp4_e2m1:row in the model"):
        nt.quantize_(mlp(), "fp4_e2m1:row").load_state_dict(state)


def test_calibration_says_what_it_misses():
    with pytest.raises(narrow.InvalidArgument, match="used up"):
        nt.calibrate(mlp(), iter(()))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 64)), batch_size=4)
    with pytest.raises(narrow.InvalidArgument, match="batch that is a list; say how"):
        nt.calibrate(mlp(), loader)
    stats = nt.calibrate(mlp(), loader, run=lambda model, batch: model(batch[0]), second_moments=True)
    assert "2 modules" in repr(stats)
    for other in (copy.deepcopy(stats), pickle.loads(pickle.dumps(stats))):
        assert other.range("0") == stats.range("0") and other.tokens("2") == 8
        assert torch.equal(*(torch.from_dlpack(s.second_moment("2")) for s in (other, stats)))


def test_inputs_of_another_width_are_refused():
    """127 and 128 columns of 4 bits take the same bytes, so that the operator cannot tell them apart."""
    layer = nt.QuantizedLinear.from_linear(nn.Linear(128, 16), "int4:row")
    with pytest.raises(narrow.InvalidArgument, match=r"x is \[3, 127\] and the weight \[16, 128\]"):
        layer(torch.randn(3, 127))


def test_dequantize_gives_plain_layers():
    model, x = mlp(torch.bfloat16), torch.randn(5, 64)
    small = nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig("int8:row", statistics=nt.calibrate(mlp(), [x], second_moments=True), method="awq"))
    assert small[0].input_factor is not None
    plain = nt.dequantize_(copy.deepcopy(small), torch.float32)
    assert type(plain[0]) is nn.Linear and plain[0].weight.dtype == torch.float32
    assert torch.allclose(plain(x), small.float()(x), atol=1e-4)
    assert nt.dequantize_(small.bfloat16())[2].weight.dtype == torch.bfloat16
    with pytest.raises(narrow.InvalidArgument, match="no QuantizedLinear"):
        nt.dequantize_(plain)


def test_layer_errors_are_of_each_layer_alone():
    model, batches = mlp(), [torch.randn(16, 64) for _ in range(3)]
    small = nt.quantize_(copy.deepcopy(model), {"0": "int2:row", "2": "W8A8"})
    first, second = nt.layer_errors(model, small, batches)
    assert (first.name, first.scheme, first.inputs) == ("0", "int2:row", "") and (second.name, second.inputs) == ("2", "int8:row:dynamic")
    x = torch.cat(batches)
    assert first.sqnr_db == pytest.approx(narrow.compare(model[0](x).detach(), small[0](x).detach())["sqnr_db"], abs=1e-3)
    hidden = model[:2](x)  # of the plain model, not of the first layer's error
    assert second.sqnr_db == pytest.approx(narrow.compare(model[2](hidden).detach(), small[2](hidden).detach())["sqnr_db"], abs=1e-3)
    assert nt.layer_errors(model, small, [{"input": x}])[0].name == "0"  # a dict goes by its names
    with pytest.raises(narrow.InvalidArgument, match="no Linear layer"):
        nt.layer_errors(model, model, batches)


def test_calls_without_a_gradient_take_the_short_way():
    """The same numbers with and without autograd, and modes that come between it and the device are not passed by."""
    layer, x = nt.QuantizedLinear.from_linear(nn.Linear(64, 32), "int4:block32"), torch.randn(3, 64)
    y = layer(x)
    assert y.requires_grad  # of the bias
    with torch.no_grad():
        assert torch.equal(layer(x), y) and not layer(x).requires_grad
    with torch.inference_mode():
        assert torch.equal(layer(x), y)
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        assert isinstance(layer(torch.randn(3, 64)), FakeTensor)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch(), torch.no_grad():
        layer(x)
    assert "narrow.linear.default" in seen


def test_a_part_that_is_another_one_is_prepared_anew():
    layer, x = nt.QuantizedLinear.from_linear(nn.Linear(64, 32, bias=False), "int4:block32"), torch.randn(3, 64)
    with torch.no_grad():
        y = layer(x)
        layer.weight.scales = layer.weight.scales * 2
        assert torch.allclose(layer(x), 2 * y)
        layer.weight.scales.mul_(2)
        assert torch.allclose(layer(x), 4 * y)


def test_direct_calls_of_the_seeds():
    weight, act = torch.randn(96, 64), torch.randn(3, 64, dtype=torch.float16)
    for ebits, mbits in [(3, 2), (2, 3), (2, 2), (3, 1), (2, 1)]:
        packed, scales = nt.to_fpx(weight, ebits, mbits)
        assert packed.shape == (96, 64 * (1 + ebits + mbits) // 8)
        values = narrow.fake_quantize(weight, f"fp{1 + ebits + mbits}_e{ebits}m{mbits}:row")
        assert torch.allclose(nt.fpx_linear(ebits, mbits, act, packed, scales).float(), act.float() @ values.T, atol=0.05)

    x, y = torch.randn(16, 32), torch.randn(16, 32)
    for product, dtype in [(nt.fp8e4m3_matmul, torch.float8_e4m3fn), (nt.fp8e5m2_matmul, torch.float8_e5m2)]:
        a, b = x.to(dtype), y.to(dtype)
        assert torch.allclose(product(a, b.transpose(0, 1)), a.float() @ b.float().T, atol=1e-4)
        assert torch.allclose(product(a, b.transpose(0, 1), 2.0, 0.5), a.float() @ b.float().T, atol=1e-4)

    a, b = nt.fp32_to_msfp16(x), nt.fp32_to_msfp16(y)
    assert torch.equal(a.dequantize(), narrow.fake_quantize(x, "msfp16")) and b.T.shape == (32, 16)
    assert torch.allclose(nt.msfp16_matmul(a, b.transpose(0, 1)), a.dequantize() @ b.dequantize().T, atol=1e-4)

    codes, scales = nt.to_int8(weight)
    rows = torch.randn(5, 64)
    rounded, exact = narrow.fake_quantize(rows, "int8:row"), narrow.fake_quantize(weight, "int8:row")
    assert torch.allclose(nt.int8_linear_dynamic(rows, codes, scales), rounded @ exact.T, atol=1e-4)
    scale = (rows.abs().max() / 127).item()
    static = narrow.fake_quantize(rows, "int8:tensor", scales=[scale])
    assert torch.allclose(nt.int8_linear_static(rows, codes, scales, scale), static @ exact.T, atol=1e-4)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        nt.fp8e4m3_matmul(x, y.T)
