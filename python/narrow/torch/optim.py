"""AdamW over bf16 parameters without a master copy: updates are rounded stochastically, so that small ones count in the mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def stochastic_round_bf16_(target: Tensor, value: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Writes fp32 values to a bf16 tensor: up with the probability of the fraction that is cut off, so that E[target] = value.

    bf16 is the upper half of fp32: adding 16 random bits to the lower half and cutting it off is that rounding. NaN and infinity stay.
    """
    bits = value.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    rounded = ((bits + noise) & -65536).view(torch.float32)
    return target.copy_(torch.where(value.isfinite(), rounded, value))


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW whose arithmetic is fp32 and whose state and parameters keep their type; bf16 parameters are rounded stochastically.

    seed: of the rounding, so that a run can be repeated.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        seed: int = 0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(
                step=0, mean=torch.zeros_like(parameter, dtype=torch.float32), square=torch.zeros_like(parameter, dtype=torch.float32)
            )
        state["step"] += 1
        (beta1, beta2), gradient = group["betas"], parameter.grad.float()
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = state["square"].sqrt() / (1 - beta2 ** state["step"]) ** 0.5
        value = parameter.float() * (1 - group["lr"] * group["weight_decay"])
        value.addcdiv_(state["mean"], corrected.add_(group["eps"]), value=-group["lr"] / (1 - beta1 ** state["step"]))
        if parameter.dtype == torch.bfloat16:
            stochastic_round_bf16_(parameter, value, self._generator(parameter.device))
        else:
            parameter.copy_(value)
