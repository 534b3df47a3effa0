"""FP8 training: E4M3 forward, E5M2 gradients, scales by one of three recipes; a loss scaler, and a policy that says which layers take part.

    fp8_training_(model, FP8Policy(scaling="delayed"))
    scaler = LossScaler()
    scaler.scale(loss).backward(); scaler.step(optimizer)

Products are those of the rounded values: what FP8 tensor cores compute, on any device. The values travel in the input's own type, so that
under bf16 a scaled code is rounded once more to bf16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidArgument
from .config import matches, places_of, replace_module
from .ops import scheme_of

SCALINGS = ("current", "delayed", "block")


@dataclasses.dataclass(frozen=True)
class FP8Policy:
    """Which Linear layers train in FP8, and how they are scaled.

    scaling: current (one scale per tensor, from itself), delayed (one per tensor, from the largest of the last `history` steps) or block
    (inputs and gradients per 1x128 block, weights per 128x128 tile). ignore: patterns of module names that keep their own type, as in
    quantize_. rules: pattern -> the policy of the modules that match, or None for their own type; the first that matches wins.
    """

    scaling: str = "current"
    forward: str = "fp8_e4m3"
    backward: str = "fp8_e5m2"
    history: int = 16
    margin: int = 0  #: of delayed scaling: a scale is 2^margin larger than the history asks for
    ignore: tuple[str, ...] = ("lm_head",)
    rules: Mapping[str, FP8Policy | None] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> FP8Policy | None:
        """The policy of the module of this name; None: it keeps its own type."""
        if any(matches(pattern, name) for pattern in self.ignore):
            return None
        return next((policy for pattern, policy in self.rules.items() if matches(pattern, name)), self)

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise InvalidArgument(f"scaling '{self.scaling}' is not known; use {', '.join(SCALINGS)}")


class DelayedScale(nn.Module):
    """The scale of one tensor from the largest magnitudes of earlier steps: no pass over the data before it is rounded.

    s = max(history) / largest * 2^margin; the first step, which has no history, takes its own.
    """

    def __init__(self, form: str, history: int, margin: int):
        super().__init__()
        self.largest, self.margin = scheme_of(f"{form}:tensor").element.largest, margin
        self.register_buffer("history", torch.zeros(history))
        self.register_buffer("scale", torch.ones(1, 1))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The scale for x, which joins the history for the next step."""
        amax = x.detach().abs().amax().float()
        seen = self.history.amax()
        used = torch.where(seen > 0, seen, amax)
        fresh = (used / self.largest * 2.0**self.margin).reshape(1, 1)
        self.scale.copy_(torch.where((fresh > 0) & fresh.isfinite(), fresh, self.scale))
        self.history.copy_(torch.cat((amax.nan_to_num(0.0, 0.0).reshape(1), self.history[:-1])))
        return self.scale.clone()


def _rounded(x: Tensor, scheme: str, scale: Tensor | None) -> Tensor:
    """x as FP8 sees it, in x's own type."""
    if scale is None:
        return torch.ops.narrow.fake_quantize(x, scheme, "nearest_even", 0)
    return torch.ops.narrow.fake_quantize_learned(x, scale, None, scheme, 1.0)


class _Fp8Product(torch.autograd.Function):
    """y = x W^T with rounded x and W; gradients of rounded grad_y: the three products of a Linear layer in FP8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: FP8Linear) -> Tensor:
        schemes = layer.schemes
        scale = layer.scale_of
        x8 = _rounded(x, schemes["input"], scale("input", x))
        w8 = _rounded(weight, schemes["weight"], scale("weight", weight)).to(x.dtype)
        ctx.save_for_backward(x8, w8)
        ctx.layer, ctx.weight_dtype = layer, weight.dtype
        return nn.functional.linear(x8, w8)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x8, w8 = ctx.saved_tensors
        grad = grad.contiguous()
        g8 = _rounded(grad, ctx.layer.schemes["gradient"], ctx.layer.scale_of("gradient", grad))
        grad_x = g8 @ w8
        grad_w = g8.flatten(0, -2).T.float() @ x8.flatten(0, -2).float()
        return grad_x, grad_w.to(ctx.weight_dtype), None


class FP8Linear(nn.Linear):
    """An nn.Linear whose three products are in FP8; its parameters stay as they are."""

    has_plain_weight = True  # so that quantize_ takes the trained model

    def __init__(self, linear: nn.Linear, policy: FP8Policy):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.policy = linear.weight, linear.bias, policy
        forms = {"input": policy.forward, "weight": policy.forward, "gradient": policy.backward}
        scaling = (
            {"input": "block128", "weight": "128x128", "gradient": "block128"}
            if policy.scaling == "block"
            else dict.fromkeys(forms, "tensor")
        )
        self.schemes = {role: f"{form}:{scaling[role]}" for role, form in forms.items()}
        self.delayed = None
        if policy.scaling == "delayed":
            self.delayed = nn.ModuleDict({role: DelayedScale(form, policy.history, policy.margin) for role, form in forms.items()})
            self.delayed.to(linear.weight.device)
        self.train(linear.training)

    def scale_of(self, role: str, x: Tensor) -> Tensor | None:
        """A delayed scale; None: x makes its own."""
        return None if self.delayed is None else self.delayed[role](x)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = _Fp8Product.apply(x, self.weight, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.policy.scaling} scaling"


def fp8_training_(model: nn.Module, policy: FP8Policy | None = None) -> nn.Module:
    """The Linear layers of a model that the policy does not leave out train in FP8 from now on, in place."""
    policy = policy or FP8Policy()
    layers = [
        (module, of_layer)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and (of_layer := policy.of(name)) is not None
    ]
    if not layers:
        raise InvalidArgument("fp8_training_: the policy leaves no Linear layer of the model")
    places = places_of(model)
    for module, of_layer in layers:
        replace_module(places, module, FP8Linear(module, of_layer))
    return model


class LossScaler:
    """Dynamic loss scaling: gradients too small for a narrow type are scaled up with the loss; a step with an overflow is left out.

    After `interval` steps without an overflow the scale grows; after one with it, it backs off.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000):
        self.scale_value, self.growth, self.backoff, self.interval, self.good_steps = scale, growth, backoff, interval, 0

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.scale_value

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscales the gradients and, where all are finite, takes the optimizer's step. Says whether it did."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = True
        for gradient in gradients:
            gradient.mul_(1.0 / self.scale_value)
        for gradient in gradients:
            finite = finite and bool(gradient.isfinite().all())
        if finite:
            optimizer.step()
            self.good_steps += 1
            if self.good_steps >= self.interval:
                grown = self.scale_value * self.growth
                self.scale_value, self.good_steps = (grown if grown < float("inf") else self.scale_value), 0
        else:
            self.scale_value, self.good_steps = self.scale_value * self.backoff, 0
        return finite

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale_value, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale_value, self.good_steps = state["scale"], int(state["good_steps"])
