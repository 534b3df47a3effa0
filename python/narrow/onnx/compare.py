"""Where a quantized graph differs from the float one: the signal-to-noise ratio of every node's output that both have."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from .calibrate import observed
from .graph import load


@dataclasses.dataclass(frozen=True)
class NodeError:
    """One tensor of both graphs."""

    tensor: str
    operator: str
    sqnr_db: float  #: 10 log10(sum x^2 / sum (x-y)^2); infinite where they are equal
    max_absolute: float
    position: int = 0  #: of its node in the float graph


def compare(
    model: onnx.ModelProto | str | os.PathLike[str],
    quantized: onnx.ModelProto | str | os.PathLike[str],
    data: Iterable[Mapping[str, np.ndarray]],
) -> list[NodeError]:
    """The float tensors that both graphs have, worst first, over all example inputs. Both graphs run as they are, without fusing."""
    model, quantized = load(model), load(quantized)
    data = list(data)
    there = {name for node in quantized.graph.node for name in node.output}
    operators = {
        name: node.op_type
        for node in model.graph.node
        for name in node.output
        if name in there and node.op_type not in ("Constant", "Shape")
    }
    positions = {name: position for position, node in enumerate(model.graph.node) for name in node.output}
    names = list(operators)
    signal = dict.fromkeys(names, 0.0)
    noise = dict.fromkeys(names, 0.0)
    largest = dict.fromkeys(names, 0.0)
    for expected, found in zip(observed(model, names, data, optimize=False), observed(quantized, names, data, optimize=False)):
        for name in names:
            x, y = np.asarray(expected[name]), np.asarray(found[name])
            if not np.issubdtype(x.dtype, np.floating) or x.shape != y.shape:
                operators.pop(name, None)
                continue
            with np.errstate(invalid="ignore"):  # masks hold infinities on both sides
                difference = np.where(x == y, 0.0, x.astype(np.float64) - y)
            finite = np.isfinite(x)
            signal[name] += float(np.sum(np.square(x[finite], dtype=np.float64)))
            noise[name] += float(np.sum(np.square(difference)))
            largest[name] = max(largest[name], float(np.max(np.abs(difference), initial=0.0)))
    errors = [
        NodeError(name, operator, _decibel(signal[name], noise[name]), largest[name], positions[name])
        for name, operator in operators.items()
    ]
    return sorted(errors, key=lambda error: error.sqnr_db)


def _decibel(signal: float, noise: float) -> float:
    if noise == 0.0:
        return float("inf")
    return float("-inf") if signal == 0.0 else 10.0 * float(np.log10(signal / noise))
