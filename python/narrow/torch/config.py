"""What becomes of each Linear layer of a model."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints import CalibrationStatistics
from ..errors import InvalidArgument
from ..quantization import presets
from .ops import scheme_of, split_inputs

SCALING_STEPS = ("smoothquant", "awq")
FITTING_STEPS = ("gptq", "clip", "refine")


@functools.lru_cache(maxsize=None)
def _presets() -> dict[str, tuple[str, str]]:
    return {preset.name.replace("-", "_"): (preset.weights, preset.activations) for preset in presets()}


@dataclasses.dataclass(frozen=True)
class LayerScheme:
    """The weight's scheme, and the input's: SCHEME:dynamic, SCHEME:static, or empty for inputs as they are."""

    weights: str
    inputs: str = ""

    @staticmethod
    def of(text: Any) -> LayerScheme:
        """A scheme, a preset by its name (W4A16, FP8_DYNAMIC, ...), or a LayerScheme."""
        if isinstance(text, LayerScheme):
            return text
        known = _presets().get(str(text).replace("-", "_"))
        weights, inputs = known if known else (str(text), "")
        return LayerScheme(str(scheme_of(weights)), inputs)


def matches(pattern: str, name: str) -> bool:
    """A module's name, the last part of one ("lm_head"), or "re:" and an expression that matches from the start: as in the command."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return name == pattern or name.endswith("." + pattern)


@dataclasses.dataclass
class QuantizeConfig:
    """How a model is quantized.

    scheme: for every Linear layer that is not ignored. rules: pattern -> scheme, preset, LayerScheme, or None to leave a layer as it is;
    the first that matches wins. statistics: of the layers' inputs (narrow.torch.calibrate, `narrow calibrate`, or their file), which static
    inputs and methods need. range_method: minmax, average, percentile[=P], entropy or mse.

    method: rtn, or steps joined by +: smoothquant (with its strength, 0 .. 1) or awq, which scale the channels of inputs first
    (narrow.torch.factors), then gptq, clip and refine. progress: a bar of tqdm or rich.
    """

    scheme: Any
    inputs: str | None = None  #: replaces the preset's
    ignore: tuple[str, ...] = ("lm_head",)
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    statistics: CalibrationStatistics | str | os.PathLike[str] | None = None
    range_method: str = "minmax"
    method: str = "rtn"
    strength: float = 0.5
    progress: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.method.split("+")) - {"rtn", *SCALING_STEPS, *FITTING_STEPS}
        if unknown:
            known = ", ".join(("rtn", *SCALING_STEPS, *FITTING_STEPS))
            raise InvalidArgument(f"method '{self.method}' has a step that is not known; use one of {known}, or several joined by +")
        if not 0.0 <= self.strength <= 1.0:
            raise InvalidArgument(f"a strength is between 0 and 1, not {self.strength}")
        if self.statistics is not None and not isinstance(self.statistics, CalibrationStatistics):
            self.statistics = CalibrationStatistics.load(self.statistics)

    @staticmethod
    def of(config: Any) -> QuantizeConfig:
        """A config, a scheme, a preset, or a dict of regular expressions -> scheme: what no expression matches stays as it is."""
        if isinstance(config, QuantizeConfig):
            return config
        if isinstance(config, Mapping):
            return QuantizeConfig(scheme=None, ignore=(), rules={f"re:(?:{pattern})$": scheme for pattern, scheme in config.items()})
        return QuantizeConfig(scheme=config)

    def layer_scheme(self, name: str) -> LayerScheme | None:
        """What becomes of the layer of this name; None: nothing."""
        if any(matches(pattern, name) for pattern in self.ignore):
            return None
        scheme = self.scheme
        for pattern, replacement in self.rules.items():
            if matches(pattern, name):
                scheme = replacement
                break
        if scheme is None:
            return None
        layer = LayerScheme.of(scheme)
        return layer if self.inputs is None else LayerScheme(layer.weights, self.inputs)

    @property
    def scaling(self) -> tuple[str, ...]:
        """The steps of the method that scale the channels of inputs."""
        return tuple(step for step in SCALING_STEPS if step in self.method.split("+"))

    @property
    def fitting(self) -> str:
        """The steps of the method that choose codes; empty: rounded to nearest."""
        return "+".join(step for step in FITTING_STEPS if step in self.method.split("+"))

    def input_scale(self, name: str, inputs: str, factors: Tensor | None = None) -> tuple[float, int] | None:
        """The scale and zero point of a static input, whose channels are divided by factors first."""
        rounding, is_static = split_inputs(inputs)
        if not is_static or not isinstance(self.statistics, CalibrationStatistics):
            return None
        form = scheme_of(rounding)
        if factors is None:
            return self.statistics.static_scale(name, form, self.range_method)
        if form.asymmetric or self.range_method != "minmax":
            raise InvalidArgument(
                f"the statistics have the largest magnitudes of scaled channels alone: a static input of {rounding} by {self.range_method} "
                "does not go with smoothquant and awq; use a symmetric scheme with minmax, or dynamic inputs"
            )
        largest = (torch.from_dlpack(self.statistics.channel_max(name)) / factors.cpu()).max()
        return max(float(largest), 1e-30) / form.element.largest, 0


def linear_layers(model: nn.Module, config: QuantizeConfig, kind: type = nn.Linear) -> list[tuple[str, nn.Module, LayerScheme]]:
    """The layers that the config changes, in the model's order."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, kind) and (scheme := config.layer_scheme(name)) is not None:
            found.append((name, module, scheme))
    return found


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
