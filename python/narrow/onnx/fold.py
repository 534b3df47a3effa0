"""What is folded into weights before they are quantized: batch norms, and transposes and identities of constants."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidArgument
from .graph import Graph, attribute


def fold_constants(graph: Graph) -> int:
    """Identity and Transpose of constants become constants. Gives how many."""
    folded = 0
    for node in list(graph.nodes):
        if node.op_type not in ("Identity", "Transpose") or node.output[0] in graph.outputs():
            continue
        value = graph.constant(node.input[0])
        if value is None:
            continue
        if node.op_type == "Transpose":
            order = attribute(node, "perm", range(value.ndim)[::-1])
            if sorted(order) != list(range(value.ndim)):
                raise InvalidArgument(f"the order {list(order)} of {node.name!r} is none of {value.ndim} dimensions")
            value = np.transpose(value, order)
        name = graph.add_initializer(f"{node.output[0]}_folded", value)
        for reader in graph.consumers(node.output[0]):
            for index, read in enumerate(reader.input):
                if read == node.output[0]:
                    graph.replace_input(reader, index, name)
        graph.remove(node)
        folded += 1
    return folded


def fold_batch_norms(graph: Graph) -> int:
    """BatchNormalization of a Conv's output joins the Conv: w' = w g / sqrt(v + e), b' = (b - m) g / sqrt(v + e) + beta. Gives how many."""
    folded = 0
    for node in list(graph.nodes):
        if node.op_type != "BatchNormalization" or len([name for name in node.output if name]) != 1:
            continue
        conv = graph.producer(node.input[0])
        if conv is None or conv.op_type != "Conv" or len(graph.consumers(conv.output[0])) != 1 or conv.output[0] in graph.outputs():
            continue
        weight = graph.constant(conv.input[1])
        bias = graph.constant(conv.input[2]) if len(conv.input) > 2 else None
        parts = [graph.constant(name) for name in node.input[1:5]]
        if weight is None or any(part is None for part in parts) or (len(conv.input) > 2 and bias is None):
            continue
        gamma, beta, mean, variance = (part.astype(np.float64) for part in parts)
        variance = variance + attribute(node, "epsilon", 1e-5)
        vectors = (gamma, beta, mean, variance, *([] if bias is None else [bias]))
        if weight.ndim < 3 or any(part.shape != weight.shape[:1] for part in vectors) or not np.all(variance > 0):
            continue  # the runtime's to refuse
        with np.errstate(all="ignore"):
            factor = gamma / np.sqrt(variance)
            new_weight = (weight.astype(np.float64) * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
            new_bias = (((0.0 if bias is None else bias.astype(np.float64)) - mean) * factor + beta).astype(weight.dtype)
        if not all(np.isfinite(part.astype(np.float64)).all() for part in (new_weight, new_bias)):
            continue  # beyond the weight's type, which the two nodes apart need not be
        graph.replace_input(conv, 1, graph.add_initializer(f"{conv.input[1]}_folded", new_weight))
        name = graph.add_initializer(f"{conv.output[0]}_bias", new_bias)
        if bias is None:
            conv.input.append(name)
        else:
            graph.replace_input(conv, 2, name)
        graph.remove(node)
        conv.output[0] = node.output[0]
        graph._index()
        folded += 1
    return folded
