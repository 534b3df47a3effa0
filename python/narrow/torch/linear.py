"""QuantizedLinear: an nn.Linear whose weight is codes and scales, in the names and types of narrow's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .._arrays import SCALE_NAMES, torch_dtype
from ..errors import InvalidArgument, Unsupported, WrongType
from ..quantization import QuantizedTensor, quantize
from .ops import refuse_onnx, scheme_of, split_inputs


def only_moves(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """model.half() and the like change the type of values; codes and scales are not values, they only move."""

    def move(part: Tensor) -> Tensor:
        moved = fn(part)
        return moved if moved.dtype == part.dtype else part.to(moved.device)

    return move


class QuantizedWeight(nn.Module):
    """The parts of a quantized matrix [n, k] as buffers: codes, scales, zero_points, outer_scale.

    As the submodule `weight` of a layer its state has the names of narrow's files: ...weight.codes, ...weight.scales.
    """

    codes: Tensor
    scales: Tensor | None
    zero_points: Tensor | None
    outer_scale: Tensor | None

    def __init__(self, n: int, k: int, scheme: str, device: Any = None):
        super().__init__()
        form = scheme_of(scheme)
        self.scheme, self.shape = str(form), torch.Size((n, k))
        grid = form.grid((n, k))
        self.register_buffer("codes", torch.zeros(n, form.row_bytes(k), dtype=torch.uint8, device=device))
        self.register_buffer(
            "scales", torch.ones(grid, device=device).to(torch_dtype(SCALE_NAMES[form.scale.name])) if form.has_scales else None
        )
        self.register_buffer("zero_points", torch.zeros(grid, dtype=torch.uint8, device=device) if form.asymmetric else None)
        self.register_buffer("outer_scale", torch.ones(1, device=device) if form.has_outer_scale else None)

    @classmethod
    def of(cls, q: QuantizedTensor) -> QuantizedWeight:
        """The parts of a quantized matrix, shared."""
        n, k = q.shape
        made = cls(n, k, str(q.scheme), device="meta")
        made.codes, made.scales, made.zero_points = q.codes, q.scales, q.zero_points
        if q.scheme.has_outer_scale:
            made.outer_scale = torch.as_tensor(q.outer_scale, dtype=torch.float32, device=q.codes.device).reshape(1)
        return made

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def dtype(self) -> torch.dtype:
        return self.codes.dtype

    def quantized(self) -> QuantizedTensor:
        """The same as a QuantizedTensor, memory shared."""
        outer: Any = 1.0
        if self.outer_scale is not None:
            outer = self.outer_scale if self.outer_scale.is_cuda else float(self.outer_scale)
        return QuantizedTensor(scheme_of(self.scheme), tuple(self.shape), self.codes, self.scales, self.zero_points, outer)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.ops.narrow.dequantize(
            self.codes, self.scales, self.zero_points, self.outer_scale, self.scheme, list(self.shape), dtype
        )

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedWeight:
        return super()._apply(only_moves(fn), recurse)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch that takes the weight itself, not the layer, gets its values. nn.TransformerEncoderLayer has one such, and
        leaves it where it sees this method."""
        dtype = next((x.dtype for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
        args, kwargs = tree_map_only(cls, lambda weight: weight.dequantize(dtype), (args, kwargs or {}))
        return func(*args, **kwargs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """The scheme goes with a state's metadata: codes of another scheme can have the same shapes."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata.setdefault(prefix[:-1], {})["scheme"] = self.scheme

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: Any, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        scheme = local_metadata.get("scheme", self.scheme)
        if scheme != self.scheme:
            errors.append(f"{prefix[:-1]} is {scheme} in the state and {self.scheme} in the model; quantize_ the model to {scheme} first.")
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}, {self.scheme}"


def checked_input(x: Tensor, n: int, k: int) -> Tensor:
    """x as a layer [n, k] multiplies it: of k columns, in autocast's type where that is on. One node of torch.fx's graphs, which follow no
    condition on values."""
    if torch.jit.is_tracing():
        refuse_onnx()
    elif not isinstance(x, Tensor):
        raise WrongType(f"linear: x is a {type(x).__name__}, not a tensor of torch (torch.as_tensor)")
    elif x.dim() == 0 or x.size(-1) != k:
        raise InvalidArgument(f"linear: x is {list(x.shape)} and the weight {[n, k]}; x must end in {k}")
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


torch.fx.wrap("checked_input")


class QuantizedLinear(nn.Module):
    """y = x W^T + b with a quantized weight and, where `inputs` is given, an input that is rounded first.

    inputs: SCHEME:dynamic or SCHEME:static; a static one has its scale (and zero point) in buffers. input_factor: what the channels of x
    are multiplied by before all of this (SmoothQuant, AWQ), or None.
    """

    input_factor: Tensor | None
    input_scale: Tensor | None
    input_zero_point: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        scheme: str = "int8:row",
        inputs: str = "",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features, self.inputs = in_features, out_features, inputs
        self.weight = QuantizedWeight(out_features, in_features, scheme, device)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None)
        rounding, is_static = split_inputs(inputs)
        asymmetric = bool(inputs) and scheme_of(rounding).asymmetric
        self.register_buffer("input_factor", None)
        self.register_buffer("input_scale", torch.ones(1, device=device) if is_static else None)
        self.register_buffer("input_zero_point", torch.zeros(1, dtype=torch.uint8, device=device) if is_static and asymmetric else None)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        scheme: str,
        inputs: str = "",
        input_scale: tuple[float, int] | None = None,
        quantized: QuantizedTensor | None = None,
    ) -> QuantizedLinear:
        """An nn.Linear, rounded to nearest, or with a weight that was quantized already. One on the device meta gives one there."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, scheme, inputs, device="meta")
        if quantized is None and linear.weight.is_meta:
            made.bias = linear.bias
            return made.train(linear.training)
        q = quantized if quantized is not None else quantize(linear.weight.detach(), scheme)
        made.weight, made.bias = QuantizedWeight.of(q), linear.bias
        device = q.codes.device
        if made.input_scale is not None:
            if input_scale is None:
                raise InvalidArgument(
                    f"the input is {inputs}, but no calibration gives its scale; pass QuantizeConfig(..., statistics=) of narrow.torch.calibrate"
                )
            made.set_input_scale(*input_scale, device=device)
        made.train(linear.training)
        return made

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """An nn.Linear with the values of the codes, in the bias's type or fp32; factors on the input go into it, its rounding does not."""
        dtype = dtype or (torch.float32 if self.bias is None else self.bias.dtype)
        weight = self.weight.dequantize(torch.float32)
        if self.input_factor is not None:
            weight = weight * self.input_factor
        made = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        made.weight = nn.Parameter(weight.to(dtype))
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.detach().to(dtype))
        return made.train(self.training)

    def set_input_scale(self, scale: float, zero_point: int = 0, device: Any = None) -> None:
        """The calibrated scale of a static input."""
        device = self.weight.device if device is None else device
        self.input_scale = torch.tensor([scale], dtype=torch.float32, device=device)
        if self.input_zero_point is not None:
            self.input_zero_point = torch.tensor([zero_point], dtype=torch.uint8, device=device)

    def static_scale(self) -> dict[str, float | int]:
        """The calibrated scale of a static input, as config.json has it."""
        zero_point = 0 if self.input_zero_point is None else int(self.input_zero_point)
        return {"scale": float(self.input_scale), "zero_point": zero_point}

    @property
    def scheme(self) -> str:
        return self.weight.scheme

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        kept = {name: self._buffers[name] for name in ("input_factor", "input_scale")}
        super()._apply(fn, recurse)
        for name, before in kept.items():
            after = self._buffers[name]
            if before is not None and after is not None and after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)  # a scale stays fp32, whatever the model's type
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """A layer takes factors on its input from a state that has them."""
        factor = state_dict.get(prefix + "input_factor")
        if factor is not None and self.input_factor is None:
            self.input_factor = torch.empty_like(factor, device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __prepare_scriptable__(self) -> Any:
        raise Unsupported("torch.jit.script does not know QuantizedLinear; torch.jit.trace, torch.export and torch.compile do")

    def forward(self, x: Tensor) -> Tensor:
        x = checked_input(x, self.out_features, self.in_features)
        # The dictionaries of nn.Module, not its attributes: eight look-ups in Python would cost as much as the call.
        w, own = self._modules["weight"], self._buffers
        parts = w._buffers
        if own["input_factor"] is not None:
            x = (x * own["input_factor"]).to(x.dtype)
        return torch.ops.narrow.linear.default(
            x,
            parts["codes"],
            parts["scales"],
            parts["zero_points"],
            parts["outer_scale"],
            self._parameters["bias"],
            w.scheme,
            self.inputs,
            own["input_scale"],
            own["input_zero_point"],
        )

    def extra_repr(self) -> str:
        inputs = f", inputs={self.inputs}" if self.inputs else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{inputs}"
