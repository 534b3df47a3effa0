"""Statistics of the inputs of any model's Linear layers, by hooks: the same as narrow's own executor collects, in the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._arrays import borrow_torch
from .._progress import with_progress
from ..checkpoints import CalibrationStatistics
from ..errors import InvalidArgument
from .config import is_conv1d


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    run: Callable[[nn.Module, Any], Any] | None = None,
    second_moments: bool = False,
    progress: bool = False,
) -> CalibrationStatistics:
    """Runs batches through a model and collects what its nn.Linear layers read.

    run(model, batch): how a batch is run; by default model(batch), or model(**batch) where a batch is a dict. second_moments: X^T X of
    every input too, which GPTQ needs. Layers that read the same tensor one after the other share its statistics. `.save(path)` writes the
    file of `narrow calibrate`. progress: a bar of tqdm or rich, where one is installed.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear) or is_conv1d(module)}
    if not names:
        raise InvalidArgument("calibrate: the model has no Linear layer")
    collector = _Collector(second_moments)
    hooks = [
        module.register_forward_pre_hook(lambda _, arguments, name=name: collector.see(name, arguments[0]))
        for module, name in names.items()
    ]
    try:
        with torch.no_grad():
            for batch in with_progress(batches, "calibrate", progress):
                run_batch(model, batch, run)
                collector.flush()
    finally:
        for hook in hooks:
            hook.remove()
    if not collector.groups:
        raise InvalidArgument("calibrate: no batch gave a Linear layer any input; is the generator of batches used up?")
    return collector.statistics


def run_batch(model: nn.Module, batch: Any, run: Callable[[nn.Module, Any], Any] | None = None) -> Any:
    """A batch through a model as run() says; else a dict by its names, anything else as it is."""
    if run is not None:
        return run(model, batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    try:
        return model(batch)
    except TypeError as error:
        if isinstance(batch, (list, tuple)):
            raise InvalidArgument(
                f"the model does not take a batch that is a {type(batch).__name__}; say how one is run: run=lambda model, batch: model(batch[0])"
            ) from error
        raise


class _Collector:
    """Holds one input at a time, until a layer reads another one."""

    def __init__(self, second_moments: bool):
        self.statistics, self.second_moments = CalibrationStatistics(), second_moments
        self.x: Tensor | None = None
        self.modules: list[str] = []
        self.groups: dict[str, list[str]] = {}

    def see(self, name: str, x: Tensor) -> None:
        if x is not self.x:
            self.flush()
            self.x = x
        self.modules.append(name)

    def flush(self) -> None:
        if self.x is not None and self.x.numel():
            rows = self.x.detach().reshape(-1, self.x.shape[-1]).to("cpu", torch.float32).contiguous()
            if self.groups.setdefault(self.modules[0], self.modules) != self.modules:
                raise InvalidArgument(f"calibrate: {self.modules[0]} shares its input with other layers than in an earlier batch")
            self.statistics.add(self.modules, borrow_torch(rows), self.second_moments)
        self.x, self.modules = None, []
