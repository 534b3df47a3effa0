"""Hugging Face transformers: `import narrow.torch.huggingface`, and AutoModelForCausalLM.from_pretrained loads directories that narrow
quantized.

Also quantizes as it loads: from_pretrained(plain, quantization_config=NarrowConfig("fp6_e3m2")).
"""

from __future__ import annotations

from typing import Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .config import LayerScheme, QuantizeConfig, inputs_of, linear_layers, places_of, replace_module, rule_pair
from .linear import QuantizedLinear
from .model import quantize_


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

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True
