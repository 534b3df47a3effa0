"""CUDA tensors: the CPU's bytes, products, training, streams, graphs, compiled code, and what one call costs. `make gpu-test` runs it."""

import copy
import time

import pytest

torch = pytest.importorskip("torch")
narrow = pytest.importorskip("narrow", reason="the Python package is not built")
if not torch.cuda.is_available() or narrow._core.cuda_device_count() == 0:
    pytest.skip("no CUDA device, or a build without CUDA", allow_module_level=True)
from torch import nn  # noqa: E402

import narrow.torch as nt  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8).cpu(), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_scheme_gives_the_bytes_of_the_cpu(dtype):
    x = torch.randn(24, 320).to(dtype)
    for scheme in narrow.schemes():
        cpu, gpu = narrow.quantize(x, scheme), narrow.quantize(x.cuda(), scheme)
        assert same(gpu.codes, cpu.codes), scheme
        assert cpu.scales is None or same(gpu.scales, cpu.scales), scheme
        assert cpu.zero_points is None or same(gpu.zero_points, cpu.zero_points), scheme
        assert float(gpu.outer_scale) == cpu.outer_scale, scheme
        assert same(narrow.dequantize(gpu, dtype), narrow.dequantize(cpu, dtype)), scheme
        assert same(torch.ops.narrow.fake_quantize(x.cuda(), str(scheme), "nearest_even", 0), narrow.fake_quantize(x, scheme)), scheme


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", ["fp6_e3m2:row", "int4:block128:asym", "nvfp4", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8"])
def test_layers_multiply_their_values(config, dtype):
    linear, x = nn.Linear(256, 384).to(dtype).cuda(), torch.randn(2, 33, 256, dtype=dtype).cuda()
    model = nt.quantize_(nn.Sequential(linear), config)
    rounded = x if not model[0].inputs else narrow.fake_quantize(x.cpu(), model[0].inputs.removesuffix(":dynamic")).cuda()
    exact = rounded.double() @ model[0].weight.dequantize().double().T + linear.bias.double()
    y = model(x)
    assert y.dtype == dtype and y.shape == (2, 33, 384)
    bound = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]  # fp32: torch's own product may use TF32
    assert (y.double() - exact).abs().max() <= bound * exact.abs().max()


def test_learned_scales_train_as_on_the_cpu():
    for scheme in ("int4:row", "fp4_e2m1:row", "int8:tensor", "int4:row:asym"):
        x = torch.randn(16, 96, requires_grad=True)
        scales = (narrow.quantize(x.detach(), scheme).scales * 0.6).requires_grad_()
        zero = torch.full(scales.shape, 7.0, requires_grad=True) if "asym" in scheme else None
        gradient = torch.randn(16, 96)
        leaves = [t for t in (x, scales, zero) if t is not None]
        y = torch.ops.narrow.fake_quantize_learned(x, scales, zero, scheme, 0.5)
        expected = torch.autograd.grad(y, leaves, gradient)
        there = [t.detach().cuda().requires_grad_() for t in leaves]
        z = torch.ops.narrow.fake_quantize_learned(there[0], there[1], there[2] if zero is not None else None, scheme, 0.5)
        assert torch.equal(z.cpu(), y)
        for a, b in zip(torch.autograd.grad(z, there, gradient.cuda()), expected):
            assert torch.allclose(a.cpu(), b, rtol=1e-4, atol=1e-4)


def test_work_is_on_the_current_stream():
    """A slow kernel before, on another stream than the default one: what follows must wait for it."""
    stream, x = torch.cuda.Stream(), torch.zeros(512, 512, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(3.0)
        y = torch.ops.narrow.fake_quantize(x, "int8:row", "nearest_even", 0)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 3.0))


def test_a_graph_replays_a_quantized_model():
    for config in ("fp6_e3m2:row", "int4:block128", "FP8_DYNAMIC"):
        model = nt.quantize_(nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256)).half().cuda(), config)
        x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
        with torch.inference_mode():
            for _ in range(2):
                model(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
            x.copy_(torch.randn_like(x))
            graph.replay()
            assert torch.equal(y, model(x))


def test_compiled_with_inductor():
    model = nt.quantize_(nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 64)).half().cuda(), "fp6_e3m2:row")
    x = torch.randn(8, 128, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            y = compiled(x).clone()
    assert torch.allclose(y, expected, atol=2e-2)


def test_models_move_between_devices():
    model, x = nt.quantize_(nn.Sequential(nn.Linear(64, 32)), "nvfp4"), torch.randn(3, 64)
    moved = copy.deepcopy(model).cuda()
    assert torch.allclose(moved(x.cuda()).cpu(), model(x), atol=2e-2) and torch.equal(moved.cpu()(x), model(x))


def seconds_per_call(call, count=2000):
    """The best of five: host time of a call, without waiting for the device."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
        torch.cuda.synchronize()
    return best


def test_speed_of_an_operator_call():
    """Less than 12 us of host time more than the call of its kernel."""
    from narrow import _core
    from narrow._arrays import borrow_torch

    x = torch.randn(16, 256, device="cuda", dtype=torch.float16)
    y, scheme = torch.empty_like(x), _core.Scheme("int8:row")
    source, target, stream = borrow_torch(x), borrow_torch(y), torch.cuda.current_stream().cuda_stream
    codes, scales, _, _ = torch.ops.narrow.quantize(x, "int8:row", None, None)
    parts = borrow_torch(codes), borrow_torch(scales)
    with torch.inference_mode():
        bare = seconds_per_call(lambda: _core.cuda_dequantize(scheme, (16, 256), *parts, None, None, target, stream))
        op = seconds_per_call(lambda: torch.ops.narrow.dequantize(codes, scales, None, None, "int8:row", (16, 256), torch.float16))
        fake_bare = seconds_per_call(lambda: _core.cuda_fake_quantize(source, target, scheme, stream))
        fake_op = seconds_per_call(lambda: torch.ops.narrow.fake_quantize(x, "int8:row", "nearest_even", 0))
    print(
        f"dequantize: {1e6 * op:.1f} us, its kernel call {1e6 * bare:.1f} us; "
        f"fake_quantize: {1e6 * fake_op:.1f} us, its kernel call {1e6 * fake_bare:.1f} us"
    )
    assert op - bare < 12e-6 and fake_op - fake_bare < 12e-6
