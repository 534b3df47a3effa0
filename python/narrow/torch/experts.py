"""Experts as transformers has them: the weights of all of them in one tensor [experts, n, k], quantized, multiplied expert by expert."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..quantization import QuantizedTensor
from .linear import QuantizedWeight, only_moves
from .ops import scheme_of


class ExpertWeight:
    """One expert's matrices, one below the other. torch's linear multiplies their codes; any other function of torch gets their values."""

    def __init__(self, matrices: list[QuantizedWeight], inputs: str):
        self.matrices, self.inputs = matrices, inputs

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        parts = [(w.codes, w.scales, w.zero_points, w.outer_scale, None, w.scheme) for w in self.matrices]
        y = torch.cat([torch.ops.narrow.linear(x, *part, self.inputs, None, None) for part in parts], -1)
        return y if bias is None else y + bias

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.cat([matrix.dequantize(dtype) for matrix in self.matrices])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.linear and isinstance(args[1], cls):
            return args[1].linear(args[0], *args[2:], **kwargs)
        dtype = next((x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
        args, kwargs = tree_map_only(cls, lambda weight: weight.dequantize(dtype), (args, kwargs))
        return func(*args, **kwargs)


_experts: weakref.WeakKeyDictionary[nn.Module, tuple[list[Tensor | None], list[ExpertWeight]]] = weakref.WeakKeyDictionary()


class QuantizedExperts(nn.Module):
    """The weights of experts [experts, n, k] as buffers: the parts of a QuantizedWeight, stacked. experts[i] is what expert i multiplies by.

    matrices: how many of n / matrices rows stand one below the other in each weight (gate and up: 2), with scales of their own. inputs:
    SCHEME:dynamic, or empty.
    """

    codes: Tensor
    scales: Tensor | None
    zero_points: Tensor | None
    outer_scale: Tensor | None

    def __init__(self, experts: int, n: int, k: int, scheme: str, inputs: str = "", matrices: int = 1, device: Any = None):
        super().__init__()
        self.scheme, self.inputs, self.matrices, self.shape = scheme, inputs, matrices, torch.Size((experts, n, k))
        one = QuantizedWeight(n // matrices, k, scheme, device)
        for name in ("codes", "scales", "zero_points", "outer_scale"):
            part = getattr(one, name)
            stacked = None if part is None else part.new_empty((experts, matrices * part.shape[0], *part.shape[1:]))
            self.register_buffer(name, stacked)
        self._is_hf_initialized = True  # transformers would draw random numbers for a weight that it did not load itself

    def __getitem__(self, index: int | Tensor) -> ExpertWeight:
        buffers = list(self._buffers.values())
        found = _experts.get(self)
        if found is None or any(a is not b for a, b in zip(found[0], buffers)):  # views of buffers that are others now
            found = _experts[self] = (buffers, [self._expert(i) for i in range(self.shape[0])])
        return found[1][int(index)]

    def _expert(self, index: int) -> ExpertWeight:
        def piece(part: Tensor | None, matrix: int) -> Any:
            return None if part is None else part[index].chunk(self.matrices)[matrix]

        shape = (self.shape[1] // self.matrices, self.shape[2])
        made = []
        for matrix in range(self.matrices):
            codes, scales, zero_points, outer = (piece(part, matrix) for part in self._buffers.values())
            q = QuantizedTensor(scheme_of(self.scheme), shape, codes, scales, zero_points, 1.0 if outer is None else outer)
            made.append(QuantizedWeight.of(q))
        return ExpertWeight(made, self.inputs)

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedExperts:
        return super()._apply(only_moves(fn), recurse)

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}, {self.scheme}" + (f", inputs={self.inputs}" if self.inputs else "")
