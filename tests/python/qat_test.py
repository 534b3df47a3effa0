"""Training with quantization: gradients against their definitions, learned scales and zero points, torch.ao's interface, conversion."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
narrow = pytest.importorskip("narrow", reason="the Python package is not built")
from torch import nn  # noqa: E402

import narrow.torch as nt  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("scheme", [str(scheme) for scheme in narrow.schemes()])
def test_straight_through_for_every_scheme(scheme):
    x = torch.randn(6, 128, requires_grad=True)
    gradient = torch.randn(6, 128)
    y = torch.ops.narrow.fake_quantize(x, scheme, "nearest_even", 0)
    y.backward(gradient)
    assert torch.equal(y.detach(), narrow.fake_quantize(x.detach(), scheme)) and torch.equal(x.grad, gradient)


def lsq_by_definition(x, scales, zero_points, form, tile, gradient, factor):
    """Element by element, in double precision. A symmetric code is the format's own nearest value; an asymmetric one is clamp(round(v) +
    z)."""
    grad_x, grad_s, grad_z = np.zeros_like(x), np.zeros_like(scales), np.zeros_like(scales)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            cell = (min(i // tile[0], scales.shape[0] - 1), min(j // tile[1], scales.shape[1] - 1))
            s, g = scales[cell], gradient[i, j]
            v = float(np.float32(x[i, j]) / np.float32(s))
            if zero_points is None:
                inside, code = abs(v) <= form.largest, form.decode(form.encode(v))
            else:
                z = min(max(np.round(zero_points[cell]), 0), form.max_code)
                raw = np.round(v) + z
                inside, code = 0 <= raw <= form.max_code, min(max(raw, 0), form.max_code) - z
                if not inside:
                    grad_z[cell] += -g * s
            grad_x[i, j] = g if inside else 0.0
            grad_s[cell] += g * (code - v if inside else code)
    return grad_x, factor * grad_s, factor * grad_z


@pytest.mark.parametrize(
    "scheme",
    [
        "int8:tensor",
        "int4:row",
        "int3:block16",
        "fp4_e2m1:row",
        "fp6_e3m2:row",
        "fp8_e4m3:4x16",
        "nf4:block16",
        "int4:row:asym",
        "int8:tensor:asym",
        "int2:block16:asym",
    ],
)
def test_learned_scales_by_definition(scheme):
    form = narrow.Scheme(scheme)
    x = torch.randn(6, 40)
    scales = (narrow.quantize(x, scheme).scales * 0.6).requires_grad_()  # some values lie outside
    zero_points = (torch.rand(scales.shape) * form.element.max_code).requires_grad_() if form.asymmetric else None
    x.requires_grad_()
    gradient = torch.randn(6, 40)
    torch.ops.narrow.fake_quantize_learned(x, scales, zero_points, scheme, 0.25).backward(gradient)
    double = lambda t: None if t is None else t.detach().double().numpy()
    grad_x, grad_s, grad_z = lsq_by_definition(
        double(x), double(scales), double(zero_points), form.element, form.tile((6, 40)), double(gradient), 0.25
    )
    assert np.array_equal(x.grad.numpy(), grad_x.astype(np.float32)) and (grad_x == 0).any()
    assert np.allclose(scales.grad.numpy(), grad_s, rtol=1e-4, atol=1e-5)
    if zero_points is not None:
        assert np.allclose(zero_points.grad.numpy(), grad_z, rtol=1e-4, atol=1e-5) and np.abs(grad_z).max() > 0


def test_the_learned_step_falls_to_the_best_one():
    """From a scale twice too large, LSQ alone finds one of about the least squared error."""
    x = torch.randn(1, 4096)
    quantizer = nt.FakeQuantize("int4:tensor", learned=True)
    quantizer.start(x * 2.0)
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=2e-2)
    for _ in range(200):
        loss = (quantizer(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    candidates = [(narrow.fake_quantize(x, "int4:tensor", scales=[s]) - x).square().mean().item() for s in np.linspace(0.2, 0.8, 61)]
    assert (quantizer(x) - x).square().mean().item() < 1.1 * min(candidates)


def network():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))


@pytest.mark.parametrize(
    "config, learned",
    [
        ("int4:row", True),
        ("int4:row:asym", True),
        ("fp4_e2m1:row", True),
        ("msfp12", False),
        ("nvfp4", False),
        ("W8A8", False),
        ("W8A8-static", True),
        ("FP8_DYNAMIC", False),
    ],
)
def test_conversion_keeps_the_numbers(config, learned):
    """Training lowers the loss, and the converted layers give what training saw."""
    model, x = network(), torch.randn(256, 32)
    target = torch.tanh(x @ torch.randn(32, 8))
    nt.prepare_qat_(model, config, learned)
    model(x)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    model.eval()
    trained = model(x).detach()
    nt.convert_(model)
    assert all(isinstance(model[i], nt.QuantizedLinear) for i in (0, 2))
    converted = model(x).detach()
    # Sums in another order may move an input of the second layer across a rounding boundary, one code of many.
    assert (converted - trained).abs().median() < 1e-5 and (converted - trained).abs().max() < 0.05 * trained.abs().max()


def test_training_compiles():
    model, x = nt.prepare_qat_(network(), "int4:row", learned=True), torch.randn(16, 32)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(actual, expected))


def test_narrow_in_a_qconfig_of_torch():
    """Fake-quantizers and observers of narrow where torch.ao.quantization expects its own."""
    from torch.ao.quantization import QConfig, prepare, prepare_qat

    model, x = nn.Sequential(nn.Linear(16, 8)), torch.randn(64, 16)
    model.qconfig = QConfig(
        activation=nt.FakeQuantize.with_args(scheme="int8:tensor", observer=nt.StatisticsObserver),
        weight=nt.FakeQuantize.with_args(scheme="int4:row"),
    )
    trained = prepare_qat(copy.deepcopy(model).train())
    y = trained(x)
    y.square().sum().backward()
    assert trained[0].weight.grad is not None and torch.equal(
        trained[0].weight_fake_quant(trained[0].weight).detach(), narrow.fake_quantize(trained[0].weight, "int4:row")
    )
    model.qconfig = QConfig(activation=nt.StatisticsObserver.with_args(method="mse"), weight=nt.StatisticsObserver.with_args())
    observed = prepare(model.eval())
    observed(x)
    scale, zero_point = observed[0].activation_post_process.calculate_qparams()
    assert 0 < scale.item() <= observed[0](x).abs().max().item() / 127 * 1.001 and zero_point.item() == 0


def test_observers_of_torch_in_narrow():
    from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver

    x = torch.randn(8, 32)
    quantizer = nt.FakeQuantize("int8:tensor:asym", observer=MinMaxObserver, dtype=torch.quint8)
    observer = MinMaxObserver(dtype=torch.quint8)
    observer(x)
    scale, zero_point = observer.calculate_qparams()
    expected = torch.fake_quantize_per_tensor_affine(x, scale, zero_point.int(), 0, 255)
    assert torch.allclose(quantizer(x), expected, atol=1e-6)
    rows = nt.FakeQuantize("int8:row", observer=PerChannelMinMaxObserver, ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    assert rows(x).shape == x.shape and rows.calculate_qparams()[0].shape == (8, 1)
    with pytest.raises(ValueError, match="not fp32"):
        nt.FakeQuantize("nvfp4", learned=True)
