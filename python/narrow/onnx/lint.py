"""What a runtime would refuse, or silently run in float, in a graph with Q/DQ nodes. One function per rule."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from ..errors import InvalidArgument
from .graph import Graph, attribute, load

ERROR, WARNING = "error", "warning"  #: refused; or slower, or less exact, than it seems

_PRODUCTS = ("Conv", "MatMul", "Gemm", "ConvTranspose")
_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One rule that one node breaks."""

    rule: str
    severity: str
    node: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.node}: {self.message} [{self.rule}]"


@dataclasses.dataclass(frozen=True)
class _Pair:
    """A QuantizeLinear or DequantizeLinear with what its inputs are."""

    node: NodeProto
    scale: np.ndarray | None
    zero_point: np.ndarray | None
    type: str  #: of the codes: int8, uint8, ...
    is_weight: bool  #: of a constant


def lint(model: onnx.ModelProto | str | os.PathLike[str], target: str = "tensorrt") -> list[Finding]:
    """Every Q/DQ that would not fuse or would be refused by "tensorrt" or "ort", in the order of the nodes."""
    if target not in RULES:
        raise InvalidArgument(f"{target!r} is no target; there are {' and '.join(RULES)}")
    return findings(LintedGraph(model if isinstance(model, onnx.ModelProto) else load(model)), target)  # unchanged, so no copy


_Found = Iterator[tuple[NodeProto, str, str]]


class LintedGraph(Graph):
    """A graph whose Q and DQ are looked at once for all rules."""

    @functools.cached_property
    def pairs(self) -> list[_Pair]:
        """Every Q and DQ. A Q without zero point and output_dtype makes uint8; a DQ reads what its Q made."""
        kinds: dict[str, str] = {}  # of the codes that a Q makes
        found = []
        for node in self.nodes:
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
                continue
            source = self.constant(node.input[0])
            zero_point = self.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
            declared = attribute(node, "output_dtype", 0) if node.op_type == "QuantizeLinear" else 0
            if zero_point is not None:
                kind = zero_point.dtype.name
            elif node.op_type == "DequantizeLinear":
                kind = source.dtype.name if source is not None else kinds.get(node.input[0], "uint8")
            else:
                kind = next((name for name, number in _TYPES.items() if number == declared), str(declared)) if declared else "uint8"
            if node.op_type == "QuantizeLinear":
                kinds[node.output[0]] = kind
            producer = self.producer(node.input[0])
            behind = self.constant(producer.input[0]) if producer is not None and producer.op_type == "QuantizeLinear" else None
            found.append(_Pair(node, self.constant(node.input[1]), zero_point, kind, source is not None or behind is not None))
        return found


def findings(graph: LintedGraph, target: str) -> list[Finding]:
    order = {id(node): index for index, node in enumerate(graph.nodes)}
    with np.errstate(over="ignore"):  # a scale beyond float32 is infinite, which is a finding
        found = [
            (order[id(node)], Finding(rule.__name__.removeprefix("_").replace("_", "-"), severity, node.name or node.output[0], message))
            for rule in RULES[target]
            for node, severity, message in rule(graph)
        ]
    return [finding for _, finding in sorted(found, key=lambda entry: (entry[0], entry[1].rule))]


def _source(graph: Graph, name: str) -> NodeProto | None:
    """The DequantizeLinear that makes a tensor, if one does."""
    node = graph.producer(name)
    return node if node is not None and node.op_type == "DequantizeLinear" else None


# ---- rules of TensorRT ----


def _zero_point_is_zero(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.zero_point is not None and pair.zero_point.astype(np.float32).any():
            yield pair.node, ERROR, "its zero point is not zero; TensorRT takes symmetric scales alone"


def _codes_are_signed(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.type == "uint8":
            yield pair.node, ERROR, "its codes are uint8 (the type without a zero point or output_dtype); give it an int8 zero point"


def _type_is_known(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.type not in ("int8", "uint8", "float8_e4m3fn", "int4", "float4_e2m1fn", "int32"):
            yield pair.node, ERROR, f"{pair.type} is none of int8, float8_e4m3fn, int4 and float4_e2m1fn"


def _bias_is_float(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.type == "int32":
            yield pair.node, ERROR, "it dequantizes int32, as onnxruntime's biases do; leave the bias in float"


def _scale_is_constant(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.scale is None:
            yield pair.node, ERROR, "its scale is computed in the graph; TensorRT wants a constant"


def _scale_is_positive(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.scale is None:
            continue
        scale = pair.scale.astype(np.float32)
        if not ((scale > 0) & (scale < np.inf)).all():
            yield pair.node, ERROR, "one of its scales is not a positive finite number"


def _activation_scale_is_single(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if not pair.is_weight and pair.scale is not None and pair.scale.size != 1 and pair.type in ("int8", "uint8", "float8_e4m3fn"):
            yield pair.node, ERROR, f"an activation has {pair.scale.size} scales; TensorRT takes one per tensor"


def _int4_is_for_weights(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.type == "int4" and not pair.is_weight:
            yield pair.node, ERROR, "an activation is int4; TensorRT takes int4 weights alone"


def _weight_axis(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type not in _PRODUCTS or len(node.input) < 2:
            continue
        dequantize = _source(graph, node.input[1])
        if dequantize is None or attribute(dequantize, "block_size", 0):
            continue
        scale = graph.constant(dequantize.input[1])
        codes = graph.constant(dequantize.input[0])
        rank = codes.ndim if codes is not None else None
        if scale is None or scale.size == 1 or not rank:
            continue
        wanted = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1, "Gemm": 0 if attribute(node, "transB", 0) else 1}[node.op_type]
        axis = attribute(dequantize, "axis", 1)
        if (axis + rank) % rank != wanted:
            yield (
                dequantize,
                ERROR,
                f"the scales of a {node.op_type}'s weight lie along axis {axis}, not along its output channels, axis {wanted}",
            )


def _int4_blocks(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.type != "int4" or not pair.is_weight:
            continue
        codes, block, axis = graph.constant(pair.node.input[0]), attribute(pair.node, "block_size", 0), attribute(pair.node, "axis", 1)
        if codes is None or codes.ndim == 0 or pair.scale is None:
            continue
        axis = (axis + codes.ndim) % codes.ndim
        if block not in (64, 128):
            yield pair.node, ERROR, f"int4 comes in blocks of 64 or 128, not of {block}"
        elif axis < codes.ndim - 2 or codes.shape[axis] % block != 0 or codes.shape[-1] % 2 != 0:
            yield pair.node, ERROR, f"blocks of {block} along axis {axis} do not divide a weight {list(codes.shape)} as TensorRT wants it"


def _pairs_are_whole(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear":
            readers = graph.consumers(node.output[0])
            if not readers or any(reader.op_type != "DequantizeLinear" for reader in readers):
                yield node, ERROR, "its codes are read by something other than a DequantizeLinear"
        elif node.op_type == "DequantizeLinear":
            producer = graph.producer(node.input[0])
            if graph.constant(node.input[0]) is None and (producer is None or producer.op_type != "QuantizeLinear"):
                yield node, ERROR, "it reads neither a QuantizeLinear nor a constant"


def _both_sides_are_quantized(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type not in _PRODUCTS or len(node.input) < 2:
            continue
        sides = [_source(graph, name) for name in node.input[:2]]
        if sides[0] is not None and sides[1] is None:
            yield node, WARNING, "its second input has no Q/DQ, so it runs in float"
        elif sides[1] is not None and sides[0] is None and attribute(sides[1], "block_size", 0) == 0:
            yield node, WARNING, "its first input has no Q/DQ, so it runs in float"


def _nothing_between_conv_and_its_activation(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear":
            continue
        producer = graph.producer(node.input[0])
        if producer is None or producer.op_type not in ("Conv", "ConvTranspose"):
            continue
        for dequantize in graph.consumers(node.output[0]):
            for reader in graph.consumers(dequantize.output[0]) if dequantize.output else []:
                if reader.op_type in ("Relu", "Clip", "BatchNormalization", "LeakyRelu", "Sigmoid", "HardSwish"):
                    yield node, WARNING, f"Q/DQ between {producer.op_type} and {reader.op_type} keeps them from being one kernel"


def _skip_is_quantized(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type != "Add" or len(node.input) != 2:
            continue
        for index, name in enumerate(node.input):
            producer, other = graph.producer(name), node.input[1 - index]
            is_quantized_conv = (
                producer is not None
                and producer.op_type == "Conv"
                and len(graph.consumers(name)) == 1
                and _source(graph, producer.input[0]) is not None
            )
            if is_quantized_conv and graph.constant(other) is None and _source(graph, other) is None:
                yield node, WARNING, "the skip side of this sum has no Q/DQ, so the sum does not join the convolution's kernel"
                break


def _concat_has_one_scale(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type != "Concat":
            continue
        scales = [graph.constant(source.input[1]) for source in (_source(graph, name) for name in node.input) if source is not None]
        if scales and len(scales) < len(node.input):
            yield node, WARNING, "some of its inputs have Q/DQ and some have not"
        elif len({float(scale.reshape(-1)[0]) for scale in scales if scale is not None and scale.size > 0}) > 1:
            yield node, WARNING, "its inputs have different scales, so they are scaled again before they are joined"


def _scale_has_the_inputs_type(graph: LintedGraph) -> _Found:
    if graph.opset >= 19:
        return
    for pair in graph.pairs:
        if pair.scale is not None and pair.scale.dtype != np.float32:
            yield pair.node, ERROR, f"its scale is {pair.scale.dtype.name}; before opset 19 scales are float32"


# ---- rules of onnxruntime ----


def _opset_has_the_type(graph: LintedGraph) -> _Found:
    opset = graph.opset
    for pair in graph.pairs:
        least = {"float8_e4m3fn": 19, "float8_e5m2": 19, "int4": 21, "uint4": 21, "int16": 21, "uint16": 21, "float4_e2m1fn": 23}.get(
            pair.type, 10
        )
        if attribute(pair.node, "block_size", 0):
            least = max(least, 21)
        if opset < least:
            yield pair.node, ERROR, f"{pair.type} codes need opset {least}, the model has {opset}"


def _zero_point_has_its_scales_shape(graph: LintedGraph) -> _Found:
    for pair in graph.pairs:
        if pair.scale is not None and pair.zero_point is not None and pair.scale.shape != pair.zero_point.shape:
            yield pair.node, ERROR, f"its scale has the shape {list(pair.scale.shape)}, its zero point {list(pair.zero_point.shape)}"


def _conv_output_is_quantized(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type != "Conv" or _source(graph, node.input[0]) is None or _source(graph, node.input[1]) is None:
            continue
        readers = graph.consumers(node.output[0])
        if len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
            readers = graph.consumers(readers[0].output[0])
        if not readers or any(reader.op_type != "QuantizeLinear" for reader in readers):
            yield node, WARNING, "its output is not quantized, so onnxruntime dequantizes its inputs and runs it in float"


def _conv_bias_is_int32(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if (
            node.op_type == "Conv"
            and len(node.input) > 2
            and _source(graph, node.input[0]) is not None
            and _source(graph, node.input[2]) is None
        ):
            yield node, WARNING, "its bias is in float; onnxruntime's integer convolution wants int32 in steps of both scales"


def _fp8_has_no_cpu_kernel(graph: LintedGraph) -> _Found:
    fp8 = {pair.node.output[0] for pair in graph.pairs if pair.type.startswith("float8")}
    for node in graph.nodes:
        if node.op_type in _PRODUCTS and fp8 & set(node.input[:2]):
            yield node, WARNING, "onnxruntime has no fp8 product on the CPU: codes are decoded and multiplied in float"


def _n_bits_are_regular(graph: LintedGraph) -> _Found:
    for node in graph.nodes:
        if node.op_type != "MatMulNBits":
            continue
        bits, block, n, k = (attribute(node, name, 0) for name in ("bits", "block_size", "N", "K"))
        codes, scales = graph.constant(node.input[1]), graph.constant(node.input[2])
        if bits not in (2, 4, 8) or block < 16 or block & (block - 1):
            yield node, ERROR, f"{bits} bits in blocks of {block}: onnxruntime takes 2, 4 or 8 bits and blocks of 16, 32, 64, ..."
        elif codes is not None and codes.shape != (n, -(-k // block), block * bits // 8):
            yield node, ERROR, f"its codes have the shape {list(codes.shape)}, not {[n, -(-k // block), block * bits // 8]}"
        elif scales is not None and scales.size != n * -(-k // block):
            yield node, ERROR, f"it has {scales.size} scales, not {n * -(-k // block)}"


Rule = Callable[[LintedGraph], _Found]
RULES: dict[str, tuple[Rule, ...]] = {
    "tensorrt": (
        _zero_point_is_zero,
        _codes_are_signed,
        _type_is_known,
        _bias_is_float,
        _scale_is_constant,
        _scale_is_positive,
        _activation_scale_is_single,
        _int4_is_for_weights,
        _weight_axis,
        _int4_blocks,
        _pairs_are_whole,
        _both_sides_are_quantized,
        _nothing_between_conv_and_its_activation,
        _skip_is_quantized,
        _concat_has_one_scale,
        _scale_has_the_inputs_type,
    ),
    "ort": (
        _scale_is_positive,
        _opset_has_the_type,
        _zero_point_has_its_scales_shape,
        _pairs_are_whole,
        _conv_output_is_quantized,
        _conv_bias_is_int32,
        _fp8_has_no_cpu_kernel,
        _n_bits_are_regular,
    ),
}
