"""CUDA tensors: the CPU's bytes, products, training, streams, graphs, compiled code, and what one call costs. `make gpu-test` runs it."""

import copy
import functools
import time

import pytest

torch = pytest.importorskip("torch")
narrow = pytest.importorskip("narrow", reason="the Python package is not built")
if not torch.cuda.is_available() or narrow._core.cuda_device_count() == 0:
    pytest.skip("no CUDA device, or a build without CUDA", allow_module_level=True)
from torch import nn  # noqa: E402

import narrow.torch as nt  # noqa: E402
from narrow.torch import ops  # noqa: E402

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
@pytest.mark.parametrize("columns", [256, 264, 250])
@pytest.mark.parametrize(
    "config", ["fp6_e3m2:row", "int4:block128:asym", "nvfp4", "nf4:block64", "W8A8", "W4A8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8"]
)
def test_layers_multiply_their_values(config, dtype, columns):
    linear, x = nn.Linear(columns, 384).to(dtype).cuda(), torch.randn(2, 33, columns, dtype=dtype).cuda()
    model = nt.quantize_(nn.Sequential(linear), config)
    rounded = x if not model[0].inputs else narrow.fake_quantize(x.cpu(), model[0].inputs.removesuffix(":dynamic")).cuda()
    exact = rounded.double() @ model[0].weight.dequantize().double().T + linear.bias.double()
    y = model(x)
    assert y.dtype == dtype and y.shape == (2, 33, 384)
    bound = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]  # fp32: torch's own product may use TF32
    assert (y.double() - exact).abs().max() <= bound * exact.abs().max()


@pytest.mark.parametrize(
    "inputs",
    [
        "int8:row:dynamic",
        "int8:row:asym:dynamic",
        "int8:tensor:static",
        "int8:tensor:asym:static",
        "fp8_e4m3:tensor:dynamic",
        "fp8_e4m3:tensor:static",
        "fp8_e5m2:row:dynamic",
    ],
)
def test_codes_meet_codes(inputs):
    """Every rounding of inputs that a product of codes takes, with weights symmetric and not."""
    element = "fp8_e4m3" if inputs.startswith("fp8") else "int8"
    x = torch.randn(5, 64, dtype=torch.float16, device="cuda")
    rounding, is_static = inputs.rsplit(":", 1)[0], inputs.endswith("static")
    for scheme in (f"{element}:row", f"{element}:tensor", *(["int8:row:asym"] if element == "int8" else [])):
        layer = nt.QuantizedLinear.from_linear(nn.Linear(64, 48).half().cuda(), scheme, inputs, (0.03125, 120) if is_static else None)
        if is_static:
            zero = layer.input_zero_point.cpu() if "asym" in inputs else None
            parts = torch.ops.narrow.quantize(x.cpu(), rounding, layer.input_scale.cpu(), zero)
            points = None if zero is None else parts[2]
            values = torch.ops.narrow.dequantize(parts[0], parts[1], points, None, rounding, [5, 64], torch.float32)
        else:
            values = narrow.fake_quantize(x.cpu().float(), rounding)
        exact = values.double() @ layer.weight.dequantize().cpu().double().T + layer.bias.cpu().double()
        assert (layer(x).cpu().double() - exact).abs().max() <= 2e-3 * exact.abs().max(), scheme


@pytest.mark.parametrize("config", ["int4:block128", "FP8_DYNAMIC"])
def test_inputs_of_any_strides(config):
    """Rows of a wider matrix, a transposed matrix, one row repeated, more dimensions, none at all: the numbers of a contiguous copy."""
    layer = nt.quantize_(nn.Sequential(nn.Linear(128, 64).half().cuda()), config)[0]
    wide = torch.randn(6, 256, dtype=torch.float16, device="cuda")
    cases = [wide[:, :128], wide[:, 128:], wide[:, ::2], torch.randn(128, 5, device="cuda").half().t(), wide[:1, :128].expand(4, 128)]
    cases += [wide.view(2, 3, 256)[..., :128], wide[0, :128], wide.view(2, 6, 128).transpose(0, 1)]
    with torch.no_grad():
        for x in cases:
            assert torch.equal(layer(x), layer(x.contiguous())), (x.shape, x.stride())
        assert layer(wide[:0, :128]).shape == (0, 64)
        with pytest.raises(narrow.Error):
            layer(wide[:, :120].contiguous())


def test_a_changed_weight_is_prepared_anew_and_a_dropped_one_is_freed():
    layer, x = nt.QuantizedLinear.from_linear(nn.Linear(128, 64).half().cuda(), "int4:block128"), torch.randn(3, 128, device="cuda").half()
    before = layer(x)
    layer.weight.scales.mul_(2)
    layer.bias.data.zero_()
    exact = x.double() @ layer.weight.dequantize().double().T
    assert not torch.equal(layer(x), before) and torch.allclose(layer(x).double(), exact, atol=2e-2)
    for scheme, inputs in (("int4:block128", ""), ("int8:row", "int8:row:dynamic")):
        layer = nt.QuantizedLinear.from_linear(nn.Linear(128, 64).half().cuda(), scheme, inputs)
        count = len(ops._cuda_layers._layers)
        layer(x)
        assert len(ops._cuda_layers._layers) == count + 1
        del layer
        assert len(ops._cuda_layers._layers) == count


@pytest.mark.parametrize("dtype", DTYPES)
def test_msfp_matrices_multiply_packed(dtype):
    x, y = torch.randn(70, 200).cuda(), torch.randn(130, 200).cuda()
    for bits in range(11, 17):
        a, b = nt.to_msfp(x, bits), nt.to_msfp(y, bits)
        exact = a.dequantize().double() @ b.dequantize().double().T
        product = nt.msfp_matmul(a, b.transpose(0, 1), dtype)
        assert product.dtype == dtype and product.shape == (70, 130)
        bound = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
        assert (product.double() - exact).abs().max() <= bound * exact.abs().max(), bits


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_binary_layers_are_the_cpus(dtype):
    linear, convolution = nt.BinaryLinear(200, 48).to(dtype), nt.BinaryConv2d(32, 24, 3, stride=2, padding=1, groups=2).to(dtype)
    for layer, x in ((linear, torch.randn(5, 7, 200)), (convolution, torch.randn(3, 32, 9, 11))):
        packed, x = layer.to_packed(), x.to(dtype)
        with torch.no_grad():
            expected = packed(x)
            y = copy.deepcopy(packed).cuda()(x.cuda())
        assert y.dtype == dtype and y.shape == expected.shape
        bound = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]  # sums are exact, results rounded to their type
        assert (y.cpu().double() - expected.double()).abs().max() <= bound * expected.abs().max()


class OnlyDlpack:
    """A device array as cupy and jax have it: nothing but DLPack, which is told the stream of who reads."""

    def __init__(self, x):
        self.x, self.shape, self.dtype = x, x.shape, x.dtype

    def __dlpack__(self, stream=None, **options):
        return self.x.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_device_arrays_of_other_frameworks():
    """The same bytes, in memory that any framework takes over by DLPack, after what the array's own stream had still to do."""
    x = torch.randn(24, 320, device="cuda")
    for scheme in ("int8:row", "int4:block128:asym", "nvfp4", "mxfp8_e4m3", "msfp12"):
        ours, theirs = narrow.quantize(x, scheme), narrow.quantize(OnlyDlpack(x), scheme)
        for name in ("codes", "scales", "zero_points"):
            part, other = getattr(ours, name), getattr(theirs, name)
            assert (part is None) == (other is None) and (part is None or same(torch.from_dlpack(other), part.cpu())), (scheme, name)
        assert torch.equal(torch.from_dlpack(narrow.dequantize(theirs)), narrow.dequantize(ours)), scheme
        assert torch.equal(torch.from_dlpack(narrow.fake_quantize(OnlyDlpack(x), scheme)), narrow.dequantize(ours)), scheme
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(3.0)
        late = narrow.fake_quantize(OnlyDlpack(x), "int8:row")
    assert torch.equal(torch.from_dlpack(late), torch.full_like(x, 3.0))


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")
    x = torch.randn(24, 320, device="cuda")
    with cupy.cuda.Stream():
        q = narrow.quantize(cupy.from_dlpack(x), "int8:row")
        assert isinstance(q.codes, cupy.ndarray) and same(torch.from_dlpack(q.codes), narrow.quantize(x, "int8:row").codes.cpu())


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


def expect_replays_to_equal_calls(config, rows, calls_before):
    model = nt.quantize_(nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256)).half().cuda(), config)
    x = torch.randn(rows, 256, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        for _ in range(calls_before):
            model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, model(x))


def test_a_graph_replays_a_quantized_model():
    for config in ("fp6_e3m2:row", "int4:block128", "FP8_DYNAMIC"):
        expect_replays_to_equal_calls(config, rows=4, calls_before=2)


def test_a_graph_may_hold_the_first_call_of_a_layer():
    for config in ("fp6_e3m2:row", "int4:block128", "mxfp4"):
        expect_replays_to_equal_calls(config, rows=80, calls_before=0)


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


def microseconds_per_call(calls, count=40, passes=60):
    """Host time of each call, without waiting for the device: of the shortest of many short batches. The calls take turns, so that a host
    which is busy for some seconds is so for all of them."""
    best = [float("inf")] * len(calls)
    for _ in range(passes):
        for i, call in enumerate(calls):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[i] = min(best[i], (time.perf_counter() - start) / count)
    torch.cuda.synchronize()
    return [1e6 * seconds for seconds in best]


def bare_product(layer, x, y):
    """The call of a QuantizedLinear's kernels alone, in memory that is there already."""
    w = layer.weight
    _, product, prepared = ops._cuda_layers.layer(
        w.codes, (w.scales, w.zero_points, w.outer_scale, layer.bias), w.scheme, layer.inputs, layer.in_features
    )
    assert product == ("codes" if layer.inputs else "weights")
    scratch = x.new_empty(prepared.scratch(x.shape[0]), dtype=torch.uint8)
    scale = 0 if layer.input_scale is None else layer.input_scale.data_ptr()
    where = x.data_ptr(), y.data_ptr(), "F16", x.shape[0], x.shape[1]

    def call():
        prepared.run(*where, scratch.data_ptr(), scale, 0, torch._C._cuda_getCurrentRawStream(0))

    return call


def operators_and_their_kernels(x):
    """Name, call of an operator, call of its kernels alone: what a layer of a model calls, at a size where the device has little to do."""
    y, stream = torch.empty_like(x), torch.cuda.current_stream().cuda_stream
    for scheme, inputs in (
        ("fp6_e3m2:row", ""),
        ("int4:block128", ""),
        ("fp8_e4m3:row", ""),
        ("int8:row", ""),
        ("int8:row", "int8:row:dynamic"),
        ("int8:row", "int8:tensor:static"),
        ("int4:block128", "int8:row:dynamic"),
        ("fp8_e4m3:row", "fp8_e4m3:row:dynamic"),
        ("fp8_e4m3:128x128", "fp8_e4m3:block128:dynamic"),
    ):
        linear = nn.Linear(256, 256).half().cuda().requires_grad_(False)
        layer = nt.QuantizedLinear.from_linear(linear, scheme, inputs, (0.03125, 0) if "static" in inputs else None)
        w, scale = layer.weight, layer.input_scale
        arguments = x, w.codes, w.scales, w.zero_points, w.outer_scale, layer.bias, scheme, inputs, scale, None
        layer(x)
        yield (
            f"linear {scheme} {inputs}",
            functools.partial(torch.ops.narrow.linear, *arguments),
            bare_product(layer, x, y),
        )
    for scheme in ("int8:row", "fp8_e4m3:row", "int4:block128", "fp6_e3m2:row", "nvfp4"):
        form, shape, device = narrow.Scheme(scheme), tuple(x.shape), x.get_device()
        codes, scales, zero_points, outer = torch.ops.narrow.quantize(x, scheme, None, None)
        there = codes.data_ptr(), scales.data_ptr(), zero_points.data_ptr(), outer.data_ptr()
        yield (
            f"quantize {scheme}",
            functools.partial(torch.ops.narrow.quantize, x, scheme, None, None),
            functools.partial(narrow._core.cuda_quantize_at, form, shape, (), x.data_ptr(), "F16", *there, device, stream),
        )
        present = outer if outer.numel() else None
        memory = [(0, 0) if part is None else (part.data_ptr(), part.nbytes) for part in (codes, scales, None, present)]
        yield (
            f"dequantize {scheme}",
            functools.partial(torch.ops.narrow.dequantize, codes, scales, None, present, scheme, shape, torch.float16),
            functools.partial(narrow._core.cuda_dequantize_at, form, shape, *memory, y.data_ptr(), "F16", device, stream),
        )
        where = x.data_ptr(), y.data_ptr(), "F16", shape, (), device, form, stream, "nearest_even", 0
        yield (
            f"fake_quantize {scheme}",
            functools.partial(torch.ops.narrow.fake_quantize, x, scheme, "nearest_even", 0),
            functools.partial(narrow._core.cuda_fake_quantize_at, *where),
        )


def test_speed_of_an_operator_call():
    """Less than 12 us of host time more than the call of its kernels, for every operator, with autograd watching and without."""
    x = torch.randn(16, 256, device="cuda", dtype=torch.float16)
    names, operators, kernels = zip(*operators_and_their_kernels(x))

    def unwatched(operator):
        def call():
            with torch.inference_mode():
                operator()

        return call

    torch_calls = [lambda: torch.relu(x), lambda: nn.functional.linear(x, x), unwatched(lambda: None)]
    times = microseconds_per_call([*torch_calls, *kernels, *operators, *map(unwatched, operators)])
    relu, linear, mode = times[:3]
    print(f"\nwhole calls of torch: relu {relu:.1f} us, linear {linear:.1f} us")
    rows = list(zip(names, *(times[3 + i * len(names) : 3 + (i + 1) * len(names)] for i in range(3))))
    for name, bare, watched, alone in rows:
        print(f"{name:55s} kernels {bare:5.1f} us; the operator {watched - bare:5.1f} us more, {alone - mode - bare:5.1f} in inference mode")
    assert max(max(watched, alone - mode) - bare for _, bare, watched, alone in rows) < 12


class LlamaBlock(nn.Module):
    """A block of Llama-2-7B for one new token, which attends to itself."""

    def __init__(self, hidden=4096, intermediate=11008):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(intermediate, hidden, bias=False)
        self.before, self.after = nn.RMSNorm(hidden), nn.RMSNorm(hidden)

    def forward(self, x):
        h = self.before(x)
        q, k, v = (layer(h).view(-1, 1, 32, 128).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        h = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def microseconds_of_products(call, count=20):
    """Device time of narrow's products in one call, by the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages() if "weight" in event.key) / count


@pytest.mark.parametrize("scheme", ["fp6_e3m2:row", "int4:block128"])
def test_speed_of_a_compiled_block(scheme):
    """Products in a compiled, graph-captured block at batch 1: at least 0.9 of the speed of the bare kernels in a graph of their own."""
    model = nt.quantize_(LlamaBlock().half().cuda(), scheme)
    x = torch.randn(1, 4096, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            compiled(x)
        layers = [m for m in model.modules() if isinstance(m, nt.QuantizedLinear)]
        inputs = [torch.randn(1, m.in_features, device="cuda", dtype=torch.float16) for m in layers]
        outputs = [torch.empty(1, m.out_features, device="cuda", dtype=torch.float16) for m in layers]
        products = [bare_product(m, a, b) for m, a, b in zip(layers, inputs, outputs)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for product in products:
                product()
        bare, inside = microseconds_of_products(graph.replay), microseconds_of_products(lambda: compiled(x))
    print(f"{scheme}: products {inside:.1f} us in the block, {bare:.1f} us bare")
    assert bare >= 0.9 * inside > 0
