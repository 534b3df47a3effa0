"""A model's graph with the look-ups that passes need: who makes a tensor, who reads it, which tensors are constant."""

from __future__ import annotations

import functools
import math
import os
import stat
import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import InvalidArgument, Unsupported

#: The IR version that an opset's types need: fp8 came with 9, int4 with 10, float4 with 11.
_IR_VERSIONS = ((23, 11), (21, 10), (19, 9))

#: What passes read of a node without asking whether it is there.
_LEAST_INPUTS = dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Conv", "ConvTranspose", "MatMul", "Gemm", "Add"), 2)
_LEAST_INPUTS |= {"MatMulNBits": 3, "BatchNormalization": 5, "Identity": 1, "Transpose": 1}
_ATTRIBUTE_TYPES = dict.fromkeys(("axis", "block_size", "output_dtype", "transB", "bits", "N", "K"), AttributeProto.INT)
_ATTRIBUTE_TYPES |= {"perm": AttributeProto.INTS, "epsilon": AttributeProto.FLOAT}


def load(model: onnx.ModelProto | str | os.PathLike[str]) -> onnx.ModelProto:
    """A copy of the model, or the file's, which onnx's checker has seen: its operators, names, order and external data."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    path = os.fspath(model)
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
        raise InvalidArgument(f"{path} is no file")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, MemoryError) as error:
        raise InvalidArgument(f"{path} is no ONNX model that can be read: {one_line(error)}") from None
    return parse(data, path)


def parse(data: bytes, path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model of a file's bytes. The file itself is looked at again only where constants lie in others beside it."""
    try:
        read = onnx.load_model_from_string(data)
        has_others = b"location" in data  # the key without which nothing lies elsewhere
        if has_others:
            _check_locations(read)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of onnx, about keys in the file that it does not know
                onnx.load_external_data_for_model(read, os.path.dirname(path))
        _check_names(read.graph)
        _check_sizes(read)
        _check_nodes(read)
        onnx.checker.check_model(path if has_others else data)  # with other files it may be of more than 2 GB, too much to check in memory
    except Exception as error:  # protobuf has no common base class for what it throws
        raise InvalidArgument(f"{path} is no ONNX model that can be read: {one_line(error)}") from None
    if not read.graph.node:
        raise InvalidArgument(f"{path} is an ONNX model without a node")
    newest = onnx.defs.onnx_opset_version()
    for entry in read.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise InvalidArgument(f"{path} is of opset {entry.version}; the onnx package here knows {newest} at most")
    return read


def _check_locations(model: onnx.ModelProto) -> None:
    """Names of files end where others would end them; where they lead is onnx's to check."""
    for tensor in model.graph.initializer:
        if any("\0" in entry.value for entry in tensor.external_data):
            raise ValueError(f"the place of {tensor.name!r} has a NUL in it")


def _check_names(graph: onnx.GraphProto) -> None:
    """Texts: protobuf gives bytes for what is no UTF-8."""
    names = [found.name for found in (*graph.initializer, *graph.input, *graph.output)]
    for node in graph.node:
        names += (node.op_type, node.name, *node.input, *node.output)
        names += [found.name for found in node.attribute]
    try:
        "".join(names)
    except TypeError:
        raise ValueError("one of its names is not UTF-8") from None


@functools.lru_cache
def _bits_of(data_type: int) -> int | None:
    if data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return 4
    try:
        return 8 * helper.tensor_dtype_to_np_dtype(data_type).itemsize
    except (KeyError, TypeError, ValueError):
        return None


def _check_sizes(model: onnx.ModelProto) -> None:
    """Every constant has a known type, and the bytes that its shape takes."""
    for tensor in model.graph.initializer:
        if not tensor.HasField("raw_data"):
            continue
        width = _bits_of(tensor.data_type)
        if width is None:
            raise ValueError(f"{tensor.name!r} has the unknown type {tensor.data_type}")
        expected = (math.prod(tensor.dims) * width + 7) // 8
        if len(tensor.raw_data) != expected:
            raise ValueError(f"{tensor.name!r} has {len(tensor.raw_data)} bytes, and its shape {list(tensor.dims)} takes {expected}")


def _check_nodes(model: onnx.ModelProto) -> None:
    """What passes look at without asking. onnx's checker sees to its own operators, not to those of other domains, whatever their names."""
    for node in model.graph.node:
        if len(node.input) < _LEAST_INPUTS.get(node.op_type, 0) or not node.output:
            raise ValueError(f"the {node.op_type} {node.name!r} has {len(node.input)} inputs and {len(node.output)} outputs")
        for found in node.attribute:
            if found.ref_attr_name:
                raise ValueError(f"{found.name!r} of {node.name!r} refers to the attribute of a function, and is in none")
            if found.type != _ATTRIBUTE_TYPES.get(found.name, found.type):
                raise ValueError(f"{found.name!r} of {node.name!r} is no {AttributeProto.AttributeType.Name(_ATTRIBUTE_TYPES[found.name])}")


def one_line(error: Exception) -> str:
    """The first sentence of another library, without what it quotes from the file in control characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0][:200]
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def attribute(node: NodeProto, name: str, otherwise: Any = None) -> Any:
    for found in node.attribute:
        if found.name == name:
            return helper.get_attribute_value(found)
    return otherwise


class Graph:
    """Nodes may be added in any order; :meth:`finish` sorts them. Tensors inside of subgraphs are left alone."""

    def __init__(self, model: onnx.ModelProto):
        self.model = model
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.initializers: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        self._taken: set[str] | None = None  # names, as soon as a new one is asked for
        self._index()

    def _index(self) -> None:
        self._producer = {output: node for node in self.nodes for output in node.output if output}
        self._consumers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                if name:
                    self._consumers[name].append(node)

    @property
    def opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 0)

    def outputs(self) -> list[str]:
        return [value.name for value in self.model.graph.output]

    def producer(self, name: str) -> NodeProto | None:
        return self._producer.get(name)

    def consumers(self, name: str) -> list[NodeProto]:
        return list(self._consumers.get(name, ()))

    def constant(self, name: str) -> np.ndarray | None:
        """The value of an initializer or of a Constant node; None for everything else, texts and complex numbers among it."""
        if name in self._arrays:
            return self._arrays[name]
        node = self.producer(name)
        tensor = self.initializers.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = attribute(node, "value")
        if tensor is None or tensor.data_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            return None
        try:
            self._arrays[name] = numpy_helper.to_array(tensor)
        except Exception as error:  # of onnx and numpy, each its own
            raise InvalidArgument(f"the constant {name!r} cannot be read: {one_line(error)}") from None
        return self._arrays[name]

    def fresh(self, name: str) -> str:
        """This name, or one like it that is not taken yet."""
        if self._taken is None:
            self._taken = {taken for node in self.nodes for taken in (*node.input, *node.output, node.name)}
            self._taken |= set(self.initializers) | {value.name for value in (*self.model.graph.input, *self.model.graph.output)}
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def add_initializer(self, name: str, array: np.ndarray) -> str:
        name = self.fresh(name)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self._arrays[name] = array
        return name

    def add_node(self, op: str, inputs: Iterable[str], output: str, name: str = "", **attributes: Any) -> str:
        """Adds a node of one output and gives the output's name."""
        output = self.fresh(output)
        domain = attributes.pop("domain", "")
        node = helper.make_node(op, list(inputs), [output], name=self.fresh(name or f"{output}_node"), domain=domain, **attributes)
        self.nodes.append(node)
        self._producer[output] = node
        for read in dict.fromkeys(node.input):
            self._consumers[read].append(node)
        return output

    def remove(self, node: NodeProto) -> None:
        self.nodes = [other for other in self.nodes if other is not node]
        self._index()

    def replace_input(self, node: NodeProto, index: int, name: str) -> None:
        old = node.input[index]
        node.input[index] = name
        if old not in node.input:
            self._consumers[old] = [other for other in self._consumers[old] if other is not node]
        if not any(other is node for other in self._consumers[name]):
            self._consumers[name].append(node)

    def require_opset(self, version: int) -> None:
        """Raises the model to this opset where it is below."""
        if self.opset >= version:
            return
        self.finish()
        try:
            converted = onnx.version_converter.convert_version(self.model, version)
        except Exception as error:  # the converter throws plain RuntimeErrors
            raise Unsupported(
                f"the model has opset {self.opset}, these types need {version}, and onnx cannot convert it: {one_line(error)}"
            ) from None
        self.model.CopyFrom(converted)
        self.__init__(self.model)

    def finish(self) -> onnx.ModelProto:
        """Writes nodes and initializers back: sorted, and without what nobody reads."""
        used = set(self.outputs())
        for node in self.nodes:
            used |= set(node.input)
            for found in node.attribute:  # subgraphs see the tensors around them
                for graph in [found.g] if found.type == onnx.AttributeProto.GRAPH else found.graphs:
                    used |= _names_read_in(graph)
        nodes = self._sorted()
        del self.model.graph.node[:], self.model.graph.initializer[:]
        self.model.graph.node.extend(nodes)
        self.model.graph.initializer.extend(tensor for name, tensor in self.initializers.items() if name in used)
        constant_inputs = {value.name for value in self.model.graph.input} & set(self.initializers)
        for value in [value for value in self.model.graph.input if value.name in constant_inputs and value.name not in used]:
            self.model.graph.input.remove(value)
        opset = self.opset
        for least, ir_version in _IR_VERSIONS:
            if opset >= least:
                self.model.ir_version = max(self.model.ir_version, ir_version)
        del self.model.graph.value_info[:]  # shapes are inferred anew where they are needed
        return self.model

    def _sorted(self) -> list[NodeProto]:
        made = {id(node): index for index, node in enumerate(self.nodes)}
        waiting = {
            id(node): {id(self._producer[name]) for name in node.input if name in self._producer and self._producer[name] is not node}
            for node in self.nodes
        }
        readers = defaultdict(list)
        for node in self.nodes:
            for before in waiting[id(node)]:
                readers[before].append(node)
        import heapq

        ready = [(made[id(node)], node) for node in self.nodes if not waiting[id(node)]]
        heapq.heapify(ready)
        result = []
        while ready:
            _, node = heapq.heappop(ready)
            result.append(node)
            for reader in readers[id(node)]:
                waiting[id(reader)].discard(id(node))
                if not waiting[id(reader)]:
                    heapq.heappush(ready, (made[id(reader)], reader))
        if len(result) != len(self.nodes):
            raise InvalidArgument("the graph has a cycle")
        return result


def _names_read_in(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.output}
    for node in graph.node:
        names |= set(node.input)
        for found in node.attribute:
            for inner in [found.g] if found.type == onnx.AttributeProto.GRAPH else found.graphs:
                names |= _names_read_in(inner)
    return names


def channels_first(array: np.ndarray, axis: int) -> np.ndarray:
    """[channels, everything else]."""
    moved = np.moveaxis(array, axis, 0)
    return np.ascontiguousarray(moved.reshape(moved.shape[0], math.prod(moved.shape[1:])))


def channels_back(matrix: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The inverse."""
    moved = (shape[axis], *(size for index, size in enumerate(shape) if index != axis))
    return np.moveaxis(matrix.reshape(moved), 0, axis)
