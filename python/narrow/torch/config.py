"""What becomes of each Linear layer of a model."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
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


@functools.lru_cache(maxsize=None)
def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidArgument(f"pattern '{text}' is no regular expression: {error}") from error


def matches(pattern: str, name: str) -> bool:
    """A module's name, the last part of one ("lm_head"), or "re:" and an expression that matches from the start: as in the command."""
    if pattern.startswith("re:"):
        return _expression(pattern[3:]).match(name) is not None
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


def rule_pair(rule: Any) -> tuple[str, str | None]:
    """A rule as config.json has it, {"match", "scheme"}, or a pair of both."""
    return (rule["match"], rule["scheme"]) if isinstance(rule, dict) else (rule[0], rule[1])


def inputs_of(activations: Mapping[str, Any] | None, name: str) -> str:
    """The activation scheme of a module's input by the `activations` of a quantization_config; empty: none."""
    if activations is None:
        return ""
    for pattern, scheme in map(rule_pair, activations.get("rules", ())):
        if matches(pattern, name):
            return "" if scheme in (None, "none") else scheme
    return activations["scheme"]


def computes_more(module: nn.Module) -> bool:
    """A Linear layer by its class that does something else than x W^T + b: BinaryLinear, QATLinear, a class of the user's. One whose weight is
    an ordinary one all the same says so by its attribute `has_plain_weight`."""
    if not isinstance(module, nn.Linear) or getattr(module, "has_plain_weight", False):
        return False
    return type(module).forward is not nn.Linear.forward or "forward" in vars(module)


def is_replaceable(module: nn.Module) -> bool:
    """A Linear layer that is called, and no more than that. nn.MultiheadAttention reads the weight of its own, which has a type of its own
    for that."""
    read_alone = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, nn.Linear) and not read_alone and not computes_more(module)


def _has_fused_experts(module: nn.Module) -> bool:
    """Experts as transformers has them: weights [experts, n, k]."""
    weight = module._parameters.get("down_proj")
    return weight is not None and weight.dim() == 3


def is_conv1d(module: nn.Module) -> bool:
    """transformers' Conv1D, of GPT-2 and its like: a Linear layer whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and module._parameters.get("weight") is not None


def linear_of_conv1d(module: nn.Module) -> nn.Linear:
    weight: Tensor = module._parameters["weight"]
    bias = module._parameters.get("bias")
    made = nn.Linear(*weight.shape, bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().T.contiguous(), weight.requires_grad)
    made.bias = bias
    return made.train(module.training)


def replace_conv1d(model: nn.Module, config: QuantizeConfig) -> None:
    """Puts nn.Linear layers in the place of the Conv1D ones that the config changes."""
    places = places_of(model)
    for name, module in list(model.named_modules()):
        if is_conv1d(module) and config.layer_scheme(name) is not None:
            replace_module(places, module, linear_of_conv1d(module))


def linear_layers(model: nn.Module, config: QuantizeConfig) -> list[tuple[str, nn.Linear, LayerScheme]]:
    """The layers that the config changes, in the model's order."""
    found = []
    for name, module in model.named_modules():
        if is_replaceable(module) and (scheme := config.layer_scheme(name)) is not None:
            found.append((name, module, scheme))
    return found


def checked_layers(
    caller: str, model: nn.Module, config: QuantizeConfig, experts: Mapping[str, nn.Module] | None = None
) -> list[tuple[str, nn.Linear, LayerScheme]]:
    """The same for a caller that must find some. A pattern that no Linear layer matches is warned of: mostly it is misspelt. So is a layer
    that stays as it is for what it computes. experts: the tensors of all experts that the caller changes too, and the modules they are of."""
    experts = experts or {}
    names = [name for name, module in model.named_modules() if is_replaceable(module)]
    others = {name: type(module).__name__ for name, module in model.named_modules() if computes_more(module)}
    some = ", ".join(names[:2] + ["..."] * (len(names) > 3) + names[2:][-1:])
    layers, known = linear_layers(model, config), set(names)
    if not names and not experts:
        quantized = any(type(module).__name__ == "QuantizedLinear" for module in model.modules())
        why = "its Linear layers are quantized already; start from the plain model" if quantized else "it has no nn.Linear"
        if others:
            kinds = ", ".join(sorted(set(others.values())))
            why = f"its Linear layers are {kinds}, which compute more than nn.Linear does (convert_ ends training, pack_binary_ packs signs)"
        raise InvalidArgument(f"{caller}: nothing to do in this model: {why}")
    if not layers and not experts:
        raise InvalidArgument(f"{caller}: the config matches none of the model's {len(names)} Linear layers: {some}")
    for name, module, _ in layers:
        if isinstance(vars(module).get("weight"), Tensor):
            raise InvalidArgument(
                f"{caller}: the weight of {name} is no parameter, a hook makes it anew for every call; end that first (remove_weight_norm, "
                "prune.remove)"
            )
    for name, kind in others.items():
        if config.layer_scheme(name) is not None:
            warnings.warn(f"{caller}: {name} stays as it is: a {kind} computes more than nn.Linear does", stacklevel=3)
    changed = set(experts.values())
    kept = [
        name for name, module in model.named_modules() if _has_fused_experts(module) and module not in changed and config.layer_scheme(name) is not None
    ]
    if kept:
        warnings.warn(
            f"{caller}: {kept[0]} and {len(kept) - 1} others hold the weights of all experts in one tensor, which stays as it is; `narrow "
            "quantize` quantizes them in the checkpoint, and from_pretrained loads that (narrow.torch.huggingface)",
            stacklevel=3,
        )
    for pattern in (*config.rules, *(set(config.ignore) - {"lm_head"})):
        if pattern not in known and not any(matches(pattern, name) for name in (*names, *others, *experts)):
            shown = re.sub(r"^re:\(\?:(.*)\)\$$", r"\1", pattern)
            warnings.warn(f"{caller}: '{shown}' matches none of the model's Linear layers: {some}", stacklevel=3)
    return layers


def places_of(model: nn.Module) -> dict[nn.Module, list[tuple[nn.Module, str]]]:
    """Where each module of a model stands, as parent and name; one that is shared has several places."""
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                places.setdefault(child, []).append((parent, name))
    return places


#: Where nn.Module keeps the hooks around its call.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


def replace_module(places: dict[nn.Module, list[tuple[nn.Module, str]]], old: nn.Module, new: nn.Module) -> None:
    """Puts a module in every place of another one, which is not held any longer, with the hooks around its call: their handles remain."""
    if old not in places:
        raise InvalidArgument(f"the model is itself a {type(old).__name__}, which nothing holds; wrap it first: nn.Sequential(layer)")
    for kind in _HOOKS:
        setattr(new, kind, getattr(old, kind))
    for parent, name in places.pop(old):
        setattr(parent, name, new)
