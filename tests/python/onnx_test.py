"""narrow.onnx beside onnx's checker and onnxruntime: weights, placement, a CNN, the example Llama, every rule of the linter."""

import json
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

narrow = pytest.importorskip("narrow")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
import narrow.onnx  # noqa: E402
from narrow.onnx import QuantizeConfig  # noqa: E402
from narrow.onnx.calibrate import session  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, TOKENS = ROOT / "examples" / "docs-llama-13m", ROOT / "examples" / "docs_tokens.safetensors"


def random(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def model_of(nodes, constants, inputs, outputs, opset=18):
    """A checked model of float tensors: shapes by name for inputs and outputs."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def linear_model(k=256, n=64):
    """x -> MatMul -> Relu -> Gemm."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "v", "c"], ["y"], name="second", transB=1),
    ]
    constants = {"w": random(k, n, seed=1), "v": random(8, n, seed=2), "c": random(8, seed=3)}
    return model_of(nodes, constants, {"x": [4, k]}, {"y": [4, 8]})


def residual_model():
    """Two convolutions with batch norms, a residual sum, a Concat and a third one."""
    nodes, constants = [], {}

    def conv(name, source, inside, outside):
        constants[f"{name}.w"] = random(outside, inside, 3, 3, seed=len(constants), scale=0.2)
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [f"{name}.c"], name=name, pads=[1, 1, 1, 1]))
        for part, value in (
            ("g", 1 + 0.1 * random(outside, seed=5)),
            ("b", random(outside, seed=6)),
            ("m", random(outside, seed=7)),
            ("v", 0.5 + random(outside, seed=8) ** 2),
        ):
            constants[f"{name}.{part}"] = value
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.c", *(f"{name}.{part}" for part in "gbmv")], [f"{name}.n"]))
        return f"{name}.n"

    first = conv("first", "x", 3, 8)
    nodes.append(helper.make_node("Relu", [first], ["r"]))
    second = conv("second", "r", 8, 8)
    nodes.append(helper.make_node("Add", [second, "r"], ["sum"], name="sum_node"))
    nodes.append(helper.make_node("Concat", ["sum", "r"], ["joined"], name="join", axis=1))
    third = conv("third", "joined", 16, 4)
    nodes.append(helper.make_node("Identity", [third], ["y"]))
    return model_of(nodes, constants, {"x": [2, 3, 8, 8]}, {"y": [2, 4, 8, 8]})


def examples(model, count=4):
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return [{name: random(*shape, seed=100 + i) for name, shape in shapes.items()} for i in range(count)]


def run(model, feed, optimize=True):
    return session(model, optimize).run(None, feed)[0]


def sqnr(x, y):
    return 10 * np.log10(np.sum(np.square(x, dtype=np.float64)) / np.sum(np.square(np.float64(x) - y)))


def count(model, kind):
    return sum(node.op_type == kind for node in model.graph.node)


@pytest.mark.parametrize("weights", ["int8:row", "int8:tensor", "fp8_e4m3:row", "int4:block64", "int4:block128:asym", "int8:block32"])
def test_weights_are_narrows_own(weights):
    """Without activations a graph computes with exactly the values that narrow decodes."""
    model = linear_model()
    target = "ort" if "asym" in weights else "tensorrt"
    config = QuantizeConfig(weights=weights, activations=None, target=target, ignore=("second",) if "128" in weights else ())
    quantized = narrow.onnx.quantize(model, config)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    expected = {"w": narrow.fake_quantize(np.ascontiguousarray(constants["w"].T), weights).T}
    expected["v"] = constants["v"] if config.ignore else narrow.fake_quantize(constants["v"], weights)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in expected:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(expected[tensor.name]), tensor.name))
    feed = examples(model)[0]
    np.testing.assert_allclose(run(quantized, feed, optimize=False), run(copy, feed, optimize=False), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weights", ["int4:block32", "int4:block64:asym", "int8:block32", "int8:block32:asym"])
@pytest.mark.parametrize("k", [256, 200])
def test_matmul_n_bits_is_the_same_product(weights, k):
    model = linear_model(k)
    quantized = narrow.onnx.quantize(
        model, QuantizeConfig(weights=weights, activations=None, target="ort", n_bits=True, ignore=("second",))
    )
    assert count(quantized, "MatMulNBits") == 1 and narrow.onnx.lint(quantized, "ort") == []
    w = numpy_helper.to_array(model.graph.initializer[0])
    feed = examples(model)[0]
    hidden = np.maximum(feed["x"].astype(np.float64) @ narrow.fake_quantize(np.ascontiguousarray(w.T), weights).T, 0)
    expected = hidden @ numpy_helper.to_array(model.graph.initializer[1]).T + numpy_helper.to_array(model.graph.initializer[2])
    assert sqnr(expected, run(quantized, feed)) > 90


@pytest.mark.parametrize(
    "target, config",
    [
        ("tensorrt", {}),
        ("ort", {}),
        ("ort", {"activations": "int8:tensor:asym"}),
        ("tensorrt", {"weights": "fp8_e4m3:row", "activations": "fp8_e4m3:tensor"}),
    ],
)
@pytest.mark.parametrize("make", [linear_model, residual_model])
def test_placement_satisfies_its_target(make, target, config):
    model = make()
    config = QuantizeConfig(target=target, **config)
    quantized = narrow.onnx.quantize(model, config, examples(model))
    problems = [
        finding for finding in narrow.onnx.lint(quantized, target) if not (target == "ort" and finding.node == "third")
    ]  # the graph's output
    assert problems == []
    assert count(quantized, "BatchNormalization") == 0
    feed = examples(model)[0]
    is_fp8 = "fp8" in config.weights  # onnxruntime's optimizer makes an integer product of it that it then refuses
    assert sqnr(run(model, feed), run(quantized, feed, optimize=not is_fp8)) > (
        22 if is_fp8 else 30
    )  # e4m3: 28 dB for each of three products


def test_residual_and_concat_get_the_scales_that_tensorrt_wants():
    model = residual_model()
    quantized = narrow.onnx.quantize(model, QuantizeConfig(), examples(model))
    graph = narrow.onnx.graph.Graph(quantized)
    nodes = {node.name: node for node in quantized.graph.node}
    skip = [graph.producer(name).op_type for name in nodes["sum_node"].input]
    assert sorted(skip) == ["Conv", "DequantizeLinear"]
    assert len({graph.producer(name).input[1] for name in nodes["join"].input}) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", "gm")
def test_a_batch_norm_whose_product_is_beyond_float32_stays(part):
    model = residual_model()
    put(model, f"first.{part}", np.full(8, 3e38, np.float32))
    quantized = narrow.onnx.quantize(model, QuantizeConfig(activations=None))
    assert count(quantized, "BatchNormalization") == 1
    assert all(np.isfinite(numpy_helper.to_array(tensor).astype(np.float32)).all() for tensor in quantized.graph.initializer)


def test_refuses_in_one_sentence():
    model = linear_model()
    for config, word in [
        ({"weights": "int3:block64"}, "no place"),
        ({"weights": "int4:block128"}, "weight-only"),
        ({"weights": "int4:row", "activations": None}, "blocks"),
        ({"target": "tflite"}, "target"),
        ({"activations": "int8:tensor:asym"}, "TensorRT"),
        ({"activations": "fp8_e4m3:tensor"}, "one type"),
        ({"activations": "int8:row"}, "one scale per tensor"),
        ({"ignore": ("nobody",)}, "nobody"),
        ({"weights": "int4:block100", "activations": None}, "divide"),
        ({"n_bits": True, "activations": None}, "onnxruntime"),
        ({}, "example inputs"),
    ]:
        with pytest.raises(narrow.InvalidArgument, match=word) as caught:
            narrow.onnx.quantize(model, QuantizeConfig(**config))
        assert "\n" not in str(caught.value)
    with pytest.raises(narrow.WrongType, match="output="):
        narrow.onnx.quantize(model, "int8.onnx")


def test_compare_finds_the_worst_node(tmp_path):
    model = residual_model()
    data = examples(model)
    quantized = narrow.onnx.quantize(model, QuantizeConfig(weights="int8:tensor"), data)
    errors = narrow.onnx.compare(model, quantized, data)
    assert {error.tensor for error in errors} >= {"r", "sum", "joined", "y"}
    assert [error.sqnr_db for error in errors] == sorted(error.sqnr_db for error in errors)
    assert all(error.sqnr_db > 20 for error in errors)
    assert narrow.onnx.compare(model, model, data)[0].sqnr_db == float("inf")
    narrow.onnx.write_report(tmp_path / "errors.html", errors, "int8 <of> a net")
    page = (tmp_path / "errors.html").read_text()
    assert page.count("<rect") == len(errors) == page.count("<tr>") - 1 and "int8 &lt;of&gt; a net" in page
    assert page.index(f">{errors[0].tensor}<") < page.index(f">{errors[-1].tensor}<")
    assert [path.name for path in tmp_path.iterdir()] == ["errors.html"]


def test_report_takes_any_name_and_any_error():
    errors = [
        narrow.onnx.NodeError("<script>", "MatMul", float("-inf"), 1.0, 1),
        narrow.onnx.NodeError('a"b', "Conv", float("inf"), 0.0, 0),
        narrow.onnx.NodeError("c", "Relu", 12.5, 0.25, 2),
    ]
    page = narrow.onnx.report_html(errors)
    assert "<script" not in page and "&lt;script&gt;" in page and "noise alone" in page and "equal" in page and "12.50 dB" in page
    assert page.count('class=low') == 2
    assert narrow.onnx.report_html([]).count("<rect") == 0


def test_small_network_keeps_its_accuracy():
    """Stripes in four directions under noise, learnt in seconds; int8 loses less than one percent."""
    torch.manual_seed(0)

    def batch(size, seed):
        generator = torch.Generator().manual_seed(seed)
        label = torch.randint(0, 4, (size,), generator=generator)
        angle, phase = label * torch.pi / 4, torch.rand(size, generator=generator) * 6.28
        y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
        wave = torch.sin((x * torch.cos(angle)[:, None, None] + y * torch.sin(angle)[:, None, None]) * 1.3 + phase[:, None, None])
        return (wave + torch.randn(size, 12, 12, generator=generator) * 1.5)[:, None], label

    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, stride=2),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 25, 4),
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(60):
        images, labels = batch(128, step)
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, labels = batch(2000, 10_000)
    model = narrow.onnx.export(net, (images[:100],), input_names=["x"], output_names=["y"])
    data = [{"x": batch(100, 20_000 + i)[0].numpy()} for i in range(4)]

    def accuracy(graph):
        runner = session(graph)
        return np.mean(
            [
                runner.run(None, {"x": part.numpy()})[0].argmax(1) == label.numpy()
                for part, label in zip(images.split(100), labels.split(100))
            ]
        )

    before = accuracy(model)
    assert before > 0.9
    for target in ("tensorrt", "ort"):
        quantized = narrow.onnx.quantize(model, QuantizeConfig(target=target), data)
        assert count(quantized, "QuantizeLinear") >= 3
        assert accuracy(quantized) > before - 0.01


def perplexity(model, windows):
    runner = session(model)
    total, scored = 0.0, 0
    for window in windows:
        logits = runner.run(None, {"ids": window[None]})[0][0].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total -= scores[np.arange(len(window) - 1), window[1:]].sum()
        scored += len(window) - 1
    return float(np.exp(total / scored))


def test_example_model_has_narrows_perplexity(bin_dir, tmp_path):
    """int8 weights and static int8 inputs, the same calibration text: onnxruntime against `narrow eval`, within 1 %."""
    pytest.importorskip("transformers")
    from safetensors.numpy import load_file

    tokens = load_file(TOKENS)
    calib, windows = tokens["calib"][:4].astype(np.int64), tokens["eval"][:3].astype(np.int64)
    model = narrow.onnx.export_causal_lm(MODEL, 512)
    head = [node.name for node in model.graph.node if node.op_type == "MatMul"][-1]

    def own(*options):
        command = [bin_dir / "narrow", "eval", MODEL, "--tokens", TOKENS, "--windows", 3, "--compute", "fp32", "--json", *options]
        return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)["perplexity"]

    subprocess.run(
        [
            str(bin_dir / "narrow"),
            "--quiet",
            "calibrate",
            str(MODEL),
            "--tokens",
            str(TOKENS),
            "--windows",
            "4",
            "-o",
            str(tmp_path / "stats"),
        ],
        check=True,
        capture_output=True,
    )
    assert perplexity(model, windows) == pytest.approx(own(), rel=1e-3)
    weights = narrow.onnx.quantize(model, QuantizeConfig(activations=None, ignore=(head,)))
    assert perplexity(weights, windows) == pytest.approx(own("--scheme", "int8:row"), rel=1e-3)
    static = narrow.onnx.quantize(model, QuantizeConfig(ignore=(head,)), [{"ids": window[None]} for window in calib])
    assert count(static, "QuantizeLinear") == 24  # q, k, v share their input, gate and up theirs
    expected = own("--scheme", "int8:row", "--activations", "int8:tensor:static", "--stats", tmp_path / "stats")
    assert perplexity(static, windows) == pytest.approx(expected, rel=0.01)


# ---- the linter: for each rule a graph that breaks it; the graph before it was broken does not ----


def constant(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def sound(kind="MatMul", element=np.int8, weight_shape=(128, 64), opset=21, block=0, output=False):
    """x -> Q -> DQ -> product with a dequantized weight (-> Relu -> Q -> DQ with `output`)."""
    conv = kind == "Conv"
    axis = 0 if conv else 1
    shape = (8, 3, 3, 3) if conv else weight_shape
    scales = np.full((shape[0] // block, shape[1]) if block else shape[axis], 0.1, np.float32)
    constants = [
        constant("xs", np.float32(0.1)),
        constant("xz", np.zeros((), element if element != ml_dtypes.int4 else np.int8)),
        constant("w", np.ones(shape, np.int8).astype(element)),
        constant("ws", scales),
        constant("wz", np.zeros(scales.shape, np.int8).astype(element)),
    ]
    inputs = [1, 3, 8, 8] if conv else [2, shape[0]]
    extra = {"axis": 0, "block_size": block} if block else {"axis": axis}
    nodes = [helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="weight", **extra)]
    source = "x"
    if element != ml_dtypes.int4:
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="quantize"),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="dequantize"),
        ]
        source = "xd"
    nodes.append(helper.make_node(kind, [source, "wd"], ["p"], name="product"))
    nodes.append(helper.make_node("Relu", ["p"], ["r"], name="relu"))
    last = "r"
    if output:
        nodes += [
            helper.make_node("QuantizeLinear", ["r", "xs", "xz"], ["rq"]),
            helper.make_node("DequantizeLinear", ["rq", "xs", "xz"], ["rd"]),
        ]
        last = "rd"
    nodes.append(helper.make_node("Neg", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def put(model, name, value):
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(constant(name, value))


def node(model, name):
    return next(found for found in model.graph.node if found.name == name)


def set_attribute(found, name, value):
    kept = [entry for entry in found.attribute if entry.name != name]
    del found.attribute[:]
    found.attribute.extend([*kept, helper.make_attribute(name, value)])


def add(model, kind, inputs, output, before, **attributes):
    made = helper.make_node(kind, inputs, [output], name=output, **attributes)
    index = next(i for i, found in enumerate(model.graph.node) if found.name == before)
    model.graph.node.insert(index, made)


def drop(model, *names):
    for name in names:
        model.graph.node.remove(node(model, name))


def break_pairs(model):
    add(model, "Cast", ["xq"], "cast", "product", to=TensorProto.FLOAT)


def break_weight_side(model):
    drop(model, "weight")
    put(model, "w", np.ones((128, 64), np.float32))
    node(model, "product").input[1] = "w"


def break_conv_relu(model):
    add(model, "QuantizeLinear", ["p", "xs", "xz"], "pq", "relu")
    add(model, "DequantizeLinear", ["pq", "xs", "xz"], "pd", "relu")
    node(model, "relu").input[0] = "pd"


def break_skip(model):
    add(model, "Add", ["p", "skip"], "s", "relu")
    node(model, "relu").input[0] = "s"
    model.graph.input.append(helper.make_tensor_value_info("skip", TensorProto.FLOAT, [1, 8, 6, 6]))


def break_concat(model):
    model.graph.initializer.append(constant("other", np.float32(0.2)))
    add(model, "QuantizeLinear", ["x", "other", "xz"], "oq", "product")
    add(model, "DequantizeLinear", ["oq", "other", "xz"], "od", "product")
    add(model, "Concat", ["xd", "od"], "joined", "product", axis=0)


def break_computed_scale(model):
    add(model, "Mul", ["xs", "xs"], "computed", "quantize")
    node(model, "quantize").input[1] = "computed"


def n_bits_model():
    model = linear_model()
    return narrow.onnx.quantize(
        model, QuantizeConfig(weights="int4:block32", activations=None, target="ort", n_bits=True, ignore=("second",))
    )


def with_int32_bias():
    model = sound("Conv", output=True)
    model.graph.initializer.extend([constant("b", np.zeros(8, np.int32)), constant("bs", np.full(8, 0.01, np.float32))])
    add(model, "DequantizeLinear", ["b", "bs"], "bd", "product", axis=0)
    node(model, "product").input.append("bd")
    return model


def break_bias(model):
    drop(model, "bd")
    put(model, "b", np.zeros(8, np.float32))
    node(model, "product").input[2] = "b"


fp8 = ml_dtypes.float8_e4m3fn
BROKEN = [
    ("tensorrt", "zero-point-is-zero", sound, lambda m: put(m, "xz", np.int8(3))),
    ("tensorrt", "codes-are-signed", sound, lambda m: put(m, "xz", np.uint8(0))),
    ("tensorrt", "codes-are-signed", sound, lambda m: [node(m, name).input.pop() for name in ("quantize", "dequantize")]),
    ("tensorrt", "type-is-known", sound, lambda m: put(m, "xz", np.zeros((), ml_dtypes.float8_e5m2))),
    ("tensorrt", "bias-is-float", lambda: sound("Conv"), lambda m: m.CopyFrom(with_int32_bias())),
    ("tensorrt", "scale-is-constant", sound, break_computed_scale),
    ("tensorrt", "scale-is-positive", sound, lambda m: put(m, "xs", np.float32(0))),
    ("tensorrt", "scale-is-positive", sound, lambda m: put(m, "ws", np.full(64, np.nan, np.float32))),
    (
        "tensorrt",
        "activation-scale-is-single",
        sound,
        lambda m: (put(m, "xs", np.ones(128, np.float32)), put(m, "xz", np.zeros(128, np.int8))),
    ),
    ("tensorrt", "int4-is-for-weights", sound, lambda m: put(m, "xz", np.zeros((), ml_dtypes.int4))),
    ("tensorrt", "weight-axis", lambda: sound(weight_shape=(64, 64)), lambda m: set_attribute(node(m, "weight"), "axis", 0)),
    ("tensorrt", "weight-axis", lambda: sound("Conv"), lambda m: set_attribute(node(m, "weight"), "axis", 1)),
    (
        "tensorrt",
        "int4-blocks",
        lambda: sound(element=ml_dtypes.int4, block=64),
        lambda m: m.CopyFrom(sound(element=ml_dtypes.int4, block=32)),
    ),
    ("tensorrt", "int4-blocks", lambda: sound(element=ml_dtypes.int4, block=64), lambda m: put(m, "w", np.ones((96, 64), ml_dtypes.int4))),
    ("tensorrt", "pairs-are-whole", sound, break_pairs),
    ("tensorrt", "both-sides-are-quantized", sound, break_weight_side),
    ("tensorrt", "both-sides-are-quantized", sound, lambda m: node(m, "product").input.__setitem__(0, "x")),
    ("tensorrt", "nothing-between-conv-and-its-activation", lambda: sound("Conv"), break_conv_relu),
    ("tensorrt", "skip-is-quantized", lambda: sound("Conv"), break_skip),
    ("tensorrt", "concat-has-one-scale", sound, break_concat),
    ("tensorrt", "scale-has-the-inputs-type", lambda: sound(opset=18), lambda m: put(m, "xs", np.float16(0.1))),
    ("ort", "scale-is-positive", sound, lambda m: put(m, "xs", np.float32(-1))),
    ("ort", "opset-has-the-type", lambda: sound(element=fp8), lambda m: m.opset_import[0].__setattr__("version", 18)),
    ("ort", "opset-has-the-type", lambda: sound(element=ml_dtypes.int4, block=64), lambda m: m.opset_import[0].__setattr__("version", 19)),
    ("ort", "zero-point-has-its-scales-shape", sound, lambda m: put(m, "wz", np.zeros((), np.int8))),
    ("ort", "pairs-are-whole", sound, break_pairs),
    ("ort", "conv-output-is-quantized", lambda: sound("Conv", output=True), lambda m: m.CopyFrom(sound("Conv"))),
    ("ort", "conv-bias-is-int32", with_int32_bias, break_bias),
    ("ort", "fp8-has-no-cpu-kernel", sound, lambda m: m.CopyFrom(sound(element=fp8))),
    (
        "ort",
        "n-bits-are-regular",
        n_bits_model,
        lambda m: set_attribute(next(n for n in m.graph.node if n.op_type == "MatMulNBits"), "block_size", 24),
    ),
    (
        "ort",
        "n-bits-are-regular",
        n_bits_model,
        lambda m: set_attribute(next(n for n in m.graph.node if n.op_type == "MatMulNBits"), "N", 65),
    ),
]


@pytest.mark.parametrize("target, rule, make, break_it", BROKEN, ids=[f"{row[0]}-{row[1]}-{i}" for i, row in enumerate(BROKEN)])
def test_linter_rule(target, rule, make, break_it):
    model = make()
    assert rule not in [finding.rule for finding in narrow.onnx.lint(model, target)]
    break_it(model)
    findings = [finding for finding in narrow.onnx.lint(model, target) if finding.rule == rule]
    assert findings and all(finding.node and "\n" not in finding.message for finding in findings)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "rule"), [(np.float64(1e300), "scale-is-positive"), (np.complex64(1.0), "scale-is-constant")])
def test_a_scale_that_float32_has_not_is_a_finding(value, rule):
    model = sound()
    put(model, "xs", value)
    before = model.SerializeToString()
    assert rule in [finding.rule for finding in narrow.onnx.lint(model, "tensorrt")]
    assert model.SerializeToString() == before


def test_every_rule_is_broken_once():
    rules = {
        (target, rule.__name__.removeprefix("_").replace("_", "-"))
        for target, table in narrow.onnx.lint.__globals__["RULES"].items()
        for rule in table
    }
    assert rules == {(target, rule) for target, rule, _, _ in BROKEN}


def test_command(tmp_path):
    model = linear_model()
    onnx.save(model, tmp_path / "model.onnx")
    for index, feed in enumerate(examples(model)):
        np.savez(tmp_path / f"{index}.npz", **feed)

    def command(*arguments):
        return subprocess.run([sys.executable, "-m", "narrow.onnx", *map(str, arguments)], capture_output=True, text=True)

    data = sorted(tmp_path.glob("*.npz"))
    made = command("quantize", tmp_path / "model.onnx", tmp_path / "int8.onnx", "--json", "--data", *data)
    assert json.loads(made.stdout)["QuantizeLinear"] == 2, made.stderr
    assert command("lint", tmp_path / "int8.onnx").returncode == 0
    errors = json.loads(command("compare", tmp_path / "model.onnx", tmp_path / "int8.onnx", "--json", "--data", *data).stdout)["tensors"]
    assert errors[0]["sqnr_db"] > 30
    shown = command("compare", tmp_path / "model.onnx", tmp_path / "int8.onnx", "--html", tmp_path / "errors.html", "--data", *data)
    assert shown.returncode == 0 and "int8.onnx beside model.onnx" in (tmp_path / "errors.html").read_text()
    wrong = command("quantize", tmp_path / "model.onnx", tmp_path / "no.onnx", "--weights", "int3:row")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and not (tmp_path / "no.onnx").exists()
    assert command("lint", tmp_path / "0.npz").returncode == 2
    missing = command("lint", tmp_path / "missing.onnx")
    assert missing.returncode == 4 and missing.stderr == f"narrow onnx: {tmp_path / 'missing.onnx'}: No such file or directory\n"
    assert "narrow onnx quantize model.onnx int8.onnx --data" in command("--help").stdout
