"""Q/DQ into an fp32 graph: int8 and fp8 with static scales, int4 and int8 weights in blocks, placed by the target's own rules."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto

from ..errors import InvalidArgument, WrongType
from ..quantization import QuantizedTensor, Scheme
from ..quantization import quantize as quantize_tensor
from .calibrate import calibrate
from .fold import fold_batch_norms, fold_constants
from .graph import Graph, attribute, channels_back, channels_first, load, one_line

TARGETS = ("tensorrt", "ort")
_ELEMENTS = {"int8": np.int8, "uint8": np.uint8, "fp8_e4m3": ml_dtypes.float8_e4m3fn, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}
_FUSED_ACTIVATIONS = ("Relu", "Clip")


@dataclasses.dataclass(frozen=True)
class QuantizeConfig:
    """What becomes of a graph. Schemes are narrow's strings.

    weights: int8:tensor, int8:row (one scale per output channel), fp8_e4m3:tensor, fp8_e4m3:row, int4:blockN or int4:blockN:asym.
    activations: int8:tensor, int8:tensor:asym (onnxruntime alone), fp8_e4m3:tensor, or None: weight-only.
    ranges: minmax, average, percentile, percentile=P, entropy or mse, over the example inputs.
    target: tensorrt (symmetric, float biases, no Q/DQ on outputs) or ort (outputs too, so that onnxruntime's integer kernels take over).
    n_bits: weight-only MatMuls become onnxruntime's MatMulNBits instead of DequantizeLinear + MatMul.
    ignore: names of nodes or of their weights that stay as they are, or re:REGEX.
    """

    weights: str = "int8:row"
    activations: str | None = "int8:tensor"
    ranges: str = "minmax"
    target: str = "tensorrt"
    n_bits: bool = False
    operators: tuple[str, ...] = ("Conv", "Gemm", "MatMul")
    ignore: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A product with a constant weight: the weight's place among the inputs, and the dimension of its output channels."""

    node: NodeProto
    axis: int
    weight: np.ndarray
    is_matmul: bool


def quantize(
    model: onnx.ModelProto | str | os.PathLike[str],
    config: QuantizeConfig | None = None,
    data: Iterable[Mapping[str, np.ndarray]] = (),
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """A quantized copy of an fp32 model; also written to `output` where one is named.

    data: example inputs {name: array}, read once, for static activation scales.
    """
    config = QuantizeConfig() if config is None else config
    if not isinstance(config, QuantizeConfig):
        raise WrongType(f"quantize: {config!r} is no QuantizeConfig, which says what becomes of the model; a file's name goes to output=")
    weights, activations = _checked(config)
    graph = Graph(load(model))
    fold_constants(graph)
    fold_batch_norms(graph)
    graph.require_opset(
        21
        if _block_of(config.weights) is not None and not config.n_bits
        else 19
        if "fp8" in (config.weights + str(config.activations))
        else 13
    )
    layers = _layers(graph, config)
    if not layers:
        raise InvalidArgument(f"the graph has no {', '.join(config.operators)} with a constant weight that is not ignored")
    if activations is not None:
        _quantize_activations(graph, layers, activations, config, data)
    for layer in layers:
        if config.n_bits and layer.is_matmul:
            _replace_by_n_bits(graph, layer, weights, _block_of(config.weights))
        else:
            _quantize_weight(graph, layer, weights, activations, config)
    result = graph.finish()
    _check(result)
    if output is not None:
        _write(result, os.fspath(output))
    return result


def _checked(config: QuantizeConfig) -> tuple[Scheme, Scheme | None]:
    """The schemes, where the target can hold them; one sentence where not."""
    if config.target not in TARGETS:
        raise InvalidArgument(f"{config.target!r} is no target; there are {' and '.join(TARGETS)}")
    weights = Scheme(config.weights)
    activations = None if config.activations is None else Scheme(config.activations)
    granularity, is_block = config.weights.split(":")[1:], _block_of(config.weights) is not None
    if weights.element.name not in ("int8", "uint8", "int4", "uint4", "fp8_e4m3") or weights.scale.name != "fp32":
        raise InvalidArgument(f"weights {config.weights!r} have no place in ONNX: int8, fp8_e4m3 and int4 with fp32 scales have")
    if not (is_block or "row" in granularity or "tensor" in granularity):
        raise InvalidArgument(f"weights {config.weights!r}: ONNX has scales per tensor, per output channel (row) or per block")
    if is_block and activations is not None:
        raise InvalidArgument(f"weights {config.weights!r} in blocks are weight-only: set activations to None")
    if weights.element.bits == 4 and not is_block:
        raise InvalidArgument(f"weights {config.weights!r}: 4 bits come in blocks, e.g. int4:block128")
    if config.target == "tensorrt":
        if weights.asymmetric or (activations is not None and activations.asymmetric):
            raise InvalidArgument("TensorRT refuses zero points: choose symmetric schemes, or target ort")
        if config.n_bits:
            raise InvalidArgument("MatMulNBits is onnxruntime's own operator: set target to ort")
    if config.n_bits and not is_block:
        raise InvalidArgument(f"MatMulNBits holds blocks, not {config.weights!r}")
    if activations is not None:
        if activations.element.name not in ("int8", "uint8", "fp8_e4m3") or config.activations.split(":")[1:2] != ["tensor"]:
            raise InvalidArgument(f"activations {config.activations!r}: both runtimes take int8 or fp8_e4m3 with one scale per tensor")
        if ("fp8" in config.activations) != ("fp8" in config.weights):
            raise InvalidArgument(
                f"weights {config.weights!r} and activations {config.activations!r}: both sides of a product have one type"
            )
    return weights, activations


def _block_of(scheme: str) -> int | None:
    """Columns of a block; None where scales are not by block."""
    found = re.search(r":block(\d+)(:|$)", scheme)
    return int(found.group(1)) if found else None


def _ignored(config: QuantizeConfig, *names: str) -> bool:
    for pattern in config.ignore:
        if pattern.startswith("re:"):
            if any(re.fullmatch(pattern[3:], name) for name in names):
                return True
        elif pattern in names:
            return True
    return False


def _layers(graph: Graph, config: QuantizeConfig) -> list[_Layer]:
    found = []
    for node in graph.nodes:
        if node.op_type not in config.operators or node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2:
            continue
        weight = graph.constant(node.input[1])
        if weight is None or weight.dtype not in (np.float32, np.float16) or _ignored(config, node.name, node.input[1]):
            continue
        if node.op_type == "Conv":
            if _block_of(config.weights) is not None or weight.ndim < 3:
                continue  # blocks are defined for matrices, and a filter has a place to lie at
            found.append(_Layer(node, 0, weight, False))
        elif weight.ndim == 2:
            is_transposed = node.op_type == "Gemm" and attribute(node, "transB", 0) == 1
            found.append(_Layer(node, 0 if is_transposed else 1, weight, node.op_type == "MatMul"))
    unknown = [
        pattern
        for pattern in config.ignore
        if not pattern.startswith("re:") and not any(pattern == node.name or pattern in node.input for node in graph.nodes)
    ]
    if unknown:
        raise InvalidArgument(f"ignore: no node or weight is called {unknown[0]!r}")
    return found


# ---- activations ----


def _quantize_activations(
    graph: Graph, layers: list[_Layer], scheme: Scheme, config: QuantizeConfig, data: Iterable[Mapping[str, np.ndarray]]
) -> None:
    """Q/DQ on the inputs of every layer; for TensorRT on the skip side of residual sums and on all inputs of a Concat, by one scale; for
    onnxruntime on the outputs too."""
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for layer in layers:
        readers.setdefault(layer.node.input[0], []).append((layer.node, 0))
    if config.target == "tensorrt":
        for add, index in _skip_inputs(graph, layers):
            readers.setdefault(add.input[index], []).append((add, index))
    outputs = [_fused_output(graph, layer.node) for layer in layers if layer.node.op_type == "Conv"] if config.target == "ort" else []
    concats = {
        name: graph.producer(name)
        for name in readers
        if config.target == "tensorrt" and graph.producer(name) is not None and graph.producer(name).op_type == "Concat"
    }
    names = list(dict.fromkeys([*readers, *outputs]))
    statistics = calibrate(graph.finish(), names, data)
    parameters: dict[str, tuple[str, str]] = {}
    for name in names:
        scale, zero_point = statistics.static_scale(name, scheme, config.ranges)
        if not scale > 0.0:
            scale = 1.0  # a tensor that is always zero
        element = _ELEMENTS[scheme.element.name]
        parameters[name] = (
            graph.add_initializer(f"{name}_scale", np.array(scale, np.float32)),
            graph.add_initializer(f"{name}_zero_point", np.array(zero_point).astype(element)),
        )
    made: dict[str, str] = {}

    def dequantized(name: str, scale_of: str) -> str:
        if name not in made:
            made[name] = _quantize_dequantize(graph, name, *parameters[scale_of])
        return made[name]

    for name, concat in concats.items():
        for index, source in enumerate(concat.input):
            if graph.constant(source) is None:
                graph.replace_input(concat, index, _quantize_dequantize(graph, source, *parameters[name]))
    for name in outputs:
        others = [(reader, index) for reader in graph.consumers(name) for index, read in enumerate(reader.input) if read == name]
        if name in graph.outputs():
            continue
        replacement = dequantized(name, name)
        for reader, index in others:
            graph.replace_input(reader, index, replacement)
        readers.pop(name, None)
    for name, places in readers.items():
        for reader, index in places:
            graph.replace_input(reader, index, dequantized(name, name))


def _quantize_dequantize(graph: Graph, name: str, scale: str, zero_point: str) -> str:
    codes = graph.add_node("QuantizeLinear", [name, scale, zero_point], f"{name}_QuantizeLinear_Output", f"{name}_QuantizeLinear")
    return graph.add_node("DequantizeLinear", [codes, scale, zero_point], f"{name}_DequantizeLinear_Output", f"{name}_DequantizeLinear")


def _fused_output(graph: Graph, node: NodeProto) -> str:
    """The output of a node, or of the activation that runtimes fuse with it."""
    readers = graph.consumers(node.output[0])
    if len(readers) == 1 and readers[0].op_type in _FUSED_ACTIVATIONS and node.output[0] not in graph.outputs():
        return readers[0].output[0]
    return node.output[0]


def _skip_inputs(graph: Graph, layers: list[_Layer]) -> list[tuple[NodeProto, int]]:
    """The other input of an Add that a Conv's output goes to: quantized, it joins the Conv's kernel."""
    convs = {id(layer.node) for layer in layers if layer.node.op_type == "Conv"}
    found = []
    for node in graph.nodes:
        if node.op_type != "Add":
            continue
        sides = [id(graph.producer(name)) in convs and len(graph.consumers(name)) == 1 for name in node.input]
        if any(sides) and all(graph.constant(name) is None for name in node.input):
            found.append((node, 1 if sides[0] else 0))
    return found


# ---- weights ----


def unpacked_codes(q: QuantizedTensor) -> np.ndarray:
    """The codes of a matrix in its element type: int8, uint8, float8_e4m3fn, int4 or uint4."""
    element = _ELEMENTS[q.scheme.element.name]
    if q.scheme.element.bits == 8:
        return q.codes.view(element)
    pairs = np.stack([q.codes & 15, q.codes >> 4], axis=-1).reshape(q.codes.shape[0], -1)[:, : q.shape[-1]]
    signed = pairs.astype(np.int8) - (16 * (pairs >= 8) if element is ml_dtypes.int4 else 0)
    return signed.astype(np.int8 if element is ml_dtypes.int4 else np.uint8).astype(element)


def _zero_points(q: QuantizedTensor, like: np.ndarray) -> np.ndarray:
    if q.zero_points is None:
        return np.zeros(like.shape, _ELEMENTS[q.scheme.element.name])
    return np.asarray(q.zero_points).reshape(like.shape).astype(_ELEMENTS[q.scheme.element.name])


def _quantize_weight(graph: Graph, layer: _Layer, scheme: Scheme, activations: Scheme | None, config: QuantizeConfig) -> None:
    """The weight becomes a constant of codes and a DequantizeLinear."""
    name, shape, axis = layer.node.input[1], layer.weight.shape, layer.axis
    q = quantize_tensor(channels_first(layer.weight, axis).astype(np.float32), scheme)
    codes = channels_back(unpacked_codes(q), shape, axis)
    scales = np.asarray(q.scales, np.float32)
    attributes: dict[str, Any] = {}
    block = _block_of(config.weights)
    if block is not None:
        if shape[1 - axis] % block != 0:
            raise InvalidArgument(f"weight {name!r} has {shape[1 - axis]} inputs, which blocks of {block} do not divide")
        scales = np.moveaxis(scales.reshape(shape[axis], -1), 0, axis)
        zero_points = np.moveaxis(_zero_points(q, np.asarray(q.scales)).reshape(shape[axis], -1), 0, axis)
        attributes = {"axis": 1 - axis, "block_size": block}
    else:
        scales = scales.reshape(-1)
        scales = scales[0] if scales.size == 1 and "row" not in config.weights else scales
        zero_points = _zero_points(q, scales)
        if scales.ndim:
            attributes = {"axis": axis}
    parts = [
        graph.add_initializer(f"{name}_quantized", codes),
        graph.add_initializer(f"{name}_scale", np.asarray(scales, np.float32)),
        graph.add_initializer(f"{name}_zero_point", zero_points),
    ]
    graph.replace_input(
        layer.node,
        1,
        graph.add_node("DequantizeLinear", parts, f"{name}_DequantizeLinear_Output", f"{name}_DequantizeLinear", **attributes),
    )
    if config.target == "ort" and activations is not None and activations.element.bits == 8 and activations.element.name != "fp8_e4m3":
        _quantize_bias(graph, layer, np.atleast_1d(scales))


def _quantize_bias(graph: Graph, layer: _Layer, weight_scales: np.ndarray) -> None:
    """onnxruntime's integer convolution wants the bias as int32 in steps of s_x s_w; TensorRT wants it in float."""
    node = layer.node
    bias = graph.constant(node.input[2]) if node.op_type == "Conv" and len(node.input) > 2 else None
    producer = graph.producer(node.input[0])
    if bias is None or producer is None or producer.op_type != "DequantizeLinear":
        return
    scales = (float(graph.constant(producer.input[1])) * weight_scales).astype(np.float32)
    codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    if np.any(np.abs(codes) > 2**31 - 1):
        return
    name = node.input[2]
    per_channel = {"axis": 0} if scales.size > 1 else {}
    scales = scales if scales.size > 1 else scales.reshape(())
    parts = [
        graph.add_initializer(f"{name}_quantized", codes.astype(np.int32)),
        graph.add_initializer(f"{name}_scale", scales),
        graph.add_initializer(f"{name}_zero_point", np.zeros(scales.shape, np.int32)),
    ]
    graph.replace_input(
        node, 2, graph.add_node("DequantizeLinear", parts, f"{name}_DequantizeLinear_Output", f"{name}_DequantizeLinear", **per_channel)
    )


def _replace_by_n_bits(graph: Graph, layer: _Layer, scheme: Scheme, block: int) -> None:
    """MatMul by onnxruntime's MatMulNBits: B [N, blocks, bytes], low nibble first, codes without a sign."""
    node, (k, n) = layer.node, layer.weight.shape
    if block < 16 or block & (block - 1):
        raise InvalidArgument(f"MatMulNBits takes blocks of 16, 32, 64, ..., not of {block}")
    bits = scheme.element.bits
    q = quantize_tensor(np.ascontiguousarray(layer.weight.T, dtype=np.float32), scheme)
    blocks = -(-k // block)
    codes = unpacked_codes(q).astype(np.int16) + (0 if scheme.asymmetric else 1 << (bits - 1))
    padded = np.full((n, blocks * block), 0 if scheme.asymmetric else 1 << (bits - 1), np.uint8)
    padded[:, :k] = codes.astype(np.uint8)
    if scheme.asymmetric:
        zero_points = np.asarray(q.zero_points).reshape(n, blocks)
        padded[:, k:] = zero_points[:, -1:]
    packed = padded if bits == 8 else padded[:, 0::2] | padded[:, 1::2] << 4
    name = node.input[1]
    inputs = [
        node.input[0],
        graph.add_initializer(f"{name}_Q{bits}", packed.reshape(n, blocks, block * bits // 8)),
        graph.add_initializer(f"{name}_scales", np.asarray(q.scales, np.float32).reshape(n, blocks)),
    ]
    if scheme.asymmetric:
        even = np.zeros((n, blocks + blocks % 2), np.uint8)
        even[:, :blocks] = zero_points
        inputs.append(graph.add_initializer(f"{name}_zero_points", zero_points if bits == 8 else even[:, 0::2] | even[:, 1::2] << 4))
    if not any(entry.domain == "com.microsoft" for entry in graph.model.opset_import):
        graph.model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    output = node.output[0]
    graph.remove(node)
    new = onnx.helper.make_node(
        "MatMulNBits",
        inputs,
        [output],
        name=graph.fresh(f"{node.name or output}_Q{bits}"),
        domain="com.microsoft",
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )
    graph.nodes.append(new)
    graph._index()


# ---- the result ----


def _check(model: onnx.ModelProto) -> None:
    """What the checker has against the result was in the model already: types and shapes that contradict each other."""
    shapes_are_known = not any(node.domain == "com.microsoft" for node in model.graph.node)  # the others are onnxruntime's to infer
    try:
        onnx.checker.check_model(model, full_check=shapes_are_known)
    except Exception as error:  # the checker and the inference have an exception each, and plain ValueErrors
        raise InvalidArgument(f"the graph contradicts itself: {one_line(error)}") from None


def _write(model: onnx.ModelProto, path: str) -> None:
    """Under a temporary name, then renamed: the file is complete or not there."""
    if model.ByteSize() > (1 << 31) - 1:
        raise InvalidArgument("the quantized model is beyond 2 GiB, which one ONNX file cannot hold")
    partial = f"{path}.narrow-partial-{os.getpid()}"
    try:
        with open(partial, "xb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
