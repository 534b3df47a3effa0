"""quantize_: the Linear layers of any model become QuantizedLinear, in place."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import with_progress
from ..checkpoints import CalibrationStatistics, Checkpoint, fit_weight
from ..errors import InvalidArgument
from ..quantization import quantize
from .config import LayerScheme, QuantizeConfig, linear_layers, replace_module
from .factors import awq_factors, smooth_factors
from .linear import QuantizedLinear, QuantizedWeight


def quantize_(model: nn.Module, config: Any) -> nn.Module:
    """Quantizes a model's Linear layers in place, and gives it back.

    config: a scheme ("fp6_e3m2"), a preset ("W8A8", "FP8_DYNAMIC"), a dict of regular expressions over module names -> scheme, or a
    QuantizeConfig. `lm_head` stays as it is unless a config says otherwise.
    """
    how = QuantizeConfig.of(config)
    layers = linear_layers(model, how)
    if not layers:
        raise InvalidArgument("quantize_: no Linear layer of the model matches the config")
    statistics = how.statistics
    if how.method != "rtn" and not isinstance(statistics, CalibrationStatistics):
        raise InvalidArgument(
            f"quantize_: the method {how.method} needs statistics of the layers' inputs; collect them with narrow.torch.calibrate"
        )
    with torch.no_grad():
        factors = _channel_factors(layers, how) if how.scaling else {}
        for name, module, scheme in with_progress(layers, "quantize", how.progress):
            s = factors.get(name)
            weight = module.weight.detach() if s is None else module.weight.detach().float() * s
            fitted = None
            if how.fitting and isinstance(statistics, CalibrationStatistics):
                moment = _second_moment(statistics, name)
                if s is not None:
                    moment = moment / torch.outer(s, s).to(moment)
                fitted = fit_weight(weight.cpu(), scheme.weights, moment.contiguous(), how.fitting).quantized
            elif s is not None:
                fitted = quantize(weight, scheme.weights)
            layer = QuantizedLinear.from_linear(module, scheme.weights, scheme.inputs, how.input_scale(name, scheme.inputs, s), fitted)
            if s is not None:
                layer.input_factor = 1.0 / s
            replace_module(model, name, layer.to(module.weight.device))
    return model


def _second_moment(statistics: CalibrationStatistics, name: str) -> Tensor:
    moment = statistics.second_moment(name)
    if moment is None:
        raise InvalidArgument(f"quantize_: the statistics of {name} have no second moments; calibrate with second_moments=True")
    return torch.from_dlpack(moment)


def _channel_factors(layers: list[tuple[str, nn.Module, LayerScheme]], how: QuantizeConfig) -> dict[str, Tensor]:
    """By layer, the factors of its input, which all layers that read it share. Of inputs that are not rounded, SmoothQuant has none."""
    statistics = how.statistics
    assert isinstance(statistics, CalibrationStatistics)
    readers: dict[str, list[tuple[str, nn.Module, LayerScheme]]] = {}
    for layer in layers:
        readers.setdefault(statistics.shared_input(layer[0]), []).append(layer)
    factors = {}
    for source, group in with_progress(readers.items(), "+".join(how.scaling), how.progress):
        weights = [module.weight.detach().float() for _, module, _ in group]
        s = torch.ones(weights[0].shape[1], device=weights[0].device)
        if "smoothquant" in how.scaling and all(scheme.inputs for _, _, scheme in group):
            s = smooth_factors(weights, torch.from_dlpack(statistics.channel_max(source)).to(s.device), how.strength)
        if "awq" in how.scaling:
            moment = _second_moment(statistics, source).to(s.device)
            s = s * awq_factors([w * s for w in weights], [scheme.weights for _, _, scheme in group], moment / torch.outer(s, s))
        factors.update({name: s for name, _, _ in group if not bool((s == 1).all())})
    return factors


def load_checkpoint_(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Loads a checkpoint that narrow quantized into a model of the same names: its quantized weights become QuantizedLinear layers, in
    place."""
    checkpoint = Checkpoint(path, framework="torch")
    state = {}
    for name in checkpoint.names():
        if checkpoint.scheme(name) is None:
            state[name] = checkpoint.read(name)
            continue
        module = name.removesuffix(".weight")
        linear = model.get_submodule(module)
        layer = QuantizedLinear(
            linear.in_features, linear.out_features, linear.bias is not None, str(checkpoint.scheme(name)), device="meta"
        )
        layer.weight, layer.bias = QuantizedWeight.of(checkpoint.read_quantized(name)), linear.bias
        replace_module(model, module, layer)
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [name for name in missing if ".weight." not in name]
    if unexpected or lost:
        raise InvalidArgument(f"load_checkpoint_: the model and the checkpoint differ in {', '.join([*unexpected, *lost][:4])}")
    return model
