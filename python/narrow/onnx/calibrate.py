"""Ranges of tensors over example inputs: onnxruntime runs the graph, narrow's observers watch it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx

from .._arrays import borrow
from ..checkpoints import CalibrationStatistics
from ..errors import InvalidArgument


def session(model: onnx.ModelProto, optimize: bool = True):
    """An onnxruntime session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with these tensors as outputs too, of whatever type they have."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    there = {value.name for value in copy.graph.output}
    for name in names:
        if name not in there:
            copy.graph.output.append(onnx.ValueInfoProto(name=name))
            there.add(name)
    return copy


def observed(
    model: onnx.ModelProto, names: list[str], data: Iterable[Mapping[str, np.ndarray]], optimize: bool = True
) -> Iterator[dict[str, np.ndarray]]:
    """The values of tensors for each of the example inputs; graph inputs are among them."""
    inputs = [name for name in names if name in {value.name for value in model.graph.input}]
    inner = [name for name in names if name not in inputs]
    runner = session(with_outputs(model, inner), optimize)
    for feed in data:
        missing = [value.name for value in runner.get_inputs() if value.name not in feed]
        if missing:
            raise InvalidArgument(f"an example input lacks {missing[0]!r}")
        values = dict(zip(inner, runner.run(inner, dict(feed)) if inner else ()))
        values.update((name, np.asarray(feed[name])) for name in inputs)
        yield values


def calibrate(model: onnx.ModelProto, names: list[str], data: Iterable[Mapping[str, np.ndarray]]) -> CalibrationStatistics:
    """Statistics of these tensors, by their names, in narrow's own form: bounded memory, `.save()` writes narrow's file."""
    statistics = CalibrationStatistics()
    seen = 0
    for values in observed(model, names, data):
        seen += 1
        for name, value in values.items():
            if value.size:
                statistics.add([name], borrow(np.ascontiguousarray(value, dtype=np.float32).reshape(-1, 1)))
    if seen == 0:
        raise InvalidArgument("static scales need example inputs, and there are none")
    return statistics
