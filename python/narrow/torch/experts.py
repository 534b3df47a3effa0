"""Experts as transformers has them: the weights of all of them in one tensor [experts, n, k], quantized, multiplied expert by expert."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..errors import Unsupported
from ..quantization import QuantizedTensor, quantize
from .config import LayerScheme, QuantizeConfig
from .linear import QuantizedWeight, only_moves
from .ops import scheme_of

#: The weights of fused experts, and how many matrices stand one below the other in each.
FUSED_WEIGHTS = {"gate_up_proj": 2, "down_proj": 1}


def is_fused(module: nn.Module) -> bool:
    """Experts of gated layers whose weights are in two tensors [experts, n, k], as transformers' use_experts_implementation has them."""
    form = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
    if any(getattr(module, name, None) is not value for name, value in form.items()):
        return False
    weights = (module._parameters.get(name) for name in FUSED_WEIGHTS)
    return all(weight is not None and weight.dim() == 3 for weight in weights)


def fused_weights(model: nn.Module, config: QuantizeConfig) -> list[tuple[str, nn.Module, str, LayerScheme]]:
    """The experts' tensors that a config changes, as `....experts.down_proj`: name, module, name in it, scheme."""
    found = []
    for place, module in model.named_modules():
        for weight in FUSED_WEIGHTS if is_fused(module) else ():
            name = f"{place}.{weight}" if place else weight
            if (scheme := config.layer_scheme(name)) is not None:
                found.append((name, module, weight, scheme))
    return found


def check_inputs(caller: str, inputs: str) -> None:
    if inputs.endswith(":static"):
        raise Unsupported(
            f"{caller}: inputs of experts are rounded dynamically, not {inputs}; name a dynamic scheme for them, or leave them as they are (ignore)"
        )


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

    @classmethod
    def of(cls, weight: Tensor, scheme: str, inputs: str, matrices: int) -> QuantizedExperts:
        """Plain weights [experts, n, k], every matrix rounded to nearest by itself. Those on the device meta give some there."""
        made = cls(*weight.shape, scheme, inputs, matrices, device="meta")
        if weight.is_meta:
            return made
        parts = [[QuantizedWeight.of(quantize(matrix, scheme)) for matrix in expert.detach().chunk(matrices)] for expert in weight]
        for name, buffer in made._buffers.items():
            if buffer is not None:
                setattr(made, name, torch.stack([torch.cat([getattr(part, name) for part in expert]) for expert in parts]))
        return made

    def put_into(self, module: nn.Module, name: str) -> None:
        """In the place of the parameter `name` of transformers' experts, which then multiply expert by expert."""
        delattr(module, name)
        setattr(module, name, self)
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values [experts, n, k]."""
        return torch.stack([self[i].dequantize(dtype) for i in range(self.shape[0])])

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
