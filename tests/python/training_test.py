"""FP8 training, loss scaling, stochastic bf16 updates, binary layers, and statistics collected by hooks."""

import copy
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
narrow = pytest.importorskip("narrow", reason="the Python package is not built")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import narrow.torch as nt  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES / "python"))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# ---- FP8 ----


@pytest.mark.parametrize(
    "scaling, schemes",
    [
        ("current", ("fp8_e4m3:tensor", "fp8_e4m3:tensor", "fp8_e5m2:tensor")),
        ("block", ("fp8_e4m3:block128", "fp8_e4m3:128x128", "fp8_e5m2:block128")),
    ],
)
def test_the_three_products_by_definition(scaling, schemes):
    linear, x, gradient = nn.Linear(256, 192), torch.randn(3, 5, 256, requires_grad=True), torch.randn(3, 5, 192)
    layer = nt.FP8Linear(linear, nt.FP8Policy(scaling))
    y = layer(x)
    y.backward(gradient)
    x8, w8, g8 = (narrow.fake_quantize(t.detach().contiguous(), s) for t, s in zip((x, linear.weight, gradient), schemes))
    assert torch.allclose(y, F.linear(x8, w8, linear.bias), atol=1e-4) and torch.allclose(x.grad, g8 @ w8, atol=1e-3)
    assert torch.allclose(linear.weight.grad, g8.flatten(0, 1).T @ x8.flatten(0, 1), atol=1e-3)
    assert torch.allclose(linear.bias.grad, gradient.sum((0, 1)), atol=1e-4)


def test_delayed_scales_follow_the_history():
    layer = nt.FP8Linear(nn.Linear(16, 16), nt.FP8Policy("delayed", history=3))
    scale = lambda: layer.delayed["input"].scale.item() * 448
    seen = []
    for amax in (1.0, 4.0, 2.0, 1.0, 1.0, 1.0):
        x = torch.zeros(2, 16)
        x[0, 0] = amax
        layer(x)
        seen.append(scale())
    assert seen == pytest.approx([1.0, 1.0, 4.0, 4.0, 4.0, 2.0])  # the largest of the three steps before; the first step has only itself
    layer(torch.full((2, 16), float("nan")))
    assert torch.isfinite(layer.delayed["input"].history).all()


class Block(nn.Module):
    def __init__(self, width=128, vocabulary=4096):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.lm_head(self.norms[2](x))


def train(model, steps, scaler=None):
    from tiny_llama import read_tokens

    text = read_tokens("calib", 8 * steps, 65)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for tokens in text.split(8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            assert scaler.step(optimizer)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("scaling", ["current", "delayed", "block"])
def test_twenty_steps_follow_bf16(scaling):
    """Within 1 % of bf16's loss at every step, on real text."""
    model = Block()
    bf16 = train(copy.deepcopy(model), 20)
    fp8 = train(nt.fp8_training_(copy.deepcopy(model), nt.FP8Policy(scaling)), 20, nt.LossScaler(1024.0))
    assert bf16[-1] < 0.9 * bf16[0]  # it learns
    assert max(abs(a - b) / b for a, b in zip(fp8, bf16)) < 0.01


def test_the_policy_names_layers():
    model = nt.fp8_training_(Block(), nt.FP8Policy(ignore=("lm_head", "re:.*out")))
    assert {name for name, module in model.named_modules() if isinstance(module, nt.FP8Linear)} == {"qkv", "up", "down"}
    with pytest.raises(ValueError, match="current, delayed, block"):
        nt.FP8Policy("mean")


def test_the_policy_differs_by_module():
    model = nn.ModuleDict({"attn": nn.Linear(8, 8), "up": nn.Linear(8, 8), "router": nn.Linear(8, 8), "lm_head": nn.Linear(8, 8)})
    rules = {"attn": nt.FP8Policy("block"), "re:rout.*": None}
    nt.fp8_training_(model, nt.FP8Policy("delayed", rules=rules))
    assert model["attn"].policy.scaling == "block" and model["up"].policy.scaling == "delayed"
    assert type(model["router"]) is nn.Linear and type(model["lm_head"]) is nn.Linear
    with pytest.raises(narrow.InvalidArgument, match="no Linear layer"):
        nt.fp8_training_(nn.ModuleDict({"a": nn.Linear(8, 8)}), nt.FP8Policy(rules={"a": None}))


def test_the_loss_scale_backs_off_and_grows():
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), nt.LossScaler(8.0, interval=2)
    scaler.scale(weight.sum()).backward()
    assert scaler.step(optimizer) and torch.equal(weight.detach(), torch.zeros(2))  # the gradient was unscaled
    weight.grad = torch.tensor([float("inf"), 1.0])
    assert not scaler.step(optimizer) and scaler.scale_value == 4.0 and torch.equal(weight.detach(), torch.zeros(2))
    for _ in range(2):
        weight.grad = torch.ones(2)
        scaler.step(optimizer)
    assert scaler.scale_value == 8.0


def test_stochastic_rounding_is_right_in_the_mean():
    value = torch.tensor([1.0 + 2.0**-9, -3.001, 1e-3, float("inf"), 0.0])
    target = torch.empty(5, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([nt.stochastic_round_bf16_(target, value, generator).float().clone() for _ in range(4000)])
    assert torch.allclose(draws[:, :3].mean(0), value[:3], rtol=3e-4) and draws[:, 3].isinf().all() and (draws[:, 4] == 0).all()
    assert draws[:, 0].unique().tolist() == [1.0, 1.0078125]  # only the two neighbours
    same = nt.stochastic_round_bf16_(target, torch.tensor([0.5, 2.0, -4.0, 1.5, 0.25]))
    assert same.float().tolist() == [0.5, 2.0, -4.0, 1.5, 0.25]


def test_small_updates_survive_in_bf16():
    """Steps far below half a unit in the last place: nearest rounding never moves, stochastic rounding follows fp32."""
    start = torch.full((4096,), 1.0)
    wide, narrow_ = nn.Parameter(start.clone()), nn.Parameter(start.bfloat16())
    ours = nt.StochasticAdamW([narrow_], lr=1e-4, weight_decay=0.0)
    theirs = torch.optim.AdamW([wide], lr=1e-4, weight_decay=0.0)
    for _ in range(50):
        wide.grad, narrow_.grad = torch.ones(4096), torch.ones(4096, dtype=torch.bfloat16)
        ours.step()
        theirs.step()
    assert narrow_.float().mean().item() == pytest.approx(wide.mean().item(), abs=3e-4)
    exact, reference = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours, theirs = nt.StochasticAdamW([exact], lr=1e-2), torch.optim.AdamW([reference], lr=1e-2)
    for step in range(5):
        exact.grad = reference.grad = torch.sin(torch.arange(4096.0) + step)
        ours.step()
        theirs.step()
    assert torch.allclose(exact, reference, atol=1e-6)


# ---- binary ----


def test_binary_layers_train_and_pack():
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nt.BinaryConv2d(32, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.Flatten(),
        nt.BinaryLinear(32 * 16, 64),
        nn.BatchNorm1d(64),
        nn.Linear(64, 2),
    )
    x = torch.randn(128, 1, 8, 8)
    target = (x[:, :, :4].mean((1, 2, 3)) > x[:, :, 4:].mean((1, 2, 3))).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    with torch.no_grad():
        expected = model(x)
        packed = nt.pack_binary_(copy.deepcopy(model))
        assert isinstance(packed[2], nt.PackedBinaryConv2d) and packed[5].codes.numel() == 64 * 512 // 8
        assert torch.allclose(packed(x), expected, atol=1e-3)
        assert torch.allclose(copy.deepcopy(packed)(x), expected, atol=1e-3)


def packed_model():
    model = nn.Sequential(nt.BinaryConv2d(8, 16, 3, stride=2, padding=1), nn.Flatten(), nt.BinaryLinear(16 * 9, 4)).requires_grad_(False)
    return model, nt.pack_binary_(copy.deepcopy(model)), torch.randn(2, 8, 6, 6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_layers_in_graphs():
    """One operator a layer for every tracer, with the results of the model itself."""
    _, packed, x = packed_model()
    expected = packed(x)
    traced = torch.fx.symbolic_trace(packed)
    names = [str(node.target) for node in traced.graph.nodes if "narrow" in str(node.target)]
    assert sum("binary" in name for name in names) == 2
    exported = torch.export.export(packed, (x,)).module()
    for other in (traced, exported, torch.jit.trace(packed, x), torch.compile(packed, fullgraph=True)):
        assert torch.equal(other(x), expected)
    assert packed.to("meta")(x.to("meta")).shape == expected.shape


def test_packed_operators_pass_torch_own_checks():
    _, packed, x = packed_model()
    conv, linear = packed[0], packed[2]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.narrow.binary_linear.default, (torch.randn(3, 144), linear.codes, linear.scales, linear.bias), test_utils=tests)
    for images in (x, x[0]):
        arguments = (images, conv.codes, conv.scales, *conv.geometry, conv.in_channels)
        torch.library.opcheck(torch.ops.narrow.binary_conv2d.default, arguments, test_utils=tests)


def test_packed_layers_are_cast_saved_and_fed_like_others():
    model, packed, x = packed_model()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cast = copy.deepcopy(packed).to(dtype)
        assert cast[0].scales.dtype == torch.float32 and cast[2].bias.dtype == dtype
        assert torch.allclose(cast(x.to(dtype)).float(), model(x), atol=0.05)
    assert torch.equal(packed[0](x[0]), packed[0](x[:1])[0])  # one image
    other = packed_model()[1]
    other(x)
    other.load_state_dict(packed.state_dict())
    assert torch.equal(other(x), packed(x))  # codes that changed are prepared anew
    with pytest.raises(narrow.InvalidArgument, match="x must end in 144"):
        packed[2](torch.randn(2, 143))
    with pytest.raises(narrow.InvalidArgument, match="one image"):
        packed[0](torch.randn(6, 6))
    with pytest.raises(narrow.Unsupported, match="no gradients"):
        packed(x.requires_grad_()).sum().backward()


def test_the_gradient_of_a_sign():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    y = nt.binarize(x)
    y.sum().backward()
    assert y.tolist() == [-1, -1, 1, 1, 1] and x.grad.tolist() == [0, 1, 1, 1, 0]


# ---- statistics ----


def test_hooks_see_what_the_executor_sees(tmp_path):
    from tiny_llama import MODEL, Llama, read_tokens

    tokens = read_tokens("calib", 2, 64)
    model = Llama.load().eval()
    by_hooks = nt.calibrate(model, tokens.split(1))
    by_hooks.save(tmp_path / "stats.safetensors")
    loaded, by_executor = narrow.CalibrationStatistics.load(tmp_path / "stats.safetensors"), narrow.calibrate(MODEL, tokens.tolist())
    names = [name for name in by_executor.modules if name != "lm_head"]
    assert len(names) == 42 and set(names) <= set(loaded.modules)
    for name in names:
        assert loaded.range(name) == pytest.approx(by_executor.range(name), rel=1e-3) and loaded.tokens(name) == by_executor.tokens(name)
        ours, theirs = (s.static_scale(name, narrow.Scheme("int8:tensor"))[0] for s in (loaded, by_executor))
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_gptq_on_any_model():
    """A layer whose inputs are correlated: GPTQ from hooks beats rounding on the output."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48))
    x = torch.randn(512, 64) @ torch.randn(64, 64)
    expected = model(x).detach()
    statistics = nt.calibrate(model, [x], second_moments=True)
    error = lambda config: (nt.quantize_(copy.deepcopy(model), config)(x) - expected).square().mean().item()
    gptq, rounded = error(nt.QuantizeConfig("int3:row", statistics=statistics, method="gptq+clip")), error("int3:row")
    assert gptq < 0.7 * rounded
    with pytest.raises(ValueError, match="second moments"):
        nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig("int3:row", statistics=nt.calibrate(model, [x]), method="gptq"))
    static = nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig("W8A8-static", statistics=statistics))
    assert narrow.compare(expected, static(x).detach())["sqnr_db"] > 25


def test_smoothquant_on_any_model():
    """Outliers in a few channels of the input: with static inputs of one scale they take all of it; SmoothQuant gives it back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    x = torch.randn(256, 64)
    x[:, :3] *= 60
    stats = nt.calibrate(model, [x])
    with torch.no_grad():
        plain = model(x)

        def error(method, scheme="W8A8-static", **options):
            made = nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig(scheme, statistics=stats, method=method, **options))
            return made, ((made(x) - plain).norm() / plain.norm()).item()

        made, smooth = error("smoothquant")
        assert smooth < 0.5 * error("rtn")[1]
        assert error("smoothquant", "W8A8", strength=0.6)[1] < 0.5 * error("rtn", "W8A8")[1]
        # y = (x / s) (W s)^T: a strength of 1 gives every channel of the input the same magnitude
        equal, _ = error("smoothquant", strength=1.0)
        assert torch.allclose((x * equal[0].input_factor).abs().amax(0), torch.ones(64), rtol=1e-5)
        twin = nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig("W8A8-static", statistics=stats))
        twin.load_state_dict(made.state_dict())
        assert torch.equal(twin(x), made(x)) and torch.equal(copy.deepcopy(made).half()[0].input_factor, made[0].input_factor)
    with pytest.raises(narrow.InvalidArgument, match="minmax"):
        error("smoothquant", range_method="mse")
    with pytest.raises(narrow.InvalidArgument, match="not known"):
        error("smooth")


def test_awq_on_any_model():
    """Channels with large inputs get finer weights: the loss of the outputs falls, alone and before GPTQ; layers of one input share."""
    torch.manual_seed(0)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(64, 48), nn.Linear(64, 48)

        def forward(self, x):
            return self.gate(x) * self.up(x)

    model, x = Pair(), torch.randn(512, 64)
    x[:, :4] *= 20
    stats = nt.calibrate(model, [x], second_moments=True)
    with torch.no_grad():

        def error(method):
            made = nt.quantize_(copy.deepcopy(model), nt.QuantizeConfig("int3:row", statistics=stats, method=method))
            return made, ((made.gate(x) - model.gate(x)).norm() / model.gate(x).norm()).item()

        made, awq = error("awq")
        assert awq < 0.8 * error("rtn")[1] and error("awq+gptq")[1] < awq
        assert torch.equal(made.gate.input_factor, made.up.input_factor)


def test_a_switched_off_quantizer_lets_values_pass():
    for quantizer in (nt.FakeQuantize("int4:row"), nt.FakeQuantize("int4:row", learned=True)):
        x = torch.randn(4, 32)
        quantizer(x)
        quantizer.apply(torch.ao.quantization.disable_fake_quant)
        assert torch.equal(quantizer(x), x)
        off = copy.deepcopy(quantizer.state_dict())
        quantizer.apply(torch.ao.quantization.enable_fake_quant)
        assert not torch.equal(quantizer(x), x)
        quantizer.load_state_dict(off)
        assert torch.equal(quantizer(x), x)


def test_the_plain_llama_is_the_example():
    """The examples' model gives the perplexity of narrow's executor."""
    from tiny_llama import MODEL, Llama, perplexity, read_tokens

    tokens = read_tokens("eval", 2, 128)
    assert perplexity(Llama.load().eval(), tokens) == pytest.approx(narrow.evaluate(MODEL, tokens.tolist())["perplexity"], rel=5e-5)
