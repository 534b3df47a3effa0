"""What becomes of each Linear layer of a model."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..checkpoints import CalibrationStatistics
from ..quantization import presets
from .ops import scheme_of, split_inputs


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
    inputs and GPTQ need. range_method: minmax, average, percentile[=P], entropy or mse. method: rtn, gptq, clip or gptq+clip.
    """

    scheme: Any
    inputs: str | None = None  #: replaces the preset's
    ignore: tuple[str, ...] = ("lm_head",)
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    statistics: CalibrationStatistics | str | os.PathLike[str] | None = None
    range_method: str = "minmax"
    method: str = "rtn"

    def __post_init__(self) -> None:
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

    def input_scale(self, name: str, inputs: str) -> tuple[float, int] | None:
        rounding, is_static = split_inputs(inputs)
        if not is_static or not isinstance(self.statistics, CalibrationStatistics):
            return None
        return self.statistics.static_scale(name, scheme_of(rounding), self.range_method)


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
