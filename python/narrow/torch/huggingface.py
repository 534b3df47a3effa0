"""Hugging Face transformers: `import narrow.torch.huggingface`, and AutoModelForCausalLM.from_pretrained loads directories that narrow
quantized.

Also quantizes as it loads: from_pretrained(plain, quantization_config=NarrowConfig("fp6_e3m2")). The command reads what save_pretrained
writes of such models.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..errors import InvalidArgument, Unsupported
from .config import LayerScheme, QuantizeConfig, inputs_of, linear_layers, places_of, replace_module, rule_pair
from .linear import QuantizedLinear
from .model import quantize_


def _most_and_rest(values: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    """The value that most modules have, and a rule for each of the others."""
    most = Counter(values.values()).most_common(1)[0][0]
    return most, [{"match": name, "scheme": value} for name, value in values.items() if value != most]


@register_quantization_config("narrow")
class NarrowConfig(QuantizationConfigMixin):
    """The quantization_config of a narrow checkpoint's config.json: scheme, ignore, rules, activations."""

    def __init__(
        self,
        scheme: str = "int8:row",
        ignore: Any = ("lm_head",),
        rules: Any = (),
        activations: dict | None = None,
        targets: Any = ("Linear",),
        version: int = 1,
        **_: Any,
    ):
        self.quant_method = "narrow"
        layer = LayerScheme.of(scheme)
        self.scheme, self.ignore, self.targets, self.version = layer.weights, list(ignore), list(targets), version
        self.rules = list(rules)
        self.activations: dict[str, Any] | None = (
            activations if activations is not None else ({"scheme": layer.inputs, "rules": [], "scales": {}} if layer.inputs else None)
        )

    @classmethod
    def of(cls, model: Any) -> NarrowConfig:
        """What the layers of a model are that quantize_ made."""
        layers = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
        if not layers:
            raise InvalidArgument("save_pretrained: the model has no QuantizedLinear")
        if any(layer.input_factor is not None for layer in layers.values()):
            raise Unsupported(
                "save_pretrained: layers have factors on their inputs, for which config.json has no place; `narrow quantize --method` folds them"
            )
        scheme, rules = _most_and_rest({name: layer.scheme for name, layer in layers.items()})
        rounded = {name: layer.inputs for name, layer in layers.items() if layer.inputs}
        activations = None
        if rounded:
            inputs, input_rules = _most_and_rest(rounded)
            input_rules += [{"match": name, "scheme": "none"} for name in layers if name not in rounded]
            scales = {name: layer.static_scale() for name, layer in layers.items() if layer.input_scale is not None}
            activations = {"scheme": inputs, "rules": input_rules, "scales": scales}
        plain = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        return cls(scheme, plain, rules, activations)

    def to_dict(self) -> dict[str, Any]:
        fields = {
            "quant_method": "narrow",
            "version": self.version,
            "scheme": self.scheme,
            "targets": self.targets,
            "ignore": self.ignore,
            "rules": self.rules,
        }
        return fields if self.activations is None else {**fields, "activations": self.activations}

    def inputs_of(self, name: str) -> str:
        """The activation scheme of a module's input; empty: none."""
        return inputs_of(self.activations, name)

    def layers(self) -> QuantizeConfig:
        targets = [target for target in self.targets if target != "Linear"]
        rules = dict(map(rule_pair, self.rules))
        if not targets:
            return QuantizeConfig(self.scheme, ignore=tuple(self.ignore), rules=rules)
        return QuantizeConfig(None, ignore=tuple(self.ignore), rules={**rules, **{target: self.scheme for target in targets}})

    def layers_and_inputs(self, model: Any) -> QuantizeConfig:
        """The same for the layers of one model, with the rounding of each one's input."""
        found = linear_layers(model, self.layers())
        return QuantizeConfig(None, ignore=(), rules={name: LayerScheme(scheme.weights, self.inputs_of(name)) for name, _, scheme in found})


@register_quantizer("narrow")
class NarrowQuantizer(HfQuantizer):
    """Puts QuantizedLinear layers in place of Linear ones before the weights are read: narrow's files have their names and types."""

    quantization_config: NarrowConfig

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pre_quantized:
            return model
        config, places = self.quantization_config, places_of(model)
        for name, linear, scheme in linear_layers(model, config.layers()):
            bias = linear.bias is not None
            layer = QuantizedLinear(
                linear.in_features,
                linear.out_features,
                bias,
                scheme.weights,
                config.inputs_of(name),
                device="meta",
                dtype=linear.weight.dtype,
            )
            for parameter in layer.parameters():
                parameter.requires_grad_(False)
            replace_module(places, linear, layer)
        ignored = set(model._keys_to_ignore_on_load_missing or ())
        model._keys_to_ignore_on_load_missing = ignored | {r".*\.input_scale$", r".*\.input_zero_point$"}
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pre_quantized:
            return quantize_(model, self.quantization_config.layers_and_inputs(model))
        scales = (self.quantization_config.activations or {}).get("scales", {})
        for name, module in model.named_modules():
            if isinstance(module, QuantizedLinear) and module.input_scale is not None:
                found = scales[name]
                module.set_input_scale(found["scale"], found.get("zero_point", 0))
        return model

    def get_state_dict_and_metadata(self, model: Any, *_: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """What save_pretrained writes: with it, in every file, what the quantized tensors are, so that narrow's own command reads them.

        Static scales of inputs are in config.json already.
        """
        of_inputs = (".input_scale", ".input_zero_point")
        state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(of_inputs)}
        dtype = {torch.float32: "F32", torch.float16: "F16"}.get(model.dtype, "BF16")
        tensors = {
            f"{name}.weight": {"scheme": layer.scheme, "shape": list(layer.weight.shape), "source_dtype": dtype}
            for name, layer in model.named_modules()
            if isinstance(layer, QuantizedLinear)
        }
        return state, {"narrow_tensors": json.dumps(tensors)}

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True


def save_pretrained(model: Any, folder: str | os.PathLike[str], **options: Any) -> None:
    """model.save_pretrained of a transformers model that quantize_ made, as from_pretrained and narrow's command read it."""
    kept = model.__dict__.get("hf_quantizer"), model.config.__dict__.get("quantization_config")
    model.config.quantization_config = NarrowConfig.of(model)
    model.hf_quantizer = NarrowQuantizer(model.config.quantization_config)
    try:
        model.save_pretrained(folder, **options)
    finally:
        for place, name, value in ((model, "hf_quantizer", kept[0]), (model.config, "quantization_config", kept[1])):
            delattr(place, name) if value is None else setattr(place, name, value)
