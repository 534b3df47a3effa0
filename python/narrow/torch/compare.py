"""Which layers of a quantized model lose most: each one's own error, on the inputs that the plain model gives it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import with_progress
from ..errors import InvalidArgument
from .calibration import run_batch
from .config import is_conv1d
from .linear import QuantizedLinear


@dataclasses.dataclass(frozen=True)
class LayerError:
    """The error of one layer's output over all batches, where everything before it is as it was."""

    name: str
    scheme: str
    inputs: str  #: how its input is rounded; empty: not at all
    sqnr_db: float  #: 10 log10(sum y^2 / sum (y - y')^2); inf: none


def layer_errors(
    model: nn.Module,
    small: nn.Module,
    batches: Iterable[Any],
    *,
    run: Callable[[nn.Module, Any], Any] | None = None,
    progress: bool = False,
) -> list[LayerError]:
    """Runs batches through a plain model, gives what each Linear layer reads to its counterpart in a quantized one too, and compares what
    both make of it. Worst first: the layers to leave alone or to give more bits.

    small: the same model after quantize_ (or load_checkpoint_), by the names of its layers. run(model, batch), progress: as in calibrate.
    """
    plain = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) or is_conv1d(module)}
    pairs = {
        name: (plain[name], layer) for name, layer in small.named_modules() if isinstance(layer, QuantizedLinear) and name in plain
    }
    if not pairs:
        raise InvalidArgument("layer_errors: no Linear layer of the model is a QuantizedLinear of the same name in the small one")
    sums = {name: [0.0, 0.0] for name in pairs}

    def watch(name: str, layer: QuantizedLinear, x: Tensor, y: Tensor) -> None:
        expected, got = y.double(), layer(x.to(layer.weight.device)).to(y.device).double()
        sums[name][0] += float(expected.square().sum())
        sums[name][1] += float((expected - got).square().sum())

    hooks = [
        module.register_forward_hook(lambda _, arguments, y, name=name, layer=layer: watch(name, layer, arguments[0], y))
        for name, (module, layer) in pairs.items()
    ]
    try:
        with torch.no_grad():
            for batch in with_progress(batches, "compare", progress):
                run_batch(model, batch, run)
    finally:
        for hook in hooks:
            hook.remove()
    errors = [LayerError(name, layer.scheme, layer.inputs, _decibel(*sums[name])) for name, (_, layer) in pairs.items()]
    return sorted(errors, key=lambda error: error.sqnr_db)


def _decibel(signal: float, noise: float) -> float:
    return math.inf if noise == 0.0 else 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf
