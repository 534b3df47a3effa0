"""quantize_: the Linear layers of any model become QuantizedLinear, in place."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from ..checkpoints import CalibrationStatistics, Checkpoint, fit_weight
from ..errors import InvalidArgument
from .config import QuantizeConfig, linear_layers, replace_module
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
        for name, module, scheme in layers:
            fitted = None
            if how.method != "rtn" and isinstance(statistics, CalibrationStatistics):
                moment = statistics.second_moment(name)
                if moment is None:
                    raise InvalidArgument(f"quantize_: the statistics of {name} have no second moments; calibrate with second_moments=True")
                fitted = fit_weight(module.weight.detach().cpu(), scheme.weights, moment, how.method).quantized
            layer = QuantizedLinear.from_linear(module, scheme.weights, scheme.inputs, how.input_scale(name, scheme.inputs), fitted)
            replace_module(model, name, layer.to(module.weight.device))
    return model


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
