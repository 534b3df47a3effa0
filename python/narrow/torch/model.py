"""quantize_: the Linear layers of any model become QuantizedLinear, in place."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import with_progress
from ..checkpoints import CalibrationStatistics, Checkpoint, fit_weight
from ..errors import InvalidArgument
from ..quantization import quantize
from .config import LayerScheme, QuantizeConfig, checked_layers, inputs_of, places_of, replace_conv1d, replace_module
from .experts import FUSED_WEIGHTS, QuantizedExperts, check_inputs, fused_weights
from .factors import awq_factors, smooth_factors
from .linear import QuantizedLinear, QuantizedWeight


def quantize_(model: nn.Module, config: Any) -> nn.Module:
    """Quantizes a model's Linear layers in place, and gives it back; so are the experts of transformers' mixtures, by the method rtn.

    config: a scheme ("fp6_e3m2"), a preset ("W8A8", "FP8_DYNAMIC"), a dict of regular expressions over module names -> scheme, or a
    QuantizeConfig. `lm_head` stays as it is unless a config says otherwise, and so does what nn.MultiheadAttention holds. A model on the
    device meta gets layers there, to be filled by load_state_dict(state, assign=True). Tensors of all experts are matched by their own names,
    `....experts.gate_up_proj` and `....experts.down_proj`. GPT-2's Conv1D layers become Linear ones.
    """
    how = QuantizeConfig.of(config)
    replace_conv1d(model, how)
    experts = fused_weights(model, how) if how.method == "rtn" else []
    layers = checked_layers("quantize_", model, how, {name: module for name, module, _, _ in experts})
    for _, _, _, scheme in experts:
        check_inputs("quantize_", scheme.inputs)
    statistics = how.statistics
    if how.method != "rtn" and not isinstance(statistics, CalibrationStatistics):
        raise InvalidArgument(
            f"quantize_: the method {how.method} needs statistics of the layers' inputs; collect them with narrow.torch.calibrate"
        )
    if how.method != "rtn" and any(module.weight.is_meta for _, module, _ in layers):
        raise InvalidArgument(f"quantize_: the method {how.method} reads weights; on the device meta there are none")
    places = places_of(model)
    with torch.no_grad():
        factors = _channel_factors(layers, how) if how.scaling else {}
        for index in with_progress(range(len(layers)), "quantize", how.progress):
            name, module, scheme = layers[index]
            layers[index] = None  # so that its weight goes before the next one is made
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
            replace_module(places, module, layer.to(module.weight.device))
        for _, module, name, scheme in with_progress(experts, "experts", how.progress):
            plain = module._parameters[name]
            QuantizedExperts.of(plain, scheme.weights, scheme.inputs, FUSED_WEIGHTS[name]).to(plain.device).put_into(module, name)
    return model


def dequantize_(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """The reverse, in place: every QuantizedLinear becomes an nn.Linear with the values of its codes, experts a tensor, for tools that know no other.

    dtype: of the weights, the bias's own or fp32 by default. Inputs are not rounded any longer.
    """
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    places = places_of(model)
    experts = [module for module in places if isinstance(module, QuantizedExperts)]
    if not layers and not experts:
        raise InvalidArgument("dequantize_: the model has no QuantizedLinear")
    with torch.no_grad():
        for module in layers:
            replace_module(places, module, module.to_linear(dtype))
        for module in experts:
            plain = nn.Parameter(module.dequantize(dtype or torch.float32))
            for parent, name in places[module]:
                delattr(parent, name)
                parent.register_parameter(name, plain)
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


def _linear_at(model: nn.Module, name: str) -> nn.Linear:
    try:
        found = model.get_submodule(name)
    except AttributeError as error:
        raise InvalidArgument(f"load_checkpoint_: the checkpoint has {name}, which the model has not") from error
    if not isinstance(found, nn.Linear):
        raise InvalidArgument(f"load_checkpoint_: the checkpoint quantizes {name}, which is a {type(found).__name__} in the model, not a Linear")
    return found


def load_checkpoint_(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Loads a checkpoint that narrow quantized into a model of the same names: its quantized weights become QuantizedLinear layers, in
    place, whose inputs are rounded as its config.json says."""
    checkpoint = Checkpoint(path, framework="torch")
    activations = json.loads(checkpoint.config or "{}").get("quantization_config", {}).get("activations")
    state, places = {}, places_of(model)
    for name in checkpoint.names():
        if checkpoint.scheme(name) is None:
            state[name] = checkpoint.read(name)
            continue
        module = name.removesuffix(".weight")
        linear, q = _linear_at(model, module), checkpoint.read_quantized(name)
        if q.shape != (linear.out_features, linear.in_features):
            raise InvalidArgument(f"load_checkpoint_: {name} is {list(q.shape)} in the checkpoint and {list(linear.weight.shape)} in the model")
        inputs = inputs_of(activations, module)
        layer = QuantizedLinear(linear.in_features, linear.out_features, linear.bias is not None, str(q.scheme), inputs, device="meta")
        layer.weight, layer.bias = QuantizedWeight.of(q), linear.bias
        if layer.input_scale is not None:
            found = activations["scales"][module]
            layer.set_input_scale(found["scale"], found.get("zero_point", 0), device="cpu")
        replace_module(places, linear, layer)
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [name for name in missing if ".weight." not in name and not name.endswith((".input_scale", ".input_zero_point"))]
    if unexpected or lost:
        raise InvalidArgument(f"load_checkpoint_: the model and the checkpoint differ in {', '.join([*unexpected, *lost][:4])}")
    return model
