"""The package narrow: arrays of numpy and torch in and out, every standard scheme beside the command's own files, errors, threads,
imports."""

import json
import pathlib
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

narrow = pytest.importorskip("narrow", reason="the Python package is not built")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "docs-llama-13m"
TOKENS = EXAMPLES / "docs_tokens.safetensors"


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_formats_are_those_of_ml_dtypes():
    for name, dtype in {
        "fp8_e4m3": ml_dtypes.float8_e4m3fn,
        "fp8_e5m2": ml_dtypes.float8_e5m2,
        "fp6_e3m2": ml_dtypes.float6_e3m2fn,
        "fp6_e2m3": ml_dtypes.float6_e2m3fn,
        "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    }.items():
        form = narrow.Format(name)
        limits = ml_dtypes.finfo(dtype)
        assert (form.bits, form.largest, form.smallest_normal, form.smallest_positive) == (
            limits.bits,
            float(limits.max),
            float(limits.smallest_normal),
            float(limits.smallest_subnormal),
        )
        for code in range(2**form.bits):
            expected = float(np.array([code], np.uint8).view(dtype)[0])
            assert form.decode(code) == expected or np.isnan(expected)
    assert narrow.Format("int4").encode(-9.0) == 0x9


def test_narrow_dtypes_are_formats():
    """ml_dtypes' and torch's: as the name of a format, as a scheme, and as arrays, exactly."""
    torch = pytest.importorskip("torch")
    x = values(6, 32)
    for dtype, name in (
        (ml_dtypes.float8_e4m3fn, "fp8_e4m3"),
        (ml_dtypes.float8_e5m2, "fp8_e5m2"),
        (ml_dtypes.float6_e3m2fn, "fp6_e3m2"),
        (ml_dtypes.float4_e2m1fn, "fp4_e2m1"),
    ):
        assert narrow.format_of(dtype) == narrow.format_of(np.dtype(dtype)) == narrow.Format(name)
        narrowed = np.clip(x, -7, 7).astype(dtype)
        q = narrow.as_quantized(narrowed)
        assert q.scheme == narrow.Scheme(f"{name}:none") and np.array_equal(narrow.dequantize(q), narrowed.astype(np.float32))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        narrowed = torch.from_numpy(x).to(dtype)
        q = narrow.as_quantized(narrowed)
        assert q.codes.data_ptr() == narrowed.data_ptr() and torch.equal(narrow.dequantize(q), narrowed.float())
        assert narrow.quantize(torch.from_numpy(x), dtype).scheme == narrow.Scheme(narrow.format_of(dtype).name)
    if hasattr(torch, "float4_e2m1fn_x2"):
        q = narrow.quantize(x, "fp4_e2m1:none")
        pairs = torch.from_numpy(q.codes).view(torch.float4_e2m1fn_x2)
        assert np.array_equal(narrow.dequantize(narrow.as_quantized(pairs)).numpy(), narrow.dequantize(q))
    assert narrow.format_of(ml_dtypes.int4) == narrow.Format("int4")
    with pytest.raises(narrow.InvalidArgument, match="scale"):
        narrow.as_quantized(np.zeros((2, 8), ml_dtypes.int4))
    with pytest.raises(narrow.InvalidArgument, match="none of narrow's formats"):
        narrow.format_of(np.dtype("float64"))


def test_schemes_are_values():
    scheme = narrow.Scheme("int4:block128:asym")
    assert str(scheme) == "int4:block128:asym" and scheme == narrow.Scheme(str(scheme)) and scheme != narrow.Scheme("int8")
    assert len({scheme, narrow.Scheme("int4:block128:asym")}) == 1 and scheme != "int4:block128:asym"
    assert scheme.grid((6, 300)) == (6, 3) and scheme.row_bytes(300) == 150 and scheme.asymmetric
    import pickle

    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert len(narrow.schemes()) > 20 and all(narrow.Scheme(str(one)) == one for one in narrow.schemes())
    assert {"W8A8", "FP8_DYNAMIC", "NVFP4"} <= {preset.name for preset in narrow.presets()}


@pytest.mark.parametrize("scheme", [str(scheme) for scheme in narrow.schemes()])
def test_every_scheme_by_its_equation(scheme):
    """real = scale * outer * (decode(code) - zero point), with codes unpacked here and decoded one by one."""
    x = values(6, 300)
    q = narrow.quantize(x, scheme)
    form, bits = q.scheme.element, q.scheme.element.bits
    stream = np.unpackbits(q.codes, axis=1, bitorder="little")[:, : 300 * bits].reshape(6, 300, bits)
    codes = (stream.astype(np.int64) << np.arange(bits)).sum(-1)
    expected = np.vectorize(form.decode, otypes=[np.float64])(codes)
    if q.scheme.has_scales:
        rows, cols = q.scheme.tile(x.shape)
        spread = lambda grid: np.repeat(np.repeat(grid.astype(np.float64), rows, 0), cols, 1)[:6, :300]
        if q.zero_points is not None:
            expected = expected - spread(q.zero_points)
        expected = expected * spread(q.scales) * q.outer_scale
    got = narrow.dequantize(q)
    assert got.dtype == np.float32 and np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()
    assert np.array_equal(narrow.fake_quantize(x, scheme), got)
    assert (
        q.byte_size
        == q.codes.nbytes + sum(part.nbytes for part in (q.scales, q.zero_points) if part is not None) + 4 * q.scheme.has_outer_scale
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_strided_arrays_of_every_type(dtype):
    x = values(64, 96).astype(dtype)
    q, plain = narrow.quantize(x.T[::2], "int8:row"), narrow.quantize(np.ascontiguousarray(x.T[::2]), "int8:row")
    assert np.array_equal(q.codes, plain.codes) and np.array_equal(q.scales, plain.scales)
    assert narrow.fake_quantize(x, "fp8_e4m3:row").dtype == dtype
    assert narrow.dequantize(q, dtype).dtype == dtype
    assert narrow.quantize(x, "mxfp4").scales.dtype == ml_dtypes.float8_e8m0fnu
    x.flags.writeable = False
    assert np.array_equal(narrow.quantize(x, "fp6_e3m2").codes, narrow.quantize(x.copy(), "fp6_e3m2").codes)


def test_quantized_tensors_are_values():
    import copy
    import pickle

    for scheme in ("int4:block32:asym", "nvfp4", "fp16:none"):
        q, other = narrow.quantize(values(4, 64), scheme), narrow.quantize(values(4, 64, seed=1), scheme)
        assert q == narrow.quantize(values(4, 64), scheme) == copy.deepcopy(q) == pickle.loads(pickle.dumps(q))
        assert q != other and q != narrow.quantize(values(4, 64), "int8:row") and q != "int8:row"
    q = narrow.quantize(values(4, 64), "int4:block32:asym")
    assert repr(q) == "QuantizedTensor(int4:block32:asym, (4, 64), 168 bytes, 5.25 bits per value)"
    assert repr(narrow.prepare(q)).startswith("PreparedWeight(int4:block32:asym, (4, 64), ")
    assert narrow.QuantizedTensor("int4:block32:asym", [4, 64], q.codes, q.scales, q.zero_points) == q
    assert narrow.compare(narrow.dequantize(q), q)["max_absolute"] == 0.0 < narrow.compare(values(4, 64), q)["max_absolute"]
    prepared = narrow.prepare(q)
    assert copy.deepcopy({"w": prepared})["w"] is prepared


@pytest.mark.parametrize("given", [[3, 200], (3, 200), np.array([[3], [200]]), np.array([3, 200], np.uint8)])
def test_zero_points_are_whole_numbers_of_any_type(given):
    torch = pytest.importorskip("torch")
    x, options = values(2, 64), dict(scales=[0.05, 0.1])
    expected = np.clip(np.rint(x / np.float32([[0.05], [0.1]])) + np.array([[3], [200]]), 0, 255)
    for array in (x, torch.from_numpy(x)):
        q = narrow.quantize(array, "int8:row:asym", zero_points=given, **options)
        assert np.array_equal(np.asarray(q.zero_points).ravel(), [3, 200]) and np.array_equal(np.asarray(q.codes), expected)
        fake = narrow.fake_quantize(array, "int8:row:asym", zero_points=given, **options)
        assert np.array_equal(np.asarray(fake), np.asarray(narrow.dequantize(q)))


def test_narrow_arrays_of_any_strides_are_codes():
    x = np.arange(12, dtype=np.float32).reshape(2, 6).astype(ml_dtypes.float8_e4m3fn)
    for view in (x.T, x[:, ::2], x[::-1]):
        assert np.array_equal(narrow.dequantize(narrow.as_quantized(view)), view.astype(np.float32))


def test_tensors_without_memory_are_refused():
    torch = pytest.importorskip("torch")
    for tensor, words in ((torch.empty(4, 8, device="meta"), "meta"), (torch.eye(4).to_sparse(), "to_dense")):
        for call in (lambda x: narrow.quantize(x, "int8:row"), lambda x: narrow.fake_quantize(x, "int8:row"), narrow.prepare):
            with pytest.raises(narrow.InvalidArgument, match=words):
                call(tensor)


def test_torch_and_numpy_give_the_same_bytes():
    torch = pytest.importorskip("torch")
    x = values(16, 64)
    for scheme in ("int4:block128:asym", "nvfp4", "msfp12", "fp6_e3m2:row", "mxfp8_e4m3"):
        a, b = narrow.quantize(x, scheme), narrow.quantize(torch.from_numpy(x), scheme)
        assert isinstance(b.codes, torch.Tensor) and np.array_equal(a.codes, b.codes.numpy()) and a.outer_scale == b.outer_scale
        assert np.array_equal(a.scales.view(np.uint8), b.scales.view(torch.uint8).numpy())
        assert np.array_equal(narrow.dequantize(a), narrow.dequantize(b).numpy())
    half = torch.randn(4, 32, dtype=torch.bfloat16, requires_grad=True)
    assert narrow.fake_quantize(half, "fp8_e5m2:row").dtype == torch.bfloat16
    assert torch.equal(narrow.fake_quantize(half, "fp8_e4m3:none"), half.detach().to(torch.float8_e4m3fn).to(torch.bfloat16))
    assert narrow.quantize(torch.randn(4, 32), "mxfp4").scales.dtype == getattr(torch, "float8_e8m0fnu", torch.uint8)  # 2.6 has none


def test_memory_is_shared_not_copied():
    """Through DLPack in both directions: a write on one side is seen on the other."""
    from narrow import _core

    x = values(4, 8)
    array = _core.Array(x)
    assert np.shares_memory(np.asarray(array.exported()), x) and np.from_dlpack(array)[0, 0] == x[0, 0]

    class OnlyDlpack:  # as cupy and jax arrays come
        shape = x.shape

        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    assert np.array_equal(narrow.quantize(OnlyDlpack(), "int8:row").codes, narrow.quantize(x, "int8:row").codes)


def test_arrays_of_jax():
    jax = pytest.importorskip("jax")
    x = values(16, 64)
    ours, theirs = narrow.quantize(x, "nvfp4"), narrow.quantize(jax.numpy.asarray(x), "nvfp4")
    assert np.array_equal(theirs.codes, ours.codes) and np.array_equal(narrow.dequantize(theirs), narrow.dequantize(ours))
    half = jax.numpy.asarray(x, dtype=jax.numpy.bfloat16)
    assert np.array_equal(narrow.fake_quantize(half, "fp8_e4m3:row"), narrow.fake_quantize(np.asarray(half), "fp8_e4m3:row"))


def test_rounding_and_static_scales():
    x = values(8, 64)
    down = narrow.fake_quantize(x, "int8:tensor", rounding="toward_zero")
    assert np.all(np.abs(down) <= np.abs(x) + 1e-6)
    many = np.mean([narrow.fake_quantize(x, "int4:row", rounding="stochastic", seed=seed) for seed in range(200)], axis=0)
    nearest = narrow.fake_quantize(x, "int4:row")
    assert np.abs(many - x).mean() < 0.3 * np.abs(nearest - x).mean()
    fixed = narrow.quantize(x, "int8:tensor", scales=np.float32([0.5]))
    assert np.array_equal(fixed.codes.view(np.int8), np.clip(np.round(x / np.float32(0.5)), -127, 127).astype(np.int8))
    again = narrow.requantize(narrow.quantize(x, "fp8_e4m3:row"), "int8:row")
    assert str(again.scheme) == "int8:row" and narrow.compare(x, narrow.dequantize(again))["sqnr_db"] > 25


def test_products():
    x, w, bias = values(5, 256), values(32, 256, seed=1), values(32, seed=2)
    for scheme in ("int8:row", "fp6_e3m2:row", "nvfp4", "int4:block128:asym", "msfp12"):
        q = narrow.quantize(w, scheme)
        exact = x.astype(np.float64) @ narrow.dequantize(q).astype(np.float64).T + bias
        assert np.abs(narrow.matmul(x, narrow.prepare(q), bias=bias) - exact).max() < 1e-4 * np.abs(exact).max() + 1e-4
    q8, x8 = narrow.quantize(w, "int8:row"), narrow.quantize(x, "int8:row")
    dynamic = narrow.matmul(x, q8, inputs="int8:row")
    assert np.array_equal(dynamic, narrow.matmul(x8, q8))
    sums = narrow.matmul(x8, narrow.prepare(q8), dtype="int32")
    assert np.array_equal(sums, x8.codes.view(np.int8).astype(np.int32) @ q8.codes.view(np.int8).astype(np.int32).T)
    silu = narrow.matmul(x, w, activation="silu", dtype="bf16")
    assert silu.dtype == ml_dtypes.bfloat16 and silu.shape == (5, 32)
    assert narrow.explain_matmul(1, 64, 256, "int8:row", "int8:row")[-1]["isa"] == "scalar"


def test_a_prepared_weight_outlives_its_arrays():
    torch = pytest.importorskip("torch")
    x, w = torch.randn(3, 96), torch.randn(16, 96)
    prepared = narrow.prepare(narrow.quantize(w, "fp5_e2m2:tensor"))
    expected = x.double() @ narrow.fake_quantize(w, "fp5_e2m2:tensor").double().T
    del w
    trash = [torch.full((16, 64), 7, dtype=torch.uint8) for _ in range(50)]
    assert trash and (narrow.matmul(x, prepared).double() - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: narrow.Scheme("int9:row"), ValueError, "int9"),
        (lambda: narrow.quantize(np.float32([[np.nan]]), "int8:row"), ValueError, "NaN"),
        (lambda: narrow.quantize(values(2, 2), "int8", rounding="up"), ValueError, "nearest_even"),
        (lambda: narrow.quantize(np.zeros((2, 2)), "int8"), TypeError, "quantize: the values are float64"),
        (lambda: narrow.fake_quantize(np.zeros((2, 2)), "int8"), TypeError, "x.astype(np.float32)"),
        (lambda: narrow.quantize(np.zeros((2, 2), np.int32), "int8"), ValueError, "int32"),  # a WrongType is an InvalidArgument too
        (lambda: narrow.compare(values(2, 2), np.zeros((2, 2))), TypeError, "compare: the values are float64"),
        (lambda: narrow.matmul(np.zeros((2, 4)), narrow.quantize(values(4, 4), "int8")), TypeError, "matmul: the values are float64"),
        (lambda: narrow.prepare(np.zeros((2, 4))), TypeError, "prepare: the values are float64"),
        (lambda: narrow.quantize(values(2, 4), "int8:tensor", scales=np.float32([1, 2])), ValueError, "1 contiguous"),
        (lambda: narrow.matmul(values(2, 3), narrow.quantize(values(4, 5), "int8")), ValueError, "3"),
        (lambda: narrow.open_checkpoint("no/such/place"), OSError, "no/such/place"),
        (lambda: narrow.dequantize(narrow.quantize(values(2, 4), "int8"), "int8"), ValueError, "F32, F16 or BF16"),
        (lambda: narrow.dequantize(values(2, 4)), TypeError, "ndarray is no QuantizedTensor"),
        (lambda: narrow.quantize(narrow.quantize(values(2, 4), "int8"), "int4"), TypeError, "dequantize"),
        (lambda: narrow.quantize(None, "int8"), TypeError, "None"),
        (lambda: narrow.quantize("abc", "int8"), TypeError, "'abc'"),
        (lambda: narrow.quantize(values(2, 4), "W8A8"), ValueError, "its weights are int8:row"),
        (lambda: narrow.quantize(values(2, 4).astype(">f4"), "int8"), ValueError, "newbyteorder"),
        (lambda: narrow.quantize(values(2, 4), "int8:tensor:asym", scales=1.0, zero_points=256), ValueError, "from 0 to 255"),
        (lambda: narrow.quantize(values(2, 4), "int8:tensor:asym", scales=1.0, zero_points=[0.5]), ValueError, "whole numbers"),
        (lambda: narrow.as_quantized(np.ones((), ml_dtypes.float8_e4m3fn)), ValueError, "a scalar has no rows"),
        (lambda: narrow.explain_matmul(0, 4, 4, "int8"), ValueError, "sizes are 1 or more"),
        (lambda: narrow.open_checkpoint(MODEL, framework="jax"), ValueError, "numpy or torch"),
        (lambda: __import__("pickle").dumps(narrow.prepare(values(2, 4))), TypeError, "pickle the QuantizedTensor"),
    ],
)
def test_errors_are_of_narrow_and_of_python(call, kind, words):
    with pytest.raises(narrow.Error) as caught:
        call()
    assert isinstance(caught.value, kind) and words in str(caught.value)


def test_numbers_of_python_are_fp32():
    numbers = [[0.1, -0.3], [2.0, 0.7]]
    np.testing.assert_array_equal(narrow.fake_quantize(numbers, "int8"), narrow.fake_quantize(np.float32(numbers), "int8"))
    assert narrow.compare(numbers, np.float32(numbers))["max_absolute"] == 0.0


def test_checkpoints(tmp_path):
    narrow.write_safetensors(tmp_path / "a.safetensors", {"x": values(4, 8), "b": values(3).astype(ml_dtypes.bfloat16)}, {"made": "here"})
    opened = narrow.open_checkpoint(tmp_path / "a.safetensors")
    assert opened.names() == ["b", "x"] and np.array_equal(opened.read("x"), values(4, 8)) and opened.read("b").dtype == ml_dtypes.bfloat16
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(narrow.CorruptFile):
        narrow.open_checkpoint(tmp_path / "bad.safetensors")

    seen = []
    report = narrow.quantize_checkpoint(
        MODEL,
        tmp_path / "small",
        "int4:block128",
        rules={"re:.*down_proj": "int8:row"},
        progress=lambda name, done, total: seen.append(done / total),
    )
    assert seen[-1] == 1.0 and report["tensors"]["model.layers.0.mlp.down_proj.weight"]["scheme"] == "int8:row"
    small, name = narrow.open_checkpoint(tmp_path / "small"), "model.layers.1.self_attn.q_proj.weight"
    assert small.is_quantized and str(small.scheme(name)) == "int4:block128" and small.scheme("lm_head.weight") is None
    again = narrow.quantize(narrow.open_checkpoint(MODEL).read(name), "int4:block128")
    stored = small.read_quantized(name)
    assert stored == again and len(small) == 57 and name in list(small) and np.array_equal(small[name], small.read(name))
    assert repr(small) == f"Checkpoint({str(tmp_path / 'small')!r}, 57 tensors, quantized)"
    assert narrow.verify_checkpoint(tmp_path / "small").problems == [] and report["idle"] == []
    with pytest.warns(UserWarning, match="the rule 'mlp' matches no tensor"):
        narrow.quantize_checkpoint(MODEL, tmp_path / "warned", "int8:row", rules={"mlp": "int4:row"})
    with pytest.raises(narrow.InvalidArgument, match="nothing would be quantized"):
        narrow.quantize_checkpoint(MODEL, tmp_path / "none", "int8:row", targets=["mlp"])
    narrow.dequantize_checkpoint(tmp_path / "small", tmp_path / "plain", "bf16")
    assert np.array_equal(narrow.open_checkpoint(tmp_path / "plain").read(name), small.read(name))


def test_evaluation_and_calibration(tmp_path, bin_dir):
    windows = narrow.read_token_windows(TOKENS, "eval")[:1]
    result = narrow.evaluate(MODEL, windows, "int8:row", base=MODEL)
    done = subprocess.run(
        [
            bin_dir / "narrow",
            "eval",
            MODEL,
            "--tokens",
            TOKENS,
            "--windows",
            "1",
            "--scheme",
            "int8:row",
            "--json",
            "--quiet",
            "--compute",
            "fp32",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result["perplexity"] == pytest.approx(json.loads(done.stdout)["perplexity"], rel=1e-9)
    assert result["kl_mean"] < 0.01
    statistics = narrow.calibrate(MODEL, [window[:64] for window in windows])
    statistics.save(tmp_path / "stats.safetensors")
    loaded = narrow.CalibrationStatistics.load(tmp_path / "stats.safetensors")
    name = "model.layers.0.mlp.down_proj"
    assert loaded.range(name) == statistics.range(name) and loaded.tokens(name) == 64
    scale, zero_point = loaded.static_scale(name, narrow.Scheme("int8:tensor"))
    assert scale == pytest.approx(max(map(abs, loaded.range(name))) / 127, rel=1e-6) and zero_point == 0


def test_methods_beat_rounding():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((512, 64)) @ rng.standard_normal((64, 64))
    fitted = narrow.fit_weight(values(32, 64), "int3:row", x.T @ x, "gptq+clip")
    assert fitted.loss_after < 0.7 * fitted.loss_before and fitted.fallback == ""


def test_threads_run_side_by_side():
    """Without the interpreter's lock during a call, and the same bytes from every thread."""
    x, results = values(512, 1024), [None] * 4

    def work(index):
        results[index] = [narrow.quantize(x, "fp6_e3m2:row").codes for _ in range(3)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(codes, results[0][0]) for each in results for codes in each)


def test_import_is_quick_and_needs_no_torch():
    """Processor time of the import alone, the best of three fresh interpreters: what others run beside does not count."""
    code = (
        "import time; t = time.process_time(); import narrow, sys; "
        "print(time.process_time() - t, 'torch' in sys.modules or 'numpy' in sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    assert all(loaded == "False" for _, loaded in runs)
    assert min(float(seconds) for seconds, _ in runs) < 0.150


def test_the_command_comes_along():
    done = subprocess.run([sys.executable, "-m", "narrow", "formats", "fp6_e3m2", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
